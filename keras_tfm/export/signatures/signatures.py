"""The signatures of an exported file: functions of the model and the specs of their inputs."""

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import keras
import tensorflow as tf

from keras_tfm.export.signatures.request import Request
from keras_tfm.generation.loop import generation_loop
from keras_tfm.generation.model_inputs import call_model, input_names
from keras_tfm.generation.position_tables import positions_to_check
from keras_tfm.generation.stepping import check_stepping
from keras_tfm.generation.strategies import Strategy
from keras_tfm.layers.target import export_target


@dataclass
class Signature:
    """A named function of tensors, ready for tracing.

    Attributes:
        name: the signature's name in the file.
        role: one of `manifest_fields.ROLES`.
        function: from a dictionary of the inputs by name to the outputs by name.
        inputs: the spec of each input.
        vocabulary_sizes: the number of ids of each input that an embedding reads.
        settings: further entries of the manifest.
        padded: the inputs whose rows may be padded.
        pad_ids: the padding id of each input of ids (B, S).
        paddings: where it is padding, see `generation.pad_ids.paddings`.
        inputs_of_tokens: the inputs that follow from the tokens of another one.
        needing_a_token: the inputs whose rows need at least one token.
        kinds: the kind, of `manifest_fields.KINDS`, of each input that the exporter named.
        end_ids: the id that rows of an input must contain, see `generation.end_ids`.
        of_text: whether it takes strings.
        sample_rates: the sample rate of each input of audio.
    """

    name: str
    role: str
    function: Callable[[dict[str, Any]], dict[str, Any]]
    inputs: dict[str, tf.TensorSpec]
    vocabulary_sizes: dict[str, int]
    settings: dict[str, Any] = field(default_factory=dict)
    padded: frozenset[str] = frozenset()
    pad_ids: dict[str, int] = field(default_factory=dict)
    paddings: dict[str, str] = field(default_factory=dict)
    inputs_of_tokens: dict[str, tuple[str, str]] = field(default_factory=dict)
    needing_a_token: frozenset[str] = frozenset()
    kinds: dict[str, str] = field(default_factory=dict)
    end_ids: dict[str, int] = field(default_factory=dict)
    of_text: bool = False
    sample_rates: dict[str, int] = field(default_factory=dict)

    @cached_property
    def parameters(self) -> dict[str, str]:
        """The parameter of the TensorFlow function for each input, which must be an identifier.

        Other names are changed: "a b" to "a_b", "self" to "input_self".
        """
        kept = [x for x in self.inputs if re.fullmatch("[A-Za-z][A-Za-z0-9_]*", x) and x != "self"]
        result = {name: name for name in kept}
        for name in [name for name in self.inputs if name not in result]:
            new = re.sub("[^A-Za-z0-9_]", "_", name)
            if not new[:1].isalpha() or new == "self":
                new = f"input_{new}"
            while new in result.values():
                new += "_"
            result[name] = new
        return {name: result[name] for name in self.inputs}

    @cached_property
    def traced(self) -> Any:
        """The concrete function of `parameters`; traced once."""

        def run(**given: Any) -> dict[str, Any]:
            return self.function({name: given[x] for name, x in self.parameters.items()})

        specs = {
            parameter: tf.TensorSpec(self.inputs[name].shape, self.inputs[name].dtype, parameter)
            for name, parameter in self.parameters.items()
        }
        return tf.function(run, autograph=False).get_concrete_function(**specs)

    def manifest(self) -> dict[str, Any]:
        """The signature's entry in the manifest."""
        described = {}
        for name, spec in self.inputs.items():
            described[name] = {"shape": list(spec.shape), "dtype": spec.dtype.name}
            described[name]["kind"] = self.kinds.get(name, "input")
            described[name]["padded"] = name in self.padded
            if name in self.pad_ids:
                described[name]["pad_id"] = self.pad_ids[name]
            # A prompt has no padding but that on its left, which the loop knows.
            stepped = self.role != "predict" and name == self.settings.get("target")
            if name in self.paddings and not stepped:
                described[name]["padding"] = self.paddings[name]
            if name in self.inputs_of_tokens:
                kind, tokens = self.inputs_of_tokens[name]
                described[name][kind] = tokens
            if name in self.needing_a_token:
                described[name]["needs_token"] = True
            if name in self.end_ids:
                described[name]["end_id"] = self.end_ids[name]
            if name in self.sample_rates:
                described[name]["sample_rate"] = self.sample_rates[name]
            if name in self.vocabulary_sizes:
                described[name]["vocabulary_size"] = self.vocabulary_sizes[name]
        return {"role": self.role, "inputs": described, **self.settings}


def make_signatures(request: Request) -> list[Signature]:
    """The requested signatures, not traced yet. Raises if the model cannot be stepped."""
    from keras_tfm.export.signatures import stepped

    if request.roles != ["predict"]:
        assert request.max_length is not None
        length = positions_to_check(request.model, request.target, request.max_length)
        check_stepping(request.model, request.target, length=length)

    caches = stepped.Caches(request)
    caches.check_format()
    makers: dict[str, Callable[[], list[Signature]]] = {
        "predict": lambda: predict(request),
        "generate": lambda: generate(request),
        "encode": lambda: stepped.encode(caches),
        "prefill": lambda: stepped.prefill(caches),
        "decode": lambda: [*stepped.decode(caches), *stepped.verify(caches)],
    }
    made = [signature for role in request.roles for signature in makers[role]()]
    padded_audio = {name for name, layer in request.audio.items() if layer.length is not None}
    return [
        dataclasses.replace(
            signature,
            sample_rates={name: layer.sample_rate for name, layer in request.audio.items()},
            padded=signature.padded | padded_audio,
            pad_ids=request.pad_ids,
            paddings=request.paddings,
            inputs_of_tokens=request.inputs_of_tokens,
            needing_a_token=request.needing_a_token,
            end_ids=request.end_tokens,
            # A SavedModel is served by TensorFlow, a .tflite file by LiteRT with XNNPACK.
            function=for_edge(signature.function, request.accelerator)
            if request.static
            else signature.function,
        )
        for signature in made
    ]


