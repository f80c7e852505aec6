"""Attention over (..., T, D) is attention over the leading axes folded into one."""

import numpy as np
import pytest
from attention_features import POSITIONS, built
from blocks import head_norms, residual_of
from compare import assert_close, to_numpy
from execution import MODES, execute
from keras import ops

from keras_tfm.layers import (
    FeedForward,
    LayerNormalization,
    MultiHeadCrossAttention,
    MultiHeadSelfAttention,
    PositionalEncoding,
    PositionEmbedding,
    TransformerDecoderBlock,
    TransformerEncoderBlock,
    attention,
)

# The same sums, of matrices of other sizes.
FLOAT32 = 2e-6

A, B, T, S, D, C, H = 2, 3, 5, 7, 12, 11, 2
rng = np.random.default_rng(13)
X = rng.normal(size=(A, B, T, D)).astype("float32")
CONTEXT = rng.normal(size=(A, B, S, C)).astype("float32")
MASK = rng.random((A, B, T)) < 0.7
MASK[1, 2] = False  # a row without any token
CONTEXT_MASK = rng.random((A, B, S)) < 0.7
PAIRS = rng.random((A, B, T, T)) < 0.7
CROSS_PAIRS = rng.random((A, B, T, S)) < 0.7
# Shapes that broadcast to (A, B, H, T, T).
BIASES = [(A, B, H, T, T), (1, 1, H, T, T), (A, 1, 1, T, T), (1, B, H, T, T)]


def folded(x):
    """(A, B, ...) -> (A B, ...)."""
    return x.reshape(A * B, *x.shape[2:])


def whole(bias, length):
    """A bias for all rows: (A B, H, T, S)."""
    return folded(np.broadcast_to(bias, (A, B, H, T, length)))


def assert_folds(actual, expected):
    assert actual.shape == X.shape
    assert_close(folded(to_numpy(actual)), expected, FLOAT32)


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_self_attention(mode, causal, position):
    part = POSITIONS[position]()
    layer = MultiHeadSelfAttention(H, causal=causal, position=part, window=4)
    built(layer, X.shape)
    bias = rng.normal(size=(A, B, H, T, T)).astype("float32")

    def run(x, mask, pairs, bias):
        return layer(x, mask=mask, attention_mask=pairs, attention_bias=bias)

    actual = execute(mode, run, X, MASK, PAIRS, bias)
    assert_folds(actual, run(*map(folded, (X, MASK, PAIRS, bias))))


@pytest.mark.parametrize("shape", BIASES, ids=str)
def test_a_bias_is_broadcast_over_the_leading_axes(shape):
    layer = built(MultiHeadSelfAttention(H, num_key_value_heads=1, gate=True), X.shape)
    bias = rng.normal(size=shape).astype("float32")
    expected = layer(folded(X), attention_bias=whole(bias, T))
    assert_folds(layer(X, attention_bias=bias), expected)
    assert np.abs(to_numpy(expected) - to_numpy(layer(folded(X)))).max() > 0.01


@pytest.mark.parametrize("mode", MODES)
def test_cross_attention(mode):
    layer = MultiHeadCrossAttention(H, num_key_value_heads=1, value_dim=5, **head_norms())
    built(layer, X.shape, CONTEXT.shape)
    bias = rng.normal(size=(A, B, H, T, S)).astype("float32")

    def run(x, context, mask, pairs, bias):
        return layer(x, context, context_mask=mask, attention_mask=pairs, attention_bias=bias)

    inputs = X, CONTEXT, CONTEXT_MASK, CROSS_PAIRS, bias
    assert_folds(execute(mode, run, *inputs), run(*map(folded, inputs)))


@pytest.mark.parametrize("position", [name for name in POSITIONS if name != "none"])
def test_positions_of_each_row(position):
    """(A, B, T) of a row's own, and (T,) of all."""
    layer = built(MultiHeadSelfAttention(H, position=POSITIONS[position]()), X.shape)
    positions = rng.integers(0, 30, (A, B, T)).astype("int32")
    expected = to_numpy(layer(folded(X), positions=folded(positions)))
    assert_folds(layer(X, positions=positions), expected)
    one = layer(X[1, :1], positions=positions[1, 0])  # a row by itself
    assert_close(one, expected[B : B + 1], FLOAT32)
    assert_folds(layer(X, positions=positions[0, 0]), layer(folded(X), positions=positions[0, 0]))


@pytest.mark.parametrize("first", [False, True])
def test_blocks(first):
    encoder = TransformerEncoderBlock(13, H, normalize_first=first)
    decoder = TransformerDecoderBlock(13, H, normalize_first=first)
    built(encoder, X.shape)
    built(decoder, X.shape, CONTEXT.shape, seed=1)

    def run(x, context, mask, context_mask, pairs):
        y = encoder(x, mask=mask, attention_mask=pairs)
        return decoder(y, context, mask=mask, context_mask=context_mask, attention_mask=pairs)

    inputs = X, CONTEXT, MASK, CONTEXT_MASK, PAIRS
    assert_folds(run(*inputs), run(*map(folded, inputs)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: FeedForward(13, gated=True), LayerNormalization, PositionalEncoding,
        lambda: PositionEmbedding(T + 1),
    ],
    ids=["FeedForward", "LayerNormalization", "PositionalEncoding", "PositionEmbedding"],
)  # fmt: skip
def test_other_layers(make):
    layer = built(make(), X.shape)
    assert_folds(layer(X), layer(folded(X)))


def test_drop_path_drops_whole_rows_of_the_first_axis():
    layer = built(residual_of("pre", drop_path=0.5), X.shape)
    y = to_numpy(layer(np.ones((64, B, T, D), "float32"), sublayer=ops.ones_like, training=True))
    assert {len(np.unique(row)) for row in y} == {1}
    assert set(np.unique(y)) == {1.0, 3.0}


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_the_function(groups):
    query = rng.normal(size=(A, B, 4, T, 3)).astype("float32")
    key = rng.normal(size=(A, B, groups, S, 3)).astype("float32")
    value = rng.normal(size=(A, B, groups, S, 5)).astype("float32")
    bias = rng.normal(size=(A, B, 4, T, S)).astype("float32")
    mask = rng.random((A, B, 4, T, S)) < 0.5
    inputs = query, key, value, mask, bias
    expected = attention(*map(folded, inputs))
    assert_close(folded(to_numpy(attention(*inputs))), expected, FLOAT32)


def test_masks_without_the_leading_axes_are_named():
    layer = MultiHeadSelfAttention(H)
    with pytest.raises(ValueError, match=r"mask must have shape \(\.\.\., S\) = \(2, 3, 5\), got"):
        layer(X, mask=folded(MASK))
    with pytest.raises(ValueError, match=r"attention_mask must have shape \(\.\.\., T, S\) = "):
        layer(X, attention_mask=folded(PAIRS))
