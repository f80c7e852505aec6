"""The gated short convolution of LFM2, beside NumPy in float64."""

import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy
from execution import gradients, tensorflow_only
from keras_weights import randomize

from keras_tfm.layers import (
    DecodingScope,
    GatedDeltaNet,
    Mamba2,
    ShortConvolution,
    TransformerDecoderBlock,
)

# Float32 rounds at 6e-8; the same sums in another order.
FLOAT32 = 1e-6
B, T, D, N = 2, 7, 6, 4
X = np.random.default_rng(1).normal(size=(B, T, D)).astype("float32")
MASK = np.array([[True] * 5 + [False] * 2, [False] * 2 + [True] * 5])


def layer_of(**options):
    layer = ShortConvolution(N, **options)
    layer(X)
    return randomize(layer)


def reference(layer, x, mask=None):
    """LFM2's equations, a token at a time."""
    values = {x.path.split("/", 1)[1]: to_numpy(x) for x in layer.weights}
    zero = np.zeros(1)
    inner = x.astype("float64") @ values["input_projection/kernel"]
    before, after, h = np.split(inner + values.get("input_projection/bias", zero), 3, axis=-1)
    read = before * h if mask is None else np.where(mask[..., None], before * h, 0)
    y = np.zeros_like(h)
    for t in range(x.shape[1]):
        for j in range(min(N, t + 1)):
            y[:, t] += values["kernel"][N - 1 - j, 0] * read[:, t - j]
    y = after * (y + values.get("bias", zero))
    return y @ values["output_projection/kernel"] + values.get("output_projection/bias", zero)


@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "masked"])
def test_the_equations(use_bias, mask):
    layer = layer_of(use_bias=use_bias)
    assert_close(layer(X, mask=mask), reference(layer, X, mask), FLOAT32)


@pytest.mark.parametrize("sizes", [[1] * T, [3, 1, 3], [2, 5], [T]])
def test_stepped_equals_full(sizes):
    layer, cache, position, parts = layer_of(use_bias=True), None, 0, []
    for size in sizes:
        with DecodingScope(cache, position=position, length=T) as scope:
            parts.append(to_numpy(layer(X[:, position : position + size])))
        cache, position = scope.cache, position + size
        (state,) = (x for entry in cache.values() for x in entry.values())
        assert tuple(state.shape) == (B, N - 1, D)
    assert_close(np.concatenate(parts, axis=1), layer(X), FLOAT32)


def test_a_row_is_the_same_behind_padding():
    layer = layer_of(use_bias=True)
    padded = layer(X, mask=MASK)
    assert_close(padded[1:, 2:], layer(X[1:, 2:]), FLOAT32)
    broken = np.where(MASK[..., None], X, np.nan).astype("float32")
    assert_close(layer(broken, mask=MASK)[1:, 2:], padded[1:, 2:], FLOAT32)


def test_it_takes_the_place_of_attention_in_a_block():
    block = TransformerDecoderBlock(
        5, cross_attention=False, self_attention=ShortConvolution(name="convolution")
    )
    y = block(X)
    again = TransformerDecoderBlock.from_config(block.get_config())
    again(X)
    again.set_weights(block.get_weights())
    assert_close(again(X), y, 0.0)
    with pytest.raises(ValueError, match="causal=False, but self_attention has causal=True"):
        TransformerDecoderBlock(
            5, cross_attention=False, self_attention=ShortConvolution(), causal=False
        )


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: ShortConvolution(1), ValueError, "kernel_size must be at least 2, got 1"),
        (lambda: ShortConvolution(2.5), TypeError, "kernel_size must be an integer, got 2.5"),
        (
            lambda: ShortConvolution(name="c")(np.ones((1, 2, 3, 4), "float32")),
            ValueError,
            r"c: x must have shape \(B, T, D\), got \(1, 2, 3, 4\)",
        ),
        (
            lambda: TransformerDecoderBlock(
                5, self_attention=keras.layers.Dense(3), cross_attention=False
            ),
            TypeError,
            "self_attention must be a MultiHeadSelfAttention or a TokenMixer, got <Dense",
        ),
    ],
)
def test_wrong_arguments(make, error, message):
    with pytest.raises(error, match=message):
        make()


# Of all mixers

MIXERS = {
    "short_convolution": lambda: ShortConvolution(3),
    "gated_delta_net": lambda: GatedDeltaNet(2, 3),
    "mamba2": lambda: Mamba2(2, 3, 5),
}
EMPTY = [(0, T), (B, 0), (0, 0)]


@pytest.mark.parametrize("size", EMPTY, ids=str)
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("name", MIXERS)
def test_without_rows_or_tokens(name, masked, size):
    mask = np.ones(size, bool) if masked else None
    y = MIXERS[name]()(np.zeros((*size, D), "float32"), mask=mask)
    assert tuple(y.shape) == (*size, D)


@tensorflow_only
@pytest.mark.parametrize("name", MIXERS)
def test_gradients_without_rows_or_tokens_in_a_graph(name):
    """A replica may have no rows of the last batch. Neither axis is known in the graph."""
    import tensorflow as tf

    layer = MIXERS[name]()
    layer(X)

    @tf.function(input_signature=[tf.TensorSpec((None, None, D))], autograph=False)
    def run(x):
        results = []

        def total(x):
            results.append(layer(x, mask=tf.ones(tf.shape(x)[:2], bool)))
            return tf.reduce_sum(results[0] ** 2)

        of_weights, (of_x,) = gradients(total, layer.trainable_variables, x)
        return results[0], of_weights, of_x

    for size in EMPTY:
        y, of_weights, of_x = run(np.zeros((*size, D), "float32"))
        assert y.shape == of_x.shape == (*size, D)
        assert all(np.all(to_numpy(x) == 0) for x in of_weights)
    assert_close(run(X)[0], to_numpy(layer(X)), FLOAT32)


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("attention_mask", np.ones((B, T, T), bool)),
        ("attention_bias", np.ones((B, 1, T, T), "float32")),
        ("positions", np.arange(T)),
        ("position_encoding", np.ones((B, T, D), "float32")),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_arguments_of_attention_are_refused(name, argument, value):
    block = TransformerDecoderBlock(5, cross_attention=False, self_attention=MIXERS[name]())
    message = rf"{block.name}: {block.self_attention.name} .* has no attention, .* no {argument}:"
    with pytest.raises(ValueError, match=message):
        block(X, **{argument: value})
