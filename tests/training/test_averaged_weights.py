"""Averaged weights (`use_ema`) train on in another `fit`, on every backend."""

import keras
import numpy as np
import pytest

import keras_tfm

X = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")


@pytest.mark.parametrize("scaled", [False, True])
def test_a_second_fit_goes_on(scaled):
    """Keras 3.15 on JAX loses the weights in it."""
    x = keras.Input((3,))
    model = keras_tfm.Model(x, keras.layers.Dense(3)(x))
    optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5)
    model.compile(keras.optimizers.LossScaleOptimizer(optimizer) if scaled else optimizer, "mse")
    first = model.fit(X, X, epochs=2, verbose=0).history["loss"]
    averages = optimizer._model_variables_moving_average
    for weight, average in zip(model.trainable_variables, averages, strict=True):
        assert np.array_equal(weight, average)
    second = model.fit(X, X, epochs=2, verbose=0).history["loss"]
    assert second[-1] < first[-1]
