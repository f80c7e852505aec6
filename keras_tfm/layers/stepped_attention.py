"""Attention of a step's few tokens to a cache and to themselves."""

from collections.abc import Callable
from typing import Any

from keras import ops

from keras_tfm.layers.heads import grouped, regrouped, scaled, swap

Tensor = Any


def stepped_attention(
    query: Tensor,
    cached_key: Tensor,
    cached_value: Tensor,
    key: Tensor,
    value: Tensor,
    penalty: Tensor,
    some: Tensor | None = None,
    own: bool = False,
    scale: float | None = None,
    soft_cap: float | None = None,
    bias: Tensor | None = None,
    extra_scores: Tensor | None = None,
    weights: Callable[[Tensor], Tensor] | None = None,
    extra_values: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """softmax([Q K_cache^T, Q K_new^T] + bias) [V_cache; V_new], without joining the two.

    What `attention` gives for the cache's keys and the new ones side by side. New keys are attended
    to as they are: no step waits until the cache is written.

    Args:
        query: (B, H, T, K).
        cached_key: (B, G, K, S), transposed.
        cached_value: (B, G, S, V).
        key, value: of the step's tokens, (B, G, T, K) and (B, G, T, V).
        penalty: (1 | B, 1, T, S + N), float32, added to the scores: 0, or far below any score where
            a query does not see a key.
        some: (B, 1, T, 1), float32, 0 for queries that see nothing, which get zeros; None: none.
        own: each query sees, of the new keys, that of its own token alone: one column of the
            scores, the last (N = 1). Otherwise N = T.
        scale: factor of the scores; 1/sqrt(K) by default.
        soft_cap: c in c tanh(score / c), before the bias.
        bias: broadcastable to (B, H, T, S + N), added to the scores.
        extra_scores: likewise, added before the soft cap.
        weights: applied to the attention weights (B, H, T, S + N), as by `AttentionProbe`.
        extra_values: from these weights, what to add to the result.

    Returns:
        (B, H, T, V) in the dtype of `value`.

    Example, of one token after two:

    >>> import numpy as np
    >>> from keras_tfm.layers.stepped_attention import stepped_attention
    >>> keys, values = np.zeros((1, 1, 4, 2), "float32"), np.ones((1, 1, 2, 1), "float32")
    >>> query, key, value = (np.zeros((1, 1, 1, n), "float32") for n in (4, 4, 1))
    >>> penalty = np.array([[[[0.0, -1e30, 0.0]]]], "float32")  # the second is not visible
    >>> y = stepped_attention(query, keys, values, key, value, penalty, own=True)
    >>> float(y[0, 0, 0, 0])
    0.5
    """
    query, cached_key, cached_value, key, value = (
        ops.convert_to_tensor(x) for x in (query, cached_key, cached_value, key, value)
    )
    dtype, heads, groups = value.dtype, query.shape[1], key.shape[1]
    query = scaled(query, query.shape[-1] ** -0.5 if scale is None else scale)
    # The rows of a group are all queries of its first head, then those of the second.
    rows = grouped(query, groups)
    if own and query.shape[2] != 1:
        key, value = (ops.tile(x, (1, 1, heads // groups, 1)) for x in (key, value))
    old = ops.cast(ops.matmul(rows, ops.cast(cached_key, rows.dtype)), "float32")
    if own:
        product = ops.cast(rows, "float32") * ops.cast(key, "float32")
        new = ops.sum(product, axis=-1, keepdims=True)
    else:
        new = ops.matmul(rows, swap(ops.cast(key, rows.dtype), -1, -2))
    scores = ops.concatenate([old, ops.cast(new, "float32")], axis=-1)

    terms = (bias, extra_scores, weights, extra_values)
    # Of one token the heads of a group are rows, and nothing but these tells them apart.
    by_head = query.shape[2] != 1 or any(x is not None for x in terms)
    if by_head:
        scores = regrouped(scores, heads, query)
    if extra_scores is not None:
        scores = scores + ops.cast(extra_scores, "float32")
    if soft_cap is not None:
        scores = soft_cap * ops.tanh(scores / soft_cap)
    if bias is not None:
        scores = scores + ops.cast(bias, "float32")
    chosen = ops.cast(ops.softmax(scores + penalty, axis=-1), dtype)
    if weights is not None:
        chosen = weights(chosen)
    extra = None if extra_values is None else extra_values(chosen)
    if by_head:
        chosen = grouped(chosen, groups)

    columns = cached_value.shape[2]
    if columns is None:
        columns = ops.shape(cached_value)[2]
    output = ops.matmul(chosen[..., :columns], cached_value)
    last = chosen[..., columns:]
    output = output + (last * value if own else ops.matmul(last, value))
    output = regrouped(output, heads, query)
    if extra is not None:
        output = output + extra
    return output if some is None else output * ops.cast(some, dtype)
