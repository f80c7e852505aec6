import keras
import numpy as np
import pytest
import reference
from compare import assert_close, to_numpy
from keras_weights import built, self_attention

from keras_tfm.layers import MultiHeadSelfAttention, TokenEmbedding

# Float32 rounds at 6e-8; 60 terms a sum, and weights that follow scores of size 3.
FLOAT32 = 1e-5
# Bfloat16 rounds at 4e-3, five times in a row, of values of both signs.
BFLOAT16 = 2e-2

B, T, D = 2, 5, 6
HEADS = {
    "plain": {"num_heads": 2},
    "head_dim": {"num_heads": 3, "head_dim": 7},
    "value_dim": {"num_heads": 2, "value_dim": 11},
    "grouped": {"num_heads": 4, "num_key_value_heads": 2, "head_dim": 3},
    "one_key_head": {"num_heads": 3, "num_key_value_heads": 1, "value_dim": 7},
    "no_bias": {"num_heads": 3, "use_bias": False},
}
MASK = np.array([[True, True, True, False, True], [True, True, False, False, False]])
PAIRS = np.random.default_rng(3).random((B, T, T)) < 0.6
PAIRS[0, 2] = False  # one query sees nothing


@pytest.fixture
def x():
    return np.random.default_rng(7).normal(size=(B, T, D)).astype("float32")


def layer_and_reference(options):
    """A layer with random weights, and the function that it should be."""
    layer = built(MultiHeadSelfAttention(**options), (B, T, D))

    def expected(x, mask=None, attention_mask=None):
        visible = np.tri(T, dtype=bool) if layer.causal else np.ones((T, T), bool)
        for part in (None if mask is None else mask[:, None, :], attention_mask):
            visible = visible if part is None else np.logical_and(visible, part)
        return reference.multi_head_attention(x, x, self_attention(layer), layer.num_heads, visible)

    return layer, expected


@pytest.mark.parametrize("attention_mask", [None, PAIRS], ids=["", "pairs"])
@pytest.mark.parametrize("mask", [None, MASK], ids=["", "mask"])
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("heads", HEADS)
def test_equals_the_float64_reference(x, heads, causal, mask, attention_mask):
    layer, expected = layer_and_reference({**HEADS[heads], "causal": causal})
    actual = layer(x, mask=mask, attention_mask=attention_mask)
    assert_close(actual, expected(x, mask, attention_mask), FLOAT32)


@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "bfloat16", "mixed_float16"])
def test_half_precision_equals_the_float64_reference(x, dtype, heads, causal):
    layer, expected = layer_and_reference({**HEADS[heads], "causal": causal, "dtype": dtype})
    actual = layer(x, mask=MASK)
    assert keras.backend.standardize_dtype(actual.dtype) == dtype.removeprefix("mixed_")
    assert_close(actual, expected(x, MASK), BFLOAT16)


@pytest.mark.parametrize("dtype", ["float16", "mixed_float16"])
@pytest.mark.parametrize("heads", ["plain", "grouped"])
def test_float16_activations_of_1e3_are_right(x, heads, dtype):
    layer, expected = layer_and_reference({**HEADS[heads], "dtype": dtype})
    # Scores are near 1e6, so that each row has a winner; its value is rounded at 5e-4 three times.
    assert_close(layer(1e3 * x, mask=MASK), expected(1e3 * x, MASK), 5e-3)


@pytest.mark.parametrize("causal", [False, True])
def test_a_query_without_keys_gets_the_output_bias(x, causal):
    layer = built(MultiHeadSelfAttention(2, causal=causal), (B, T, D))
    y = to_numpy(layer(x, attention_mask=PAIRS))
    np.testing.assert_array_equal(y[0, 2], to_numpy(layer.output_projection.bias))
    assert np.all(y[0, 3] != y[0, 2])


@pytest.mark.parametrize("size", [1.0, 1e5])
@pytest.mark.parametrize("mask", [None, MASK], ids=["", "mask"])
@pytest.mark.parametrize("heads", HEADS)
def test_the_future_does_not_change_the_past(x, heads, mask, size):
    layer = built(MultiHeadSelfAttention(**HEADS[heads], causal=True), (B, T, D))
    before = to_numpy(layer(x, mask=mask))
    for t in range(1, T):
        other = x.copy()
        other[:, t:] = size * np.random.default_rng(t).normal(size=other[:, t:].shape)
        after = to_numpy(layer(other, mask=mask))
        np.testing.assert_array_equal(after[:, :t], before[:, :t])
        if mask is None:
            assert np.all(after[:, t] != before[:, t])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", HEADS)
def test_more_right_padding_changes_nothing(x, heads, causal):
    layer = built(MultiHeadSelfAttention(**HEADS[heads], causal=causal), (B, T, D))
    expected = layer(x, mask=np.ones((B, T), bool))
    noise = np.random.default_rng(1).normal(size=(B, 8, D))
    longer = np.concatenate([x, noise], axis=1).astype("float32")
    for length in (T + 1, T + 8):
        actual = layer(longer[:, :length], mask=np.tile(np.arange(length) < T, (B, 1)))
        # Weights of padding are 0 exactly, but longer sums may be taken in another order.
        assert_close(actual[:, :T], expected, 1e-6)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", HEADS)
def test_left_padding_changes_nothing(x, heads, causal):
    layer = built(MultiHeadSelfAttention(**HEADS[heads], causal=causal), (B, T, D))
    noise = np.random.default_rng(1).normal(size=(B, 3, D))
    longer = np.concatenate([noise, x], axis=1).astype("float32")
    actual = layer(longer, mask=np.tile(np.arange(T + 3) >= 3, (B, 1)))
    assert_close(actual[:, 3:], layer(x), 1e-6)  # as for right padding


