"""Linear recurrences a chunk of tokens at a time: what recurrent layers with a decay share.

Example:

>>> import numpy as np
>>> from keras_tfm.layers.recurrent.chunks import decays_between
>>> factors = np.array(decays_between(np.log(np.array([0.5, 0.25, 0.5], "float32"))))
>>> factors.round(6).tolist()
[[1.0, 0.0, 0.0], [0.25, 1.0, 0.0], [0.125, 0.5, 1.0]]
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from keras import ops

from keras_tfm.keras_internals import run_recurrently
from keras_tfm.layers.types import Size, Tensor

# The most chunks that are computed one after the other without a loop in the graph.
_UNROLLED = 16
# Parts of 1 in `decays_between`: sums of multiples of 1/16 are exact in float32 up to 10^6.
_PARTS = 16

# What the tokens of all chunks (R, N, ...), or of one (R, ...), give each other and the state.
Chunks: TypeAlias = tuple[Tensor, ...]


def run_in_chunks(
    inside: Callable[..., Chunks],
    next_chunk: Callable[[Chunks, Tensor], tuple[Tensor, Tensor]],
    inputs: tuple[Tensor, ...],
    state: Tensor,
    size: int,
) -> tuple[Tensor, Tensor]:
    """The outputs of the tokens, (R, T, ...), and the state after them.

    Args:
        inside: function of the inputs as chunks (R, N, C, ...) that returns what does not depend on
            the state, (R, N, ...): computed for all chunks at once. Zeros follow the last token.
        next_chunk: function of one chunk of it and the state before the chunk that returns the
            chunk's outputs (R, C, ...) and the state after it.
        inputs: (R, T, ...) each.
        state: (R, ...), the state before the tokens.
        size: int, number of tokens of a chunk (C).
    """
    length = inputs[0].shape[1]
    size = size if length is None else min(length, size)
    chunks = inside(*(_split(x, size) for x in inputs))
    count = None if length is None else -(-length // size)
    if count is not None and count <= _UNROLLED:
        outputs = []
        for i in range(count):
            y, state = next_chunk(tuple(x[:, i] for x in chunks), state)
            outputs.append(y)
        y = ops.concatenate(outputs, axis=1)
    else:
        y, state = run_recurrently(next_chunk, chunks, state, None)
        y = ops.reshape(
            y, (-1, y.shape[1] * size if count else ops.shape(y)[1] * size, y.shape[-1])
        )
    if length is None or length % size:
        y = y[:, : ops.shape(inputs[0])[1]]
    return y, state


def _split(x: Tensor, size: int) -> Tensor:
    """(R, T, ...) as chunks (R, N, C, ...), with zeros after the last token."""
    length: Size = x.shape[1] or ops.shape(x)[1]
    rows = x.shape[0] or ops.shape(x)[0]
    more = -length % size
    if not isinstance(more, int) or more:
        x = ops.concatenate([x, ops.zeros((rows, more, *x.shape[2:]), dtype=x.dtype)], axis=1)
    count = (length + more) // size
    return ops.reshape(x, (rows if isinstance(count, int) else -1, count, size, *x.shape[2:]))


def decays_between(decay: Tensor) -> Tensor:
    """e^(g_(j+1) + ... + g_i) for j <= i, 0 for j > i, of logarithms g: (..., C) -> (..., C, C).

    The sums are differences of the sums up to each token, which round in proportion to the whole
    sum: after a large g, small ones would be lost. Multiples of 1/16 are summed separately, which
    is exact.
    """
    multiples = ops.stop_gradient(ops.floor(decay * _PARTS)) / _PARTS
    sums = 0.0
    for part in (multiples, decay - multiples):
        total = ops.cumsum(part, axis=-1)
        sums = sums + (ops.expand_dims(total, -1) - ops.expand_dims(total, -2))
    size = decay.shape[-1]
    triangle = constant(np.tril(np.ones((size, size))), decay)
    # Before the exponential, too: of later tokens the difference is positive and may overflow.
    return ops.exp(sums * triangle) * triangle


def constant(values: np.ndarray, like: Tensor) -> Tensor:
    """The values in another tensor's dtype."""
    return ops.cast(ops.convert_to_tensor(values.astype("float32")), like.dtype)
