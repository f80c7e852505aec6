"""Sums of values by token, with an operator that every backend and LiteRT has."""

from typing import Any

from keras import ops

Tensor = Any


def scattered(ids: Tensor, values: Tensor, vocabulary_size: int) -> Tensor:
    """The sum of the values of each token.

    Args:
        ids: (B, N) or (1, N), int32, tokens; `vocabulary_size` and above for values to ignore.
        values: (B, N), float32.
        vocabulary_size: int, V.

    Returns:
        (B, V), float32.

    >>> from keras import ops
    >>> from keras_tfm.generation.processors.scattered import scattered
    >>> scattered(ops.array([[2, 0, 2, 3]]), ops.array([[1.0, 5.0, 1.0, 9.0]]), 3).numpy().tolist()
    [[5.0, 0.0, 2.0]]
    """
    batch, count = ops.shape(values)[0], values.shape[1]
    columns = ops.broadcast_to(ops.minimum(ids, vocabulary_size), (batch, count))
    rows = ops.expand_dims(ops.arange(batch, dtype="int32"), 1)
    rows = ops.broadcast_to(rows, (batch, count))
    places = ops.reshape(ops.stack([rows, columns], axis=-1), (batch * count, 2))
    sums = ops.scatter(places, ops.reshape(values, (batch * count,)), (batch, vocabulary_size + 1))
    return sums[:, :vocabulary_size]
