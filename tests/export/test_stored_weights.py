"""Weights of a file, found again in the model after rounding, transposing and folded factors."""

import numpy as np
import pytest

from keras_tfm.export.verification.float_file import Stored
from keras_tfm.export.verification.stored_weights import ModelWeights

RNG = np.random.default_rng(0)
KERNEL = RNG.normal(size=(23, 19)).astype("float32")
GAMMA = (1.0 + 0.3 * RNG.normal(size=23)).astype("float32")
OTHER = RNG.normal(size=(23, 19)).astype("float32")


def rounded(values, levels):
    """Each row in its own steps, as a file stores it."""
    step = np.abs(values).max(axis=1, keepdims=True) / levels
    return (np.rint(values / step) * step).astype("float32"), step


@pytest.mark.parametrize("levels", [7, 127])
@pytest.mark.parametrize(
    "folded",
    [
        pytest.param(KERNEL.T, id="transposed"),
        pytest.param(0.5 * KERNEL.T, id="halved, for a GELU"),
        pytest.param(KERNEL.T * GAMMA, id="with the scale of the norm before"),
        pytest.param(-0.5 * KERNEL.T * GAMMA, id="with scale and factor"),
    ],
)
def test_a_rounded_weight_is_the_models(folded, levels):
    found = ModelWeights([OTHER, KERNEL, GAMMA]).find(Stored.of(*rounded(folded, levels)))
    assert found.known
    assert not np.any(found.spread)
    # An unknown factor is between bounds that all 437 numbers set.
    np.testing.assert_allclose(found.values, folded, rtol=0.3 / (levels * 19))


@pytest.mark.parametrize("order", [(0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_a_weight_of_several_matrices_is_the_models_in_any_order_of_its_axes(order):
    experts = RNG.normal(size=(3, 11, 13)).astype("float32")
    wanted = experts.transpose(order)
    wanted = wanted.reshape(-1, wanted.shape[-1])
    found = ModelWeights([OTHER, experts]).find(Stored.of(*rounded(wanted, 7)))
    assert found.known
    np.testing.assert_array_equal(found.values, wanted)


def test_unknown_factors_are_known_as_far_as_the_numbers_tell():
    factors = np.linspace(0.5, 2.0, 23)
    values, step = rounded(KERNEL.T * factors, 127)
    found = ModelWeights([KERNEL]).find(Stored.of(values, step))
    assert found.known
    assert 0.0 < found.spread.max() < 0.02
    error = np.abs(found.values - KERNEL.T * factors)
    assert np.all(error <= 1.01 * found.spread * np.abs(found.values) + 1e-6)


def test_a_number_of_the_model_is_a_factor():
    """As that of a soft cap of logits, of which int4 weights tell three digits."""
    values, step = rounded(KERNEL.T / 30.0, 7)
    found = ModelWeights([KERNEL], [30.0, 1 / 30.0]).find(Stored.of(values, step))
    assert found.known and 0.0 < found.spread.max() < 0.1
    np.testing.assert_allclose(found.values, KERNEL.T / 30.0, rtol=1e-6)
    alone = ModelWeights([KERNEL]).find(Stored.of(values, step))
    assert np.abs(alone.values / (KERNEL.T / 30.0) - 1).max() > 1e-5


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(RNG.permutation(KERNEL).T, id="shuffled rows"),
        pytest.param(OTHER.T, id="another weight"),
    ],
)
def test_another_weight_is_unknown(wrong):
    values, step = rounded(wrong, 7)
    found = ModelWeights([KERNEL, GAMMA]).find(Stored.of(values, step))
    assert not found.known
    np.testing.assert_array_equal(found.values, values)
    np.testing.assert_array_equal(found.spread, np.broadcast_to(step / 2, values.shape))


@pytest.mark.parametrize("columns", [slice(0, 8), slice(8, 17), slice(17, 19)])
def test_parts_of_a_projection_may_be_unequal(columns):
    """Mamba-2 splits one product into gates, convolved values and time steps."""
    values, step = rounded(KERNEL.T[columns], 7)
    found = ModelWeights([OTHER, KERNEL, GAMMA]).find(Stored.of(values, step))
    assert found.known and not np.any(found.spread)
    np.testing.assert_array_equal(found.values, KERNEL.T[columns])
    values[-1] = values[-1, ::-1]  # only the first row is right
    assert not ModelWeights([OTHER, KERNEL]).find(Stored.of(values, step)).known


def test_a_number_that_is_off_by_more_than_half_a_step_is_not_the_models():
    values, step = rounded(KERNEL.T, 127)
    assert ModelWeights([KERNEL]).find(Stored.of(values, step)).known
    values[3, 4] += step[3, 0]
    assert not ModelWeights([KERNEL]).find(Stored.of(values, step)).known


def test_samples_differ_by_the_spread():
    values, step = rounded(OTHER.T, 7)
    found = ModelWeights([KERNEL]).find(Stored.of(values, step))
    difference = np.abs(found.sample(np.random.default_rng(1)) - values) / step
    assert 0.45 < difference.max() <= 0.5 + 1e-6


def test_random_rounding_makes_no_negative_values_of_a_weight_that_has_none():
    values = np.maximum(KERNEL, 0.0).round()
    found = ModelWeights([]).find(Stored.of(values, np.ones((23, 1), "float32")))
    drawn = np.concatenate(list(found.rounded_chunks(np.random.default_rng(0))))
    assert drawn.min() >= 0.0 and np.any(drawn[values == 0.0] != 0.0)
