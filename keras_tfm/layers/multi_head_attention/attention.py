"""Attention as a pure function, for full passes. A decoding step has `stepped_attention`."""

from collections.abc import Callable
from typing import cast

from keras import ops

from keras_tfm.layers.dropout import DrawnDropout
from keras_tfm.layers.multi_head_attention import masks
from keras_tfm.layers.multi_head_attention.fused_attention import fused_attention, is_fused
from keras_tfm.layers.multi_head_attention.heads import (
    group_heads,
    scale_query,
    swap,
    ungroup_heads,
)
from keras_tfm.layers.multi_head_attention.masks import ScoreTerms
from keras_tfm.layers.target import current_target
from keras_tfm.layers.types import DType, Tensor, Window


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    causal: bool = False,
    dropout: Callable[[Tensor], Tensor] | None = None,
    extra_scores: Tensor | None = None,
    extra_values: Callable[[Tensor], Tensor] | None = None,
    window: Window | None = None,
) -> Tensor:
    """Scaled dot-product attention, softmax(QK^T scale + bias) V.

    "Attention Is All You Need" (arXiv:1706.03762), equation 1. With fewer key heads than query
    heads (G < H, where G divides H), query head h reads key head h // (H/G), without repeating
    keys (grouped-query attention, arXiv:2305.13245). On JAX and PyTorch the backend's fused
    operation (flash attention on a GPU) is used where it gives the same result: no soft cap, no
    extra values, no dropout but that of a `DrawnDropout`, and no float16 on a CPU.

    Args:
        query: float tensor (..., H, T, K), with any number of leading axes.
        key: float tensor (..., G, S, K). Leading axes of size 1 are broadcast to those of `query`.
        value: float tensor (..., G, S, V), likewise.
        mask: boolean tensor, broadcastable to (..., H, T, S); True = attend. A query that sees no
            key gets zeros.
        bias: float tensor, broadcastable to (..., H, T, S), added to the scaled scores.
        scale: float, factor of the scores. Default: 1/sqrt(K).
        soft_cap: float, c in c tanh(score / c), which keeps scores within (-c, c). Applied before
            the bias (Gemma 2, arXiv:2408.00118).
        causal: bool, whether query t sees only keys 0 to t, in addition to `mask`. Requires T = S.
        dropout: function applied to the attention weights (..., H, T, S), for instance a
            `keras.layers.Dropout`. A `DrawnDropout` may be fused with the softmax, or its gradient.
        extra_scores: float tensor, broadcastable to (..., H, T, S), added to the scaled products of
            queries and keys, before the soft cap.
        extra_values: function from the attention weights after dropout to a tensor that is added to
            the result (..., H, T, V).
        window: int, query t sees only keys less than `window` away, in addition to `mask`; or a
            pair, less than the first before it and less than the second after it. Requires T = S.

    Returns:
        (..., H, T, V) in the dtype of `value`. The softmax is taken in float32.

    Raises:
        ValueError: G does not divide H.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import attention
    >>> query = np.ones((1, 1, 1, 4), "float32")
    >>> key = np.ones((1, 1, 2, 4), "float32")
    >>> value = np.array([[[[1.0], [3.0]]]], "float32")
    >>> float(attention(query, key, value)[0, 0, 0, 0])
    2.0
    >>> float(attention(query, key, value, mask=np.array([True, False]))[0, 0, 0, 0])
    1.0
    """
    query, key, value = (ops.convert_to_tensor(x) for x in (query, key, value))
    check_heads(query, key)
    key, value = (_broadcast_rows(x, query) for x in (key, value))
    if key.shape[-2] == 0:  # softmax over an empty axis is an error
        return ops.zeros((*ops.shape(query)[:-1], value.shape[-1]), dtype=value.dtype)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    own = None if mask is None else masks.as_boolean(mask, "mask")
    if is_fused(query, key, value, soft_cap, dropout, extra_values):
        terms = ScoreTerms(scale, own, joined_bias(extra_scores, bias), causal, window)
        return fused_attention(query, key, value, terms, cast(DrawnDropout, dropout))
    mask = masks.combine(masks.visible(ops.shape(query)[-2], causal, window), own)
    query = scale_query(query, scale)
    scores = grouped_products(query, key)
    if extra_scores is not None:
        scores = scores + ops.cast(extra_scores, "float32")
    if soft_cap is not None:
        scores = soft_cap * ops.tanh(scores / soft_cap)
    if bias is not None:
        scores = scores + ops.cast(bias, "float32")
    if mask is not None:
        scores = _mask_scores(scores, mask)

    if extra_values is None and isinstance(dropout, DrawnDropout) and dropout.is_joined(scores):
        groups = key.shape[-3]
        output = ungroup_heads(
            dropout.weighted_sum(group_heads(scores, groups), value), query.shape[-3], query
        )
    else:
        weights = softmax(scores, value.dtype)
        if dropout is not None:
            weights = dropout(weights)
        output = grouped_sums(weights, value)
        if extra_values is not None:
            output = output + extra_values(weights)
    # Every query sees its own key under causality or in a window, unless `mask` hides it.
    return output if own is None else output * masks.sees_any(mask, value.dtype)


