import functools

import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy
from execution import EVERY_MODE, compiled, tensorflow_only
from keras_weights import built

from keras_tfm.layers import LayerNormalization
from keras_tfm.layers.target import export_target

B, T, D = 2, 5, 7
X = np.random.default_rng(3).normal(size=(B, T, D)).astype("float32")


def expected(x, gamma, beta, epsilon):
    x = x.astype("float64")
    deviation = np.sqrt(x.var(axis=-1, keepdims=True) + epsilon)
    return (x - x.mean(axis=-1, keepdims=True)) / deviation * gamma + beta


@pytest.mark.parametrize(
    "options", [{}, {"center": False}, {"scale": False}, {"axis": 2, "epsilon": 0.1}]
)
def test_on_a_device_and_elsewhere(options):
    layer = built(LayerNormalization(**options), (B, T, D))
    gamma = 1.0 if layer.gamma is None else to_numpy(layer.gamma)
    beta = 0.0 if layer.beta is None else to_numpy(layer.beta)
    wanted = expected(X, gamma, beta, layer.epsilon)
    # float32 rounds at 6e-8, and a deviation of few numbers is a little less exact.
    assert_close(layer(X), wanted, 2e-6)
    with export_target():
        assert_close(layer(X), wanted, 2e-6)


@pytest.mark.xfail(
    keras.backend.backend() == "torch",
    reason="Keras 3.15 gives PyTorch's operator the axis as if it were the last",
    strict=True,
)
def test_another_axis_is_left_to_keras():
    layer = built(LayerNormalization(axis=1), (B, T, D))
    elsewhere = to_numpy(layer(X))
    with export_target():
        np.testing.assert_array_equal(to_numpy(layer(X)), elsewhere)


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision_is_rounded_last(dtype):
    """Squares of 300 leave float16."""
    layer = built(LayerNormalization(dtype=dtype), (B, T, D))
    x = (300.0 * X).astype("float16")
    with export_target():
        y = layer(x)
    assert keras.backend.standardize_dtype(y.dtype) == layer.compute_dtype
    wanted = expected(x, to_numpy(layer.gamma), to_numpy(layer.beta), layer.epsilon)
    assert_close(to_numpy(y).astype("float64"), wanted, 2e-2)  # bfloat16 has 8 bits


@tensorflow_only
@pytest.mark.parametrize("mode", EVERY_MODE)
def test_gradient_in_training(mode):
    """It is written out there, and derived elsewhere; and so are the gradients of the gradients."""
    import tensorflow as tf

    layer = built(LayerNormalization(epsilon=1e-3), (B, T, D))
    x, upstream = tf.constant(X), tf.constant(X[::-1] ** 2)

    def gradients(training):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x, training=training)
            slopes = tape.gradient(y, [x, *(v.value for v in layer.trainable_variables)], upstream)
            norm = sum(tf.reduce_sum(slope**2) for slope in slopes)
        return y, *slopes, outer.gradient(norm, x)

    both = [compiled(mode, functools.partial(gradients, training))() for training in (True, False)]
    for found, wanted in zip(*both, strict=True):
        assert_close(found, wanted, 1e-6)
