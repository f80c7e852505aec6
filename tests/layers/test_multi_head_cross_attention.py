import keras
import numpy as np
import pytest
import reference
from compare import assert_close, to_numpy
from keras_weights import built, cross_attention

from keras_tfm.layers import MultiHeadCrossAttention, TokenEmbedding

# Float32 rounds at 6e-8; 60 terms a sum, and weights that follow scores of size 3.
FLOAT32 = 1e-5
# Bfloat16 rounds at 4e-3, five times in a row, of values of both signs.
BFLOAT16 = 2e-2

B, T, S, D, C = 2, 5, 7, 6, 11
HEADS = {
    "plain": {"num_heads": 2},
    "head_dim": {"num_heads": 3, "head_dim": 13},
    "value_dim": {"num_heads": 2, "value_dim": 13},
    "grouped": {"num_heads": 4, "num_key_value_heads": 2, "head_dim": 3},
    "one_key_head": {"num_heads": 3, "num_key_value_heads": 1, "value_dim": 13},
    "no_bias": {"num_heads": 3, "use_bias": False},
}
MASK = np.array([[True, True, True, False, True, True, True], [True] * 2 + [False] * 5])
PAIRS = np.random.default_rng(3).random((B, T, S)) < 0.6
PAIRS[0, 2] = False  # one query sees nothing


@pytest.fixture
def x():
    return np.random.default_rng(7).normal(size=(B, T, D)).astype("float32")


@pytest.fixture
def context():
    return np.random.default_rng(8).normal(size=(B, S, C)).astype("float32")


def layer_and_reference(options):
    """A layer with random weights, and the function that it should be."""
    layer = built(MultiHeadCrossAttention(**options), (B, T, D), (B, S, C))

    def expected(x, context, mask=None, attention_mask=None):
        visible = np.ones((T, S), bool)
        for part in (None if mask is None else mask[:, None, :], attention_mask):
            visible = visible if part is None else np.logical_and(visible, part)
        weights = cross_attention(layer)
        return reference.multi_head_attention(x, context, weights, layer.num_heads, visible)

    return layer, expected


@pytest.mark.parametrize("attention_mask", [None, PAIRS], ids=["", "pairs"])
@pytest.mark.parametrize("mask", [None, MASK], ids=["", "mask"])
@pytest.mark.parametrize("heads", HEADS)
def test_equals_the_float64_reference(x, context, heads, mask, attention_mask):
    layer, expected = layer_and_reference(HEADS[heads])
    actual = layer(x, context, context_mask=mask, attention_mask=attention_mask)
    assert_close(actual, expected(x, context, mask, attention_mask), FLOAT32)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "bfloat16", "mixed_float16"])
def test_half_precision_equals_the_float64_reference(x, context, dtype, heads):
    layer, expected = layer_and_reference({**HEADS[heads], "dtype": dtype})
    actual = layer(x, context, context_mask=MASK)
    assert keras.backend.standardize_dtype(actual.dtype) == dtype.removeprefix("mixed_")
    assert_close(actual, expected(x, context, MASK), BFLOAT16)


@pytest.mark.parametrize("dtype", ["float16", "mixed_float16"])
@pytest.mark.parametrize("heads", ["plain", "grouped"])
def test_float16_activations_of_1e3_are_right(x, context, heads, dtype):
    layer, expected = layer_and_reference({**HEADS[heads], "dtype": dtype})
    x, context = 1e3 * x, 1e3 * context
    # Scores are near 1e6, so that each row has a winner; its value is rounded at 5e-4 three times.
    assert_close(layer(x, context, context_mask=MASK), expected(x, context, MASK), 5e-3)


def test_a_query_without_keys_gets_the_output_bias(x, context):
    layer = built(MultiHeadCrossAttention(2), (B, T, D), (B, S, C))
    y = to_numpy(layer(x, context, attention_mask=PAIRS))
    np.testing.assert_array_equal(y[0, 2], to_numpy(layer.output_projection.bias))
    assert np.all(y[0, 3] != y[0, 2])


