"""The largest numbers by blocks, and the normaliser, against NumPy."""

import numpy as np
import pytest
from compare import to_numpy
from execution import MODES, execute

from keras_tfm.generation.logits import BLOCK, log_normalizer, top_k
from keras_tfm.generation.strategies.beam import IMPOSSIBLE


def largest(x, k):
    """Of equal numbers the first one first."""
    places = np.argsort(-x, axis=-1, kind="stable")[:, :k]
    return np.take_along_axis(x, places, axis=-1), places


def sizes(k):
    """At the boundaries of blocks, below and above the size where blocks are worth it."""
    least = 4 * k * BLOCK
    around = [BLOCK, least, least + BLOCK, 2 * least]
    return sorted({n + more for n in around for more in (-1, 0, 1)})


@pytest.mark.parametrize("values", [2, 300, None], ids=["two", "some", "all"])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_it_is_a_stable_sort(k, values):
    rng = np.random.default_rng(k)
    for size in sizes(k):
        x = rng.normal(size=(5, size))
        if values is not None:
            x = rng.integers(0, values, (5, size))
        x = x.astype("float32")
        found, wanted = top_k(x, k), largest(x, k)
        np.testing.assert_array_equal(to_numpy(found[0]), wanted[0])
        np.testing.assert_array_equal(to_numpy(found[1]), wanted[1])


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("value", [0.0, IMPOSSIBLE, -np.inf])
def test_of_equal_numbers_the_first(value, k):
    """Also of numbers that are as small as what fills the last block."""
    for size in sizes(k):
        _, places = top_k(np.full((2, size), value, "float32"), k)
        assert to_numpy(places).tolist() == [list(range(k))] * 2


@pytest.mark.parametrize("k", [1, 3])
def test_the_largest_may_lie_anywhere(k):
    """All in one block, at both ends of blocks, in the last one, which is not full."""
    size = 4 * k * BLOCK + 3
    for place in {0, 1, BLOCK - 1, BLOCK, size - BLOCK, size - 4, size - 3, size - 1}:
        x = np.full((1, size), -np.inf, "float32")
        x[0, place] = -5.0
        values, places = (to_numpy(y) for y in top_k(x, k))
        wanted = [place, *(i for i in range(k) if i != place)][:k]
        assert places.tolist() == [wanted]
        assert values[0, 0] == -5.0
    x = np.arange(size, dtype="float32")[np.newaxis]
    assert to_numpy(top_k(x, k)[1]).tolist() == [list(range(size - 1, size - 1 - k, -1))]


@pytest.mark.parametrize("size", [100, 7 * BLOCK, 7 * BLOCK + 5])
@pytest.mark.parametrize("values", [3, None], ids=["some", "all"])
def test_of_several_parts_with_something_added(size, values):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 3, size)) if values is None else rng.integers(0, values, (2, 3, size))
    x, plus = x.astype("float32"), rng.integers(0, 4, (2, 3, 1)).astype("float32")
    found, wanted = top_k(x, 4, plus), largest((x + plus).reshape(2, -1), 4)
    np.testing.assert_array_equal(to_numpy(found[0]), wanted[0])
    np.testing.assert_array_equal(to_numpy(found[1]), wanted[1])


def test_of_several_parts_all_places_are_in_their_part():
    """Where too few are not -inf, what fills the last block of the first part comes next."""
    size = BLOCK + 1
    x = np.full((1, 300, size), -np.inf, "float32")
    x[0, 0] = np.arange(size, 0, -1)
    plus = np.zeros((1, 300, 1), "float32")
    values, places = (to_numpy(y)[0] for y in top_k(x, size + 5, plus))
    assert places.tolist() == [*range(size), *[size - 1] * 5]
    assert values.tolist() == [*range(size, 0, -1), *[-np.inf] * 5]


@pytest.mark.parametrize("mode", MODES)
def test_compiled_it_is_the_same(mode):
    x = np.random.default_rng(0).integers(0, 5, (3, 1000)).astype("float32")
    values, places = execute(mode, lambda x: top_k(x, 3), x)
    np.testing.assert_array_equal(to_numpy(values), largest(x, 3)[0])
    np.testing.assert_array_equal(to_numpy(places), largest(x, 3)[1])
    assert to_numpy(places).dtype == np.int32


@pytest.mark.parametrize(
    "logits",
    [
        np.random.default_rng(0).normal(size=(3, 5, 11)),
        1e4 * np.random.default_rng(1).normal(size=(7, 300)),
        np.array([[0.0, -np.inf, 1.0], [-1e9, -1e9, -1e9], [-np.inf, 2.0, -np.inf]]),
        np.array([[88.0, 89.0], [-104.0, -105.0]]),  # exp of these is not float32's
    ],
    ids=["usual", "large", "forbidden", "overflow"],
)
def test_the_normalizer_is_the_log_of_the_sum(logits):
    logits = logits.astype("float32").astype("float64")
    top = logits.max(axis=-1, keepdims=True)
    wanted = top + np.log(np.exp(logits - top).sum(axis=-1, keepdims=True))
    # A float32 and the logarithm of a sum of up to 300.
    actual = to_numpy(log_normalizer(logits.astype("float32")))
    np.testing.assert_allclose(actual, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("size", [11, BLOCK, 2 * BLOCK])
def test_the_normalizer_of_what_is_not_finite(size):
    """Of nothing but -inf the sum is 0; of NaN and of inf there is none."""
    logits = np.zeros((4, size), "float32")
    logits[0] = -np.inf
    logits[1, size - 2] = np.nan
    logits[2, 0] = np.inf
    actual = to_numpy(log_normalizer(logits))[:, 0]
    np.testing.assert_allclose(actual, [-np.inf, np.nan, np.nan, np.log(size)], rtol=1e-6)
