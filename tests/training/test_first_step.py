"""A step of training is traced once: to trace it takes most of the time of a first step."""

import keras
import numpy as np
import pytest
from execution import tensorflow_only

import keras_tfm
from keras_tfm import training

pytestmark = tensorflow_only
X, Y = np.ones((4, 3), "float32"), np.ones((4, 2), "float32")


class Counted(keras_tfm.Model):
    traces = 0

    def train_step(self, data):
        self.traces += 1
        return super().train_step(data)


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
def test_it_is_traced_once(dtype):
    x = keras.Input((3,))
    model = Counted(x, keras.layers.Dense(2, dtype=dtype)(x))
    model.compile("adam", "mse")
    model.fit(X, Y, epochs=2, verbose=0)
    assert model.traces == 1
    if dtype == "float32":  # a scaled loss may overflow float16: that step is left out
        assert int(model.optimizer.iterations) == 2


@pytest.mark.parametrize("method", ["fit", "test_on_batch"])
def test_it_is_traced_again_for_sample_weights_of_another_rank(method):
    labels = np.array([[1, 2], [2, 2], [1, 1], [2, 1]])
    inputs = keras.Input((2, 3))
    model = keras_tfm.Model(inputs, keras.layers.Dense(3, kernel_initializer="identity")(inputs))
    model.compile(keras.optimizers.SGD(0.0), training.LabelSmoothedCrossEntropy(0.0))
    x, rows = np.tile(np.float32([-99, 0, 1]), (4, 2, 1)), np.array([1.0, 0.5, 2.0, 1.0])
    losses = []
    for weights in (rows, np.repeat(rows[:, None], 2, 1)):
        found = getattr(model, method)(x, labels, sample_weight=weights)
        losses.append(found.history["loss"][0] if method == "fit" else found)
    each = np.log(1 + np.e) - (labels - 1).mean(axis=1)  # the mean loss of each row
    np.testing.assert_allclose(losses, [np.average(each, weights=rows)] * 2, rtol=1e-5)


def test_data_of_two_ranks_are_traced_twice():
    x = keras.Input((3,))
    model = Counted(x, keras.layers.Dense(2)(x))
    model.compile("sgd", "mse")
    for _ in range(3):
        model.train_on_batch(X, Y)
        model.train_on_batch(X, Y, sample_weight=np.ones(4))
    assert model.traces == 2


def test_a_model_that_its_first_step_builds_is_not_traced_again():
    class Subclassed(keras_tfm.Model):
        def __init__(self):
            super().__init__()
            self.dense, self.traces = keras.layers.Dense(2), 0

        def train_step(self, data):
            self.traces += 1
            return super().train_step(data)

        def call(self, x):
            return self.dense(x)

    model = Subclassed()
    model.compile("sgd", "mse")
    model.fit(X, Y, verbose=0)
    traces = model.traces
    model.fit(X, Y, verbose=0)
    assert model.traces == traces
    model.dense.trainable = False
    with pytest.warns(UserWarning, match="does not have any trainable weights"):
        model.fit(X, Y, verbose=0)


def test_frozen_variables_have_no_moments():
    """Frozen after `compile`, before the first step."""
    x = keras.Input((3,))
    first = keras.layers.Dense(5)
    model = Counted(x, keras.layers.Dense(2)(first(x)))
    model.compile("adam", "mse")
    first.trainable = False
    model.fit(X, Y, verbose=0)
    shapes = [tuple(v.shape) for v in model.optimizer.variables if v.path.endswith("momentum")]
    assert shapes == [(5, 2), (2,)]


def test_layers_that_are_built_by_the_first_step_learn():
    class Late(keras.layers.Layer):
        """Its part is built when it is called, the layer itself before."""

        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(2)
            self.built = True

        def compute_output_shape(self, shape):
            return (*shape[:-1], 2)

        def compute_output_spec(self, x):
            return keras.KerasTensor(self.compute_output_shape(x.shape))

        def call(self, x):
            return self.dense(x)

    x = keras.Input((3,))
    model = Counted(x, Late()(x))
    model.compile("adam", "mse")
    assert not model.trainable_variables
    history = model.fit(X, Y, epochs=3, verbose=0).history["loss"]
    assert len(model.trainable_variables) == 2 and history[-1] < history[0]
