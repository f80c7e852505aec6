"""What an exported file offers: functions over the one model, with their inputs spelled out."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_tfm.generation.generator import check_ids, end_ids_of
from keras_tfm.generation.loop import generation_loop
from keras_tfm.generation.model_inputs import (
    call_model,
    find_target,
    input_names,
    input_specs,
    vocabulary_sizes,
)
from keras_tfm.generation.stepping import check_stepping
from keras_tfm.layers.decoding_scope import exporting

NAMES = ("generate", "predict")


@dataclass
class Signature:
    """A named function of tensors, ready for `keras.export.ExportArchive`."""

    name: str
    function: Callable[..., dict[str, Any]]
    inputs: dict[str, tf.TensorSpec]
    vocabulary_sizes: dict[str, int]
    settings: dict[str, Any] = field(default_factory=dict)
    padded: frozenset[str] = frozenset()

    def manifest(self) -> dict[str, Any]:
        """The signature for the manifest of a file."""
        described = {}
        for name, spec in self.inputs.items():
            described[name] = {"shape": list(spec.shape), "dtype": spec.dtype.name}
            described[name]["padded"] = name in self.padded
            if name in self.vocabulary_sizes:
                described[name]["vocabulary_size"] = self.vocabulary_sizes[name]
        return {"inputs": described, **self.settings}


def make_signatures(
    model: keras.Model,
    names: Sequence[str] | None,
    batch_size: int | None,
    source_length: int | None,
    max_length: int | None,
    start_id: int | None,
    end_id: int | None,
    target: str | None,
    static: bool,
) -> list[Signature]:
    """The signatures asked for, checked; nothing is traced yet.

    Args:
        model: functional.
        names: of "generate" and "predict"; None: "generate" where a `start_id` is given, otherwise
            "predict".
        batch_size, source_length, max_length: the static sizes; None leaves an axis open.
        start_id, end_id, target: as in `generation.Generator`.
        static: whether every axis must have a size.
    """
    input_names(model)  # refuses what is not functional
    if names is None:
        names = ["generate"] if start_id is not None else ["predict"]
    unknown = [name for name in names if name not in NAMES]
    if unknown or not names or len(set(names)) < len(names):
        raise ValueError(f"signatures must be among {list(NAMES)}, got {list(names)}")
    # NumPy's integers become Python's: the manifest is JSON.
    batch_size, source_length, max_length, start_id, end_id = (
        None if value is None else operator.index(value)
        for value in (batch_size, source_length, max_length, start_id, end_id)
    )
    for name, value in (("batch_size", batch_size), ("source_length", source_length)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")

    sizes = vocabulary_sizes(model)
    padded = frozenset(
        name
        for name, x in input_specs(model).items()
        if "int" in x.dtype and padding_is_invisible(model, name, sizes)
    )
    result = []
    for name in names:
        if name == "generate":
            stepped = find_target(model, target)
            if max_length is None or start_id is None:
                raise ValueError(
                    "a generate signature needs max_length and start_id, "
                    f"got max_length={max_length}, start_id={start_id}"
                )
            check_ids(model, stepped, max_length, start_id, end_ids_of(end_id))
            specs = _specs(model, batch_size, source_length, {}, static, leave_out=stepped)
            if not specs:
                raise ValueError(
                    f"{model.name} has no input but {stepped!r}: a generate signature that begins "
                    "with start_id would always give the same tokens"
                )
            check_stepping(model, stepped, length=max_length)
            settings = {
                "max_length": max_length, "start_id": start_id, "end_id": end_id, "pad_id": 0,
            }  # fmt: skip
            result.append(
                Signature(name, _generate(model, stepped, settings), specs, sizes, settings, padded)
            )
        else:
            lengths = {}
            if static and max_length is not None and len(input_names(model)) > 1:
                lengths = {find_target(model, target): max_length}
            specs = _specs(model, batch_size, source_length, lengths, static)
            result.append(Signature(name, _predict(model), specs, sizes, padded=padded))
    return result


def padding_is_invisible(model: keras.Model, name: str, sizes: dict[str, int]) -> bool:
    """Whether zeros after the ids of input `name` change none of the model's outputs for them."""
    if input_specs(model)[name].shape[1:] != (None,):
        return False
    generator = np.random.default_rng(0)

    def outputs(padding: int) -> list[np.ndarray]:
        inputs = dict(shared)
        inputs[name] = np.pad(shared[name], ((0, 0), (0, padding)))
        flat = keras.tree.flatten(call_model(model, inputs))
        return [keras.ops.convert_to_numpy(keras.ops.cast(y, "float32")) for y in flat]

    shared = {}
    for i, (key, x) in enumerate(input_specs(model).items()):
        shape = (2, *(5 + i if d is None else d for d in x.shape[1:]))
        if "int" in x.dtype or key in sizes:
            size = sizes.get(key, 3)  # unknown inside a nested model: ids that any has
            values: Any = generator.integers(min(1, size - 1), size, shape)
        else:
            values = generator.normal(size=shape)
        shared[key] = values.astype(x.dtype)
    try:
        pairs = list(zip(outputs(0), outputs(3), strict=True))
    except Exception:  # other inputs must have the same length
        return False
    return all(
        np.allclose(
            short,
            long if short.shape == long.shape else long[:, : short.shape[1]],
            rtol=1e-2,
            atol=1e-3,
        )
        for short, long in pairs
    )


def _specs(
    model: keras.Model,
    batch_size: int | None,
    length: int | None,
    lengths: dict[str, int],
    static: bool,
    leave_out: str | None = None,
) -> dict[str, tf.TensorSpec]:
    """A tensor specification for each input; unknown axes after the batch get `length`."""
    specs = {}
    for name, x in input_specs(model).items():
        if name == leave_out:
            continue
        here = lengths.get(name, length)
        shape = [batch_size, *(here if d is None else d for d in x.shape[1:])]
        if static and None in shape:
            raise ValueError(
                f"input {name!r} has shape {tuple(x.shape)}: give source_length, the length it is "
                "exported for"
                + (" (and max_length, the target's)" if len(model.inputs) > 1 else "")
            )
        specs[name] = tf.TensorSpec(shape, x.dtype, name=name)
    return specs


def _generate(
    model: keras.Model, target: str, settings: dict[str, Any]
) -> Callable[..., dict[str, Any]]:
    def generate(**inputs: Any) -> dict[str, Any]:
        first = next(iter(inputs.values()))
        batch = first.shape[0] if first.shape[0] is not None else tf.shape(first)[0]
        prompt = tf.fill((batch, 1), tf.constant(settings["start_id"], tf.int32))
        return generation_loop(
            model,
            inputs,
            target,
            prompt,
            settings["max_length"],
            end_ids_of(settings["end_id"]),
            score=False,
        )

    return generate


def _predict(model: keras.Model) -> Callable[..., dict[str, Any]]:
    def predict(**inputs: Any) -> dict[str, Any]:
        with exporting():
            outputs = call_model(model, inputs)
        if isinstance(outputs, dict):
            return outputs
        flat = keras.tree.flatten(outputs)
        names: list[str] = []
        for name in model.output_names:  # one layer's outputs have one name
            unique, number = name, 1
            while unique in names:
                unique, number = f"{name}_{number}", number + 1
            names.append(unique)
        if len(flat) == 1:
            return {"output": flat[0]}
        return dict(zip(names, flat, strict=True))

    return predict
