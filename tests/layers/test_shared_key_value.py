"""Keys and values that a self-attention returns to others, or that are one projection."""

import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy
from execution import MODES, execute
from keras_weights import randomize

from keras_tfm import layers

B, T, D, H, G, K = 2, 7, 10, 4, 2, 6
# Sums of some ten terms, and a softmax, in float32.
TOLERANCE = 2e-6


@pytest.fixture
def x():
    return np.random.default_rng(5).normal(size=(B, T, D)).astype("float32")


def attention(key_value, **options):
    norms = {} if key_value == "given" else {"key_norm": layers.RMSNormalization()}
    if key_value != "given":
        norms["value_norm"] = layers.RMSNormalization(scale=False)
    return layers.MultiHeadSelfAttention(
        H, causal=True, head_dim=K, num_key_value_heads=G, window=4, scale=1.0,
        position=layers.RotaryEmbedding(), query_norm=layers.RMSNormalization(),
        key_value=key_value, **norms, **options,
    )  # fmt: skip


def pair(**options):
    """One attention that returns its keys and values, and one that takes them."""
    first, second = attention("returned", **options), attention("given")
    sample = np.ones((1, 2, D), "float32")
    _, keys, values = first(sample)
    second(sample, keys=keys, values=values)
    return randomize(first, seed=1), randomize(second, seed=2)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_given_keys_are_those_of_the_other_layer(x, mode, tied):
    """As of a layer with the queries of the one and the keys and values of the other."""
    first, second = pair(tied_values=tied)
    whole = attention("own", tied_values=tied)
    whole.build(x.shape)
    kernel = to_numpy(first.query_key_value.kernel).copy()
    kernel[:, : H * K] = to_numpy(second.query.kernel)
    bias = to_numpy(first.query_key_value.bias).copy()
    bias[: H * K] = to_numpy(second.query.bias)
    for part, value in (
        (whole.query_key_value.kernel, kernel),
        (whole.query_key_value.bias, bias),
        (whole.query_norm.scale, second.query_norm.scale),
        (whole.key_norm.scale, first.key_norm.scale),
        (whole.output_projection.kernel, second.output_projection.kernel),
        (whole.output_projection.bias, second.output_projection.bias),
    ):
        part.assign(value)

    def both(x):
        _, keys, values = first(x)
        return second(x, keys=keys, values=values)

    assert_close(execute(mode, both, x), to_numpy(whole(x)), TOLERANCE)


def test_tied_values_are_the_keys_before_their_norm(x):
    layer = attention("returned", tied_values=True)
    layer.build(x.shape)
    randomize(layer, seed=3)
    projected = to_numpy(layer.query_key_value(x))[..., H * K :].reshape(B, T, G, K)
    expected = projected / np.sqrt((projected**2).mean(-1, keepdims=True) + 1e-6)
    _, keys, values = layer(x)
    assert_close(values, expected.reshape(B, T, G * K), TOLERANCE)
    assert tuple(keys.shape) == (B, T, G * K)
    assert tuple(layer.query_key_value.kernel.shape) == (D, (H + G) * K)


@pytest.mark.parametrize("options", [{}, {"int8": True}, {"write_first": True}])
def test_steps_read_the_cache_of_the_other_layer(x, options):
    """And have no entry of their own."""
    first, second = pair()
    block = layers.TransformerDecoderBlock(
        13, self_attention=attention("own"), cross_attention=False, normalize_first=True
    )
    y, keys, values = first(x)
    whole = block(second(y, keys=keys, values=values))
    cache, parts = None, []
    for start, end in ((0, 3), (3, 4), (4, 5), (5, 7)):
        with layers.DecodingScope(cache, position=start, length=T, **options) as scope:
            y, keys, values = first(x[:, start:end])
            parts.append(block(second(y, keys=keys, values=values)))
        cache = scope.cache
    assert len(cache) == 2
    tolerance = 0.05 if options.get("int8") else 10 * TOLERANCE
    assert_close(np.concatenate([to_numpy(p) for p in parts], 1), to_numpy(whole), tolerance)


def test_a_block_returns_what_its_attention_returns(x):
    first = layers.TransformerDecoderBlock(
        13, self_attention=attention("returned"), cross_attention=False,
        residual=layers.Residual(input_norm=layers.RMSNormalization()),
    )  # fmt: skip
    second = layers.TransformerDecoderBlock(
        13, self_attention=attention("given"), cross_attention=False,
        residual=layers.Residual(input_norm=layers.RMSNormalization()),
    )  # fmt: skip
    inputs = keras.Input((None, D))
    y, keys, values = first(inputs)
    assert keys.shape == values.shape == (None, None, G * K)
    model = randomize(keras.Model(inputs, second(y, keys=keys, values=values)), seed=4)
    again = keras.Model.from_config(model.get_config())
    again.set_weights(model.get_weights())
    np.testing.assert_array_equal(to_numpy(again(x)), to_numpy(model(x)))
    own = second.self_attention
    parts = (own.query, own.query_norm, own.output_projection)
    assert len(own.weights) == sum(len(part.weights) for part in parts)


def test_what_does_not_fit_is_refused(x):
    first, second = pair()
    _, keys, values = first(x)
    with pytest.raises(ValueError, match='keys and values are required with key_value="given"'):
        second(x)
    with pytest.raises(ValueError, match='keys and values are for key_value="given"'):
        first(x, keys=keys, values=values)
    with layers.DecodingScope(length=T), pytest.raises(ValueError, match="in the same step"):
        second(x, keys=keys, values=values)
    for options, message in (
        ({"key_value": "shared"}, 'must be "own", "returned" or "given", got \'shared\''),
        ({"key_value": "given"}, "needs causal=True"),
        ({"key_value": "given", "causal": True, "tied_values": True}, "are those of the layer"),
        ({"tied_values": True, "head_dim": 4, "value_dim": 5}, r"must be head_dim \(4\)"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            layers.MultiHeadSelfAttention(2, **options)
        assert "\n" not in str(caught.value)
