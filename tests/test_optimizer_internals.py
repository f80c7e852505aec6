"""Each private name of Keras's optimizers that the package uses still means the same."""

import inspect
import re
from pathlib import Path

import keras
import numpy as np
import pytest
from execution import tensorflow_only

from keras_tfm import optimizer_internals


def test_every_function_is_tested_here():
    functions = inspect.getmembers(optimizer_internals, inspect.isfunction)
    used = set(re.findall(r"optimizer_internals\.(\w+)", Path(__file__).read_text()))
    assert {name for name, _ in functions} <= used


@tensorflow_only
def test_gradient_sum():
    import tensorflow as tf

    optimizer = keras.optimizers.SGD(1.0)
    variable = keras.Variable([5.0])
    default = optimizer_internals.gradient_sum(optimizer)
    seen = []

    def double(pairs):
        seen.append(len(pairs))
        return [(2 * gradient, x) for gradient, x in pairs]

    optimizer_internals.set_gradient_sum(optimizer, double)
    assert optimizer_internals.gradient_sum(optimizer) is double
    optimizer.apply([tf.constant([1.0])], [variable])
    assert variable.numpy().tolist() == [3.0] and seen == [1]
    optimizer_internals.set_gradient_sum(optimizer, default)
    assert optimizer_internals.gradient_sum(optimizer) == default
    optimizer.apply([tf.constant([1.0])], [variable])
    assert variable.numpy().tolist() == [2.0]


def test_batches_seen():
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    variable = keras.Variable([5.0])
    for _ in range(3):
        optimizer.apply([keras.ops.ones(1)], [variable])
    assert int(optimizer_internals.batches_seen(optimizer)) == 3
    assert int(optimizer.iterations) == 1


def test_trained_variables():
    optimizer, variable = keras.optimizers.Adam(), keras.Variable([5.0])
    optimizer.build([variable])
    (known,) = optimizer_internals.trained_variables(optimizer)
    assert known is variable


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="others train the given variables")
def test_update_only():
    optimizer, variables = keras.optimizers.SGD(1.0), [keras.Variable([5.0]), keras.Variable([3.0])]
    optimizer.build(variables)
    state = [v.value for v in optimizer.variables]
    optimizer_internals.update_only(optimizer, variables[1:])
    (new,), _ = optimizer.stateless_apply(state, [keras.ops.ones(1)], [variables[1].value])
    assert new.tolist() == [2.0]
    optimizer_internals.update_only(optimizer, variables)
    with pytest.raises(ValueError, match="1:1"):
        optimizer.stateless_apply(state, [keras.ops.ones(1)], [variables[1].value])


@pytest.mark.parametrize("accumulated", [None, 1, 2])
def test_scale_updates(accumulated):
    """A decay of 1/2 and a gradient of 1 at a rate of 1/4, twice; one variable at half the rate."""
    optimizer = keras.optimizers.SGD(
        0.25, weight_decay=0.5, gradient_accumulation_steps=accumulated and 2
    )
    assert not optimizer_internals.updates_are_scaled(optimizer)
    fast, slow = keras.Variable([8.0]), keras.Variable([8.0])
    optimizer_internals.scale_updates(optimizer, [(1.0, [fast]), (0.5, [slow])])
    assert optimizer_internals.updates_are_scaled(optimizer)
    for _ in range(accumulated or 1):
        optimizer.apply([keras.ops.ones(1), keras.ops.ones(1)], [fast, slow])
    found = [float(keras.ops.convert_to_numpy(x)[0]) for x in (fast, slow)]
    once = [8 * (1 - 0.125) - 0.25, 8 * (1 - 0.0625) - 0.125]
    np.testing.assert_allclose(found, [8.0, 8.0] if accumulated == 1 else once, rtol=1e-6)
    assert optimizer.weight_decay == 0.5
