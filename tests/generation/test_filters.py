"""The filters of sampling, against NumPy, a row at a time."""

import numpy as np
import pytest
from compare import to_numpy

from keras_tfm.generation import filters

NEVER = -np.inf
rng = np.random.default_rng(3)
# Two rows that differ, one with ties, one with an impossible token.
LOGITS = np.concatenate(
    [rng.normal(size=(3, 7)), [[1, 2, 2, 2, 0, 0, -1]], [[0, 3, NEVER, 1, 1, 2, 5]]]
)
LOGITS = LOGITS.astype("float32")


def kept(found):
    """Which tokens are left; the logits of these are as they were."""
    found = to_numpy(found)
    left = found != NEVER
    np.testing.assert_array_equal(found[left], LOGITS[left])
    return left & (LOGITS != NEVER)


def probabilities(row):
    exponentials = np.exp(row - row.max())
    return exponentials / exponentials.sum()


@pytest.mark.parametrize("k", [1, 2, 3, 6, 7, 8, 100])
def test_top_k_keeps_the_largest_and_their_equals(k):
    expected = [(row >= np.sort(row)[::-1][:k][-1]) & (row != NEVER) for row in LOGITS]
    np.testing.assert_array_equal(kept(filters.top_k(LOGITS, k)), expected)


@pytest.mark.parametrize("p", [1e-9, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0])
def test_top_p_keeps_the_fewest_whose_probabilities_reach_p(p):
    expected = []
    for row in LOGITS.astype("float64"):
        order = np.argsort(-row, kind="stable")
        total, least = 0.0, row[order[0]]
        for token in order:
            if total >= p:
                break
            total, least = total + probabilities(row)[token], row[token]
        expected.append((row >= least) & (row != NEVER))
    np.testing.assert_array_equal(kept(filters.top_p(LOGITS, p)), expected)


def test_top_p_counts_what_comes_before_a_token():
    """1/2, 1/4, 1/8, 1/8 exactly: at p = 1/2 the first is enough, above it the second is needed."""
    logits = np.log(np.float32([[8, 4, 2, 2]]))
    for p, tokens in ((0.25, 1), (0.49, 1), (0.51, 2), (0.74, 2), (0.76, 4), (1.0, 4)):
        assert np.isfinite(to_numpy(filters.top_p(logits, p))).sum() == tokens, p


@pytest.mark.parametrize("p", [0.02, 0.1, 0.3, 0.9, 1.0])
def test_min_p_keeps_what_is_p_times_as_probable_as_the_best(p):
    shares = np.array([probabilities(row) / probabilities(row).max() for row in LOGITS])
    assert np.abs(shares - p)[(shares != 1) | (p != 1)].min() > 1e-3  # no rounding decides
    np.testing.assert_array_equal(kept(filters.min_p(LOGITS, p)), shares >= p)
