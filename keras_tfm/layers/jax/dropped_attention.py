"""Attention with dropout on JAX: no scores and no weights are stored for the gradient."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from keras_tfm.layers.jax.hashed_dropout import kept_values, row_numbers
from keras_tfm.layers.multi_head_attention import masks
from keras_tfm.layers.multi_head_attention.blockwise import Block, spans
from keras_tfm.layers.multi_head_attention.heads import scale_query
from keras_tfm.layers.multi_head_attention.masks import ScoreTerms
from keras_tfm.layers.types import Tensor, Window

# The least number of queries in a block, and the largest number of blocks.
ROWS = 256
BLOCKS = 16
# Far below any score, but finite.
HIDDEN = -1e30


class Settings(NamedTuple):
    """What is known when the program is made: `rate` of dropout, `causal`, `window`."""

    rate: float
    causal: bool
    window: Window | None


def dropped_attention(
    query: Tensor, key: Tensor, value: Tensor, terms: ScoreTerms, rate: float, seed: Tensor
) -> Tensor:
    """dropout(softmax(QK^T scale + bias)) V, block by block of queries.

    Of the forward pass the result O and the logarithm of each softmax's sum are stored. With
    P = softmax(scores) and D the dropout, the gradient of the scores is P * (D dO V^T - r), where
    r is the sum of O * dO ("FlashAttention", arXiv:2205.14135, appendix B.2); the backward pass
    computes P and D again. A block reads only the keys that causality and window let it see.

    Args:
        query: (B, H, T, K).
        key: (B, G, S, K).
        value: (B, G, S, V).
        terms: `ScoreTerms`; mask and bias have four axes. The result for a query that sees no key
            is finite.
        rate: float, dropout rate, 0 < rate < 1. Drops what `hashed_dropout` of the attention
            weights drops.
        seed: two integers.

    Returns:
        (B, H, T, V) in the dtype of `value`.
    """
    batch, heads, length, width = query.shape
    query = scale_query(query, terms.scale)
    groups = key.shape[1]
    grouped = batch, groups, heads // groups
    mask, bias = (None if x is None else _in_groups(x, grouped) for x in terms[1:3])
    settings = Settings(rate, terms.causal, terms.window)
    seed = jnp.asarray(seed).astype("uint32")
    query = query.reshape(*grouped, length, width)
    y = _attention(settings, query, key.astype(query.dtype), value, bias, mask, seed)
    return y.reshape(batch, heads, length, value.shape[-1])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(settings: Settings, *inputs: Tensor) -> Tensor:
    return _forward(settings, *inputs)[0]


def _forward(
    settings: Settings,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    seed: Tensor,
) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    results, sums = [], []
    for block in _blocks(settings, query, key):
        scores = _scores(settings, block, query, key, bias, mask)
        total = jax.nn.logsumexp(scores, axis=-1, keepdims=True)
        weights = jnp.exp(scores - total) / (1 - settings.rate)
        weights = jnp.where(_kept_weights(settings, block, query, seed), weights, 0.0)
        columns = value[:, :, block.columns]
        results.append(jnp.einsum("bgrts,bgsv->bgrtv", weights.astype(value.dtype), columns))
        sums.append(total)
    y = jnp.concatenate(results, axis=3)
    return y, (query, key, value, bias, mask, seed, y, jnp.concatenate(sums, axis=3))


def _backward(
    settings: Settings, stored: tuple[Tensor, ...], upstream: Tensor
) -> tuple[Tensor | None, ...]:
    query, key, value, bias, mask, seed, y, sums = stored
    # 0, unless the gradient is NaN. With queries and a seed that depend on the gradient, XLA can
    # neither keep the scores and bits of the forward pass nor compute those of all layers before
    # it has the first gradient. An optimization barrier is not enough: on a CPU it is removed
    # before XLA orders the operations.
    first = upstream[(0,) * upstream.ndim]
    zero = (first != first).astype("uint32")
    query, seed = query + zero.astype(query.dtype), seed + zero
    products = upstream.astype("float32") * y.astype("float32")
    total = jnp.sum(products, axis=-1, keepdims=True)
    of_query = []
    of_key, of_value = (jnp.zeros(x.shape, "float32") for x in (key, value))
    of_bias = None if bias is None else jnp.zeros(bias.shape, "float32")
    for block in _blocks(settings, query, key):
        rows, columns = block.rows, block.columns
        scores = _scores(settings, block, query, key, bias, mask)
        weights = jnp.exp(scores - sums[:, :, :, rows])
        kept, keep = _kept_weights(settings, block, query, seed), 1 - settings.rate
        dropped = jnp.where(kept, weights / keep, 0.0).astype(value.dtype)
        here = upstream[:, :, :, rows]
        of_weights = jnp.einsum("bgrtv,bgsv->bgrts", here, value[:, :, columns])
        of_dropped = jnp.where(kept, of_weights.astype("float32") / keep, 0.0)
        of_scores = weights * (of_dropped - total[:, :, :, rows])
        if of_bias is not None:
            place = _place(bias, block)
            of_bias = of_bias.at[place].add(_sum_to(of_scores, of_bias[place].shape))
        of_scores = of_scores.astype(query.dtype)
        of_query.append(jnp.einsum("bgrts,bgsk->bgrtk", of_scores, key[:, :, columns]))
        exact = {"preferred_element_type": "float32"}
        of_key = of_key.at[:, :, columns].add(
            jnp.einsum("bgrts,bgrtk->bgsk", of_scores, query[:, :, :, rows], **exact)
        )
        of_value = of_value.at[:, :, columns].add(
            jnp.einsum("bgrts,bgrtv->bgsv", dropped, here, **exact)
        )
    return (
        jnp.concatenate(of_query, axis=3),
        of_key.astype(key.dtype),
        of_value.astype(value.dtype),
        None if of_bias is None else of_bias.astype(bias.dtype),
        None,
        None,
    )


_attention.defvjp(_forward, _backward)


def _blocks(settings: Settings, query: Tensor, key: Tensor) -> list[Block]:
    length = query.shape[-2]
    size = max(ROWS, -(-length // BLOCKS))
    return spans(length, key.shape[-2], size, settings.causal, settings.window)


def _scores(
    settings: Settings,
    block: Block,
    query: Tensor,
    key: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
) -> Tensor:
    """The masked scores of a block (B, G, H/G, rows, columns), float32."""
    rows, columns = block.rows, block.columns
    scores = jnp.einsum("bgrtk,bgsk->bgrts", query[:, :, :, rows], key[:, :, columns])
    scores = scores.astype("float32")
    if bias is not None:
        scores = scores + bias[_place(bias, block)].astype("float32")
    visible = None if mask is None else mask[_place(mask, block)]
    if settings.causal or settings.window is not None:
        length, width = scores.shape[-2:]
        distances = jnp.arange(width) - jnp.arange(length)[:, None] - block.offset
        sight = masks.in_sight(distances, settings.causal, settings.window)
        visible = sight if visible is None else visible & sight
    return scores if visible is None else jnp.where(visible, scores, HIDDEN)


def _kept_weights(settings: Settings, block: Block, query: Tensor, seed: Tensor) -> Tensor:
    """Which weights of a block dropout keeps: numbered as those of all heads and queries."""
    rows = row_numbers(query.shape[:-1])[:, :, :, block.rows]
    columns = jnp.arange(block.columns.start, block.columns.stop)
    return kept_values(settings.rate, seed, rows, columns)


def _in_groups(x: Tensor, grouped: tuple[int, ...]) -> Tensor:
    """A mask or bias, broadcastable to (B, H, T, S), as one of (B, G, H/G, T, S)."""
    heads = (1, 1) if x.shape[1] == 1 else grouped[1:]
    return x.reshape(x.shape[0], *heads, *x.shape[2:])


def _place(x: Tensor, block: Block) -> tuple[slice, ...]:
    """Where a block is in a mask or bias whose last axes may be 1."""
    whole = slice(None)
    rows = whole if x.shape[-2] == 1 else block.rows
    return whole, whole, whole, rows, whole if x.shape[-1] == 1 else block.columns


def _sum_to(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The sum of `x` over the axes that are 1 in `shape`."""
    axes = tuple(i for i, size in enumerate(shape) if size == 1)
    return jnp.sum(x, axis=axes, keepdims=True)