def _broadcast_rows(x: Tensor, query: Tensor) -> Tensor:
    """Keys or values with leading axes of size 1 broadcast to those of the queries.

    JAX's fused attention refuses them, and TensorFlow on a CPU (oneDNN) writes out of bounds in
    products (B, 1, T, K) @ (1, 1, K, S) with B >= 3.
    """
    before, wanted = tuple(x.shape)[:-3], tuple(query.shape)[:-3]
    if len(before) != len(wanted):
        return x
    if all(one != 1 or other == 1 for one, other in zip(before, wanted, strict=True)):
        return x
    return ops.broadcast_to(x, (*ops.shape(query)[:-3], *ops.shape(x)[-3:]))


def check_heads(query: Tensor, key: Tensor) -> None:
    """Raises unless G divides H."""
    heads, groups = query.shape[-3], key.shape[-3]
    if heads % groups:
        raise ValueError(
            f"the number of key heads ({groups}) must divide the number of query heads ({heads})"
        )


def softmax(scores: Tensor, dtype: DType) -> Tensor:
    """Softmax over the last axis, computed in float32 and cast to `dtype`."""
    if scores.shape[-1] == 1:
        return ops.ones_like(scores, dtype=dtype)  # Keras's softmax warns about a single column
    return ops.cast(ops.softmax(scores, axis=-1), dtype)


def joined_bias(*parts: Tensor | None) -> Tensor | None:
    """The sum of the parts that are not None, in float32; None if all are."""
    result = None
    for part in parts:
        if part is not None:
            part = ops.cast(part, "float32")
            result = part if result is None else result + part
    return result


def grouped_products(query: Tensor, key: Tensor) -> Tensor:
    """(..., H, T, K), (..., G, S, K) -> q k^T (..., H, T, S), float32."""
    key = ops.cast(key, query.dtype)
    products = ops.matmul(group_heads(query, key.shape[-3]), swap(key, -1, -2))
    return ungroup_heads(ops.cast(products, "float32"), query.shape[-3], query)


def grouped_sums(weights: Tensor, value: Tensor) -> Tensor:
    """(..., H, T, S), (..., G, S, V) -> (..., H, T, V)."""
    sums = ops.matmul(group_heads(weights, value.shape[-3]), value)
    return ungroup_heads(sums, weights.shape[-3], weights)


def _mask_scores(scores: Tensor, mask: Tensor) -> Tensor:
    """Scores (..., H, T, S), float32, masked so that hidden keys get zero weight."""
    target = current_target.get()
    if target.is_edge:  # XNNPACK does not delegate a select: it would split the graph
        return scores + masks.penalty(mask, target.masked_score)
    return ops.where(mask, scores, target.masked_score)
