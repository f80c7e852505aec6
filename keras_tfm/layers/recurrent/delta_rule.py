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

import numpy as np
from keras import ops

from keras_tfm.layers.multi_head_attention.heads import swap
from keras_tfm.layers.recurrent.chunks import Chunks, constant, decays_between, run_in_chunks
from keras_tfm.layers.types import Tensor

# Tokens of a chunk. Work inside chunks grows with it, the number of sequential steps shrinks.
CHUNK = 32


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
    return run_in_chunks(_inside, _next_chunk, (query, key, value, decay, beta), state, CHUNK)


def _one_token(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    decay, beta = ops.expand_dims(decay, -1), ops.expand_dims(beta, -1)  # (R, 1, 1)
    state = ops.exp(decay) * state
    change = beta * (value - ops.matmul(key, state))  # (R, 1, V)
    state = state + swap(key, 1, 2) * change
    return ops.matmul(query, state), state


def _inside(query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor) -> Chunks:
    """What does not depend on the state before a chunk, for all chunks at once.

    With c the sum of the decays in a chunk up to each token, and A_ij = beta_i e^(c_i - c_j) k_i^T
    k_j for j < i, the changes U of the state solve (I + A) U = beta (V - e^c K S).

    Returns:
        (R, N, ...): the values (I + A)^-1 beta V, the keys (I + A)^-1 beta e^c K, queries e^c Q,
        scores e^(c_i - c_j) q_i^T k_j for j <= i, keys e^(c_C - c) K, and the decay of the chunk.
    """
    total = ops.cumsum(decay, axis=-1)
    between = decays_between(decay)
    transposed = swap(key, 2, 3)
    beta, kept = ops.expand_dims(beta, -1), ops.exp(ops.expand_dims(total, -1))
    weights = beta * between * ops.matmul(key, transposed)
    solved = inverse(weights)
    return (
        ops.matmul(solved, beta * value),
        ops.matmul(solved, beta * kept * key),
        kept * query,
        between * ops.matmul(query, transposed),
        ops.expand_dims(between[..., -1, :], -1) * key,
        kept[..., -1:, :],
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
    result, size = constant(np.eye(count), weights), 1
    while size < count:
        below = (rows // size % 2 == 1) & (columns // size == rows // size - 1)
        blocks = weights * constant(below, weights)
        if size > 1:
            blocks = ops.matmul(ops.matmul(result, blocks), result)
        result, size = result - blocks, 2 * size
    return result
