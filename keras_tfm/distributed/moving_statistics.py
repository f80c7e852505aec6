"""The moving statistics of batch normalisation, averaged over all replicas."""

from collections.abc import Callable

import keras
import tensorflow as tf

from keras_tfm.keras_internals import sublayers


def average_moving_statistics(model: keras.Model, weigh: Callable[[tf.Tensor], tf.Tensor]) -> None:
    """Averages what each replica has updated in its step.

    Keras 3.15 leaves each replica its own values: the model that is saved is the first replica's,
    and other replicas evaluate another one.

    Args:
        weigh: function that multiplies a value by the replica's share of the rows.
    """
    replica = tf.distribute.get_replica_context()
    layers = [x for x in sublayers(model) if isinstance(x, keras.layers.BatchNormalization)]
    # Frozen ones are not updated, and synchronized ones are equal.
    updated = [x for x in layers if x.built and x.trainable and not x.synchronized]
    variables = [v for x in updated for v in (x.moving_mean, x.moving_variance)]
    if not variables:
        return
    values = [weigh(tf.convert_to_tensor(v)) for v in variables]
    means = replica.all_reduce(tf.distribute.ReduceOp.MEAN, values)
    for variable, mean in zip(variables, means, strict=True):
        variable.assign(mean)
