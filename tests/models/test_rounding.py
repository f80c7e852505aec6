"""Training rounds as a file does, bit for bit, on every backend, compiled or not."""

import keras
import numpy as np
import pytest
from compare import to_numpy

from keras_tfm.models.quantization.rounding import BLOCK, Grid

COUNT = 10_000


def matrices(bits):
    """(10,000, 32 or 64, 2): numbers of every size, blocks of zeros, ties, subnormal numbers."""
    rng = np.random.default_rng(bits)
    width = 2 * BLOCK if bits == 4 else BLOCK
    values = rng.normal(size=(COUNT, width, 2)) * 10.0 ** rng.uniform(-9, 3, (COUNT, 1, 2))
    values[:100] = 0.0
    values[100:200, :, 1] = 0.0
    values[200:300] = 1e-42  # subnormal
    values[300:400, 1:] = 1e-42
    largest = 7 if bits == 4 else 127
    ties = rng.integers(-2 * largest, 2 * largest + 1, (200, width, 2)) / 2
    ties[:, ::BLOCK] = largest
    values[400:600] = ties * 2.0 ** rng.integers(-12, 5, (200, 1, 2))
    values[600:700, 3:] *= 1e-7  # one large value in a row
    return values.astype("float32")


def compiled(function):
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.function(function, jit_compile=True)
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(function)
    return function


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_both_forms_are_equal_bit_for_bit(bits, is_compiled):
    values, grid = matrices(bits), Grid(bits, 1, 2)
    wanted = grid.values(*grid.round(values), values.shape)
    function = compiled(grid.straight_through) if is_compiled else grid.straight_through
    found = to_numpy(function(keras.ops.convert_to_tensor(values)))
    np.testing.assert_array_equal(found, wanted)
    assert len(np.unique(wanted)) > COUNT


SHAPES = [((64, 3), 0, 1), ((3, 64), 1, 2), ((2, 32, 5), 0, 2), ((5, 4, 16), 1, 3)]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("shape", "first", "last"), SHAPES)
def test_axes(bits, shape, first, last):
    """Each output has scales of its own, wherever its axis is."""
    weight = np.random.default_rng(0).normal(size=shape).astype("float32")
    weight[tuple(slice(1) if first <= i < last else slice(None) for i in range(len(shape)))] *= 9
    grid = Grid(bits, first, last)
    axes = [i for i in range(len(shape)) if not first <= i < last] + list(range(first, last))
    rows = weight.transpose(axes).reshape(-1, 64)
    np.testing.assert_array_equal(grid.rows(weight), rows)
    levels, scales = Grid(bits, 1, 2).round(rows)
    rounded = grid.values(levels, scales, shape)
    np.testing.assert_array_equal(
        to_numpy(grid.straight_through(keras.ops.convert_to_tensor(weight))), rounded
    )
    np.testing.assert_array_equal(grid.values(*grid.round(weight), shape), rounded)
    # At most half a step from the weight, which is at most the largest of a row over the levels.
    step = np.abs(rows).max(1, keepdims=True) / (7 if bits == 4 else 127)
    assert np.all(np.abs(grid.rows(rounded) - rows) <= 0.51 * step)


def test_the_gradient_is_that_of_the_identity():
    weight = keras.Variable(np.random.default_rng(0).normal(size=(32, 3)), dtype="float32")
    factors = np.random.default_rng(1).normal(size=(32, 3)).astype("float32")

    def loss(value):
        return keras.ops.sum(Grid(4, 0, 1).straight_through(value) * keras.ops.array(factors))

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            result = loss(weight)
        gradient = tape.gradient(result, weight.value)
    elif keras.backend.backend() == "jax":
        import jax

        gradient = jax.grad(loss)(weight.value)
    else:
        loss(weight.value).backward()
        gradient = weight.value.grad
    np.testing.assert_array_equal(to_numpy(gradient), factors)