@pytest.mark.parametrize("size", [1.0, 1e5])
@pytest.mark.parametrize("heads", HEADS)
def test_padding_of_the_context_is_not_seen(x, context, heads, size):
    layer = built(MultiHeadCrossAttention(**HEADS[heads]), (B, T, D), (B, S, C))
    other = np.where(MASK[:, :, None], context, size * np.flip(context)).astype("float32")
    expected = to_numpy(layer(x, context, context_mask=MASK))
    np.testing.assert_array_equal(to_numpy(layer(x, other, context_mask=MASK)), expected)
    assert np.any(to_numpy(layer(x, other)) != expected)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("heads", HEADS)
def test_more_padding_of_the_context_changes_nothing(x, context, heads, side):
    layer = built(MultiHeadCrossAttention(**HEADS[heads]), (B, T, D), (B, S, C))
    noise = np.random.default_rng(1).normal(size=(B, 6, C)).astype("float32")
    parts, real = (
        ([context, noise], slice(S)) if side == "right" else ([noise, context], slice(6, None))
    )
    mask = np.zeros((B, S + 6), bool)
    mask[:, real] = True
    actual = layer(x, np.concatenate(parts, axis=1), context_mask=mask)
    # Weights of padding are 0 exactly, but longer sums may be taken in another order.
    assert_close(actual, layer(x, context), 1e-6)


