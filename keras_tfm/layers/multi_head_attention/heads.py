"""Splits, merges, groups and scales attention heads.

Reshapes use as few graph operations as possible: `ops.shape` adds one for every unknown dimension,
and `ops.reshape` one more to pack them. A single unknown dimension becomes -1 instead, at no cost.

Example:

>>> import numpy as np
>>> from keras_tfm.layers.multi_head_attention.heads import merge_heads, split_heads
>>> x = np.ones((2, 5, 6), "float32")
>>> split_heads(x, num_heads=3).shape.as_list()
[2, 3, 5, 2]
>>> merge_heads(split_heads(x, num_heads=3)).shape.as_list()
[2, 5, 6]
"""

import keras
from keras import ops

from keras_tfm.layers.types import Size, Tensor


def leading(x: Tensor, count: int) -> tuple[Size, ...]:
    """The first `count` dimensions of `x`, for a reshape: integers, one -1, scalar tensors."""
    known = [d if isinstance(d, int) else None for d in tuple(x.shape)[:count]]
    if known.count(None) <= 1:
        return tuple(-1 if d is None else d for d in known)
    dimensions = list(ops.shape(x)[:count])
    dimensions[known.index(None)] = -1
    return tuple(dimensions)


def split_last(x: Tensor, *sizes: int) -> Tensor:
    """(..., N) -> (..., *sizes), where N is their product."""
    return ops.reshape(x, (*leading(x, len(x.shape) - 1), *sizes))


def merge_last(x: Tensor) -> Tensor:
    """Merges the last two dimensions, which must be known: (..., M, N) -> (..., M N)."""
    rows, columns = x.shape[-2:]
    return ops.reshape(x, (*leading(x, len(x.shape) - 2), rows * columns))


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(..., T, H*K) -> (..., H, T, K)."""
    *_, length, width = tuple(x.shape)
    if _is_one(length):  # nothing to transpose: a step of decoding
        before = leading(x, len(x.shape) - 2)
        return ops.reshape(x, (*before, num_heads, 1, width // num_heads))
    return swap(split_last(x, num_heads, width // num_heads), -2, -3)


def merge_heads(x: Tensor) -> Tensor:
    """(..., H, T, K) -> (..., T, H*K)."""
    *_, num_heads, length, head_dim = tuple(x.shape)
    if _is_one(length):
        return ops.reshape(x, (*leading(x, len(x.shape) - 3), 1, num_heads * head_dim))
    return merge_last(swap(x, -2, -3))


def swap(x: Tensor, first: int, second: int) -> Tensor:
    """Swaps two axes of `x`."""
    axes = list(range(len(x.shape)))
    axes[first], axes[second] = axes[second], axes[first]
    return ops.transpose(x, axes)


def group_heads(x: Tensor, groups: int) -> Tensor:
    """(..., H, T, K) -> (..., G, H/G T, K): the queries of each group, one head after another."""
    *_, heads, length, width = tuple(x.shape)
    if heads == groups:
        return x
    each = heads // groups
    rows = each * length if isinstance(length, int) else each * ops.shape(x)[-2]
    width = width if isinstance(width, int) else ops.shape(x)[-1]
    return ops.reshape(x, (*leading(x, len(x.shape) - 3), groups, rows, width))


def ungroup_heads(x: Tensor, heads: int, like: Tensor) -> Tensor:
    """The inverse of `group_heads`; `like` is a tensor (..., T, K) to take T from."""
    groups = x.shape[-3]
    if heads == groups:
        return x
    length, width = like.shape[-2], x.shape[-1]
    length = length if isinstance(length, int) else ops.shape(like)[-2]
    width = width if isinstance(width, int) else ops.shape(x)[-1]
    return ops.reshape(x, (*leading(x, len(x.shape) - 3), heads, length, width))


def scale_query(query: Tensor, scale: float) -> Tensor:
    """`query` times `scale`; float16 queries are cast to float32.

    Activations near 1e3 give scores above 65,504, the largest float16.
    """
    if scale != 1.0:
        query = query * ops.cast(scale, query.dtype)
    is_half = keras.backend.standardize_dtype(query.dtype) == "float16"
    return ops.cast(query, "float32") if is_half else query


def _is_one(length: Size) -> bool:
    """Whether a length is 1 in every call; PyTorch's tracer hands out that of its example."""
    return isinstance(length, int) and length == 1
