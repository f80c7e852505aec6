"""Finds out how a model treats padding: pads its inputs and compares the outputs."""

import functools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_tfm.generation.model_inputs import call_model, input_specs, inputs_of_tokens
from keras_tfm.generation.pad_ids import paddings
from keras_tfm.runtime.decoding.trailing_padding import REAL_PAD


def invisibly_padded(
    model: keras.Model, names: Sequence[str], sizes: dict[str, int], pad_ids: dict[str, int]
) -> frozenset[str]:
    """The inputs of ids among `names` whose padding does not change the outputs.

    Each is padded with its own padding id. If inputs must have equal lengths, all are padded.
    """
    specs = input_specs(model)
    ids = tuple(key for key in pad_ids if specs[key].shape[1] is None)
    # Masks of other dtypes than integers.
    masks = [
        key
        for key, (kind, _) in inputs_of_tokens(model).items()
        if kind == "mask_of" and key not in pad_ids and specs[key].shape[1] is None
    ]
    # A row without the token that the tokenizer appends would get it from its padding.
    ended = [name for name, where in paddings(model).items() if where == "after_end"]

    @functools.cache
    def outputs(difference: int, longer: tuple[str, ...]) -> list[np.ndarray] | None:
        """With padding after the ids of `longer`; None if inputs must have equal lengths."""
        inputs = _some_rows(specs, sizes, pad_ids, difference)
        for key in masks:
            inputs[key] = np.ones_like(inputs[key])
        for key in ended:
            inputs[key][:, -1] = REAL_PAD
        for key in (*longer, *(masks if longer == ids else ())):
            value = pad_ids.get(key, 0)
            inputs[key] = np.pad(inputs[key], ((0, 0), (0, 3)), constant_values=value)
        return _outputs(model, inputs)

    def is_invisible(name: str) -> bool:
        for difference, longer in ((1, (name,)), (0, ids)):
            short, long = outputs(difference, ()), outputs(difference, longer)
            if short is not None and long is not None:
                return all(_as_before(*pair) for pair in zip(short, long, strict=True))
        return False

    return frozenset(name for name in names if name in ids and is_invisible(name))


def needing_a_token(
    model: keras.Model, names: Sequence[str], sizes: dict[str, int], pad_ids: dict[str, int]
) -> frozenset[str]:
    """The inputs of ids among `names` for which a row of padding alone makes an output NaN.

    A masked average, for instance, divides by the number of tokens.
    """
    specs, found = input_specs(model), set()
    rows = _some_rows(specs, sizes, pad_ids, 0)
    for name in names:
        if name in pad_ids:
            blank = {**rows, name: np.full_like(rows[name], pad_ids[name])}
            if any(np.isnan(y).any() for y in _outputs(model, blank) or ()):
                found.add(name)
    return frozenset(found)


def _outputs(model: keras.Model, inputs: dict[str, Any]) -> list[np.ndarray] | None:
    """The outputs in float32; None if the model does not accept the inputs."""
    try:
        flat = keras.tree.flatten(call_model(model, inputs))
        return [keras.ops.convert_to_numpy(keras.ops.cast(y, "float32")) for y in flat]
    except Exception:
        return None


def _some_rows(
    specs: dict[str, Any], sizes: dict[str, int], pad_ids: dict[str, int], difference: int
) -> dict[str, Any]:
    """Rows of every input: random ones, then rows that repeat one id.

    Each input is `difference` longer than the one before it.
    """
    generator = np.random.default_rng(0)
    inputs = {}
    for i, (key, x) in enumerate(specs.items()):
        shape = (12, *(5 + i * difference if d is None else d for d in x.shape[1:]))
        if "int" in x.dtype or key in sizes:
            size = sizes.get(key, 2)  # unknown: ids 0 and 1, which every vocabulary has
            ids = np.setdiff1d(np.arange(size), pad_ids.get(key, 0)) if size > 1 else np.arange(1)
            values: Any = generator.choice(ids, shape)
            if key in pad_ids:
                chosen = np.linspace(0, len(ids) - 1, 8).astype(int)
                values[4:] = ids[chosen][:, np.newaxis]
        else:
            values = generator.normal(size=shape)
        inputs[key] = values.astype(x.dtype)
    return inputs


def _as_before(short: np.ndarray, long: np.ndarray) -> bool:
    """Whether outputs are equal up to float32 rounding and 0.1% of their standard deviation."""
    if short.shape != long.shape:
        long = long[:, : short.shape[1]]
    finite = np.isfinite(short)
    if not np.array_equal(short[~finite], long[~finite]):
        return False
    numbers = short[finite]
    allowed = 1e-3 * (numbers.std() if numbers.size else 0.0) + 1e-5 * np.abs(numbers)
    return bool((np.abs(numbers - long[finite]) <= allowed).all())
