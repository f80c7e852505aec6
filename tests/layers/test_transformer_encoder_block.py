import keras
import numpy as np
import pytest
import reference
import torch_weights
from blocks import encoder_block
from compare import assert_close, to_numpy
from keras_weights import assign_block, block, built

from keras_tfm.layers import TokenEmbedding, TransformerEncoderBlock

# Float32 rounds at 6e-8; two sublayers of sums of up to 60 terms and two divisions by a deviation.
FLOAT32 = 1e-5
# Bfloat16 rounds at 4e-3, some ten times in a row, of values of both signs.
BFLOAT16 = 2e-2

B, T, D, F = 2, 5, 6, 13
HEADS = {
    "plain": {"num_heads": 2},
    "widths": {"num_heads": 3, "head_dim": 7, "value_dim": 11},
    "grouped": {"num_heads": 4, "num_key_value_heads": 2, "head_dim": 3},
}
MASK = np.array([[True, True, True, False, True], [True, True, False, False, False]])
PAIRS = np.random.default_rng(3).random((B, T, T)) < 0.6
PAIRS[0, 2] = False  # one query sees nothing

norm_position = pytest.mark.parametrize("first", [False, True], ids=["post", "pre"])


@pytest.fixture
def x():
    return np.random.default_rng(7).normal(size=(B, T, D)).astype("float32")


def block_and_reference(first, **options):
    """A block with random weights, and the function that it should be."""
    options = {"num_heads": 2, "layer_norm_epsilon": 1e-3, **options}
    layer = built(encoder_block(F, normalize_first=first, **options), (B, T, D))

    def expected(x, mask=None, attention_mask=None):
        visible = np.ones((x.shape[0], x.shape[1], x.shape[1]), bool)
        for part in (None if mask is None else mask[:, None, :], attention_mask):
            visible = visible if part is None else np.logical_and(visible, part)
        return reference.encoder_block(
            x,
            block(layer),
            layer.self_attention.num_heads,
            visible,
            epsilon=1e-3,
            normalize_first=first,
        )

    return layer, expected


@norm_position
@pytest.mark.parametrize("attention_mask", [None, PAIRS], ids=["", "pairs"])
@pytest.mark.parametrize("mask", [None, MASK], ids=["", "mask"])
@pytest.mark.parametrize("heads", HEADS)
def test_equals_the_float64_reference(x, heads, mask, attention_mask, first):
    layer, expected = block_and_reference(first, **HEADS[heads])
    actual = layer(x, mask=mask, attention_mask=attention_mask)
    assert_close(actual, expected(x, mask, attention_mask), FLOAT32)


@norm_position
def test_the_activation_is_that_of_the_feed_forward(x, first):
    layer = built(
        TransformerEncoderBlock(
            F, 2, activation=lambda y: keras.ops.gelu(y, approximate=False), normalize_first=first
        ),
        (B, T, D),
    )
    expected = reference.encoder_block(
        x, block(layer), 2, activation=reference.gelu, epsilon=1e-5, normalize_first=first
    )
    assert_close(layer(x), expected, FLOAT32)


@norm_position
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "bfloat16", "mixed_float16"])
def test_half_precision_equals_the_float64_reference(x, dtype, heads, first):
    layer, expected = block_and_reference(first, **HEADS[heads], dtype=dtype)
    assert_close(layer(x, mask=MASK), expected(x, MASK), BFLOAT16)


@pytest.mark.parametrize("case", ["post", "pre"])
def test_a_stack_equals_torch(case):
    """torch's context is the encoder's output after one more norm, in both cases."""
    fixture = torch_weights.fixture()
    weights = torch_weights.transformer(fixture, case)
    x, mask = fixture["source"], fixture["source_mask"]
    for part in weights["encoder"]:
        layer = TransformerEncoderBlock(
            20, int(fixture["num_heads"]), normalize_first=case == "pre"
        )
        layer.build(x.shape)
        assign_block(layer, part)
        x = layer(x, mask=mask)
    norm = weights["encoder_norm"]
    x = reference.layer_norm(to_numpy(x), norm["gamma"], norm["beta"], float(fixture["epsilon"]))
    assert_close(x[mask], fixture[f"{case}/context"][mask], FLOAT32)


@norm_position
@pytest.mark.parametrize("size", [300.0, 1e3])
@pytest.mark.parametrize("dtype", ["float16", "mixed_float16"])
def test_large_float16_activations_are_right(x, dtype, size, first):
    """Squares of 300 are beyond float16's 65,504: the norms are taken in float32."""
    layer, expected = block_and_reference(first, dtype=dtype)
    # Where scores tell keys apart by a wide margin float16 changes no winner, and rounds at 5e-4,
    # ten times in a row.
    assert_close(layer(size * x, mask=MASK), expected(size * x, MASK), 5e-3)


