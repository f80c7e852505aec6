"""The state space of Mamba-2 (arXiv:2405.21060), a token at a time and in chunks.

The state S (N, P) of a head decays by a number, and a token adds to it: S_t = e^g_t S_t-1 + b_t
v_t^T, y_t = S_t^T c_t. That is attention without a softmax, with queries c, keys b, values v, and
scores times the decay between two tokens. E heads share queries and keys, and have their states
beside each other. Arrays have the groups of all rows in their first axis, R.

Example:

>>> import numpy as np
>>> from keras_tfm.layers.recurrent.state_space import scan_state_space
>>> query, key, value = np.random.default_rng(0).normal(size=(3, 1, 2, 4)).astype("float32")
>>> decay, state = np.full((1, 2, 2), -0.1, "float32"), np.zeros((1, 4, 4), "float32")
>>> both, after = scan_state_space(query, key, value, decay, state)
>>> first, last = ([x[:, t : t + 1] for x in (query, key, value, decay)] for t in (0, 1))
>>> _, state = scan_state_space(*first, state)
>>> one, state = scan_state_space(*last, state)
>>> bool(np.allclose(both[:, 1:], one, atol=1e-6)), bool(np.allclose(after, state, atol=1e-6))
(True, True)
"""

from keras import ops

from keras_tfm.layers.multi_head_attention.heads import merge_last, split_last, swap
from keras_tfm.layers.recurrent.chunks import Chunks, decays_between, run_in_chunks
from keras_tfm.layers.types import Tensor

# Tokens of a chunk. Work inside chunks grows with it, the number of states that are stored shrinks.
CHUNK = 64


def scan_state_space(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The outputs of the tokens, (R, T, E P), and the state after them.

    Memory grows with T: a matrix of `CHUNK` x `CHUNK` numbers for each head, and a state, for each
    chunk.

    Args:
        query, key: (R, T, N).
        value: (R, T, E P); zeros leave the state as it is, but for its decay.
        decay: (R, T, E), the logarithm g of the factor of the state, at most 0.
        state: (R, N, E P), the state before the tokens.
    """
    if query.shape[1] == 1:
        state = repeat_each(ops.exp(decay), value) * state + swap(key, 1, 2) * value
        return ops.matmul(query, state), state
    return run_in_chunks(_inside, _next_chunk, (query, key, value, decay), state, CHUNK)


def _inside(query: Tensor, key: Tensor, value: Tensor, decay: Tensor) -> Chunks:
    """What does not depend on the state before a chunk, for all chunks (R, N, C, ...) at once.

    Returns:
        The sum over the tokens j <= i of a chunk of e^(g_(j+1) + ... + g_i) (c_i^T b_j) v_j; the
        queries; the decay since the chunk began; and what the chunk adds to the state.
    """
    heads = decay.shape[-1]
    between = decays_between(swap(decay, 2, 3))  # (R, N, E, C, C)
    transposed = swap(key, 2, 3)
    scores = ops.expand_dims(ops.matmul(query, transposed), 2) * between
    by_head = swap(split_last(value, heads, value.shape[-1] // heads), 2, 3)  # (R, N, E, C, P)
    own = merge_last(swap(ops.matmul(scores, by_head), 2, 3))
    left = repeat_each(swap(between[..., -1, :], 2, 3), value)  # of each token at the chunk's end
    added = ops.matmul(transposed, left * value)
    return own, query, ops.exp(ops.cumsum(decay, axis=2)), added


def _next_chunk(chunk: Chunks, state: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs of a chunk (R, C, E P), and the state after it."""
    own, query, decay, added = chunk
    decay = repeat_each(decay, own)
    return own + decay * ops.matmul(query, state), decay[:, -1:] * state + added


def repeat_each(x: Tensor, like: Tensor) -> Tensor:
    """A number of each head for every number of the head: (..., E) -> (..., E P), as wide as like.

    >>> import numpy as np
    >>> from keras_tfm.layers.recurrent.state_space import repeat_each
    >>> np.array(repeat_each(np.array([[1.0, 2.0]]), np.zeros((1, 4)))).tolist()
    [[1.0, 1.0, 2.0, 2.0]]
    """
    each = like.shape[-1] // x.shape[-1]
    # A product: XNNPACK delegates it, and no broadcast.
    return merge_last(ops.expand_dims(x, -1) * ops.ones((each,), dtype=x.dtype))
