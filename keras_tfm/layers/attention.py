"""The pure core: the only softmax(QK^T)V in the project."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_tfm.layers.decoding_scope import for_device
from keras_tfm.layers.dropout import DrawnDropout
from keras_tfm.layers.masked_score import masked_score

Tensor = Any

# What is added to the scores of masked keys on a device, where selecting would cut the graph.
# Finite, so that a masked row stays finite, and far inside float16's 65,504, so that a delegate
# that computes in half precision may add scores to it.
MASKED = -3e4


def attention(
    query: Tensor,
    key: Tensor | tuple[Tensor, ...],
    value: Tensor | tuple[Tensor, ...],
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    dropout: Callable[[Tensor], Tensor] | None = None,
    extra_scores: Callable[[Tensor], Tensor | None] | None = None,
    extra_values: Callable[[Tensor], Tensor | None] | None = None,
    own: bool = False,
) -> Tensor:
    """Scaled dot-product attention, softmax(QK^T scale + bias) V.

    "Attention Is All You Need" (arXiv:1706.03762), equation 1. With fewer key than query heads
    (G < H, G dividing H) query head h reads key head h // (H/G), without repeating keys
    (grouped-query attention, arXiv:2305.13245).

    Args:
        query: (B, H, T, K).
        key: (B, G, S, K), or several which lie side by side, as if they were joined along S: a
            cache and what is new, which nobody has to copy into one tensor.
        value: (B, G, S, V), or as many.
        mask: boolean, broadcastable to (B, H, T, S); True = attend. A query whose every key is
            masked gets zeros.
        bias: float, broadcastable to (B, H, T, S), added to the scaled scores.
        scale: factor of the scores; 1/sqrt(K) by default.
        soft_cap: c in c tanh(score / c), which keeps scores within (-c, c), before the bias
            (Gemma 2, arXiv:2408.00118).
        dropout: applied to the attention weights (B, H, T, S), a `keras.layers.Dropout` for
            instance. That of a `DrawnDropout` may be joined with the softmax's gradient.
        extra_scores: given the scaled query (B, H, T, K), what to add to the products with the keys
            (B, H, T, S), or None.
        extra_values: given the attention weights after dropout, what to add to the result
            (B, H, T, V), or None.
        own: of several keys, whether the last are the queries' own, (B, G, T, K), of which each
            query sees one alone: together one column of the scores, the last.

    Returns:
        (B, H, T, V) in the dtype of `value`. The softmax is taken in float32.

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
    query = ops.convert_to_tensor(query)
    keys, values = (
        [ops.convert_to_tensor(part) for part in (x if isinstance(x, tuple) else (x,))]
        for x in (key, value)
    )
    batch, num_heads, query_length, head_dim = ops.shape(query)
    num_key_heads, key_lengths = keys[0].shape[1], [ops.shape(part)[2] for part in keys]
    own_key = own_value = None
    if own:
        own_key, own_value, key_lengths[-1] = keys.pop(), values.pop(), 1
    key_length, value_dim = sum(key_lengths), values[0].shape[-1]
    if num_heads % num_key_heads:
        raise ValueError(
            f"the number of key heads ({num_key_heads}) must divide "
            f"the number of query heads ({num_heads})"
        )
    grouped = num_key_heads != num_heads
    dtype = values[0].dtype
    if (
        isinstance(key_length, int) and key_length == 0
    ):  # a maximum and a gather of nothing are errors
        return ops.zeros((batch, num_heads, query_length, value_dim), dtype=dtype)

    query = query * ops.cast(head_dim**-0.5 if scale is None else scale, query.dtype)
    if keras.backend.standardize_dtype(query.dtype) == "float16":
        # Activations near 1e3 make scores beyond 65,504, the end of float16.
        query, *keys = (ops.cast(x, "float32") for x in (query, *keys))  # an own key is cast below
    extra = None if extra_scores is None else extra_scores(query)
    if grouped:  # (B, H, T, K) -> (B, G, H/G*T, K)
        each = num_heads // num_key_heads
        rows = each * query_length
        query = ops.reshape(query, (batch, num_key_heads, rows, head_dim))
        if own:  # the rows of a group are all queries of its first head, then those of the second
            own_key, own_value = (ops.tile(x, (1, 1, each, 1)) for x in (own_key, own_value))
    products = [ops.matmul(query, ops.transpose(part, (0, 1, 3, 2))) for part in keys]
    products = [ops.cast(product, "float32") for product in products]
    if own:
        product = ops.cast(query, "float32") * ops.cast(own_key, "float32")
        products.append(ops.sum(product, axis=-1, keepdims=True))
    scores = products[0] if len(products) == 1 else ops.concatenate(products, axis=-1)
    if grouped:
        scores = ops.reshape(scores, (batch, num_heads, query_length, key_length))
    if extra is not None:
        scores = scores + ops.cast(extra, "float32")
    if soft_cap is not None:
        scores = soft_cap * ops.tanh(scores / soft_cap)
    if bias is not None:
        scores = scores + ops.cast(bias, "float32")
    if mask is not None:
        scores = _masked(scores, mask)
        mask = ops.cast(mask, "float32")

    output = extra = None
    apart = own or len(values) > 1 or extra_values is not None
    if isinstance(dropout, DrawnDropout) and dropout.is_joined(scores) and not apart:
        if grouped:
            scores = ops.reshape(scores, (batch, num_key_heads, rows, key_length))
        output = dropout.weighted_sum(scores, values[0])
    else:
        if scores.shape[-1] == 1:
            weights = ops.ones_like(scores, dtype=dtype)  # of which Keras's softmax warns
        else:
            weights = ops.cast(ops.softmax(scores, axis=-1), dtype)
        if dropout is not None:
            weights = dropout(weights)
        extra = None if extra_values is None else extra_values(weights)
        if grouped:
            weights = ops.reshape(weights, (batch, num_key_heads, rows, key_length))
        first = 0
        for length, part in zip(key_lengths, values, strict=False):
            chosen = weights if len(key_lengths) == 1 else weights[..., first : first + length]
            product = ops.matmul(chosen, part)
            output = product if output is None else output + product
            first = first + length
        if own:
            output = output + weights[..., first:] * own_value
    if grouped:
        output = ops.reshape(output, (batch, num_heads, query_length, value_dim))
    if extra is not None:
        output = output + extra
    if mask is not None:
        # Of no keys at all, which an unknown number may be, there is no maximum.
        some = {} if all(mask.shape) else {"initial": 0.0}
        output = output * ops.cast(ops.max(mask, axis=-1, keepdims=True, **some), dtype)
    return output


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    """Scores (B, H, T, S) in float32 of which those that `mask` hides weigh nothing."""
    if for_device():
        return scores + (ops.cast(mask, "float32") - 1.0) * -masked_score(MASKED)
    # Scores may be of any size: activations of 1e3 make them beyond 1e6. The same weights as above
    # wherever no two scores of a row are 3e4 apart.
    return ops.where(mask, scores, -1e30)


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, T, H*K) -> (B, H, T, K)."""
    batch, length, width = ops.shape(x)
    return ops.transpose(
        ops.reshape(x, (batch, length, num_heads, width // num_heads)), (0, 2, 1, 3)
    )


def merge_heads(x: Tensor) -> Tensor:
    """(B, H, T, K) -> (B, T, H*K)."""
    batch, num_heads, length, head_dim = ops.shape(x)
    return ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (batch, length, num_heads * head_dim))
