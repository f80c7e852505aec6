"""Gradients against finite differences, of every layer with weights (fault 2).

The differences are taken of the float64 reference, where a step of 1e-5 leaves an error of 1e-10;
of the float32 layer itself no step would leave less than 1e-3.
"""

import keras
import numpy as np
import pytest
import reference
from compare import assert_close, to_numpy
from execution import gradients, tensorflow_only
from keras import ops
from keras_weights import block, built, cross_attention, feed_forward, norm, self_attention

from keras_tfm.layers import (
    FeedForward,
    MultiHeadCrossAttention,
    MultiHeadSelfAttention,
    PositionalEncoding,
    TokenEmbedding,
    TransformerDecoderBlock,
    TransformerEncoderBlock,
    attention,
)
from keras_tfm.training import LabelSmoothedCrossEntropy

pytestmark = tensorflow_only

# Float32 gradients are sums of some 100 products, rounded at 6e-8 each.
FLOAT32 = 2e-5

B, T, S, D, C, F = 2, 5, 7, 6, 11, 13
MASK = np.array([[True, True, False, True, True], [False, True, True, False, False]])
CONTEXT_MASK = np.array([[True] * 4 + [False] * 3, [False] * 7])
HEADS = [
    {"num_heads": 2},
    {"num_heads": 4, "num_key_value_heads": 2, "head_dim": 3, "value_dim": 11},
]


def gelu(x):
    """Exact, as the reference's, and smooth: a difference across relu's corner is no gradient."""
    return ops.gelu(x, approximate=False)


@pytest.fixture
def rng():
    return np.random.default_rng(17)


def finite_difference(function, arrays, direction, step=1e-5):
    """The derivative of `function(arrays)` along `direction`, both of one nested structure."""

    def at(size):
        return function(keras.tree.map_structure(lambda a, d: a + size * d, arrays, direction))

    return (at(step) - at(-step)) / (2 * step)


def assert_gradients(layer, read, expected, *inputs, rng, **options):
    """Compares derivatives of sum(w layer(*inputs)) for random w, along random directions.

    One direction for each weight and each input; `read(layer)` gives the weights as `expected`
    wants them, and `read(layer, of)` what `of` makes of each variable, in the same form.
    """
    inputs = [x.astype("float32") for x in inputs]
    weighting = rng.normal(size=to_numpy(layer(*inputs, **options)).shape)

    def loss(*inputs):
        return ops.sum(weighting.astype("float32") * layer(*inputs, **options))

    of_weights, of_inputs = gradients(loss, layer.trainable_variables, *inputs)
    by_path = {
        variable.path: to_numpy(gradient)
        for variable, gradient in zip(layer.trainable_variables, of_weights, strict=True)
    }
    arrays = {"weights": read(layer), "inputs": [x.astype("float64") for x in inputs]}
    actual = {
        "weights": read(layer, lambda variable: by_path[variable.path]),
        "inputs": [to_numpy(gradient) for gradient in of_inputs],
    }

    def reference_loss(arrays):
        return np.sum(weighting * expected(arrays["weights"], *arrays["inputs"]))

    leaves = keras.tree.flatten(arrays)
    for i, gradient in enumerate(keras.tree.flatten(actual)):
        direction = [np.zeros_like(leaf) for leaf in leaves]
        direction[i] = rng.normal(size=gradient.shape)
        direction[i] /= np.linalg.norm(direction[i])
        wanted = finite_difference(
            reference_loss, arrays, keras.tree.pack_sequence_as(arrays, direction)
        )
        assert_close(np.sum(gradient * direction[i]), wanted, FLOAT32)


def visible(causal=False, mask=MASK):
    keys = mask[:, None, :]
    return np.tri(mask.shape[1], dtype=bool) & keys if causal else keys


@pytest.mark.parametrize("masked", [False, True])
def test_attention(rng, masked):
    shapes = (B, 4, T, 3), (B, 2, S, 3), (B, 2, S, 11)
    query, key, value = (rng.normal(size=shape) for shape in shapes)
    mask = rng.random((B, 1, T, S)) < 0.5 if masked else None

    class Attention(keras.layers.Layer):
        def call(self, *qkv):
            return attention(*qkv, mask=mask)

    def expected(_, query, key, value):
        return reference.attention(query, *(np.repeat(x, 2, axis=1) for x in (key, value)), mask)

    nothing = lambda *_: []  # noqa: E731
    assert_gradients(Attention(), nothing, expected, query, key, value, rng=rng)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", HEADS, ids=["plain", "grouped"])
def test_self_attention(rng, heads, causal):
    layer = built(MultiHeadSelfAttention(**heads, causal=causal), (B, T, D))

    def expected(weights, x):
        mask = visible(causal)
        return reference.multi_head_attention(x, x, weights, layer.num_heads, mask)

    x = rng.normal(size=(B, T, D))
    assert_gradients(layer, self_attention, expected, x, rng=rng, mask=MASK)


@pytest.mark.parametrize("heads", HEADS, ids=["plain", "grouped"])
def test_cross_attention(rng, heads):
    layer = built(MultiHeadCrossAttention(**heads), (B, T, D), (B, S, C))

    def expected(weights, x, context):
        mask = CONTEXT_MASK[:, None, :]
        return reference.multi_head_attention(x, context, weights, layer.num_heads, mask)

    inputs = rng.normal(size=(B, T, D)), rng.normal(size=(B, S, C))
    assert_gradients(layer, cross_attention, expected, *inputs, rng=rng, context_mask=CONTEXT_MASK)


