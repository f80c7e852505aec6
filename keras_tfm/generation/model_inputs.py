"""The inputs of a functional model: names, the stepped input, vocabulary sizes, pictures.

Example:

>>> from keras_tfm.generation.model_inputs import find_target, input_names, vocabulary_sizes
>>> from keras_tfm.models import transformer
>>> model = transformer(11, 13, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
>>> input_names(model), find_target(model)
(['source', 'target'], 'target')
>>> sorted(vocabulary_sizes(model).items())
[('source', 11), ('target', 13)]
"""

from typing import Any

import keras

from keras_tfm.generation.tokenizers.keras_hub_models import keras_hub_hint, refuse_keras_hub
from keras_tfm.keras_internals import calls_of, producer
from keras_tfm.layers import (
    EndTokenPooling,
    ImageNormalization,
    LogMelSpectrogram,
    SegmentEmbedding,
    TokenEmbedding,
)

# Names in transformers and in KerasHub.
_SEGMENTS = ("segments", "segment_ids", "token_type_ids")
_MASKS = ("attention_mask", "padding_mask", "input_mask")


def input_names(model: keras.Model) -> list[str]:
    """The names by which a functional model takes its inputs."""
    if not hasattr(model, "inputs") or not hasattr(model, "operations"):
        raise TypeError(
            "expected a functional keras.Model (made of keras.Input and layers), "
            f"got {type(model).__name__}"
            + (
                "; once it is built, keras.Model(model.inputs, model.outputs) is functional"
                if isinstance(model, keras.Sequential)
                else ""
            )
        )
    struct = model.input
    values = list(struct.values()) if isinstance(struct, dict) else struct
    for x in values if isinstance(values, list | tuple) else [values]:
        if not isinstance(x, keras.KerasTensor):
            raise TypeError(
                "expected a model whose inputs are one tensor, a list of them, or a dictionary, "
                f"got {type(x).__name__} among them"
            )
    if isinstance(struct, dict):
        return list(struct)
    # An input without a name has the name of its layer.
    return [producer(x).operation.name for x in model.inputs]


def call_model(model: keras.Model, inputs: dict[str, Any]) -> Any:
    """The model's outputs in inference mode, from inputs by name."""
    arguments: Any = inputs
    if isinstance(model.input, keras.KerasTensor):
        (arguments,) = inputs.values()
    elif not isinstance(model.input, dict):
        arguments = [inputs[name] for name in input_names(model)]
    return model(arguments, training=False)


def find_target(model: keras.Model, target: str | None = None) -> str:
    """The name of the stepped input: `target` if given, else "target", or the only input."""
    names = input_names(model)
    refuse_keras_hub(model)
    if target is None:
        target = "target" if "target" in names or len(names) > 1 else names[0]
    if target not in names:
        raise ValueError(
            f"the model has no input {target!r} to step, its inputs are {names}: "
            f"choose one with target=...{keras_hub_hint(model)}"
        )
    return target


def input_specs(model: keras.Model) -> dict[str, keras.KerasTensor]:
    """The symbolic inputs by name."""
    struct = model.input
    if isinstance(struct, dict):  # not flattened, which would sort it
        return dict(struct)
    return dict(zip(input_names(model), model.inputs, strict=True))


def vocabulary_sizes(model: keras.Model) -> dict[str, int]:
    """The vocabulary size of each input that goes directly into an embedding, by name."""
    inputs = {id(x): name for name, x in input_specs(model).items()}
    sizes: dict[str, int] = {}
    for operation in model.operations:
        if isinstance(operation, TokenEmbedding):
            taken: list[int | None] = [operation.vocabulary_size]
        elif isinstance(operation, keras.layers.Embedding):
            taken = [operation.input_dim]
        elif isinstance(operation, SegmentEmbedding):
            taken = [None, operation.num_segments]
        elif isinstance(operation, keras.Model) and hasattr(operation, "operations"):
            inner = vocabulary_sizes(operation)
            names = {id(x): name for name, x in input_specs(operation).items()}
            taken = [inner.get(names[id(x)]) for x in keras.tree.flatten(operation.input)]
        else:
            continue
        for node in calls_of(operation):
            for x, size in zip(node.input_tensors, taken, strict=False):
                if id(x) in inputs and size is not None:
                    name = inputs[id(x)]
                    sizes[name] = min(size, sizes.get(name, size))
    return sizes


