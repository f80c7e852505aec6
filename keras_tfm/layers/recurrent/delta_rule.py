"""The gated delta rule (arXiv:2412.06464), a token at a time and in chunks.

The state S (K, V) maps keys to values. A token decays it, and moves the value of its key towards
its own: S_t = e^g_t S_t-1 + k_t (beta_t (v_t - k_t^T e^g_t S_t-1))^T, y_t = S_t^T q_t. Arrays have
all heads of all rows in their first axis, R.

Example:

>>> import numpy as np
>>> from keras_tfm.layers.recurrent.delta_rule import gated_delta_rule
>>> q, k, v = np.random.default_rng(0).normal(size=(3, 1, 2, 4)).astype("float32")
>>> g, beta = np.full((1, 2), -0.1, "float32"), np.full((1, 2), 0.5, "float32")
>>> state = np.zeros((1, 4, 4), "float32")
>>> both, after = gated_delta_rule(q, k, v, g, beta, state)
>>> _, state = gated_delta_rule(q[:, :1], k[:, :1], v[:, :1], g[:, :1], beta[:, :1], state)
>>> one, state = gated_delta_rule(q[:, 1:], k[:, 1:], v[:, 1:], g[:, 1:], beta[:, 1:], state)
>>> bool(np.allclose(both[:, 1:], one, atol=1e-6)), bool(np.allclose(after, state, atol=1e-6))
(True, True)
"""

from typing import TypeAlias

import numpy as np
from keras import ops

from keras_tfm.keras_internals import run_recurrently
from keras_tfm.layers.multi_head_attention.heads import swap
from keras_tfm.layers.types import Size, Tensor

# Tokens of a chunk. Work inside chunks grows with it, the number of sequential steps shrinks.
CHUNK = 32
# The most chunks that are computed one after the other without a loop in the graph.
_UNROLLED = 16

# What the tokens of a chunk give each other, see `_inside`.
Chunks: TypeAlias = tuple[Tensor, ...]


def gated_delta_rule(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The outputs of the tokens, (R, T, V), and the state after them.

    Memory grows with T: a few matrices of `CHUNK` x `CHUNK` numbers, and a state, for each chunk.

    Args:
        query, key: (R, T, K).
        value: (R, T, V).
        decay: (R, T), the logarithm g of the factor of the state, at most 0.
        beta: (R, T), 0 to 1; a token with decay 0 and beta 0 leaves the state as it is.
        state: (R, K, V), the state before the tokens.
    """
    if query.shape[1] == 1:
        return _one_token(query, key, value, decay, beta, state)
    length = query.shape[1]
    size = CHUNK if length is None else min(length, CHUNK)
    given = (query, key, value, decay, beta)
    chunks = _inside(*(_split(x, size) for x in given))
    count = None if length is None else -(-length // size)
    if count is not None and count <= _UNROLLED:
        outputs = []
        for i in range(count):
            y, state = _next_chunk(tuple(x[:, i] for x in chunks), state)
            outputs.append(y)
        y = ops.concatenate(outputs, axis=1)
    else:
        y, state = run_recurrently(_next_chunk, chunks, state, None)
        y = ops.reshape(
            y, (-1, y.shape[1] * size if count else ops.shape(y)[1] * size, y.shape[-1])
        )
    if length is None or length % size:
        y = y[:, : ops.shape(query)[1]]
    return y, state


def _one_token(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    decay, beta = ops.expand_dims(decay, -1), ops.expand_dims(beta, -1)  # (R, 1, 1)
    state = ops.exp(decay) * state
    change = beta * (value - ops.matmul(key, state))  # (R, 1, V)
    state = state + swap(key, 1, 2) * change
    return ops.matmul(query, state), state


def _split(x: Tensor, size: int) -> Tensor:
    """(R, T, ...) as chunks (R, N, C, ...), with zeros after the last token."""
    length: Size = x.shape[1] or ops.shape(x)[1]
    rows = x.shape[0] or ops.shape(x)[0]
    more = -length % size
    if not isinstance(more, int) or more:
        x = ops.concatenate([x, ops.zeros((rows, more, *x.shape[2:]), dtype=x.dtype)], axis=1)
    count = (length + more) // size
    return ops.reshape(x, (rows if isinstance(count, int) else -1, count, size, *x.shape[2:]))


def _inside(query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor) -> Chunks:
    """What does not depend on the state before a chunk, for all chunks at once.

    With c the sum of the decays in a chunk up to each token, and A_ij = beta_i e^(c_i - c_j) k_i^T
    k_j for j < i, the changes U of the state solve (I + A) U = beta (V - e^c K S).

    Returns:
        (R, N, ...): the values (I + A)^-1 beta V, the keys (I + A)^-1 beta e^c K, queries e^c Q,
        scores e^(c_i - c_j) q_i^T k_j for j <= i, keys e^(c_C - c) K, and the decay of the chunk.
    """
    size = query.shape[2]
    total = ops.cumsum(decay, axis=-1)
    triangle = _constant(np.tril(np.ones((size, size))), total)
    # Of later tokens the difference is positive, and its exponential may overflow.
    difference = ops.minimum(ops.expand_dims(total, -1) - ops.expand_dims(total, -2), 0.0)
    between = ops.exp(difference) * triangle
    transposed = swap(key, 2, 3)
    beta, kept = ops.expand_dims(beta, -1), ops.exp(ops.expand_dims(total, -1))
    weights = beta * between * ops.matmul(key, transposed)
    solved = inverse(weights)
    last = total[..., -1:]
    return (
        ops.matmul(solved, beta * value),
        ops.matmul(solved, beta * kept * key),
        kept * query,
        between * ops.matmul(query, transposed),
        ops.exp(ops.expand_dims(last - total, -1)) * key,
        ops.exp(ops.expand_dims(last, -1)),
    )


def _next_chunk(chunk: Chunks, state: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs of a chunk (R, C, V), and the state after it."""
    values, keys, query, scores, written, decay = chunk
    change = values - ops.matmul(keys, state)
    y = ops.matmul(query, state) + ops.matmul(scores, change)
    return y, decay * state + ops.matmul(swap(written, 1, 2), change)


def inverse(weights: Tensor) -> Tensor:
    """(I + A)^-1 of the part A of `weights` (..., C, C) below the diagonal.

    By blocks, whose size doubles: [[P, 0], [B, Q]]^-1 = [[P^-1, 0], [-Q^-1 B P^-1, Q^-1]], all
    blocks of a size in two products of whole matrices. That is as exact as substitution row by row;
    the product (I - A)(I + A^2)(I + A^4)... has as many products, but of equal keys its powers
    grow to 10^8 in 32 rows, and cancel.

    >>> import numpy as np
    >>> from keras_tfm.layers.recurrent.delta_rule import inverse
    >>> np.array(inverse(np.array([[9.0, 9.0], [0.25, 9.0]], "float32"))).tolist()
    [[1.0, 0.0], [-0.25, 1.0]]
    """
    count = weights.shape[-1]
    rows, columns = np.indices((count, count))
    result, size = _constant(np.eye(count), weights), 1
    while size < count:
        below = (rows // size % 2 == 1) & (columns // size == rows // size - 1)
        blocks = weights * _constant(below, weights)
        if size > 1:
            blocks = ops.matmul(ops.matmul(result, blocks), result)
        result, size = result - blocks, 2 * size
    return result


def _constant(values: np.ndarray, like: Tensor) -> Tensor:
    return ops.cast(ops.convert_to_tensor(values.astype("float32")), like.dtype)