@norm_position
@pytest.mark.parametrize("size", [1.0, 1e5])
def test_more_right_padding_changes_nothing(x, first, size):
    layer, _ = block_and_reference(first)
    noise = size * np.random.default_rng(1).normal(size=(B, 6, D))
    longer = np.concatenate([x, noise], axis=1).astype("float32")
    for length in (T + 1, T + 6):
        actual = layer(longer[:, :length], mask=np.tile(np.arange(length) < T, (B, 1)))
        # Weights of padding are 0 exactly, but longer sums may be taken in another order.
        assert_close(actual[:, :T], layer(x), 1e-6)


@norm_position
def test_left_padding_changes_nothing(x, first):
    layer, _ = block_and_reference(first)
    noise = np.random.default_rng(1).normal(size=(B, 3, D))
    longer = np.concatenate([noise, x], axis=1).astype("float32")
    actual = layer(longer, mask=np.tile(np.arange(T + 3) >= 3, (B, 1)))
    assert_close(actual[:, 3:], layer(x), 1e-6)  # as for right padding


@pytest.mark.parametrize("name", ["mask", "attention_mask"])
def test_a_float_mask_is_refused(x, name):
    mask = np.zeros({"mask": (B, T), "attention_mask": (B, T, T)}[name], "float32")
    with pytest.raises(TypeError, match=rf"{name} must be boolean \(True = attend\), got float"):
        TransformerEncoderBlock(F, 2)(x, **{name: mask})


@pytest.mark.parametrize(("name", "shape"), [("mask", (B, T + 1)), ("attention_mask", (B, T))])
def test_a_mask_of_the_wrong_shape_is_named(x, name, shape):
    with pytest.raises(ValueError, match=rf"{name} must have shape \(B, .*\), got \(2, "):
        TransformerEncoderBlock(F, 2)(x, **{name: np.ones(shape, bool)})


def test_an_input_of_the_wrong_rank_is_named():
    with pytest.raises(ValueError, match=r"block: x must have shape \(B, T, D\) .*, got \(2, 6\)"):
        TransformerEncoderBlock(F, 2, name="block").build((B, D))


@norm_position
def test_a_row_of_padding_alone_is_finite(x, first):
    layer, expected = block_and_reference(first)
    mask = np.array([[False] * T, [True] * T])
    assert_close(layer(x, mask=mask), expected(x, mask), FLOAT32)


@norm_position
@pytest.mark.parametrize("heads", ["plain", "grouped"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("batch", "length"), [(0, T), (B, 0), (1, 1)])
def test_short_and_empty_inputs(x, batch, length, masked, heads, first):
    layer, expected = block_and_reference(first, **HEADS[heads])
    x = x[:batch, :length]
    mask = np.ones((batch, length), bool) if masked else None
    wanted = expected(x) if length else np.zeros((batch, 0, D))
    assert_close(layer(x, mask=mask), wanted, FLOAT32)


IDS = np.array([[3, 4, 5, 0, 6], [7, 8, 0, 0, 0]])


@norm_position
@pytest.mark.parametrize("attention_mask", [None, PAIRS], ids=["", "pairs"])
def test_the_implicit_mask_is_used_and_kept_and_an_explicit_one_wins(attention_mask, first):
    """With a second tensor in the call Keras does not fill an argument called mask."""
    layer, _ = block_and_reference(first)
    x = TokenEmbedding(11, D, mask_zero=True)(IDS)
    plain = to_numpy(x)
    actual = layer(x, attention_mask=attention_mask)
    assert_close(actual, layer(plain, mask=IDS != 0, attention_mask=attention_mask), 0.0)
    np.testing.assert_array_equal(actual._keras_mask, IDS != 0)

    everything = layer(x, mask=np.ones((B, T), bool), attention_mask=attention_mask)
    assert_close(everything, layer(plain, attention_mask=attention_mask), 0.0)
    assert np.any(to_numpy(everything) != to_numpy(actual))


def test_dropout_is_after_each_sublayer_and_of_the_attention_weights():
    block = TransformerEncoderBlock(F, 2, dropout=0.3)
    rates = {
        "attention": block.self_attention.dropout_layer.rate,
        "attention output": block.self_attention_residual.dropout_layer.rate,
        "feed-forward": block.feed_forward.dropout_layer.rate,
        "feed-forward output": block.feed_forward_residual.dropout_layer.rate,
    }
    assert rates == {
        "attention": 0.3, "attention output": 0.3, "feed-forward": 0.0, "feed-forward output": 0.3
    }  # fmt: skip
    block = encoder_block(F, 2, dropout=0.3, attention_dropout=0.0)
    assert block.self_attention.dropout_layer.rate == 0.0


@norm_position
@pytest.mark.parametrize(
    "rates", [{"dropout": 0.5, "attention_dropout": 0.0}, {"attention_dropout": 0.5}]
)
def test_dropout_is_random_in_training_only(x, rates, first):
    layer, _ = block_and_reference(first, **rates)
    still, _ = block_and_reference(first)
    assert_close(layer(x), still(x), 0.0)
    first_time, second_time = (to_numpy(layer(x, training=True)) for _ in range(2))
    assert np.any(first_time != second_time)
