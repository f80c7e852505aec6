import numpy as np
import pytest
from compare import assert_close, to_numpy
from keras_weights import built

from keras_tfm.layers import OutputBias, SegmentEmbedding, TokenEmbedding, gelu_tanh

B, T, D, V = 2, 5, 3, 7
rng = np.random.default_rng(3)
X = rng.normal(size=(B, T, D)).astype("float32")
SEGMENTS = np.array([[0, 1, 1, 2, 0], [2, 2, 0, 1, 1]])


def test_each_token_gets_its_segment_s_vector():
    layer = built(SegmentEmbedding(3), X.shape)
    table = to_numpy(layer.segments)
    assert_close(layer(X, SEGMENTS), X + table[SEGMENTS], 1e-7)
    assert_close(layer(X), X + table[0], 1e-7)


def test_the_mask_of_the_tokens_stays():
    """`keras.layers.Add` of two embeddings would lose it."""
    ids = np.array([[3, 4, 0], [5, 0, 0]])
    x = TokenEmbedding(V, D, mask_zero=True)(ids)
    for segments in ((), (SEGMENTS[:, :3],)):
        y = SegmentEmbedding(3)(x, *segments)
        np.testing.assert_array_equal(y._keras_mask, ids != 0)


def test_segments_are_integers():
    with pytest.raises(TypeError, match=r"segments must be integers, got .*float32"):
        SegmentEmbedding(3)(X, SEGMENTS.astype("float32"))
    with pytest.raises(ValueError, match="num_segments must be at least 1, got 0"):
        SegmentEmbedding(0)
    with pytest.raises(ValueError, match=r"inputs must have shape \(B, T, D\) with D known"):
        SegmentEmbedding(2)(X[0])


def test_each_logit_gets_its_bias():
    layer = built(OutputBias(), X.shape)
    assert_close(layer(X), X + to_numpy(layer.bias), 1e-7)
    assert np.all(to_numpy(OutputBias()(X)) == X)
    with pytest.raises(ValueError, match="a known last axis"):
        OutputBias().build((None, None))


def test_gelu_tanh_is_hendrycks_and_gimpel_s_formula():
    x = np.linspace(-4, 4, 41)
    inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    assert_close(gelu_tanh(x.astype("float32")), 0.5 * x * (1 + np.tanh(inner)), 1e-6)
