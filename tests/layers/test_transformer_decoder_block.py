import numpy as np
import pytest
import reference
import torch_weights
from blocks import decoder_block
from compare import assert_close, to_numpy
from keras_weights import assign_block, block, built

from keras_tfm.layers import TokenEmbedding, TransformerDecoderBlock

# Float32 rounds at 6e-8; three sublayers of sums of up to 60 terms and three divisions by a
# deviation.
FLOAT32 = 1e-5
# Bfloat16 rounds at 4e-3, some fifteen times in a row, of values of both signs.
BFLOAT16 = 2e-2

B, T, S, D, C, F = 2, 5, 7, 6, 11, 13
HEADS = {
    "plain": {"num_heads": 2},
    "widths": {"num_heads": 3, "head_dim": 7, "value_dim": 11},
    "grouped": {"num_heads": 4, "num_key_value_heads": 2, "head_dim": 3},
}
MASK = np.array([[True, True, False, True, True], [False, True, True, False, False]])
CONTEXT_MASK = np.array([[True] * 4 + [False] * 3, [False] * 2 + [True] * 5])
PAIRS = np.random.default_rng(3).random((B, T, T)) < 0.6
PAIRS[0, 2] = False  # one query sees nothing

norm_position = pytest.mark.parametrize("first", [False, True], ids=["post", "pre"])
with_context = pytest.mark.parametrize("cross", [False, True], ids=["decoder_only", "cross"])


@pytest.fixture
def x():
    return np.random.default_rng(7).normal(size=(B, T, D)).astype("float32")


@pytest.fixture
def context():
    return np.random.default_rng(8).normal(size=(B, S, C)).astype("float32")


def block_and_reference(first, cross=True, **options):
    """A block with random weights, and the function that it should be."""
    options = {"num_heads": 2, "layer_norm_epsilon": 1e-3, **options}
    layer = decoder_block(F, normalize_first=first, cross_attention=cross, **options)
    built(layer, (B, T, D), (B, S, C) if cross else None)

    def expected(x, context=None, mask=None, context_mask=None, attention_mask=None):
        visible = np.ones((x.shape[0], x.shape[1], x.shape[1]), bool)
        for part in (None if mask is None else mask[:, None, :], attention_mask):
            visible = visible if part is None else np.logical_and(visible, part)
        return reference.decoder_block(
            x,
            context,
            block(layer),
            layer.self_attention.num_heads,
            self_mask=visible,
            context_mask=None if context_mask is None else context_mask[:, None, :],
            epsilon=1e-3,
            normalize_first=first,
        )

    return layer, expected


@norm_position
@pytest.mark.parametrize("attention_mask", [None, PAIRS], ids=["", "pairs"])
@pytest.mark.parametrize("context_mask", [None, CONTEXT_MASK], ids=["", "context_mask"])
@pytest.mark.parametrize("mask", [None, MASK], ids=["", "mask"])
@pytest.mark.parametrize("heads", HEADS)
def test_equals_the_float64_reference(x, context, heads, mask, context_mask, attention_mask, first):
    layer, expected = block_and_reference(first, **HEADS[heads])
    masks = {"mask": mask, "context_mask": context_mask, "attention_mask": attention_mask}
    assert_close(layer(x, context, **masks), expected(x, context, **masks), FLOAT32)


@norm_position
@pytest.mark.parametrize("attention_mask", [None, PAIRS], ids=["", "pairs"])
@pytest.mark.parametrize("mask", [None, MASK], ids=["", "mask"])
def test_decoder_only_equals_the_float64_reference(x, mask, attention_mask, first):
    layer, expected = block_and_reference(first, cross=False)
    actual = layer(x, mask=mask, attention_mask=attention_mask)
    assert_close(actual, expected(x, mask=mask, attention_mask=attention_mask), FLOAT32)


@norm_position
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "bfloat16", "mixed_float16"])
def test_half_precision_equals_the_float64_reference(x, context, dtype, heads, first):
    layer, expected = block_and_reference(first, **HEADS[heads], dtype=dtype)
    arguments = x, context, MASK, CONTEXT_MASK
    assert_close(layer(*arguments), expected(*arguments), BFLOAT16)


