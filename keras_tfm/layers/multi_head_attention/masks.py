"""Creates, checks and combines boolean masks; True = attend.

All masks broadcast to the attention scores (..., H, T, S).
"""

from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_tfm.keras_internals import in_symbolic_scope
from keras_tfm.layers.types import DType, Shape, Size, Tensor, Window


def as_boolean(mask: Tensor, name: str) -> Tensor:
    """Returns `mask` as booleans. Of integers, all but 0 are True; floats raise a TypeError.

    A float mask is usually additive (0 = attend, -1e9 = hide). Cast to booleans it would mean the
    opposite.
    """
    mask = ops.convert_to_tensor(mask)
    dtype = keras.backend.standardize_dtype(mask.dtype)
    if dtype == "bool":
        return mask
    # Keras builds a subclassed model that it loads with float placeholders.
    if "int" in dtype or in_symbolic_scope():
        return ops.not_equal(mask, 0)
    raise TypeError(f"{name} must be boolean (True = attend), got {dtype}")


def check_shape(x: Tensor, name: str, expected: Shape, axes: str) -> None:
    """Raises unless the static shape of `x` is `expected`; tensors and None match any size."""
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
    """A padding mask of the keys, (..., S) -> (..., 1, 1, S)."""
    return ops.expand_dims(mask, (-3, -2))


def from_pairs(mask: Tensor) -> Tensor:
    """A mask of query-key pairs, (..., T, S) -> (..., 1, T, S)."""
    return ops.expand_dims(mask, -3)


def pairs(mask: Tensor, expected: Shape, before: str) -> Tensor:
    """An `attention_mask`, checked: (..., T, S), of what broadcasts to it.

    Args:
        mask: boolean; its axes are missing, 1 or of the expected size. (B, 1, T, S), for all heads,
            is accepted too.
        expected: (..., T, S); None or a tensor where a size is unknown.
        before: the leading axes, in errors.
    """
    whole = mask
    if len(mask.shape) == len(expected) + 1 and mask.shape[-3] == 1:
        mask = ops.squeeze(mask, -3)
    elif 2 <= len(mask.shape) < len(expected):
        mask = ops.expand_dims(mask, tuple(range(len(expected) - len(mask.shape))))
    sizes = tuple(mask.shape)
    if len(sizes) != len(expected) or any(
        isinstance(a, int) and isinstance(b, int) and a not in (1, b)
        for a, b in zip(sizes, expected, strict=True)
    ):
        check_shape(whole, "attention_mask", expected, f"({before}, T, S)")
    # Of both last axes, blocks of a long sequence and a step's columns take their part.
    if any(a == 1 and isinstance(b, int) for a, b in zip(sizes[-2:], expected[-2:], strict=True)):
        known = [
            b if a == 1 and isinstance(b, int) else size
            for a, b, size in zip(sizes[-2:], expected[-2:], ops.shape(mask)[-2:], strict=True)
        ]
        mask = ops.broadcast_to(mask, (*ops.shape(mask)[:-2], *known))
    return mask


def key_mask(name: str, mask: Tensor | None, keys: Tensor) -> Tensor | None:
    """Checks the padding mask of `keys` (..., S, D); returns (..., S), boolean; None stays None."""
    if mask is None:
        return None
    mask = as_boolean(mask, name)
    axes = "(B, S)" if len(keys.shape) == 3 else "(..., S)"
    check_shape(mask, name, tuple(keys.shape[:-1]), axes)
    return mask


def visible(length: Size, causal: bool, window: Window | None) -> Tensor | None:
    """The mask (T, T) of causality and window among T positions, or None if there is neither."""
    if not causal and window is None:
        return None
    return in_sight(distances(length, length, 0), causal, window)


def in_sight(distances: Tensor, causal: bool, window: Window | None) -> Tensor | None:
    """The mask (T, S) of causality and window, or None if neither hides a key.

    Args:
        distances: (T, S), the key's index minus the query's.
        causal: bool, hide keys after the query.
        window: int, hide keys at this distance or further; or a pair, those at the first distance
            or further before the query, and at the second after it; optional.
    """
    if window is None:
        return ops.less_equal(distances, 0) if causal else None
    before, after = sides(window)
    return combine(
        ops.less_equal(distances, 0) if causal else None,
        ops.greater(distances, -before),
        None if causal else ops.less(distances, after),
    )


