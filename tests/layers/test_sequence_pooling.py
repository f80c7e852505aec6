"""One vector per sequence: every mode against NumPy, with padding on either side."""

import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy

from keras_tfm.layers import SequencePooling, TokenEmbedding

B, T, D = 4, 5, 3
X = np.random.default_rng(7).normal(size=(B, T, D)).astype("float32")
MASK = np.array([[1, 1, 1, 0, 0], [0, 0, 1, 1, 0], [1, 1, 1, 1, 1], [0, 0, 0, 1, 1]], bool)
# float64, from the definitions of sentence-transformers.
EXPECTED = {
    "mean": lambda x: x.mean(0),
    "max": lambda x: x.max(0),
    "last": lambda x: x[-1],
    "mean_sqrt_length": lambda x: x.sum(0) / np.sqrt(len(x)),
    "weighted_mean": lambda x: np.average(x, 0, weights=np.arange(1, len(x) + 1)),
}
# float32 sums of five numbers of order 1.
FLOAT32 = 1e-6


@pytest.mark.parametrize("mode", EXPECTED)
@pytest.mark.parametrize("masked", [True, False])
def test_each_mode_is_its_definition(mode, masked):
    mask = MASK if masked else np.ones((B, T), bool)
    x = X + np.where(mask, 0.0, 1e3)[..., np.newaxis].astype("float32")  # padding is not zero
    actual = SequencePooling(mode)(x, mask=mask if masked else None)
    expected = [EXPECTED[mode](X[i].astype("float64")[mask[i]]) for i in range(B)]
    assert_close(actual, np.stack(expected), FLOAT32)


def test_the_first_column_is_taken_even_if_masked():
    assert_close(SequencePooling("first")(X, mask=MASK), X[:, 0], 0.0)


@pytest.mark.parametrize("mode", EXPECTED)
def test_a_row_of_padding_gives_zeros(mode):
    mask = MASK.copy()
    mask[1] = False
    y = to_numpy(SequencePooling(mode)(X, mask=mask))
    assert np.isfinite(y).all()
    assert_close(y[1], np.zeros(D), 0.0)


def test_the_mask_of_the_tokens_is_used_and_ends_there():
    ids = np.array([[3, 4, 0], [5, 0, 0]])
    x = TokenEmbedding(7, D, mask_zero=True)(ids)
    y = SequencePooling("mean")(x)
    rows = to_numpy(x)
    assert_close(y, np.stack([rows[0, :2].mean(0), rows[1, 0]]), FLOAT32)
    assert getattr(y, "_keras_mask", None) is None


def test_half_precision_sums_in_float32():
    """4,096 ones, which bfloat16 would count to 256."""
    layer = SequencePooling("mean_sqrt_length", dtype="mixed_bfloat16")
    y = layer(np.ones((1, 4096, 2), "float32"))
    assert keras.backend.standardize_dtype(y.dtype) == "bfloat16"
    assert_close(y, np.full((1, 2), 64.0), 0.0)


def test_bad_input():
    with pytest.raises(ValueError, match=r"mode must be one of \['mean', .*got 'average'"):
        SequencePooling("average")
    with pytest.raises(ValueError, match=r"inputs must have shape \(B, T, D\)"):
        SequencePooling()(X[0])
    with pytest.raises(TypeError, match="mask must be boolean"):
        SequencePooling()(X, mask=MASK.astype("float32"))


@pytest.mark.parametrize("mode", ["mean", "mean_sqrt_length", "weighted_mean", "max", "last"])
def test_nan_behind_the_mask_is_not_pooled(mode):
    x = np.array([[[1.0, 2.0], [3.0, 5.0], [np.nan, np.inf]]], "float32")
    mask = np.array([[True, True, False]])
    pooled = keras.ops.convert_to_numpy(SequencePooling(mode)(x, mask=mask))
    expected = keras.ops.convert_to_numpy(SequencePooling(mode)(x[:, :2]))
    np.testing.assert_allclose(pooled, expected, rtol=1e-6)
