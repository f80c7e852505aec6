"""Attention of a decoding step: its few tokens attend to the KV cache and to each other."""

from collections.abc import Callable

from keras import ops

from keras_tfm.layers.decoding.cache import Entry, heads_and_columns, products, weighted_values
from keras_tfm.layers.decoding.visibility import Visible
from keras_tfm.layers.multi_head_attention.heads import (
    group_heads,
    scale_query,
    swap,
    ungroup_heads,
)
from keras_tfm.layers.positions.attention_position import PositionTerms
from keras_tfm.layers.types import Size, Tensor


def stepped_attention(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    entry: Entry,
    visible: Visible,
    scale: float | None = None,
    soft_cap: float | None = None,
    terms: PositionTerms | None = None,
    weights: Callable[[Tensor], Tensor] | None = None,
    context: Entry | None = None,
) -> Tensor:
    """softmax([Q K_cache^T, Q K_new^T] + bias) [V_cache; V_new], without concatenating keys.

    Gives the same result as `attention` over the cached and the new keys, S + N columns of scores.
    The new keys are not read from the cache, so a step does not wait until it is written.

    Args:
        query: (B, H, T, K), queries of the step's tokens.
        key: (B, G, T, K), their keys; None in cross-attention, which has `visible.write_first`.
        value: (B, G, T, V), their values; None in cross-attention.
        entry: cache entry of S columns, before the step unless `visible.write_first`.
        visible: `Visible`, which cached and new keys the queries see. With `visible.own` the last
            column holds each query's score with its own new key (N = 1). With
            `visible.write_first` the entry has the new keys and values, and N = 0. Otherwise N = T.
        scale: float, factor of the scores. Default: 1/sqrt(K).
        soft_cap: float, c in c tanh(score / c), applied before the bias. Default: no cap.
        terms: `PositionTerms` of the position part, (B, H, T, S + N).
        weights: function applied to the attention weights (B, H, T, S + N): dropout, a probe.
        context: cache entry of other keys and values, which the queries see, too. Its columns come
            last, in `visible`, `terms` and `weights` as well; optional.

    Returns:
        (B, H, T, V) in the dtype of `value`, without values in that of `query`.
    """
    own, terms = visible.own, terms or PositionTerms()
    dtype, heads = query.dtype if value is None else value.dtype, query.shape[1]
    groups = heads_and_columns(entry)[0]
    query = scale_query(query, query.shape[-1] ** -0.5 if scale is None else scale)
    # The rows of a group: all queries of its first head, then all of the second, and so on.
    rows = group_heads(query, groups)
    if own and query.shape[2] != 1 and heads != groups:
        key, value = (ops.tile(x, (1, 1, heads // groups, 1)) for x in (key, value))
    scores = [products(rows, entry)]
    if not visible.write_first:
        if own:
            product = ops.cast(rows, "float32") * ops.cast(key, "float32")
            new = ops.sum(product, axis=-1, keepdims=True)
        else:
            new = ops.matmul(rows, swap(ops.cast(key, rows.dtype), -1, -2))
        scores.append(ops.cast(new, "float32"))
    if context is not None:
        scores.append(products(rows, context))
    counts = [x.shape[-1] or ops.shape(x)[-1] for x in scores]
    scores = scores[0] if len(scores) == 1 else ops.concatenate(scores, axis=-1)

    # The heads of a group can stay rows, unless a term or a function needs heads.
    by_head = any(x is not None for x in (weights, *terms))
    penalty = visible.penalty
    if by_head:
        scores = ungroup_heads(scores, heads, query)
    elif penalty is not None and penalty.shape[2] != 1 and heads != groups:
        # The same operator in all layers.
        penalty = visible.repeated_penalty(heads // groups)
    if terms.scores is not None:
        scores = scores + ops.cast(terms.scores, "float32")
    if soft_cap is not None:
        scores = soft_cap * ops.tanh(scores / soft_cap)
    if terms.bias is not None:
        scores = scores + ops.cast(terms.bias, "float32")
    scores = scores if penalty is None else scores + penalty
    chosen = ops.cast(ops.softmax(scores, axis=-1), dtype)
    if weights is not None:
        chosen = weights(chosen)
    extra = None if terms.values is None else terms.values(chosen)
    if by_head:
        chosen = group_heads(chosen, groups)

    parts = _split(chosen, counts)
    output = weighted_values(parts[0], entry)
    if not visible.write_first:
        output = output + (parts[1] * value if own else ops.matmul(parts[1], value))
    if context is not None:
        output = output + weighted_values(parts[-1], context)
    output = ungroup_heads(output, heads, query)
    if extra is not None:
        output = output + extra
    return output if visible.some is None else output * ops.cast(visible.some, dtype)


def _split(x: Tensor, counts: list[Size]) -> list[Tensor]:
    """Parts of `counts` columns of (..., S)."""
    if len(counts) == 1:
        return [x]
    parts, first = [], counts[0]
    for count in counts[1:-1]:
        parts.append(x[..., first : first + count])
        first = first + count
    return [x[..., : counts[0]], *parts, x[..., first:]]
