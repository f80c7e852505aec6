"""Makes the signatures of an exported file: functions of the model, not traced yet."""

import dataclasses
from collections.abc import Callable

import keras
import tensorflow as tf

from keras_tfm.export.signatures import stepped
from keras_tfm.export.signatures.host_caches import Caches
from keras_tfm.export.signatures.request import Request
from keras_tfm.export.signatures.signature import (
    Argument,
    Function,
    Signature,
    Tensors,
    for_edge,
    with_padding,
)
from keras_tfm.generation.interface import interface_of
from keras_tfm.generation.loop import GenerationLoop
from keras_tfm.generation.source_model import SourceModel
from keras_tfm.generation.stepped_model import positions_to_check
from keras_tfm.generation.stepping import check_stepping
from keras_tfm.generation.strategies import Strategy
from keras_tfm.runtime.manifest.records import Json


def make_signatures(request: Request) -> list[Signature]:
    """The requested signatures, not traced yet. Raises if the model cannot be stepped."""
    if not request.is_stepped:
        makers: dict[str, Callable[[], list[Signature]]] = {
            "predict": lambda: predict(request),
            "stream": lambda: stream(request),
        }
    else:
        assert request.max_length is not None
        length = positions_to_check(request.model, request.target, request.max_length)
        check_stepping(request.model, request.target, length=length)
        caches = Caches(request)
        if request.cache == "int8":
            caches.check_format()
        makers = {
            "predict": lambda: predict(request),
            "stream": lambda: stream(request),
            "generate": lambda: generate(request),
            "encode": lambda: stepped.encode(caches),
            "prefill": lambda: stepped.prefill(caches),
            "decode": lambda: [*stepped.decode(caches), *stepped.verify(caches)],
        }
    made = [signature for role in request.roles for signature in makers[role]()]
    return [
        dataclasses.replace(
            signature,
            inputs={
                name: _complete(request, signature.role, name, x)
                for name, x in signature.inputs.items()
            },
            # A SavedModel is served by TensorFlow, a .tflite file by LiteRT with XNNPACK.
            function=for_edge(signature.function, request.accelerator)
            if request.static
            else signature.function,
        )
        for signature in made
    ]


def _complete(request: Request, role: str, name: str, argument: Argument) -> Argument:
    """An argument with what holds for its input in every signature of a role."""
    # The pieces of a source have no padding.
    audio = None if argument.input is None or role == "stream" else argument.input.audio
    return dataclasses.replace(
        argument,
        is_padded=argument.is_padded or (audio is not None and audio.takes_shorter),
        needs_token=name in request.needing_a_token,
    )


def predict(request: Request) -> list[Signature]:
    """One full pass."""
    request.interface.check_output_rows()
    names, lengths = request.interface.names, dict[str, int | None]()
    is_open = request.static and request.max_length is not None and len(names) > 1
    if is_open and request.target not in request.own_lengths:
        lengths = {request.target: request.max_length}
    return [
        Signature(
            name,
            "predict",
            full_pass(request.model),
            with_padding(request.arguments(names, length, lengths), request.padded),
        )
        for name, length in request.named_lengths("predict")
    ]


def generate(request: Request) -> list[Signature]:
    """Ids in, tokens out, with the decoding loop and the KV caches inside the graph."""
    settings: Json = {
        "max_length": request.max_length,
        "start_id": request.start_id,
        "end_id": request.end_id_setting(),
        "pad_id": request.pad_id,
        "target": request.target,
        "strategy": _description(request.strategy),
    }
    result = []
    for name, length in request.named_lengths("generate"):
        others = request.arguments(request.others, length)
        for prompt_length in request.prompt_lengths or (None,):
            inputs, here, full_name = dict(others), dict(settings), name
            padding = request.own_name("padding")
            if prompt_length is not None:
                batch = request.batch_size
                prompt = tf.TensorSpec((batch, prompt_length), "int32")
                stepped_input = request.interface.inputs[request.target]
                inputs[request.target] = Argument(prompt, input=stepped_input)
                inputs[padding] = Argument(tf.TensorSpec((batch,), "int32"), "padding")
                here["prompt"] = request.target
                if 0 < len(request.default_prompt) <= prompt_length:
                    here["default_prompt"] = request.default_prompt
                if len(request.prompt_lengths) > 1:
                    full_name = f"{name}_{prompt_length}"
            result.append(
                Signature(
                    full_name,
                    "generate",
                    _loop(request),
                    with_padding(inputs, request.padded - {request.target} | request.masked_target),
                    here,
                )
            )
    return result


