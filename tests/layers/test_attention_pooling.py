"""Attention pooling beside NumPy, in float64: the probe, heads, masks, the network after it."""

import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy
from keras_weights import built

from keras_tfm.layers import AttentionPooling

B, S, H, K, F = 3, 5, 2, 7, 11
D = H * K
X = np.random.default_rng(3).normal(size=(B, S, D)).astype("float32")
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 1, 0], [0, 0, 0, 1, 1]], bool)
EPSILON = 1e-3
# float32 sums of up to 14 numbers of order 1.
FLOAT32 = 2e-6


def pooled(layer, x, mask):
    """Of one row (S, D), by the definition."""
    names = ("probe", "query_key_value/kernel", "query_key_value/bias")
    weights = {
        y.path.partition("/")[2].removeprefix("attention/"): to_numpy(y).astype("float64")
        for y in layer.weights
    }
    probe, kernel, bias = (weights[name] for name in names)
    (wq, wk, wv), (bq, bk, bv) = np.split(kernel, 3, axis=1), np.split(bias, 3)
    q, k, v = probe[0] @ wq + bq, x[mask] @ wk + bk, x[mask] @ wv + bv
    heads = []
    for h in range(H):
        of_head = slice(h * K, (h + 1) * K)
        scores = k[:, of_head] @ q[of_head] / np.sqrt(K)
        probabilities = np.exp(scores - scores.max())
        heads.append(probabilities / probabilities.sum() @ v[:, of_head])
    a = np.concatenate(heads) @ weights["output_projection/kernel"]
    a = a + weights["output_projection/bias"]
    y = (a - a.mean()) / np.sqrt(a.var() + EPSILON) * weights["norm/gamma"] + weights["norm/beta"]
    y = np.maximum(y @ weights["feed_forward/inner/kernel"] + weights["feed_forward/inner/bias"], 0)
    return a + y @ weights["feed_forward/outer/kernel"] + weights["feed_forward/outer/bias"]


@pytest.fixture(scope="module")
def layer():
    made = AttentionPooling(H, F, "relu", layer_norm_epsilon=EPSILON, name="pooling")
    return built(made, (B, S, D))


@pytest.mark.parametrize("masked", [False, True])
def test_the_definition(masked, layer):
    mask = MASK if masked else np.ones((B, S), bool)
    x = X + np.where(mask, 0.0, 1e3)[..., np.newaxis].astype("float32")  # padding is not zero
    found = layer(x, mask=mask if masked else None)
    expected = [pooled(layer, X[i].astype("float64"), mask[i]) for i in range(B)]
    assert_close(found, np.stack(expected), FLOAT32)


def test_the_mask_that_the_features_carry(layer):
    x = keras.layers.Masking(mask_value=0.0)(np.where(MASK[..., np.newaxis], X, 0.0))
    found = layer(x)
    assert_close(found, layer(X, mask=MASK), FLOAT32)
    assert getattr(found, "_keras_mask", None) is None


def test_nan_in_the_padding_does_not_spread(layer):
    x = np.where(MASK[..., np.newaxis], X, np.nan).astype("float32")
    assert_close(layer(x, mask=MASK), layer(X, mask=MASK), FLOAT32)


def test_bad_input():
    with pytest.raises(ValueError, match=r"num_heads \(3\) must divide dim \(14\)"):
        AttentionPooling(3, F)(X)
    with pytest.raises(ValueError, match=r"x must have shape"):
        AttentionPooling(H, F)(X[0])
    with pytest.raises(ValueError, match="layer_norm_epsilon must be positive, got 0"):
        AttentionPooling(H, F, layer_norm_epsilon=0)
