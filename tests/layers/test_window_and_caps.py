"""Windows, caps, normalised queries and keys, scales, biases of a call, grouped heads."""

import itertools

import keras
import numpy as np
import pytest
import reference
import reference_positions as rp
from attention_features import POSITIONS, built, expected_self_attention
from blocks import head_norms
from compare import assert_close, to_numpy
from execution import MODES, execute, gradients, tensorflow_only
from keras import ops
from keras_weights import cross_attention, self_attention

from keras_tfm.layers import (
    AttentionProbe,
    MultiHeadCrossAttention,
    MultiHeadSelfAttention,
    TokenEmbedding,
    TransformerDecoderBlock,
    TransformerEncoderBlock,
)

# Float32 rounds at 6e-8; 60 terms a sum, and weights that follow scores of size 3.
FLOAT32 = 1e-5

B, T, S, D, C = 2, 7, 5, 10, 11
MASK = np.array([[True, True, True, False, True, True, True], [False, False] + [True] * 5])
PAIRS = np.random.default_rng(3).random((B, T, T)) < 0.6
PAIRS[0, 2] = False  # one query sees nothing
HEADS = {
    "plain": {"num_heads": 2},
    "widths": {"num_heads": 3, "head_dim": 7, "value_dim": 11},
    "grouped": {"num_heads": 4, "num_key_value_heads": 2, "head_dim": 3},
    "one key head": {"num_heads": 3, "num_key_value_heads": 1, "head_dim": 5, "value_dim": 2},
    "three a key head": {"num_heads": 6, "num_key_value_heads": 2, "head_dim": 3},
    "no bias": {"num_heads": 2, "use_bias": False},
}
both_directions = pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
every_head = pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture
def x(rng):
    return rng.normal(size=(B, T, D)).astype("float32")


def assert_equals_reference(x, options, **call):
    layer = built(MultiHeadSelfAttention(**options), x.shape)
    expected = expected_self_attention(layer, x, **options, **call)
    assert_close(layer(x, **call), expected, FLOAT32)
    return layer, expected


# Windows


@both_directions
@every_head
@pytest.mark.parametrize("window", [1, 2, 3, T - 1, T, 100])
def test_a_window(x, causal, heads, window):
    assert_equals_reference(x, {**heads, "causal": causal, "window": window})


@every_head
@pytest.mark.parametrize("window", [(1, 1), (3, 2), (1, T), [100, 2]])
def test_a_window_with_other_distances_before_and_after(x, heads, window):
    layer, _ = assert_equals_reference(x, {**heads, "window": tuple(window)})
    again = MultiHeadSelfAttention.from_config({**layer.get_config(), "window": list(window)})
    assert again.window == tuple(window)
    options = {**heads, "window": tuple(window)}
    assert_equals_reference(x, options, mask=MASK, attention_mask=PAIRS)


@both_directions
@pytest.mark.parametrize("window", [1, 3])
def test_a_window_and_masks(x, causal, window):
    options = {"num_heads": 2, "causal": causal, "window": window}
    assert_equals_reference(x, options, mask=MASK, attention_mask=PAIRS)


@both_directions
@pytest.mark.parametrize("window", [1, 2, 4])
def test_what_is_beyond_the_window_changes_nothing(x, rng, causal, window):
    layer = built(MultiHeadSelfAttention(2, causal=causal, window=window), x.shape)
    before = to_numpy(layer(x))
    for s in range(T):
        other = x.copy()
        other[:, s] = 10.0 * rng.normal(size=(B, D))
        changed = np.any(to_numpy(layer(other)) != before, axis=(0, 2))
        sees = [abs(s - t) < window and not (causal and s > t) for t in range(T)]
        np.testing.assert_array_equal(changed, sees)


def test_a_window_of_1_is_the_value_of_the_position_itself(x):
    layer = built(MultiHeadSelfAttention(2, window=1, use_bias=False), x.shape)
    value = x @ to_numpy(layer.query_key_value.kernel)[:, 2 * D :]
    assert_close(layer(x), value @ to_numpy(layer.output_projection.kernel), FLOAT32)


@pytest.mark.parametrize("mode", MODES)
@both_directions
def test_lengths_may_be_unknown(x, causal, mode):
    layer = MultiHeadSelfAttention(2, causal=causal, window=3)
    inputs = keras.Input((None, D))
    model = keras.Model(inputs, layer(inputs))
    for length in (T, 2):
        assert_close(execute(mode, model, x[:, :length]), layer(x[:, :length]), FLOAT32)


@pytest.mark.parametrize("window", [0, -1])
def test_an_impossible_window_is_refused(window):
    for given in (window, (2, window), (window, 2)):
        with pytest.raises(ValueError, match=f"window must be at least 1, got {window}"):
            MultiHeadSelfAttention(2, window=given)