def _description(strategy: Strategy | None) -> Json | None:
    """A strategy's name, its numbers and strings, and its processors; None for greedy search."""
    if strategy is None:
        return None
    description: Json = {"name": type(strategy).__name__}
    if dataclasses.is_dataclass(strategy):
        settings = {x.name: getattr(strategy, x.name) for x in dataclasses.fields(strategy)}
        description |= {key: x for key, x in settings.items() if isinstance(x, int | float | str)}
        # `Drafted` holds the strategy whose tokens it makes.
        inside = {key: x for key, x in settings.items() if isinstance(x, Strategy)}
        description |= {key: _description(x) for key, x in inside.items()}
    if strategy.processors:
        description["processors"] = [
            getattr(x, "__name__", type(x).__name__) for x in strategy.processors
        ]
    return description


def _loop(request: Request) -> Function:
    """The function of "generate"."""

    def generate(inputs: Tensors) -> Tensors:
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
        loop = GenerationLoop(
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
            pad_id=request.pad_id,
            # LiteRT copies the caches at every step, so a separate loop over small caches pays off;
            # for the capacities see benchmarks/NOTES.md.
            capacity=32 if request.strategy is None or request.strategy.width == 1 else 96,
            int8_caches=request.cache == "int8",
        )
        return loop.run()

    return generate


def full_pass(model: keras.Model) -> Function:
    """The function of "predict": inputs by name -> outputs by name."""
    interface = interface_of(model)
    return lambda inputs: interface.name_outputs(interface.call(inputs))


def stream(request: Request) -> list[Signature]:
    """Reads a piece of the source at `position`; its outputs are those of `SourceModel`.

    `end` is the length of the source, or `UNKNOWN_END`. Of each output (1, N, ...) those from
    `final`[0, 0] to `final`[0, 1] are final. The states are returned whole: the host passes them to
    the next piece, and zeros to the first.
    """
    assert request.piece_length is not None
    model = SourceModel(request.model, request.piece_length)
    source, taken = model.target, [*model.interface.name_outputs(request.model.output)]

    def own_name(name: str) -> str:
        name = request.own_name(name)
        while name in taken:
            name += "_"
        return name

    names = {
        (entry, part): own_name(f"cache_{entry}_{part}")
        for entry, parts in model.states.items()
        for part in parts
    }
    position, end, final = map(own_name, ("position", "end", "final"))

    def function(given: Tensors) -> Tensors:
        states: dict[str, Tensors] = {}
        for (entry, part), name in names.items():
            states.setdefault(entry, {})[part] = given[name]
        numbers = (tf.reshape(given[name], ()) for name in (position, end))
        piece, after = model.run(states, given[source], *numbers)
        return {
            **piece.outputs,
            final: tf.reshape(tf.stack([piece.first, piece.last]), (1, 2)),
            **{name: after[entry][part] for (entry, part), name in names.items()},
        }

    known = request.interface.inputs[source]
    shape = (1, request.piece_length, *known.spec.shape[2:])
    number = tf.TensorSpec((1,), "int32")
    settings: Json = {
        "states": [*names.values()],
        "final": final,
        "delay": model.delay,
        "stride": model.stride,
    }
    inputs = {
        source: Argument(tf.TensorSpec(shape, known.spec.dtype), input=known),
        position: Argument(number, "position"),
        end: Argument(number, "end"),
    }
    for (entry, part), name in names.items():
        x = model.states[entry][part]
        inputs[name] = Argument(tf.TensorSpec(x.shape, x.dtype), "cache")
    return [Signature("stream", "stream", function, inputs, settings)]