@pytest.mark.parametrize("case", ["post", "pre"])
def test_a_stack_equals_torch(case):
    """From torch's own context, before the norm that torch has after the stack in both cases."""
    fixture = torch_weights.fixture()
    weights = torch_weights.transformer(fixture, case)
    x, mask = fixture["target"], fixture["source_mask"]
    context = np.where(mask[..., None], fixture[f"{case}/context"], 7.0).astype("float32")
    for part in weights["decoder"]:
        layer = TransformerDecoderBlock(
            20, int(fixture["num_heads"]), normalize_first=case == "pre"
        )
        layer.build(x.shape, context.shape)
        assign_block(layer, part)
        x = layer(x, context, context_mask=mask)
    norm = weights["decoder_norm"]
    x = reference.layer_norm(to_numpy(x), norm["gamma"], norm["beta"], float(fixture["epsilon"]))
    assert_close(x, fixture[f"{case}/output"], FLOAT32)


@norm_position
@pytest.mark.parametrize("size", [300.0, 1e3])
@pytest.mark.parametrize("dtype", ["float16", "mixed_float16"])
def test_large_float16_activations_are_finite(x, context, dtype, size, first):
    """Winners of near-ties may change, so that values are not compared; that each is finite is."""
    layer, _ = block_and_reference(first, dtype=dtype)
    assert np.all(np.isfinite(to_numpy(layer(size * x, size * context, MASK, CONTEXT_MASK))))


@with_context
@norm_position
@pytest.mark.parametrize("size", [1.0, 1e5])
@pytest.mark.parametrize("mask", [None, MASK], ids=["", "mask"])
def test_the_future_does_not_change_the_past(x, context, mask, size, first, cross):
    layer, _ = block_and_reference(first, cross)
    context = [context] if cross else []
    before = to_numpy(layer(x, *context, mask=mask))
    for t in range(1, T):
        other = x.copy()
        other[:, t:] = size * np.random.default_rng(t).normal(size=other[:, t:].shape)
        after = to_numpy(layer(other, *context, mask=mask))
        np.testing.assert_array_equal(after[:, :t], before[:, :t])
        assert np.all(np.any(after[:, t] != before[:, t], axis=-1))


@norm_position
def test_padding_on_either_side_changes_nothing(x, context, first):
    layer, _ = block_and_reference(first)
    expected = layer(x, context)
    noise = np.random.default_rng(1).normal(size=(B, 3, D)).astype("float32")
    for parts, real in (([x, noise], slice(T)), ([noise, x], slice(3, None))):
        mask = np.zeros((B, T + 3), bool)
        mask[:, real] = True
        actual = layer(np.concatenate(parts, axis=1), context, mask=mask)
        # Weights of padding are 0 exactly, but longer sums may be taken in another order.
        assert_close(actual[:, real], expected, 1e-6)


@pytest.mark.parametrize("name", ["mask", "context_mask", "attention_mask"])
def test_a_float_mask_is_refused(x, context, name):
    shape = {"mask": (B, T), "context_mask": (B, S), "attention_mask": (B, T, T)}[name]
    with pytest.raises(TypeError, match=rf"{name} must be boolean \(True = attend\), got float"):
        TransformerDecoderBlock(F, 2)(x, context, **{name: np.zeros(shape, "float32")})


@pytest.mark.parametrize(
    ("name", "shape"), [("mask", (B, S)), ("context_mask", (B, T)), ("attention_mask", (B, T, S))]
)
def test_a_mask_of_the_wrong_shape_is_named(x, context, name, shape):
    with pytest.raises(ValueError, match=rf"{name} must have shape \(B, .*\), got \(2, "):
        TransformerDecoderBlock(F, 2)(x, context, **{name: np.ones(shape, bool)})