def sides(window: Window) -> tuple[int, int]:
    """The distances, before and after a query, from which on it sees no key."""
    return window if isinstance(window, tuple) else (window, window)


def combine(*masks: Tensor | None) -> Tensor | None:
    """The logical "and" of the masks that are not None, broadcast; None if all are."""
    present = [mask for mask in masks if mask is not None]
    if not present:
        return None
    result = present[0]
    for mask in present[1:]:
        result = ops.logical_and(result, mask)
    return result


def distances(query_length: Size, key_length: Size, offset: Size) -> Tensor:
    """The key's index minus the query's, s - (offset + t): (T, S), int32."""
    if all(isinstance(x, int) for x in (query_length, key_length, offset)):
        keys = np.arange(key_length, dtype="int32")
        queries = np.arange(query_length, dtype="int32") + np.int32(offset)
        return ops.convert_to_tensor(keys - queries[:, np.newaxis])
    keys = ops.arange(key_length, dtype="int32")
    queries = ops.arange(query_length, dtype="int32") + offset
    return ops.expand_dims(keys, 0) - ops.expand_dims(queries, 1)


def sees_any(mask: Tensor, dtype: DType) -> Tensor:
    """1 where a query sees a key, 0 where it sees none: (..., T, 1)."""
    # The number of keys may be unknown or 0, and a maximum over no keys needs an initial value.
    some = {} if all(mask.shape) else {"initial": 0.0}
    return ops.cast(ops.max(ops.cast(mask, "float32"), axis=-1, keepdims=True, **some), dtype)


def penalty(mask: Tensor, masked_score: float) -> Tensor:
    """The mask as a float32 tensor to add to scores: 0 = attend, `masked_score` = hide."""
    return (ops.cast(mask, "float32") - 1.0) * -masked_score


def segment_mask(segments: Tensor) -> Tensor:
    """The block-diagonal `attention_mask` of packed rows: tokens attend within their own example.

    Args:
        segments: (B, T), integers, the example's number of each token, from `text.PackedBatches`;
            0 = padding.

    Returns:
        (B, T, T), boolean, True = the query sees the key. Padding sees nothing and is not seen.
        Causal layers apply causality in addition.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import segment_mask
    >>> np.array(segment_mask(np.array([[1, 1, 2, 0]]))).astype(int).tolist()
    [[[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]]
    """
    queries, keys = ops.expand_dims(segments, 2), ops.expand_dims(segments, 1)
    return ops.logical_and(ops.equal(queries, keys), ops.greater(queries, 0))


def in_groups(groups: Tensor, window: Window | None) -> Tensor:
    """The mask of causality among T tokens, and of all tokens of a group for each other.

    Args:
        groups: (B, T), int32, the number of each token's group; 0 = none.
        window: int, hide keys this far before the query, or further; optional.

    Returns:
        (B, T, T), boolean, True = the query sees the key.

    >>> import numpy as np
    >>> from keras_tfm.layers.multi_head_attention.masks import in_groups
    >>> np.array(in_groups(np.array([[0, 1, 1, 0]]), window=2)).astype(int).tolist()
    [[[1, 0, 0, 0], [1, 1, 1, 0], [0, 1, 1, 0], [0, 0, 1, 1]]]
    """
    length = groups.shape[1] if isinstance(groups.shape[1], int) else ops.shape(groups)[1]
    before = distances(length, length, 0)
    seen = ops.logical_or(ops.less_equal(before, 0), segment_mask(groups))
    return seen if window is None else ops.logical_and(seen, before > -sides(window)[0])


class ScoreTerms(NamedTuple):
    """The factor of the products, the bias that is added, and which scores are hidden.

    Attributes:
        scale: float, factor of the products.
        mask: boolean, broadcastable to (B, H, T, S), True = attend; optional.
        bias: float, broadcastable to (B, H, T, S); optional.
        causal: bool, whether query t sees only keys 0 to t. Requires T = S.
        window: int or pair, see `in_sight`. Requires T = S; optional.
    """

    scale: float
    mask: Tensor | None = None
    bias: Tensor | None = None
    causal: bool = False
    window: Window | None = None

    def whole_mask(self, length: Size) -> Tensor | None:
        """Mask, causality and window among T positions as one mask; None if all keys are seen."""
        return combine(visible(length, self.causal, self.window), self.mask)
