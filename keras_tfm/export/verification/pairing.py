"""Whether a file can be an export of a model: inputs, outputs and builder arguments compared."""

from collections.abc import Iterator, Sequence

import keras

from keras_tfm.generation.interface import interface_of
from keras_tfm.models.identity import describe
from keras_tfm.runtime.loaded_file import LoadedFile
from keras_tfm.runtime.manifest.manifest import Predict, Stepped


def check_pair(model: keras.Model, file: LoadedFile) -> None:
    """Raises a ValueError that lists the differences if `file` cannot be an export of `model`."""
    found = list(dict.fromkeys(_differences(model, file)))
    if found:
        raise ValueError(f"{file.path} is not an export of {model.name}: {'; '.join(found)}")


def other_arguments(model: keras.Model, file: LoadedFile) -> str:
    """The builder arguments that differ, for an error; empty if none do or if none are known."""
    ours, theirs = describe(model), file.manifest.model
    if ours is None or theirs is None:
        return ""
    if ours["family"] != theirs.family:
        return f"the model is a {ours['family']}, the file a {theirs.family}"
    mine, other = ours["arguments"], theirs.arguments
    different = [
        f"{key} ({mine.get(key)!r} in the model, {other.get(key)!r} in the file)"
        for key in {**mine, **other}
        if mine.get(key) != other.get(key)
    ]
    return f"different arguments: {', '.join(different)}" if different else ""


def _differences(model: keras.Model, file: LoadedFile) -> Iterator[str]:
    interface = interface_of(model)
    own = interface.inputs
    for signature in file.signatures.values():
        inputs, taken = signature.inputs, set(signature.of_kind("input"))
        target = signature.target if isinstance(signature, Stepped) else None
        if isinstance(signature, Predict) and taken != set(own):
            yield f"the model has the inputs {sorted(own)}, the file {sorted(taken)}"
            continue
        if missing := sorted({*taken, *([target] if target else [])} - set(own)):
            yield f"the model has no input {', '.join(map(repr, missing))} (it has {list(own)})"
            continue
        for key in sorted(taken):
            known = inputs[key].vocabulary_size
            size, shape = own[key].vocabulary_size, own[key].spec.shape
            if known != size:
                yield f"{key!r} has {size} ids in the model, {known} in the file"
            if key != target and not _fits(shape, inputs[key].shape):
                yield (
                    f"{key!r} has the shape {tuple(shape)} in the model, "
                    f"{tuple(inputs[key].shape)} in the file"
                )
        if isinstance(signature, Predict):
            outputs = interface.name_outputs(model.output)
            shapes = {key: tuple(x.shape) for key, x in outputs.items()}
            theirs = {key: tuple(x.shape) for key, x in signature.outputs.items()}
            if set(shapes) != set(theirs) or not all(_fits(shapes[k], theirs[k]) for k in shapes):
                yield f"the model has the outputs {shapes}, the file {theirs}"


def _fits(shape: Sequence[int | None], exported: Sequence[int]) -> bool:
    """Whether a static shape in a file fits a shape of the model; the batch size may differ."""
    pairs = list(zip(shape, exported, strict=False))[1:]
    return len(shape) == len(exported) and all(d is None or d == n for d, n in pairs)
