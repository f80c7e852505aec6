"""Attention of a step's few tokens to a cache and to themselves."""

from collections.abc import Callable
from typing import Any

from keras import ops

from keras_tfm.layers.decoding.cache import Entry, transposed_key_of
from keras_tfm.layers.decoding.visibility import Visible
from keras_tfm.layers.heads import grouped, regrouped, scaled, swap
from keras_tfm.layers.positions.attention_position import PositionTerms

Tensor = Any


def stepped_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    entry: Entry,
    visible: Visible,
    scale: float | None = None,
    soft_cap: float | None = None,
    terms: PositionTerms | None = None,
    weights: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """softmax([Q K_cache^T, Q K_new^T] + bias) [V_cache; V_new], without joining the two.

    What `attention` gives for the cache's keys and the new ones side by side: S + N columns of
    scores. New keys are attended to as they are: no step waits until the cache is written.

    Args:
        query: (B, H, T, K), of the step's tokens.
        key: (B, G, T, K).
        value: (B, G, T, V).
        entry: of the cache, as it was before the step: keys and values of S columns.
        visible: what the queries see of the cache and of the new keys. With `visible.own` each
            query sees the new key of its own token alone: one column, the last (N = 1). Otherwise
            N = T.
        scale: factor of the scores; 1/sqrt(K) by default.
        soft_cap: c in c tanh(score / c), before the bias.
        terms: what a position part adds, (B, H, T, S + N).
        weights: applied to the attention weights (B, H, T, S + N), as by `AttentionProbe`.

    Returns:
        (B, H, T, V) in the dtype of `value`.
    """
    cached_key, cached_value = transposed_key_of(entry), entry["value"]
    own, terms = visible.own, terms or PositionTerms()
    dtype, heads, groups = value.dtype, query.shape[1], key.shape[1]
    query = scaled(query, query.shape[-1] ** -0.5 if scale is None else scale)
    # The rows of a group are all queries of its first head, then those of the second.
    rows = grouped(query, groups)
    if own and query.shape[2] != 1 and heads != groups:
        key, value = (ops.tile(x, (1, 1, heads // groups, 1)) for x in (key, value))
    old = ops.cast(ops.matmul(rows, ops.cast(cached_key, rows.dtype)), "float32")
    if own:
        product = ops.cast(rows, "float32") * ops.cast(key, "float32")
        new = ops.sum(product, axis=-1, keepdims=True)
    else:
        new = ops.matmul(rows, swap(ops.cast(key, rows.dtype), -1, -2))
    scores = ops.concatenate([old, ops.cast(new, "float32")], axis=-1)

    by_head_terms = (weights, *terms)
    # Of one token the heads of a group are rows, and nothing but these tells them apart.
    by_head = query.shape[2] != 1 or any(x is not None for x in by_head_terms)
    if by_head:
        scores = regrouped(scores, heads, query)
    if terms.scores is not None:
        scores = scores + ops.cast(terms.scores, "float32")
    if soft_cap is not None:
        scores = soft_cap * ops.tanh(scores / soft_cap)
    if terms.bias is not None:
        scores = scores + ops.cast(terms.bias, "float32")
    chosen = ops.cast(ops.softmax(scores + visible.penalty, axis=-1), dtype)
    if weights is not None:
        chosen = weights(chosen)
    extra = None if terms.values is None else terms.values(chosen)
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
    return output if visible.some is None else output * ops.cast(visible.some, dtype)