@with_context
def test_a_context_is_needed_or_refused(x, context, cross):
    layer = TransformerDecoderBlock(F, 2, cross_attention=cross, name="block")
    if cross:
        message = "block: cross_attention=True needs a context, got none"
    else:
        message = "block: cross_attention=False takes no context, got one"
    wrong = [] if cross else [context]
    with pytest.raises(ValueError, match=message):
        layer(x, *wrong)
    layer(x, *([context] if cross else []))
    with pytest.raises(ValueError, match=message):  # built now, and wrong all the same
        layer(x, *wrong)


@norm_position
def test_rows_of_padding_alone_are_finite(x, context, first):
    layer, expected = block_and_reference(first)
    mask = np.array([[False] * T, [True] * T])
    context_mask = np.array([[True] * S, [False] * S])
    arguments = x, context, mask, context_mask
    assert_close(layer(*arguments), expected(*arguments), FLOAT32)


@norm_position
@pytest.mark.parametrize("size", [1.0, 1e5])
def test_padding_of_the_context_is_not_seen(x, context, size, first):
    layer, _ = block_and_reference(first)
    other = np.where(CONTEXT_MASK[..., None], context, size * np.flip(context)).astype("float32")
    expected = to_numpy(layer(x, context, context_mask=CONTEXT_MASK))
    np.testing.assert_array_equal(to_numpy(layer(x, other, context_mask=CONTEXT_MASK)), expected)
    assert np.any(to_numpy(layer(x, other)) != expected)


@with_context
@norm_position
@pytest.mark.parametrize("heads", ["plain", "grouped"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("batch", "length"), [(0, T), (B, 0), (1, 1)])
def test_short_and_empty_inputs(x, context, batch, length, masked, heads, first, cross):
    layer, expected = block_and_reference(first, cross, **HEADS[heads])
    x = x[:batch, :length]
    context = [context[:batch]] if cross else []
    mask = np.ones((batch, length), bool) if masked else None
    wanted = expected(x, *context) if length else np.zeros((batch, 0, D))
    assert_close(layer(x, *context, mask=mask), wanted, FLOAT32)


IDS = np.array([[0, 3, 4, 5, 0], [7, 8, 0, 0, 0]])
SOURCE = np.array([[3, 4, 5, 0, 6, 7, 8], [9, 10, 0, 0, 0, 0, 0]])


@with_context
@norm_position
@pytest.mark.parametrize("attention_mask", [None, PAIRS], ids=["", "pairs"])
def test_the_implicit_masks_are_used_and_kept_and_explicit_ones_win(attention_mask, first, cross):
    """With a second tensor in the call Keras does not fill an argument called mask."""
    layer, _ = block_and_reference(first, cross)
    x = TokenEmbedding(11, D, mask_zero=True)(IDS)
    context = TokenEmbedding(11, C, mask_zero=True)(SOURCE)
    plain, contexts, plain_contexts = to_numpy(x), [context] * cross, [to_numpy(context)] * cross
    pairs = {"attention_mask": attention_mask}
    explicit = {"context_mask": SOURCE != 0} if cross else {}
    actual = layer(x, *contexts, **pairs)
    assert_close(actual, layer(plain, *plain_contexts, mask=IDS != 0, **explicit, **pairs), 0.0)
    np.testing.assert_array_equal(actual._keras_mask, IDS != 0)

    every = {"mask": np.ones((B, T), bool)}
    if cross:
        every |= {"context_mask": np.ones((B, S), bool)}
    everything = layer(x, *contexts, **every, **pairs)
    assert_close(everything, layer(plain, *plain_contexts, **pairs), 0.0)
    assert np.any(to_numpy(everything) != to_numpy(actual))


def test_dropout_is_after_each_sublayer_and_of_the_attention_weights():
    block = decoder_block(F, 2, dropout=0.3, attention_dropout=0.1)
    rates = {
        name: getattr(block, name).dropout_layer.rate
        for name in ("self_attention", "cross_attention", "feed_forward")
    }
    assert rates == {"self_attention": 0.1, "cross_attention": 0.1, "feed_forward": 0.0}
    for name in rates:
        assert getattr(block, f"{name}_residual").dropout_layer.rate == 0.3
