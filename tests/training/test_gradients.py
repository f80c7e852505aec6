import keras
import numpy as np
import pytest
from execution import tensorflow_only

from keras_tfm.layers import TokenEmbedding
from keras_tfm.training.gradients import GradientWatch

pytestmark = tensorflow_only

X = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
Y = np.random.default_rng(1).normal(size=(4, 2)).astype("float32")
# Of the mean of the squares, with weights of 1.
GRADIENT = 2.0 * X.T @ (X @ np.ones((3, 2)) - Y) / 8


def model_of(optimizer, jit_compile=False):
    x = keras.Input((3,))
    dense = keras.layers.Dense(2, use_bias=False, kernel_initializer="ones")
    model = keras.Model(x, dense(x))
    model.compile(optimizer, "mse", jit_compile=jit_compile)
    return model


def step(model, x=X, y=Y):
    model.fit(x, y, batch_size=len(x), verbose=0)
    return model.get_weights()[0]


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_the_norm_is_that_before_clipping(clip, jit_compile):
    model = model_of(keras.optimizers.SGD(0.1, global_clipnorm=clip), jit_compile)
    watch = GradientWatch.of(model)
    moved = np.ones((3, 2)) - step(model)
    expected = np.linalg.norm(GRADIENT)
    assert float(watch.norm) == pytest.approx(expected, rel=1e-6)
    assert np.linalg.norm(moved) == pytest.approx(0.1 * (clip or expected), rel=1e-6)


def test_the_loss_scale_is_no_part_of_it_and_an_overflow_is_not_seen():
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=1024)
    model = model_of(scaled)
    watch = GradientWatch.of(model)
    step(model)
    assert float(watch.norm) == pytest.approx(np.linalg.norm(GRADIENT), rel=1e-6)
    before = model.get_weights()[0]
    after = step(model, np.where(X.max() == X, np.inf, X))
    np.testing.assert_array_equal(after, before)
    assert float(watch.norm) == pytest.approx(np.linalg.norm(GRADIENT), rel=1e-6)


def test_the_guard_keeps_what_is_not_finite_from_the_weights():
    model = model_of(keras.optimizers.SGD(0.1))
    watch = GradientWatch.of(model)
    watch.guard = True
    before = step(model)
    after = step(model, np.where(X.max() == X, np.nan, X))
    np.testing.assert_array_equal(after, before)
    assert np.isnan(float(watch.norm))
    watch.remove()
    assert np.isnan(step(model, np.where(X.max() == X, np.nan, X))).any()


def test_rows_that_are_looked_up_twice_are_added_up():
    """Ids 1, 1, 2, each row's gradient (1, 1): norms 2 and 1 times the root of 2."""
    ids = keras.Input((3,), dtype="int32")
    table = TokenEmbedding(5, 2, embeddings_initializer="zeros")
    model = keras.Model(ids, table(ids))
    model.compile(keras.optimizers.SGD(1.0), lambda y, p: keras.ops.sum(p))
    watch = GradientWatch.of(model)
    watch.guard = True
    model.fit(np.array([[1, 1, 2]]), np.zeros((1, 3)), verbose=0)
    assert float(watch.norm) == pytest.approx((2 * (4 + 1)) ** 0.5)
    np.testing.assert_array_equal(model.get_weights()[0][:3], [[0, 0], [-2, -2], [-1, -1]])


def test_there_is_one_watch_and_it_leaves_nothing():
    model = model_of(keras.optimizers.SGD(0.1))
    step(model)
    before = dict(vars(model.optimizer))
    watch = GradientWatch.of(model)
    assert GradientWatch.of(model) is watch
    step(model)
    watch.remove()
    watch.remove()
    assert vars(model.optimizer).keys() == before.keys()
    assert len(model.optimizer.variables) == 2  # iterations and the rate
    step(model)
    assert GradientWatch.of(model) is not watch
