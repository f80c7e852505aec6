"""Lookups on TensorFlow: as few operations as they take, and by a name that a converter knows."""

from typing import Any

import tensorflow as tf

Tensor = Any


def gather(table: Tensor, ids: Tensor) -> Tensor:
    """The rows of `table` (V, D) at integer `ids`, any shape: (*ids.shape, D).

    `ops.take` counts negative ids from the end, in three more operations a lookup and with a wrong
    vector where an error is due.
    """
    if ids.dtype not in (tf.int32, tf.int64):  # the only ones with a kernel everywhere
        ids = tf.cast(ids, tf.int64 if ids.dtype.size > 2 else tf.int32)
    return tf.gather(table, ids)


def named_gather(table: Tensor, ids: Tensor) -> Tensor:
    """`gather` under a name by which the TFLite converter knows it.

    It becomes EMBEDDING_LOOKUP, which reads the table that the tied output holds, in int8 too; a
    GATHER would get a copy of its own. Not for training: through a function the gradient is dense.
    """
    flat = tf.cast(tf.reshape(ids, (-1,)), tf.int32)
    rows = _embedding_matmul(tf.convert_to_tensor(table), flat)
    known = ids.shape.as_list()
    if known.count(None) > 1:
        return tf.reshape(rows, tf.concat([tf.shape(ids), [table.shape[-1]]], 0))
    return tf.reshape(rows, [*(-1 if d is None else d for d in known), table.shape[-1]])


@tf.function(experimental_implements="embedding_matmul", autograph=False)
def _embedding_matmul(table: Tensor, ids: Tensor) -> Tensor:
    return tf.gather(table, ids)
