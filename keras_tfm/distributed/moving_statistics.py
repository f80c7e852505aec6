"""The moving statistics of batch normalisation, averaged over all replicas."""

import keras
import tensorflow as tf

from keras_tfm.keras_internals import sublayers


def average_moving_statistics(model: keras.Model, share: tf.Tensor | None) -> None:
    """Averages what each replica has updated in its step.

    Keras 3.15 leaves each replica its own values: the model that is saved is the first replica's,
    and other replicas evaluate another one.

    Args:
        share: float32, the replica's rows over the replicas' mean. None, in a step that does not
            count them: all replicas count alike.
    """
    replica = tf.distribute.get_replica_context()
    layers = [x for x in sublayers(model) if isinstance(x, keras.layers.BatchNormalization)]
    # Frozen ones are not updated, and synchronized ones are equal.
    updated = [x for x in layers if x.built and x.trainable and not is_synchronized(x)]
    # Of renormalisation, too; a subclass may count steps.
    variables = [
        v
        for layer in updated
        for v in layer.non_trainable_variables
        if keras.backend.is_float_dtype(v.dtype)
    ]
    if not variables:
        return
    values = [tf.convert_to_tensor(v) for v in variables]
    if share is not None:
        values = [tf.math.multiply_no_nan(x, tf.cast(share, x.dtype)) for x in values]
    means = replica.all_reduce(tf.distribute.ReduceOp.MEAN, values)
    for variable, mean in zip(variables, means, strict=True):
        variable.assign(mean)


def is_synchronized(layer: keras.Layer) -> bool:
    """Whether a layer is a batch normalisation that computes its moments over all replicas."""
    return isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized
