"""Gathers with different indices in each row, with operations that compilers run fast."""

import keras
from keras import ops

from keras_tfm.layers.types import Tensor


def gather(x: Tensor, places: Tensor) -> Tensor:
    """Entries of x (B, N, ...) at indices (B, M), given per row -> (B, M, ...).

    >>> import numpy as np
    >>> from keras_tfm.generation.gather import gather
    >>> gather(np.array([[1, 2, 3], [4, 5, 6]]), np.array([[2, 0], [1, 1]])).numpy().tolist()
    [[3, 1], [5, 5]]
    """
    batch, count, *rest = ops.shape(x)
    if x.shape[0] != 1:
        places = places + ops.expand_dims(ops.arange(batch, dtype=places.dtype) * count, 1)
    return _rows(ops.reshape(x, (batch * count, *rest)), places)


def gather_columns(x: Tensor, columns: Tensor) -> Tensor:
    """Entries of x (B, G, N, K) at columns (B, M), given per row -> (B, G, M, K)."""
    batch, groups, count, width = ops.shape(x)
    starts = ops.arange(batch * groups, dtype=columns.dtype) * count
    places = ops.reshape(starts, (batch, groups, 1)) + ops.expand_dims(columns, 1)
    return _rows(ops.reshape(x, (batch * groups * count, width)), places)


def _rows(x: Tensor, places: Tensor) -> Tensor:
    if keras.backend.backend() != "tensorflow":
        return ops.take(x, places, axis=0)
    # `ops.take` adds three operations to support negative indices.
    import tensorflow as tf

    return tf.gather(x, places)