def test_a_pair_that_is_none_is_refused():
    with pytest.raises(ValueError, match=r"one or two integers, got \(1, 2, 3\)"):
        MultiHeadSelfAttention(2, window=(1, 2, 3))
    with pytest.raises(TypeError, match=r"window must be an integer, got 2\.0"):
        MultiHeadSelfAttention(2, window=(1, 2.0))
    with pytest.raises(ValueError, match=r"an integer with causal=True, got \(3, 1\)"):
        MultiHeadSelfAttention(2, causal=True, window=(3, 1))


# Soft cap


@both_directions
@pytest.mark.parametrize("soft_cap", [0.5, 2.0, 50.0])
def test_a_soft_cap(x, causal, soft_cap):
    options = {"num_heads": 2, "causal": causal, "soft_cap": soft_cap}
    _, expected = assert_equals_reference(3 * x, options, mask=MASK)
    plain = built(MultiHeadSelfAttention(2, causal=causal), x.shape)
    assert np.abs(to_numpy(plain(3 * x, mask=MASK)) - expected).max() > 10 * FLOAT32


def test_capped_scores_are_within_the_cap_and_the_bias_is_not(x):
    """Weights differ by e^2c at most, c the cap; a bias of 20 beyond it decides nevertheless."""
    layer, cap = MultiHeadSelfAttention(1, soft_cap=0.5, use_bias=False), 0.5
    built(layer, x.shape)
    bias = np.zeros((1, 1, T, T), "float32")
    bias[..., 4] = 20.0
    large = 1e3 * x
    value = large @ to_numpy(layer.query_key_value.kernel)[:, 2 * D :]
    output = value @ to_numpy(layer.output_projection.kernel)
    # e^-20 = 2e-9, six others, e^1 for the cap: 1 part in 3e7.
    expected = np.broadcast_to(output[:, 4:5], output.shape)
    assert_close(layer(large, attention_bias=bias), expected, 1e-6)
    low, high = np.exp(-cap), np.exp(cap)
    with AttentionProbe() as probe:
        layer(large)
    (weights,) = map(to_numpy, probe.maps.values())
    # Scores near 1e6 are at the cap, all of them: each weight is one of two, before the sum.
    ratio = weights / weights.max(axis=-1, keepdims=True)
    at_the_cap = np.abs(ratio - 1) < 1e-6
    assert np.all(at_the_cap | (np.abs(ratio - low / high) < 1e-6))
    assert 0 < np.mean(at_the_cap) < 1


@pytest.mark.parametrize("soft_cap", [0.0, -2.0])
def test_an_impossible_soft_cap_is_refused(soft_cap):
    with pytest.raises(ValueError, match=f"soft_cap must be positive, got {soft_cap}"):
        MultiHeadSelfAttention(2, soft_cap=soft_cap)


# Normalised queries and keys


@both_directions
@every_head
def test_query_key_norm(x, causal, heads):
    assert_equals_reference(x, {**heads, "causal": causal, **head_norms()})


@pytest.mark.parametrize("position", POSITIONS.values(), ids=POSITIONS)
def test_queries_and_keys_are_normalised_before_they_get_a_position(x, position):
    options = {"num_heads": 2, "head_dim": 6, "position": position(), **head_norms()}
    assert_equals_reference(x, options)


def test_normalised_scores_do_not_depend_on_the_size_of_the_queries(x):
    """RMS is |q| / sqrt(K), so that every score is within sqrt(K) times both gains."""
    layer = MultiHeadSelfAttention(2, **head_norms(), use_bias=False)
    layer.build(x.shape)
    kernel = to_numpy(layer.query_key_value.kernel)
    outputs = []
    for size in (1e2, 1e5):  # the epsilon of 1e-6 beside their squares is nothing
        larger = kernel.copy()
        larger[:, : 2 * D] *= size
        layer.query_key_value.kernel.assign(larger)
        outputs.append(to_numpy(layer(x)))
    assert_close(outputs[1], outputs[0], FLOAT32)


@pytest.mark.parametrize("dtype", ["float16", "mixed_float16"])
def test_norms_of_300_in_float16_are_right(x, dtype):
    options = {"num_heads": 2, **head_norms(dtype), "dtype": dtype}
    layer = built(MultiHeadSelfAttention(**options), x.shape)
    expected = expected_self_attention(layer, 300 * x, **options)
    # Some five roundings of 5e-4.
    assert_close(layer(300 * x), expected, 5e-3)


