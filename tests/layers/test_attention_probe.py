import keras
import numpy as np
import pytest
from attention_features import POSITIONS, built, expected_self_attention, randomize
from compare import assert_close, to_numpy
from execution import tensorflow_only

from keras_tfm.layers import (
    AttentionProbe,
    DecodingScope,
    MultiHeadCrossAttention,
    MultiHeadSelfAttention,
    TransformerDecoderBlock,
    TransformerEncoderBlock,
)

# Float32 rounds at 6e-8; weights follow scores of size 3.
FLOAT32 = 1e-5
# On JAX and PyTorch a probed layer leaves the fused operation, which sums in another order.
PROBED = 0.0 if keras.backend.backend() == "tensorflow" else 2e-6

B, T, S, D = 2, 5, 3, 6
MASK = np.array([[True, True, True, False, True], [True, True, False, False, False]])
PAIRS = np.random.default_rng(3).random((B, T, T)) < 0.6
PAIRS |= np.eye(T, dtype=bool)


@pytest.fixture
def x():
    return np.random.default_rng(7).normal(size=(B, T, D)).astype("float32")


@pytest.fixture
def context():
    return np.random.default_rng(8).normal(size=(B, S, D)).astype("float32")


def map_of(layer, *inputs, **call):
    """The only map that a call of the layer makes, and what it returns."""
    with AttentionProbe() as probe:
        y = layer(*inputs, **call)
    assert list(probe.maps) == [f"000_{layer.name}"]
    return to_numpy(probe.maps[f"000_{layer.name}"]), to_numpy(y)


@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("position", POSITIONS.values(), ids=POSITIONS)
@pytest.mark.parametrize("window", [None, 2])
def test_maps_are_the_weights_of_the_reference(x, causal, position, window):
    options = {
        "num_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "causal": causal,
        "window": window, "position": position(), "soft_cap": 2.0,
    }  # fmt: skip
    layer = built(MultiHeadSelfAttention(**options), x.shape)
    actual, y = map_of(layer, x, attention_mask=PAIRS)
    expected_y, expected = expected_self_attention(
        layer, x, **options, attention_mask=PAIRS, with_weights=True
    )
    assert_close(actual, expected, FLOAT32)
    assert_close(y, expected_y, FLOAT32)
    # A sum of five float32.
    assert_close(actual.sum(axis=-1), np.ones((B, 4, T)), 1e-6)
    seen = np.broadcast_to(PAIRS[:, None], actual.shape)
    distances = np.arange(T) - np.arange(T)[:, None]
    seen = seen & (distances <= 0 if causal else True)
    seen = seen & (np.abs(distances) < (window or T))
    np.testing.assert_array_equal(actual[~seen], 0.0)
    assert np.all(actual[seen] > 0.0)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_maps_under_half_precision(x, dtype):
    layer = built(MultiHeadSelfAttention(2, causal=True, dtype=dtype), x.shape)
    actual, _ = map_of(layer, x, mask=MASK)
    # Each of five weights is rounded, in bfloat16 by 2^-9 of itself, in float16 by 2^-12.
    tolerance = {"mixed_bfloat16": 4e-3, "mixed_float16": 5e-4}[dtype]
    assert_close(actual.sum(axis=-1), np.ones((B, 2, T)), tolerance)
    np.testing.assert_array_equal(actual[~np.broadcast_to(MASK[:, None, None], actual.shape)], 0.0)


def test_cross_attention_has_a_map_of_queries_and_context(x, context):
    layer = built(MultiHeadCrossAttention(2, name="look"), x.shape, context.shape)
    mask = np.array([[True, False, True], [True, True, True]])
    actual, _ = map_of(layer, x, context, context_mask=mask)
    assert actual.shape == (B, 2, T, S)
    assert_close(actual.sum(axis=-1), np.ones((B, 2, T)), 1e-6)  # a sum of three float32
    np.testing.assert_array_equal(actual[0, :, :, 1], 0.0)


def test_a_query_that_sees_nothing_has_a_row_of_zeros(x):
    """It attends to nothing, so that its row does not sum to 1."""
    pairs = PAIRS.copy()
    pairs[0, 2] = False
    layer = built(MultiHeadSelfAttention(2), x.shape)
    actual, y = map_of(layer, x, attention_mask=pairs)
    np.testing.assert_array_equal(y[0, 2], to_numpy(layer.output_projection.bias))
    np.testing.assert_array_equal(actual[0, :, 2], np.zeros((2, T)))


def test_a_single_key_has_a_map_too(x):
    layer = built(MultiHeadSelfAttention(2), x.shape)
    actual, _ = map_of(layer, x[:, :1])
    np.testing.assert_array_equal(actual, np.ones((B, 2, 1, 1)))


@pytest.mark.parametrize("training", [False, True])
def test_maps_are_before_dropout(x, training):
    layer = built(MultiHeadSelfAttention(2, dropout=0.7), x.shape)
    still, _ = map_of(built(MultiHeadSelfAttention(2), x.shape), x)
    actual, _ = map_of(layer, x, training=training)
    assert_close(actual, still, 0.0)


