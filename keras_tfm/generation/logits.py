"""The k largest logits of a vocabulary, and the log-sum-exp of all logits."""

import keras
from keras import ops

from keras_tfm.generation.gather import gather
from keras_tfm.layers.types import Tensor

# The size of the blocks whose maxima are compared first.
BLOCK = 64
# A float32 below any logit.
LEAST = -3e38


def top_k(x: Tensor, k: int, plus: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The k largest values of each row (B, k), and their indices (B, k), int32.

    If there are many values, it first selects the k blocks with the largest maxima, which contain
    the k largest values.

    Args:
        x: (B, N), or (B, R, N), for which the indices are into the R * N values of a row.
        k: int, number of results per row.
        plus: (B, R, 1), added to x; optional.

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
    if k > 1:  # in ascending order, so that the first of equal values is chosen
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
    # The padding of the last block may be selected if all other values are -inf too.
    within = ops.minimum(best % blocks * BLOCK + within, size - 1)
    return values, best // blocks * size + within


def log_normalizer(logits: Tensor) -> Tensor:
    """The log-sum-exp of float32 logits over the last axis, (..., 1); -inf where all are -inf.

    It uses operators that XNNPACK supports.
    """
    # The same blocks as in `top_k`, so that a compiler can share their maxima.
    many = logits.shape[-1] > BLOCK and not logits.shape[-1] % BLOCK
    largest = ops.max(_in_blocks(logits), axis=-1) if many else logits
    # LEAST keeps it finite, since -inf - -inf is NaN. It is between the two maxima because XLA
    # would otherwise merge them into one maximum, which `top_k` cannot share.
    largest = ops.max(ops.maximum(largest, LEAST), axis=-1, keepdims=True)
    return largest + ops.log(ops.sum(ops.exp(logits - largest), axis=-1, keepdims=True))


def _in_blocks(x: Tensor) -> Tensor:
    """(..., N) -> (..., blocks, BLOCK), padded with -inf."""
    *before, size = ops.shape(x)
    if size % BLOCK:
        paddings = [(0, 0)] * len(before) + [(0, -size % BLOCK)]
        x = ops.pad(x, paddings, constant_values=float("-inf"))
    return ops.reshape(x, (*before, -(-size // BLOCK), BLOCK))


def check_logits(operation: keras.Operation) -> None:
    """Raises if the last operation of a model turns logits into probabilities.

    Their log-softmax would be taken again, and scores of hypotheses would be wrong.
    """
    activation = getattr(operation, "activation", None)
    name = type(operation).__name__ if activation is None else getattr(activation, "__name__", "")
    if name.lower() in ("softmax", "sigmoid", "logsoftmax", "log_softmax"):
        raise ValueError(
            f"generation needs a model that returns logits, got probabilities: {operation.name!r}, "
            f"the last layer, ends in {name.lower()}; remove it and train with from_logits=True"
        )
