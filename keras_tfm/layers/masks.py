"""Boolean masks, True = attend: checked, made and combined here.

Every mask in the library broadcasts against the scores (B, H, T, S) of the attention core.
"""

from typing import Any

import keras
from keras import ops

Tensor = Any


def as_boolean(mask: Tensor, name: str) -> Tensor:
    """Returns `mask` as booleans; integers 0 and 1 are accepted, floats are refused.

    A float mask is most often additive (0 to attend, -1e9 to hide). Cast to booleans, that
    would attend to exactly what it means to hide.
    """
    mask = ops.convert_to_tensor(mask)
    dtype = keras.backend.standardize_dtype(mask.dtype)
    if dtype == "bool":
        return mask
    if "int" in dtype:
        return ops.not_equal(mask, 0)
    raise TypeError(f"{name} must be boolean (True = attend), got {dtype}")


def check_shape(mask: Tensor, name: str, expected: tuple[Any, ...], axes: str) -> None:
    """Raises unless the static shape of `mask` is `expected` (tensors and None match anything)."""
    shape = tuple(mask.shape)
    fits = len(shape) == len(expected) and all(
        want == got
        for want, got in zip(expected, shape, strict=True)
        if isinstance(want, int) and isinstance(got, int)
    )
    if not fits:
        wanted = ", ".join(str(d) if isinstance(d, int) else "?" for d in expected)
        raise ValueError(f"{name} must have shape {axes} = ({wanted}), got {shape}")


def from_keys(mask: Tensor) -> Tensor:
    """(B, S), which keys are real -> (B, 1, 1, S)."""
    return ops.expand_dims(mask, (1, 2))


def from_pairs(mask: Tensor) -> Tensor:
    """(B, T, S), which query sees which key -> (B, 1, T, S)."""
    return ops.expand_dims(mask, 1)


def causal(query_length: Any, key_length: Any, position: Any = 0) -> Tensor:
    """(1, 1, T, S): query t, at `position + t`, sees key s where s <= position + t."""
    queries = ops.expand_dims(ops.arange(query_length, dtype="int32"), 1) + position
    keys = ops.expand_dims(ops.arange(key_length, dtype="int32"), 0)
    return ops.expand_dims(ops.less_equal(keys, queries), (0, 1))


def combine(*masks: Tensor | None) -> Tensor | None:
    """The logical and of all masks given, or None where there is none."""
    present = [mask for mask in masks if mask is not None]
    if not present:
        return None
    result = present[0]
    for mask in present[1:]:
        result = ops.logical_and(result, mask)
    return result