@pytest.mark.parametrize("name", ["context_mask", "attention_mask"])
def test_a_float_mask_is_refused(x, context, name):
    mask = np.zeros({"context_mask": (B, S), "attention_mask": (B, T, S)}[name], "float32")
    with pytest.raises(TypeError, match=rf"{name} must be boolean \(True = attend\), got float"):
        MultiHeadCrossAttention(2)(x, context, **{name: mask})


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("context_mask", (B, T), r"context_mask must have shape \(B, S\) = \(2, 7\), got \(2, 5\)"),
        (
            "context_mask",
            (B, T, S),
            r"context_mask must have shape \(B, S\) = \(2, 7\), got \(2, 5,",
        ),
        (
            "attention_mask",
            (B, S, T),
            r"attention_mask must have shape \(B, T, S\) = \(2, 5, 7\), got \(2, 7, 5\)",
        ),
    ],
)
def test_a_mask_of_the_wrong_shape_is_named(x, context, name, shape, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadCrossAttention(2)(x, context, **{name: np.ones(shape, bool)})


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(B, D), (B, S, C)], r"attend: x must have shape \(B, T, D\) with D known, got \(2, 6\)"),
        ([(B, T, D), (S, C)], r"attend: context must have shape \(B, T, D\) with D known, got \(7"),
        ([(B, T, D), (B, S, None)], r"attend: context must have shape \(B, T, D\) with D known"),
    ],
)
def test_an_input_of_the_wrong_rank_is_named(shapes, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadCrossAttention(2, name="attend").build(*shapes)


def test_a_row_of_padding_alone_leaves_the_others_alone(x, context):
    layer, expected = layer_and_reference({"num_heads": 2})
    mask = np.array([[False] * S, [True] * S])
    actual = to_numpy(layer(x, context, context_mask=mask))
    assert_close(actual, expected(x, context, mask), FLOAT32)
    np.testing.assert_array_equal(actual[0], np.tile(layer.output_projection.bias, (T, 1)))


@pytest.mark.parametrize("heads", ["plain", "grouped"])
@pytest.mark.parametrize(("batch", "length", "keys"), [(0, T, S), (B, 0, S), (1, 1, 1)])
def test_short_and_empty_inputs(x, context, batch, length, keys, heads):
    layer = built(MultiHeadCrossAttention(**HEADS[heads]), (B, T, D), (B, S, C))
    x, context = x[:batch, :length], context[:batch, :keys]
    actual = layer(x, context, context_mask=np.ones((batch, keys), bool))
    expected = reference.multi_head_attention(x, context, cross_attention(layer), layer.num_heads)
    assert_close(actual, expected, FLOAT32)


def test_an_empty_context_gives_the_output_bias(x, context):
    layer = built(MultiHeadCrossAttention(2), (B, T, D), (B, S, C))
    for mask in (None, np.ones((B, 0), bool)):
        actual = layer(x, context[:, :0], context_mask=mask)
        bias = to_numpy(layer.output_projection.bias)
        np.testing.assert_array_equal(to_numpy(actual), np.tile(bias, (B, T, 1)))


IDS = np.array([[3, 4, 5, 0, 6, 7, 8], [9, 10, 0, 0, 0, 0, 0]])


@pytest.mark.parametrize("attention_mask", [None, PAIRS], ids=["", "pairs"])
def test_the_implicit_masks_are_used_and_kept_and_explicit_ones_win(attention_mask):
    """Keras fills the context's into context_mask; the result keeps that of x."""
    layer = built(MultiHeadCrossAttention(2), (B, T, D), (B, S, C))
    targets = np.array([[1, 2, 3, 4, 0], [1, 2, 0, 0, 0]])
    x = TokenEmbedding(11, D, mask_zero=True)(targets)
    context = TokenEmbedding(11, C, mask_zero=True)(IDS)
    plain, plain_context = to_numpy(x), to_numpy(context)
    actual = layer(x, context, attention_mask=attention_mask)
    expected = layer(plain, plain_context, context_mask=IDS != 0, attention_mask=attention_mask)
    assert_close(actual, expected, 0.0)
    np.testing.assert_array_equal(actual._keras_mask, targets != 0)

    every = np.ones((B, S), bool)
    everything = layer(x, context, context_mask=every, attention_mask=attention_mask)
    assert_close(everything, layer(plain, plain_context, attention_mask=attention_mask), 0.0)
    assert np.any(to_numpy(everything) != to_numpy(actual))


def test_every_projection_starts_from_numbers_of_its_own():
    layer = MultiHeadCrossAttention(3)
    layer.build((None, None, 12), (None, None, 12))
    kernels = [to_numpy(weight) for weight in layer.weights if weight.name == "kernel"]
    assert len(kernels) == 4
    for i, kernel in enumerate(kernels):
        assert all(np.all(kernel != other) for other in kernels[:i])


@pytest.mark.parametrize("heads", ["value_dim", "grouped", "no_bias"])
@pytest.mark.parametrize("apart", [False, True], ids=["", "key"])
def test_keys_and_values_of_one_projection(heads, apart, x, context):
    """Compute what two projections do, whose weights are side by side, also of other keys."""
    layer = built(MultiHeadCrossAttention(**HEADS[heads]), (B, T, D), (B, S, C))
    fused = MultiHeadCrossAttention(**HEADS[heads], fused_key_value=True)
    fused.build((B, T, D), (B, S, C))
    kinds = ["kernel", "bias"] if heads != "no_bias" else ["kernel"]
    for name in ("query", "output_projection"):
        for kind in kinds:
            getattr(getattr(fused, name), kind).assign(getattr(getattr(layer, name), kind))
    for kind in kinds:
        parts = [to_numpy(getattr(part, kind)) for part in (layer.key, layer.value)]
        getattr(fused.key_value, kind).assign(np.concatenate(parts, axis=-1))
    key = context[:, ::-1] if apart else None
    expected = layer(x, context, context_mask=MASK, key=key)
    assert_close(fused(x, context, context_mask=MASK, key=key), expected, FLOAT32)


def test_one_projection_has_one_bias_or_none():
    layer = MultiHeadCrossAttention(2, fused_key_value=True, use_bias=["query", "value"])
    with pytest.raises(ValueError, match="both of key and value or neither with fused_key_value"):
        layer.build((B, T, D), (B, S, C))