def for_edge(function: Callable[..., Any], accelerator: str = "cpu") -> Callable[..., Any]:
    """The function, traced for LiteRT with XNNPACK ("cpu") or a GPU delegate ("gpu")."""

    def run(inputs: dict[str, Any]) -> Any:
        with export_target(f"{accelerator}-edge"):
            return function(inputs)

    return run


def predict(request: Request) -> list[Signature]:
    """One full pass."""
    model, names = request.model, input_names(request.model)
    lengths: dict[str, int | None] = {}
    is_open = request.static and request.max_length is not None and len(names) > 1
    if is_open and request.target not in request.own_lengths:
        lengths = {request.target: request.max_length}
    return [
        Signature(
            name,
            "predict",
            full_pass(model),
            request.specs(names, length, lengths),
            request.vocabulary_sizes,
            padded=request.padded,
        )
        for name, length in request.named_lengths("predict")
    ]


def generate(request: Request) -> list[Signature]:
    """Ids in, tokens out, with the decoding loop and the KV caches inside the graph."""
    settings: dict[str, Any] = {
        "max_length": request.max_length,
        "start_id": request.start_id,
        "end_id": request.end_id_setting(),
        "pad_id": request.pad_ids.get(request.target, 0),
        "target": request.target,
        "strategy": _described(request.strategy),
    }
    result = []
    for name, length in request.named_lengths("generate"):
        specs = request.specs(request.others, length)
        for prompt_length in request.prompt_lengths or (None,):
            inputs, here, full_name = dict(specs), dict(settings), name
            padding = request.own_name("padding")
            if prompt_length is not None:
                batch = request.batch_size
                inputs[request.target] = tf.TensorSpec((batch, prompt_length), "int32")
                inputs[padding] = tf.TensorSpec((batch,), "int32")
                here["prompt"] = request.target
                if 0 < len(request.default_prompt) <= prompt_length:
                    here["default_prompt"] = request.default_prompt
                if len(request.prompt_lengths) > 1:
                    full_name = f"{name}_{prompt_length}"
            result.append(
                Signature(
                    full_name,
                    "generate",
                    _generate(request),
                    inputs,
                    request.vocabulary_sizes,
                    here,
                    request.padded - {request.target} | request.masked_target,
                    kinds={padding: "padding"},
                )
            )
    return result


def _described(strategy: Strategy | None) -> dict[str, Any] | None:
    """A strategy's name, its numbers and strings, and its processors; None for greedy search."""
    if strategy is None:
        return None
    described: dict[str, Any] = {"name": type(strategy).__name__}
    if dataclasses.is_dataclass(strategy):
        settings = {x.name: getattr(strategy, x.name) for x in dataclasses.fields(strategy)}
        described |= {key: x for key, x in settings.items() if isinstance(x, int | float | str)}
        # `Drafted` holds the strategy whose tokens it makes.
        inside = {key: x for key, x in settings.items() if isinstance(x, Strategy)}
        described |= {key: _described(x) for key, x in inside.items()}
    if strategy.processors:
        described["processors"] = [
            getattr(x, "__name__", type(x).__name__) for x in strategy.processors
        ]
    return described


def _generate(request: Request) -> Callable[..., dict[str, Any]]:
    def generate(inputs: dict[str, Any]) -> dict[str, Any]:
        assert request.max_length is not None
        inputs = dict(inputs)
        prompt = inputs.pop(request.target, None)
        padding = inputs.pop(request.own_name("padding"), None)
        length, limit = request.max_length, None
        if prompt is None:
            first = next(iter(inputs.values()))
            batch = first.shape[0] if first.shape[0] is not None else tf.shape(first)[0]
            prompt = tf.fill((batch, 1), tf.constant(request.start_id, tf.int32))
        else:
            # Prompts are padded on the left: the capacity includes the longest padding.
            length += prompt.shape[1] - 1
            limit = padding + request.max_length
        return generation_loop(
            request.model,
            inputs,
            request.target,
            prompt,
            length,
            request.end_ids,
            request.strategy,
            score=False,
            padding=padding,
            limit=limit,
            pad_id=request.pad_ids.get(request.target, 0),
            # LiteRT copies the caches at every step, so a separate loop over small caches pays off;
            # for the capacities see benchmarks/NOTES.md.
            capacity=32 if request.strategy is None or request.strategy.width == 1 else 96,
            int8_caches=request.cache == "int8",
        )

    return generate


def full_pass(model: keras.Model) -> Callable[..., dict[str, Any]]:
    """The function of "predict": inputs by name -> outputs by name."""

    def predict(inputs: dict[str, Any]) -> dict[str, Any]:
        return named_outputs(model, call_model(model, inputs))

    return predict


def named_outputs(model: keras.Model, outputs: Any) -> dict[str, Any]:
    """A model's outputs by their names in a file."""
    if isinstance(outputs, dict):
        return outputs
    flat = keras.tree.flatten(outputs)
    if len(flat) == 1:
        return {"output": flat[0]}
    names: list[str] = []
    for name in model.output_names:  # outputs of the same layer have the same name
        unique, number = name, 1
        while unique in names:
            unique, number = f"{name}_{number}", number + 1
        names.append(unique)
    return dict(zip(names, flat, strict=True))
