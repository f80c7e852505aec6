"""Embedding lookup on TensorFlow for the TFLite converter."""

import tensorflow as tf

from keras_tfm.layers.types import Tensor


def embedding_lookup(table: Tensor, ids: Tensor) -> Tensor:
    """Looks up rows in a function that the TFLite converter turns into EMBEDDING_LOOKUP.

    EMBEDDING_LOOKUP shares the table with a tied output, in int8 too; a GATHER would get its own
    copy. Not for training: the gradient through a function is dense.
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
