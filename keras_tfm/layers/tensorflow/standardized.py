"""Layer normalisation on TensorFlow with an explicit gradient.

Example:

>>> import tensorflow as tf
>>> from keras_tfm.layers.tensorflow.standardized import standardized
>>> standardized(tf.constant([[1.0, 3.0]]), epsilon=0.0).numpy().tolist()
[[-1.0, 1.0]]
"""

from typing import Any

import tensorflow as tf

Tensor = Any


def standardized(x: Tensor, epsilon: float) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) over the last axis.

    The explicit gradient takes half as many passes over x as the derived one. With y the result, s
    the standard deviation and g the upstream gradient, it is (g - mean(g) - y mean(g y)) / s.
    """

    @tf.custom_gradient
    def standardize(x: Tensor) -> tuple[Tensor, Any]:
        x = x - tf.reduce_mean(x, axis=-1, keepdims=True)
        scale = tf.math.rsqrt(tf.reduce_mean(x * x, axis=-1, keepdims=True) + epsilon)
        y = x * scale

        def gradient(upstream: Tensor) -> Tensor:
            mean = tf.reduce_mean(upstream, axis=-1, keepdims=True)
            along = tf.reduce_mean(upstream * y, axis=-1, keepdims=True)
            return scale * (upstream - mean - y * along)

        return y, gradient

    return standardize(x)