@every_head
def test_cross_attention(x, rng, heads):
    """Cap, scale, norms and biases are arguments of cross-attention too."""
    context = rng.normal(size=(B, S, C)).astype("float32")
    mask = np.array([[True] * 5, [True, False, True, True, False]])
    pairs = rng.random((B, T, S)) < 0.7
    bias = rng.normal(size=(B, heads["num_heads"], T, S)).astype("float32")
    layer = MultiHeadCrossAttention(**heads, **head_norms(), soft_cap=1.5, scale=0.7)
    built(layer, x.shape, context.shape)
    weights = cross_attention(layer)

    def project(inputs, name):
        return inputs @ weights[name] + weights.get(f"{name}_bias", 0.0)

    query, key, value = (
        project(inputs, name)
        for inputs, name in ((x, "query"), (context, "key"), (context, "value"))
    )
    num_heads, shared = heads["num_heads"], heads.get("num_key_value_heads") or heads["num_heads"]
    query, key, value = (
        np.split(part, n, axis=-1)
        for part, n in ((query, num_heads), (key, shared), (value, shared))
    )
    outputs = []
    for head in range(num_heads):
        q = rp.rms_norm(query[head], to_numpy(layer.query_norm.scale), 1e-6)
        k = rp.rms_norm(key[head * shared // num_heads], to_numpy(layer.key_norm.scale), 1e-6)
        scores = 1.5 * np.tanh(0.7 * q @ k.transpose(0, 2, 1) / 1.5) + bias[:, head]
        alpha = rp.attention_weights(scores, mask[:, None] & pairs)
        outputs.append(alpha @ value[head * shared // num_heads])
    expected = project(np.concatenate(outputs, axis=-1), "output")
    actual = layer(x, context, context_mask=mask, attention_mask=pairs, attention_bias=bias)
    assert_close(actual, expected, FLOAT32)


# Scales


@both_directions
@every_head
@pytest.mark.parametrize("scale", [1.0, 0.07, 0.0, -0.5])
def test_a_scale(x, causal, heads, scale):
    assert_equals_reference(x, {**heads, "causal": causal, "scale": scale})


def test_a_scale_of_0_is_the_mean(x):
    layer = built(MultiHeadSelfAttention(2, scale=0.0), x.shape)
    y = to_numpy(layer(x))
    assert_close(y, np.broadcast_to(y[:, :1], y.shape), 1e-6)  # a mean of seven, seven times


# Biases of a call


@pytest.mark.parametrize("position", POSITIONS.values(), ids=POSITIONS)
@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (B, 1), (B, 2)], ids=str)
def test_an_attention_bias_is_added_to_the_scaled_scores(x, rng, position, shape):
    bias = 2 * rng.normal(size=(*shape, T, T)).astype("float32")
    options = {"num_heads": 2, "head_dim": 6, "position": position(), "scale": 0.3}
    _, expected = assert_equals_reference(x, options, attention_bias=bias, mask=MASK)
    _, without = assert_equals_reference(x, options, mask=MASK)
    assert np.abs(expected - without).max() > 0.1


@both_directions
@pytest.mark.parametrize("soft_cap", [None, 1.0])
def test_a_bias_of_each_head_and_all_masks(x, rng, causal, soft_cap):
    bias = rng.normal(size=(B, 4, T, T)).astype("float32")
    heads = {"num_heads": 4, "num_key_value_heads": 2, "head_dim": 3, "soft_cap": soft_cap}
    call = {"mask": MASK, "attention_mask": PAIRS, "attention_bias": bias}
    assert_equals_reference(x, {**heads, "causal": causal, "window": 4}, **call)


@tensorflow_only
@pytest.mark.parametrize("position", POSITIONS.values(), ids=POSITIONS)
def test_an_attention_bias_gets_a_gradient(x, rng, position):
    """As it does where another layer computes it: against a central difference, in float64."""
    options = {"num_heads": 2, "head_dim": 6, "position": position()}
    layer = built(MultiHeadSelfAttention(**options), x.shape)
    weighting, bias = rng.normal(size=x.shape), rng.normal(size=(1, 2, T, T)).astype("float32")
    direction = rng.normal(size=bias.shape)

    def loss(bias):
        return ops.sum(weighting.astype("float32") * layer(x, attention_bias=bias))

    def expected(step):
        shifted = bias + step * direction
        return np.sum(
            weighting * expected_self_attention(layer, x, **options, attention_bias=shifted)
        )

    _, (gradient,) = gradients(loss, [], bias)
    wanted = (expected(1e-5) - expected(-1e-5)) / 2e-5
    # Float32 gradients are sums of some 100 products, rounded at 6e-8 each.
    assert_close(np.sum(to_numpy(gradient) * direction), wanted, 2e-5)


@pytest.mark.parametrize(
    "shape",
    [(T, T), (2, T, T), (B, 2, T, T + 1), (B, 3, T, T), (B + 1, 2, T, T), (B, 2, 1, T)],
    ids=str,
)
@pytest.mark.parametrize("kind", ["self-attention", "block"])
def test_an_attention_bias_of_the_wrong_shape_is_named(x, shape, kind):
    layer = MultiHeadSelfAttention(2) if kind == "self-attention" else TransformerEncoderBlock(3, 2)
    with pytest.raises(ValueError, match=r"attention_bias must have shape \(B .*got"):
        layer(x, attention_bias=np.zeros(shape, "float32"))


def test_a_boolean_attention_bias_is_refused(x):
    """A mask in the wrong argument would add 1 where it is True, and hide nothing."""
    with pytest.raises(TypeError, match=r"attention_bias must be .*float.*bool"):
        MultiHeadSelfAttention(2)(x, attention_bias=np.ones((1, 1, T, T), bool))


IDS = np.array([[3, 4, 5, 0, 6, 1, 2], [7, 8, 0, 0, 0, 0, 0]])


@pytest.mark.parametrize("kind", ["attention", "encoder", "decoder"])
def test_an_attention_bias_keeps_the_implicit_mask(rng, kind):
    """With a second tensor in the call Keras does not fill an argument called mask."""
    layer = {
        "attention": lambda: MultiHeadSelfAttention(2),
        "encoder": lambda: TransformerEncoderBlock(13, 2),
        "decoder": lambda: TransformerDecoderBlock(13, 2, cross_attention=False),
    }[kind]()
    built(layer, (B, T, D))
    x = TokenEmbedding(11, D, mask_zero=True)(IDS)
    plain = to_numpy(x).astype("float32")
    bias = ops.convert_to_tensor(rng.normal(size=(1, 2, T, T)).astype("float32"))
    expected = layer(plain, mask=IDS != 0, attention_bias=bias)
    assert_close(layer(x, attention_bias=bias), expected, 0.0)
    assert np.any(to_numpy(layer(plain, attention_bias=bias)) != to_numpy(expected))


# Grouped heads


@both_directions
@pytest.mark.parametrize(
    ("num_heads", "shared"), [(1, 1), (2, 1), (4, 1), (4, 2), (4, 4), (6, 2), (6, 3), (7, 1)]
)
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
def test_grouped_heads(x, causal, num_heads, shared, masked):
    masks = {"mask": MASK, "attention_mask": PAIRS} if masked else {}
    options = {
        "num_heads": num_heads, "num_key_value_heads": shared, "head_dim": 3, "value_dim": 5
    }  # fmt: skip
    layer, _ = assert_equals_reference(x, {**options, "causal": causal, "window": 5}, **masks)
    assert layer.query_key_value.kernel.shape[1] == 3 * num_heads + (3 + 5) * shared


def test_grouped_equals_plain_heads_whose_keys_and_values_are_repeated(x):
    grouped = built(
        MultiHeadSelfAttention(4, head_dim=3, num_key_value_heads=2, use_bias=False), x.shape
    )
    plain = built(MultiHeadSelfAttention(4, head_dim=3, use_bias=False), x.shape)
    query, key, value = np.split(to_numpy(grouped.query_key_value.kernel), [12, 18], axis=-1)
    repeated = [np.repeat(k.reshape(D, 2, 3), 2, axis=1).reshape(D, 12) for k in (key, value)]
    plain.query_key_value.kernel.assign(np.concatenate([query, *repeated], axis=-1))
    plain.output_projection.kernel.assign(grouped.output_projection.kernel)
    assert_close(grouped(x), plain(x), 1e-6)  # the same sums, in another order perhaps


def test_everything_at_once(x, rng):
    """All the arguments that a self-attention has."""
    for name, causal in itertools.product(POSITIONS, (False, True)):
        options = {
            "num_heads": 6, "num_key_value_heads": 2, "head_dim": 6, "value_dim": 5,
            "causal": causal, "window": 4, "scale": 0.4, "soft_cap": 1.5, **head_norms(),
            "position": POSITIONS[name](),
        }  # fmt: skip
        bias = rng.normal(size=(B, 6, T, T)).astype("float32")
        call = {"mask": MASK, "attention_mask": PAIRS, "attention_bias": bias}
        assert_equals_reference(x, options, **call)


def test_the_reference_without_features_is_that_of_the_original_transformer(x):
    """The two references agree where both apply."""
    layer = built(MultiHeadSelfAttention(4, num_key_value_heads=2, head_dim=3), x.shape)
    weights, mask = self_attention(layer), MASK[:, None] & np.tri(T, dtype=bool)
    expected = reference.multi_head_attention(x, x, weights, 4, mask)
    actual = rp.self_attention(x, weights, 4, causal=True, mask=MASK)
    assert_close(actual, expected, 1e-13)  # float64, the same sums