@pytest.mark.parametrize("name", ["mask", "attention_mask"])
def test_a_float_mask_is_refused(x, name):
    mask = np.zeros({"mask": (B, T), "attention_mask": (B, T, T)}[name], "float32")
    with pytest.raises(TypeError, match=rf"{name} must be boolean \(True = attend\), got float"):
        MultiHeadSelfAttention(2)(x, **{name: mask})


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ({"mask": (B, T, T)}, r"mask must have shape \(B, S\) = \(2, 5\), got \(2, 5, 5\)"),
        ({"mask": (B, T + 1)}, r"mask must have shape \(B, S\) = \(2, 5\), got \(2, 6\)"),
        ({"mask": (T,)}, r"mask must have shape \(B, S\) = \(2, 5\), got \(5,\)"),
        (
            {"attention_mask": (B, T)},
            r"attention_mask must have shape \(B, T, S\) = \(2, 5, 5\), got \(2, 5\)",
        ),
        (
            {"attention_mask": (B, T, T + 2)},
            r"attention_mask must have shape \(B, T, S\) = \(2, 5, 5\), got \(2, 5, 7\)",
        ),
    ],
)
def test_a_mask_of_the_wrong_shape_is_named(x, masks, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadSelfAttention(2)(x, **{name: np.ones(s, bool) for name, s in masks.items()})


@pytest.mark.parametrize("shape", [(5, 6), (6,), (2, 5, None)])
def test_an_input_of_the_wrong_rank_is_named(shape):
    with pytest.raises(ValueError, match=r"attend: x must have shape \(B, T, D\) with D known, go"):
        MultiHeadSelfAttention(2, name="attend").build(shape)


@pytest.mark.parametrize("causal", [False, True])
def test_a_row_of_padding_alone_leaves_the_others_alone(x, causal):
    layer, expected = layer_and_reference({"num_heads": 2, "causal": causal})
    mask = np.array([[False] * T, [True] * T])
    actual = to_numpy(layer(x, mask=mask))
    assert_close(actual, expected(x, mask), FLOAT32)
    np.testing.assert_array_equal(actual[0], np.tile(layer.output_projection.bias, (T, 1)))


def test_not_causal_by_default(x):
    layer = built(MultiHeadSelfAttention(2), (B, T, D))
    other = np.concatenate([x[:, :-1], -x[:, -1:]], axis=1)
    assert np.all(to_numpy(layer(other))[:, 0] != to_numpy(layer(x))[:, 0])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", ["plain", "grouped"])
@pytest.mark.parametrize(("batch", "length"), [(1, 1), (2, 1), (0, 5), (2, 0)])
def test_short_and_empty_inputs(x, batch, length, heads, causal, masked):
    layer, _ = layer_and_reference({**HEADS[heads], "causal": causal})
    mask = np.ones((batch, length), bool) if masked else None
    actual = layer(x[:batch, :length], mask=mask)
    assert tuple(actual.shape) == (batch, length, D)
    if length == 1:  # attends to itself: the value, projected
        weights = self_attention(layer)
        value = x[:batch, :1] @ weights["value"] + weights["value_bias"]
        groups = layer.num_key_value_heads or layer.num_heads
        heads = np.repeat(np.split(value, groups, axis=-1), layer.num_heads // groups, axis=0)
        joined = np.concatenate(list(heads), axis=-1)
        assert_close(actual, joined @ weights["output"] + weights["output_bias"], FLOAT32)


IDS = np.array([[3, 4, 5, 0, 6], [7, 8, 0, 0, 0]])


@pytest.mark.parametrize("attention_mask", [None, PAIRS], ids=["", "pairs"])
@pytest.mark.parametrize("causal", [False, True])
def test_the_implicit_mask_is_used_and_kept_and_an_explicit_one_wins(causal, attention_mask):
    """With a second tensor in the call Keras does not fill an argument called mask."""
    layer = built(MultiHeadSelfAttention(2, causal=causal), (B, T, D))
    x = TokenEmbedding(11, D, mask_zero=True)(IDS)
    plain = to_numpy(x)
    actual = layer(x, attention_mask=attention_mask)
    assert_close(actual, layer(plain, mask=IDS != 0, attention_mask=attention_mask), 0.0)
    np.testing.assert_array_equal(actual._keras_mask, IDS != 0)

    everything = layer(x, mask=np.ones((B, T), bool), attention_mask=attention_mask)
    assert_close(everything, layer(plain, attention_mask=attention_mask), 0.0)
    assert np.any(to_numpy(everything) != to_numpy(actual))


def test_every_projection_starts_from_numbers_of_its_own():
    layer = MultiHeadSelfAttention(3)
    layer.build((None, None, 12))
    fused = self_attention(layer)
    kernels = [fused[name] for name in ("query", "key", "value", "output")]
    for i, kernel in enumerate(kernels):
        assert all(np.all(kernel != other) for other in kernels[:i])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 0}, "num_heads must be at least 1, got 0"),
        (
            {"num_heads": 4, "num_key_value_heads": 3},
            r"num_key_value_heads \(3\) must divide num_heads \(4\)",
        ),
        (
            {"num_heads": 4, "num_key_value_heads": 0},
            r"num_key_value_heads must be at least 1, got 0",
        ),
        ({"num_heads": 5}, r"num_heads \(5\) must divide dim \(6\), unless head_dim is given"),
        ({"num_heads": 2, "head_dim": 0}, "head_dim must be at least 1, got 0"),
        ({"num_heads": 2, "value_dim": -1}, "value_dim must be at least 1, got -1"),
    ],
)
def test_impossible_heads_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadSelfAttention(**options).build((B, T, D))