def test_feed_forward(rng):
    layer = built(FeedForward(F, activation=gelu), (B, T, D))

    def expected(weights, x):
        return reference.feed_forward(x, weights, reference.gelu)

    assert_gradients(layer, feed_forward, expected, rng.normal(size=(B, T, D)), rng=rng)


@pytest.mark.parametrize("first", [False, True], ids=["post", "pre"])
def test_encoder_block(rng, first):
    layer = TransformerEncoderBlock(F, 2, activation=gelu, normalize_first=first)
    built(layer, (B, T, D))

    def expected(weights, x):
        return reference.encoder_block(
            x, weights, 2, visible(), reference.gelu, normalize_first=first
        )

    assert_gradients(layer, block, expected, rng.normal(size=(B, T, D)), rng=rng, mask=MASK)


@pytest.mark.parametrize("first", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize("cross", [False, True], ids=["decoder_only", "cross"])
def test_decoder_block(rng, cross, first):
    layer = TransformerDecoderBlock(
        F, 2, activation=gelu, normalize_first=first, cross_attention=cross
    )
    shapes = [(B, T, D), (B, S, C)] if cross else [(B, T, D)]
    built(layer, *shapes)

    def expected(weights, x, context=None):
        return reference.decoder_block(
            x,
            context,
            weights,
            2,
            self_mask=visible(),
            context_mask=CONTEXT_MASK[:, None, :],
            activation=reference.gelu,
            normalize_first=first,
        )

    masks = {"mask": MASK, **({"context_mask": CONTEXT_MASK} if cross else {})}
    inputs = [rng.normal(size=shape) for shape in shapes]
    assert_gradients(layer, block, expected, *inputs, rng=rng, **masks)


def test_positions(rng):
    def expected(_, x):
        return x + reference.positional_encoding(T, D)

    nothing = lambda *_: []  # noqa: E731
    assert_gradients(PositionalEncoding(), nothing, expected, rng.normal(size=(B, T, D)), rng=rng)


def test_tied_embedding_and_norm(rng):
    """Ids to logits over one table, which gets a gradient by both ways."""
    ids = rng.integers(0, 11, size=(B, T))

    class Tied(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.embedding = TokenEmbedding(11, D, scale=True)
            self.norm = keras.layers.LayerNormalization(epsilon=1e-3)

        def build(self, shape):
            self.norm.build((None, None, D))
            self.built = True

        def call(self, x):
            return self.embedding(self.norm(self.embedding(ids) + x), reverse=True)

    def read(layer, of=to_numpy):
        return {"table": of(layer.embedding.embeddings), "norm": norm(layer.norm, of)}

    def expected(weights, x):
        table = weights["table"]
        x = reference.layer_norm(D**0.5 * table[ids] + x, **weights["norm"], epsilon=1e-3)
        return x @ table.T

    layer = built(Tied(), (B, T, D))
    assert_gradients(layer, read, expected, rng.normal(size=(B, T, D)), rng=rng)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_loss(rng, label_smoothing):
    labels = np.array([[3, 1, 0], [7, 0, 0]])
    logits = 3 * rng.normal(size=(2, 3, 11))
    loss = LabelSmoothedCrossEntropy(label_smoothing)

    class Loss(keras.layers.Layer):
        def call(self, x):
            return loss(labels, x)

    def expected(_, x):
        return reference.label_smoothed_cross_entropy(labels, x, label_smoothing)

    nothing = lambda *_: []  # noqa: E731
    assert_gradients(Loss(), nothing, expected, logits, rng=rng)


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("first", [False, True], ids=["post", "pre"])
def test_padding_alone_has_finite_gradients(rng, first, dtype):
    layer = TransformerDecoderBlock(F, 2, normalize_first=first, dtype=dtype)
    built(layer, (B, T, D), (B, S, C))
    masks = {"mask": np.zeros((B, T), bool), "context_mask": np.zeros((B, S), bool)}
    inputs = (rng.normal(size=shape).astype("float32") for shape in ((B, T, D), (B, S, C)))

    def loss(*inputs):
        return ops.sum(ops.cast(layer(*inputs, **masks), "float32") ** 2)

    of_weights, of_inputs = gradients(loss, layer.trainable_variables, *inputs)
    paths = [variable.path for variable in layer.trainable_variables]
    for path, gradient in zip([*paths, "x", "context"], of_weights + of_inputs, strict=True):
        gradient = to_numpy(gradient)
        assert np.all(np.isfinite(gradient)), path
        # Nothing is attended to: queries, keys, values and the context have no part in the result.
        if any(name in path for name in ("query", "/key/", "/value/")) or path == "context":
            np.testing.assert_array_equal(gradient, 0.0)
        if "feed_forward" in path or path == "x":
            assert np.any(gradient != 0.0), path


@pytest.mark.parametrize("first", [False, True], ids=["post", "pre"])
def test_the_key_bias_has_no_gradient(rng, first):
    """It adds the same to all scores of a query, which the softmax takes away again."""
    layer = built(TransformerEncoderBlock(F, 2, normalize_first=first), (B, T, D))
    x = rng.normal(size=(B, T, D)).astype("float32")
    of_weights, _ = gradients(lambda: ops.sum(layer(x) ** 3), layer.trainable_variables)
    by_path = {
        variable.path: to_numpy(gradient)
        for variable, gradient in zip(layer.trainable_variables, of_weights, strict=True)
    }
    parts = self_attention(layer.self_attention, lambda variable: by_path[variable.path])
    size = {name: np.abs(parts[f"{name}_bias"]).max() for name in ("query", "key", "value")}
    assert size["key"] < FLOAT32 * min(size["query"], size["value"])