def inputs_of_tokens(model: keras.Model) -> dict[str, tuple[str, str]]:
    """The inputs that follow from the tokens of another one: what they are, and the other's name.

    "segments_of": the token types that a `SegmentEmbedding` reads, or an input named as those are
    in `transformers` and KerasHub; "mask_of": an input with the name of a padding mask there.

    >>> from keras_tfm.generation.model_inputs import inputs_of_tokens
    >>> from keras_tfm.models import bert
    >>> inputs_of_tokens(bert(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16))
    {'segments': ('segments_of', 'tokens')}
    """
    specs = {name: x for name, x in input_specs(model).items() if len(x.shape) == 2}
    kinds: dict[str, str] = {}
    names = {id(x): name for name, x in specs.items()}
    for operation in model.operations:
        if isinstance(operation, SegmentEmbedding):
            for node in calls_of(operation):
                segments = [names[id(x)] for x in node.input_tensors[1:] if id(x) in names]
                kinds |= dict.fromkeys(segments, "segments_of")
    for name, x in specs.items():
        if "int" in x.dtype and name in _SEGMENTS:
            kinds[name] = "segments_of"
        elif name in _MASKS:
            kinds[name] = "mask_of"
    others = [name for name, x in specs.items() if "int" in x.dtype and name not in kinds]
    ids = [name for name in others if name in vocabulary_sizes(model)] or others
    return {name: (kind, ids[0]) for name, kind in kinds.items()} if len(ids) == 1 else {}


def end_tokens(model: keras.Model) -> dict[str, int]:
    """The end token of each input that an `EndTokenPooling` reads, by name.

    >>> from keras_tfm.generation.model_inputs import end_tokens
    >>> from keras_tfm.models import clip_text
    >>> sizes = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 16}
    >>> end_tokens(clip_text(11, end_id=2, **sizes))
    {'tokens': 2}
    """
    inputs = {id(x): name for name, x in input_specs(model).items()}
    found: dict[str, int] = {}
    for operation in model.operations:
        if isinstance(operation, EndTokenPooling) and operation.end_id is not None:
            for node in calls_of(operation):
                if id(node.input_tensors[-1]) in inputs:
                    found[inputs[id(node.input_tensors[-1])]] = operation.end_id
    return found


def image_inputs(model: keras.Model) -> frozenset[str]:
    """The inputs that only an `ImageNormalization` reads: pixels from 0 to 255.

    >>> from keras_tfm.generation.model_inputs import image_inputs
    >>> from keras_tfm.models import vit
    >>> model = vit(16, 8, dim=12, num_layers=1, num_heads=3, intermediate_dim=16)
    >>> image_inputs(model)
    frozenset({'pixels'})
    """
    return frozenset(_inputs_of(model, ImageNormalization))


def audio_inputs(model: keras.Model) -> dict[str, LogMelSpectrogram]:
    """The inputs that only a `LogMelSpectrogram` reads, and that layer.

    >>> from keras_tfm.generation.model_inputs import audio_inputs
    >>> from keras_tfm.models import whisper
    >>> sizes = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 16}
    >>> {name: layer.length for name, layer in audio_inputs(whisper(11, **sizes)).items()}
    {'audio': 480000}
    """
    return _inputs_of(model, LogMelSpectrogram)


def _inputs_of(model: keras.Model, kind: type[Any]) -> dict[str, Any]:
    """The inputs that only layers of a class read, and one of these layers."""
    names = {id(x): name for name, x in input_specs(model).items()}
    readers: dict[str, list[Any]] = {}
    for operation in model.operations:
        inner: dict[int, Any] = {}
        if isinstance(operation, keras.Model) and hasattr(operation, "operations"):
            found = _inputs_of(operation, kind)
            inner = {id(x): found.get(name) for name, x in input_specs(operation).items()}
        taken = [inner[id(x)] for x in keras.tree.flatten(operation.input)] if inner else []
        for node in calls_of(operation):
            for i, x in enumerate(node.input_tensors):
                if id(x) in names:
                    own = operation if isinstance(operation, kind) else None
                    readers.setdefault(names[id(x)], []).append(taken[i] if taken else own)
    return {name: known[0] for name, known in readers.items() if None not in known}
