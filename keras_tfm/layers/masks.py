"""Boolean masks, True = attend: checked, made and combined here.

Every mask in the library broadcasts against the scores (B, H, T, S) of the attention core.
"""

from typing import Any

import keras
import numpy as np
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


def check_shape(x: Tensor, name: str, expected: tuple[Any, ...], axes: str) -> None:
    """Raises unless the static shape of `x` is `expected` (tensors and None match anything)."""
    shape = tuple(x.shape)
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


def from_distances(distances: Tensor, causal: bool, window: int | None) -> Tensor | None:
    """(T, S), the key's position minus the query's -> (1, 1, T, S), or None where all is seen.

    `causal` hides what comes after the query, `window` what is `window` or more positions away.
    """
    seen = combine(
        ops.less_equal(distances, 0) if causal else None,
        None if window is None else ops.greater(distances, -window),
        None if window is None or causal else ops.less(distances, window),
    )
    return None if seen is None else ops.expand_dims(seen, (0, 1))


def combine(*masks: Tensor | None) -> Tensor | None:
    """The logical and of all masks given, or None where there is none."""
    present = [mask for mask in masks if mask is not None]
    if not present:
        return None
    result = present[0]
    for mask in present[1:]:
        result = ops.logical_and(result, mask)
    return result


def distances(query_length: Any, key_length: Any, offset: Any) -> Tensor:
    """The key's position minus the query's, s - (offset + t): (T, S), int32."""
    if all(isinstance(x, int) for x in (query_length, key_length, offset)):
        keys = np.arange(key_length, dtype="int32")
        queries = np.arange(query_length, dtype="int32") + np.int32(offset)
        return ops.convert_to_tensor(keys - queries[:, np.newaxis])
    keys = ops.arange(key_length, dtype="int32")
    queries = ops.arange(query_length, dtype="int32") + offset
    return ops.expand_dims(keys, 0) - ops.expand_dims(queries, 1)


def segment_mask(segments: Tensor) -> Tensor:
    """The block-diagonal `attention_mask` of packed rows: a token attends to its own example.

    Args:
        segments: (B, T), integers, from `text.PackedBatches`; 0 is padding.

    Returns:
        (B, T, T), boolean, True = the query attends to the key. Padding attends to nothing, and
        nothing attends to padding. Causal layers apply causality on top.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import segment_mask
    >>> np.array(segment_mask(np.array([[1, 1, 2, 0]]))).astype(int).tolist()
    [[[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]]
    """
    queries, keys = ops.expand_dims(segments, 2), ops.expand_dims(segments, 1)
    return ops.logical_and(ops.equal(queries, keys), ops.greater(queries, 0))