@pytest.mark.parametrize("kind", ["attention", "encoder", "decoder"])
def test_what_a_layer_returns_is_unchanged(x, context, kind):
    layer, inputs = {
        "attention": lambda: (MultiHeadSelfAttention(2, dropout=0.4), [x]),
        "encoder": lambda: (TransformerEncoderBlock(7, 2, dropout=0.4), [x]),
        "decoder": lambda: (TransformerDecoderBlock(7, 2, dropout=0.4), [x, context]),
    }[kind]()
    built(layer, *(value.shape for value in inputs))
    expected = to_numpy(layer(*inputs))
    with AttentionProbe():
        y = layer(*inputs)
    assert type(y) is type(layer(*inputs))
    assert_close(y, expected, PROBED)
    assert_close(layer(*inputs), expected, 0.0)

    def in_training():
        keras.utils.set_random_seed(1)
        new = built(type(layer).from_config(layer.get_config()), *(v.shape for v in inputs))
        return new(*inputs, training=True)

    with AttentionProbe():
        y = in_training()
    assert_close(y, in_training(), 0.0)


# Names


def test_calls_are_numbered_in_order_and_named_by_layer(x, context):
    encoder, decoder = TransformerEncoderBlock(7, 2), TransformerDecoderBlock(7, 2)
    with AttentionProbe() as probe:
        decoder(x, encoder(encoder(context)))
    assert list(probe.maps) == [
        "000_self_attention", "001_self_attention", "002_self_attention", "003_cross_attention"
    ]  # fmt: skip
    assert [tuple(weights.shape) for weights in probe.maps.values()] == [
        (B, 2, S, S), (B, 2, S, S), (B, 2, T, T), (B, 2, T, S)
    ]  # fmt: skip


def test_a_functional_model_can_be_probed(x):
    inputs = keras.Input((None, D))
    first = TransformerEncoderBlock(7, 2)
    y = TransformerEncoderBlock(7, 3)(first(inputs))
    model = randomize(keras.Model(inputs, y))
    with AttentionProbe() as probe:
        y = model(x)
    assert_close(y, model(x), PROBED)
    assert [weights.shape[1] for weights in probe.maps.values()] == [2, 3]
    alone, _ = map_of(first.self_attention, x)
    assert_close(probe.maps["000_self_attention"], alone, 0.0)


def test_building_a_model_inside_a_probe_leaves_no_map_behind_that_breaks_the_call(x):
    """Symbolic calls have no weights: what they record has no values, if anything."""
    with AttentionProbe() as probe:
        inputs = keras.Input((None, D))
        model = keras.Model(inputs, TransformerEncoderBlock(7, 2)(inputs))
        before = len(probe.maps)
        model(x)
    maps = list(probe.maps.values())[before:]
    assert len(maps) == 1
    assert_close(to_numpy(maps[0]).sum(axis=-1), np.ones((B, 2, T)), 1e-6)


@tensorflow_only
def test_a_graph_may_return_its_maps(x):
    import tensorflow as tf

    layer = built(MultiHeadSelfAttention(2, causal=True, name="attend"), x.shape)

    @tf.function
    def run(x):
        with AttentionProbe() as probe:
            y = layer(x)
        return y, probe.maps

    y, maps = run(x)
    expected, expected_y = map_of(layer, x)
    assert_close(maps["000_attend"], expected, 1e-6)
    assert_close(y, expected_y, 1e-6)


def test_maps_of_steps(x):
    """A step's map has the keys of the whole cache, the later ones masked, then the new token's."""
    layer = built(MultiHeadSelfAttention(2, causal=True, name="attend"), x.shape)
    whole, _ = map_of(layer, x)
    cache = None
    for p in range(T):
        with (
            DecodingScope(cache, position=p, length=T) as scope,
            AttentionProbe() as probe,
        ):
            layer(x[:, p : p + 1])
        cache = scope.cache
        actual = to_numpy(probe.maps["000_attend"])
        if p:
            wanted = to_numpy(whole[:, :, p : p + 1])
            own = wanted[..., p : p + 1].copy()
            wanted[..., p] = 0.0
            assert_close(actual, np.concatenate([wanted, own], axis=-1), FLOAT32)


# Scopes


def test_the_innermost_probe_records(x):
    layer = built(MultiHeadSelfAttention(2), x.shape)
    assert AttentionProbe.current() is None
    with AttentionProbe() as outer:
        layer(x)
        with AttentionProbe() as inner:
            assert AttentionProbe.current() is inner
            layer(x[:, :3])
        assert AttentionProbe.current() is outer
        layer(x[:, :2])
    assert AttentionProbe.current() is None
    layer(x)
    assert [weights.shape[-1] for weights in outer.maps.values()] == [5, 2]
    assert [weights.shape[-1] for weights in inner.maps.values()] == [3]


def test_an_exception_closes_it(x):
    layer = built(MultiHeadSelfAttention(2), x.shape)
    with pytest.raises(RuntimeError, match="within"), AttentionProbe() as probe:
        layer(x)
        raise RuntimeError("within")
    assert AttentionProbe.current() is None
    assert list(probe.maps) == [f"000_{layer.name}"]
    layer(x)
    assert len(probe.maps) == 1


def test_a_probe_may_be_opened_again(x):
    layer = built(MultiHeadSelfAttention(2, name="attend"), x.shape)
    probe = AttentionProbe()
    for _ in range(2):
        with probe:
            layer(x)
    assert list(probe.maps) == ["000_attend", "001_attend"]
