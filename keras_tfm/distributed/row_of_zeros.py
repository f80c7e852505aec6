"""A row of zeros for a replica that has no rows, and its removal from the outputs.

The last batch of an epoch can have fewer rows than there are replicas. With no rows, TensorFlow's
gradient of pooling ends the process, convolutions return wrong shapes, and some losses fail.
"""

from collections.abc import Callable

import tensorflow as tf
from keras import tree

from keras_tfm import keras_internals
from keras_tfm.distributed.joint_loss import Tensor, Tensors


def add_row_of_zeros(x: Tensors, rows: Tensor) -> Tensors:
    """(B, ...), with masks, unchanged; (1, ...), zeros, if the number of rows, B, is 0.

    Args:
        x: tensors whose first axis is the batch. None, sparse and ragged tensors, and tensors of a
            constant number of rows are returned unchanged.
        rows: (), int32, B.
    """

    def of_one(t: Tensor) -> Tensor:
        if not isinstance(t, tf.Tensor) or not t.shape.rank or t.shape[0] is not None:
            return t
        shape = tf.concat([[1], tf.shape(t)[1:]], axis=0)
        # A concatenation would copy the batch.
        result = tf.cond(rows > 0, lambda: t, lambda: tf.zeros(shape, t.dtype))
        result.set_shape(t.shape)
        return result

    return tree.map_structure(lambda t: _with_mask(t, of_one), x)


def remove_row_of_zeros(y: Tensors, rows: Tensor) -> Tensors:
    """(B, ...), with masks, unchanged; (0, ...) if the number of rows, B, is 0."""

    def of_one(t: Tensor) -> Tensor:
        if not isinstance(t, tf.Tensor) or not t.shape.rank or t.shape[0] is not None:
            return t
        # A slice alone would copy the gradient.
        result = tf.cond(rows > 0, lambda: t, lambda: t[:0])
        result.set_shape(t.shape)
        return result

    return tree.map_structure(lambda t: _with_mask(t, of_one), y)


def _with_mask(t: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    result, mask = change(t), None if t is None else keras_internals.get_mask(t)
    if mask is not None and result is not t:
        keras_internals.set_mask(result, change(mask))
    return result


def zero_gradients(gradients: list[Tensor], rows: Tensor) -> list[Tensor]:
    """The gradients of a replica, which are 0, and not NaN, if its number of rows is 0."""
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]
    given = [v for v in values if v is not None]
    kept = iter(tf.cond(rows > 0, lambda: given, lambda: [tf.zeros_like(v) for v in given]))

    def of_one(g: Tensor) -> Tensor:
        if isinstance(g, tf.IndexedSlices):
            return tf.IndexedSlices(next(kept), g.indices, g.dense_shape)
        return None if g is None else next(kept)

    return [of_one(g) for g in gradients]
