"""Attention as a pure function, for full passes. A decoding step has `stepped_attention`.

Under JAX and PyTorch it is the backend's fused attention where that gives the same: flash attention
on a GPU.
"""

from collections.abc import Callable
from typing import cast

import keras
from keras import ops

from keras_tfm.layers.dropout import DrawnDropout
from keras_tfm.layers.multi_head_attention import masks
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


# A mask of more values (B, T, S) is cut into blocks: half a GiB in bfloat16.
LARGE = 2**28


def is_fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    soft_cap: float | None,
    dropout: Callable[[Tensor], Tensor] | None,
    extra_values: Callable[[Tensor], Tensor] | None,
) -> bool:
    """Whether `fused_attention` gives the same result as `attention`, and is worth calling.

    On TensorFlow Keras's operation is no faster than `attention` and also stores the scores
    (B, H, T, S). A probe, extra values and dropout by other functions than `Dropout` need the
    attention weights. In float16 the CPU kernels multiply in float16, where scores of activations
    near 1e3 overflow.
    """
    if keras.backend.backend() not in ("jax", "torch") or current_target.get().is_edge:
        return False
    if soft_cap is not None or extra_values is not None or len(query.shape) != 4:
        return False
    if dropout is not None:
        is_drawn = isinstance(dropout, DrawnDropout) and 0 < dropout.layer.rate < 1
        # On JAX the products are cast to float32 where that is necessary.
        return is_drawn and (keras.backend.backend() == "jax" or _is_safe(query))
    if keras.backend.backend() == "jax" and query.shape[-1] != value.shape[-1]:
        return False  # JAX requires K = V
    return _is_safe(query)


def stores_no_scores(
    query: Tensor,
    key: Tensor,
    given: tuple[Tensor | None, ...],
    window: Window | None,
    is_dropped: bool,
) -> bool:
    """Whether the memory of `fused_attention` grows with T and S instead of T x S.

    Where it does, there is no reason to call it for blocks of a long sequence.

    Args:
        query: (B, H, T, K), for which `is_fused` holds.
        key: (B, G, S, K).
        given: tuple of masks, those of keys and of pairs; each is optional (None).
        window: int or pair, window of the attention; optional.
        is_dropped: bool, whether the attention weights are dropped out.
    """
    backend = keras.backend.backend()
    if backend == "jax" and is_dropped:
        return True
    if not _is_on_gpu(query):
        return False
    is_masked = any(mask is not None for mask in given)
    if is_masked and query.shape[0] * query.shape[-2] * key.shape[-2] > LARGE:
        return False  # cuDNN's mask, or PyTorch's, is that large
    if backend == "torch":
        return window is None  # blocks of a window hold fewer pairs
    from keras_tfm.layers.jax.flash_attention import is_available

    return is_available(query, key) and (window is None or not is_masked)


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    terms: ScoreTerms,
    dropout: DrawnDropout | None,
) -> Tensor:
    """dropout(softmax(QK^T scale + bias)) V by the backend's fused operation.

    On JAX that is cuDNN's flash attention for float16 and bfloat16 on an NVIDIA GPU, and elsewhere
    `jax.nn.dot_product_attention`; cuDNN's dropout has no seed that a program could choose, so that
    attention with dropout is computed by `dropped_attention`. On PyTorch it is
    `scaled_dot_product_attention`, dropout included.

    Args:
        query: (B, H, T, K).
        key: (B, G, S, K).
        value: (B, G, S, V).
        terms: `ScoreTerms`. A query that sees no key gets zeros.
        dropout: `DrawnDropout` of the attention weights; optional.

    Returns:
        (B, H, T, V) in the dtype of `value`.
    """
    compute = _on_torch if keras.backend.backend() == "torch" else _on_jax
    y = ops.cast(compute(query, key, value, terms, dropout), value.dtype)
    if terms.mask is None:  # every query sees its own key
        return y
    return y * _sees_any(terms, query.shape[-2], value.dtype)


def _on_torch(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    terms: ScoreTerms,
    dropout: DrawnDropout | None,
) -> Tensor:
    from keras_tfm.layers.torch import scaled_attention as sdpa

    rate = 0.0 if dropout is None else dropout.layer.rate
    if dropout is None or dropout.own_seed is None:
        return sdpa.scaled_attention(query, key, value, terms, rate)
    return sdpa.seeded_attention(query, key, value, terms, rate, dropout.own_seed)


def _on_jax(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    terms: ScoreTerms,
    dropout: DrawnDropout | None,
) -> Tensor:
    import jax

    from keras_tfm.layers.jax import dropped_attention, flash_attention

    terms = terms._replace(mask=_four_axes(terms.mask), bias=_four_axes(terms.bias))
    if dropout is not None:
        rate, seed = dropout.layer.rate, dropout.seed
        return dropped_attention.dropped_attention(query, key, value, terms, rate, seed)
    dtype = jax.numpy.result_type(query, key, value)
    query, key, value = (x.astype(dtype) for x in (query, key, value))
    if flash_attention.is_available(query, key):
        return flash_attention.flash_attention(query, key, value, terms)
    is_causal = terms.causal and terms.mask is None and terms.window is None
    mask = None if is_causal else _four_axes(terms.whole_mask(query.shape[-2]))
    # Not Keras's operation: it prints a traceback where cuDNN refuses a call, and on a TPU it
    # takes a mask from the first example alone and attention without one for causal.
    y = jax.nn.dot_product_attention(
        *(swap(x, -2, -3) for x in (query, key, value)),
        bias=None if terms.bias is None else terms.bias.astype(dtype),
        mask=mask,
        scale=terms.scale,
        is_causal=is_causal,
        implementation="xla",
    )
    return swap(y, -2, -3)


def _four_axes(x: Tensor | None) -> Tensor | None:
    """A mask or bias with the axes that it lacks of (B, H, T, S)."""
    return None if x is None else ops.reshape(x, (*(1,) * (4 - len(x.shape)), *x.shape))


def _sees_any(terms: ScoreTerms, length: int, dtype: DType) -> Tensor:
    """1 where a query sees a key, 0 where it sees none: (..., T | 1, 1)."""
    mask = _four_axes(terms.mask)
    assert mask is not None
    if terms.causal and terms.window is None and mask.shape[-2] == 1:
        # Of keys alone: a running sum in place of a mask of pairs.
        seen = ops.greater(ops.cumsum(ops.cast(mask, "int32"), axis=-1), 0)
        return ops.cast(swap(seen, -1, -2), dtype)
    return masks.sees_any(terms.whole_mask(length), dtype)


def _is_safe(query: Tensor) -> bool:
    """Whether products cannot overflow: CPU kernels multiply float16 in float16."""
    return keras.backend.standardize_dtype(query.dtype) != "float16" or _is_on_gpu(query)


def _is_on_gpu(x: Tensor) -> bool:
    if keras.backend.backend() == "torch":
        return bool(x.is_cuda)
    from keras_tfm.layers.jax.flash_attention import platform

    return platform() == "gpu"
