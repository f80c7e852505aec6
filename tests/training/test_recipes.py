"""One-liners of docs/training.md that are Keras's own: averaged weights and clipping."""

import keras
import numpy as np
import pytest
from execution import tensorflow_only

pytestmark = tensorflow_only


def slope(**options):
    """y = w x from w = 0, with a gradient of -1 throughout: each step adds the rate, 1."""
    x = keras.Input((1,))
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Model(x, dense(x))
    model.compile(keras.optimizers.SGD(1.0, **options), lambda y, p: -keras.ops.mean(p))
    return model


def fit(model, steps, epochs=1, **options):
    x = np.ones((steps, 1))
    return model.fit(x, x, batch_size=1, epochs=epochs, verbose=0, **options)


class Seen(keras.callbacks.Callback):
    """The weight that a callback at the end of an epoch finds."""

    def __init__(self):
        super().__init__()
        self.weights = []

    def on_epoch_end(self, epoch, logs=None):
        self.weights.append(float(self.model.get_weights()[0][0, 0]))


def test_averages_are_validated_and_saved_and_left_in_the_model():
    """Weights 1, 2, 3, 4; averages 1, 1.5, 2.25, 3.125 with a momentum of 1/2."""
    model, seen = slope(use_ema=True, ema_momentum=0.5), Seen()
    one = np.ones((1, 1))
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    history = fit(model, 2, 2, validation_data=(one, one), callbacks=[swap, seen]).history
    assert history["val_loss"] == [-1.5, -3.125]
    assert seen.weights == [1.5, 3.125]
    assert model.get_weights()[0] == 3.125


def test_without_the_callback_validation_sees_the_last_weights():
    model, seen = slope(use_ema=True, ema_momentum=0.5), Seen()
    one = np.ones((1, 1))
    history = fit(model, 2, 2, validation_data=(one, one), callbacks=[seen]).history
    assert history["val_loss"] == [-2.0, -4.0]
    assert seen.weights == [2.0, 4.0]
    assert model.get_weights()[0] == 3.125


def test_clipping_by_the_norm_of_all_gradients():
    model = slope(global_clipnorm=0.25)
    fit(model, 3)
    assert model.get_weights()[0] == pytest.approx(0.75)
