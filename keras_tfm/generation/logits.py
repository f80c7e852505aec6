"""The largest of many logits, and the logarithm of the sum of their exponentials."""

from typing import Any

from keras import ops

from keras_tfm.generation.gather import gather

Tensor = Any

# Of how many numbers the maximum is taken before the largest are looked for.
BLOCK = 64
# Less than any logit, in float32.
LEAST = -3e38


def top_k(x: Tensor, k: int, plus: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The k largest numbers of each row, and where they are, int32: (B, k).

    Of many numbers first the k blocks with the largest maxima: the k largest are in these.

    Args:
        x: (B, N), or (B, R, N), of which the places count through all R of a row.
        k: how many.
        plus: (B, R, 1), what to add to x.

    >>> import numpy as np
    >>> from keras_tfm.generation.logits import top_k
    >>> values, places = top_k(np.arange(5000, dtype="float32")[np.newaxis] % 4999, 2)
    >>> values.numpy().tolist(), places.numpy().tolist()
    ([[4998.0, 4997.0]], [[4998, 4997]])
    """
    parts, size = 1 if len(x.shape) == 2 else x.shape[1], x.shape[-1]
    blocks = -(-size // BLOCK)
    if parts * blocks <= 4 * k:
        x = x if plus is None else x + plus
        values, places = ops.top_k(ops.reshape(x, (-1, parts * size)), k=k)
        return values, ops.cast(places, "int32")
    x = _in_blocks(x)
    maxima = ops.max(x, axis=-1)
    if plus is not None:
        maxima = maxima + plus
    best = ops.cast(ops.top_k(ops.reshape(maxima, (-1, parts * blocks)), k=k)[1], "int32")
    if k > 1:  # in their order, so that of equal numbers the first is taken
        best = -ops.top_k(-best, k=k)[0]
    x = gather(ops.reshape(x, (-1, parts * blocks, BLOCK)), best)
    if plus is not None:
        x = x + ops.expand_dims(gather(ops.squeeze(plus, 2), best // blocks), 2)
    values, within = ops.top_k(ops.reshape(x, (-1, k * BLOCK)), k=k)
    within = ops.cast(within, "int32")
    if k > 1:
        best, within = gather(best, within // BLOCK), within % BLOCK
    if parts == 1 or size % BLOCK == 0:
        return values, best * BLOCK + within
    # What fills the last block of a part may be among the largest where all the rest is -inf too.
    within = ops.minimum(best % blocks * BLOCK + within, size - 1)
    return values, best // blocks * size + within


def log_normalizer(logits: Tensor) -> Tensor:
    """log sum exp of the last axis of float32 logits, which is kept; -inf where all are -inf.

    In operators that XNNPACK has.
    """
    # In the same blocks as above, so that a compiler need not look at all of them twice.
    many = logits.shape[-1] > BLOCK and not logits.shape[-1] % BLOCK
    largest = ops.max(_in_blocks(logits), axis=-1) if many else logits
    # Finite, as -inf - -inf is no number. And between both maxima: XLA would make one of them, that
    # the search for the best does not share.
    largest = ops.max(ops.maximum(largest, LEAST), axis=-1, keepdims=True)
    return largest + ops.log(ops.sum(ops.exp(logits - largest), axis=-1, keepdims=True))


def _in_blocks(x: Tensor) -> Tensor:
    """(..., N) -> (..., blocks, BLOCK), where there are none -inf."""
    *before, size = ops.shape(x)
    if size % BLOCK:
        paddings = [(0, 0)] * len(before) + [(0, -size % BLOCK)]
        x = ops.pad(x, paddings, constant_values=float("-inf"))
    return ops.reshape(x, (*before, -(-size // BLOCK), BLOCK))
