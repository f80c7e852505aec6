"""Blocks of parts: which sublayers there are, what they are given, and which parts are refused."""

import keras
import numpy as np
import pytest
import reference_composed
from attention_features import built, stepped
from blocks import residual_of
from compare import assert_close, to_numpy
from execution import MODES, execute, saving
from keras_weights import block as weights_of

from keras_tfm.layers import (
    FeedForward,
    MultiHeadCrossAttention,
    MultiHeadSelfAttention,
    RotaryEmbedding,
    TokenEmbedding,
    TransformerDecoderBlock,
    TransformerEncoderBlock,
)

# Float32 rounds at 6e-8; three sublayers of sums of up to 60 terms, and their norms.
FLOAT32 = 1e-5

B, T, S, D, C, F, H = 2, 7, 5, 6, 11, 13, 3
MASK = np.array([[True] * T, [True, False, True, True, False, True, False]])
CONTEXT_MASK = np.array([[True, False, True, True, True], [True] * 3 + [False] * 2])
CAUSAL = np.tri(T, dtype=bool)
BOTH = [TransformerEncoderBlock, TransformerDecoderBlock]
both_orders = pytest.mark.parametrize("first", [False, True], ids=["post", "pre"])


@pytest.fixture
def rng():
    return np.random.default_rng(29)


def noise(rng, *shape):
    return rng.normal(size=shape).astype("float32")


# Which sublayers there are, and what they see


@both_orders
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_a_decoder_block_that_is_causal_or_not(rng, mode, causal, first):
    x, context = noise(rng, B, T, D), noise(rng, B, S, C)
    layer = TransformerDecoderBlock(F, H, causal=causal, normalize_first=first)
    built(layer, x.shape, context.shape)

    def run(x, context, mask, context_mask):
        return layer(x, context, mask=mask, context_mask=context_mask)

    expected = reference_composed.block(
        x, weights_of(layer), H, context, MASK[:, None] & (CAUSAL if causal else True),
        CONTEXT_MASK[:, None], normalize_first=first,
    )  # fmt: skip
    assert_close(execute(mode, run, x, context, MASK, CONTEXT_MASK), expected, FLOAT32)


@both_orders
def test_a_causal_encoder_block(rng, first):
    x = noise(rng, B, T, D)
    layer = built(TransformerEncoderBlock(F, H, causal=True, normalize_first=first), x.shape)
    mask = MASK[:, None] & CAUSAL
    expected = reference_composed.block(x, weights_of(layer), H, None, mask, normalize_first=first)
    assert_close(layer(x, mask=MASK), expected, FLOAT32)
    steps = stepped(lambda start, end: layer(x[:, start:end], mask=MASK[:, start:end]), [3, 1, 3])
    assert_close(steps, expected, FLOAT32)


@both_orders
def test_a_decoder_block_without_self_attention(rng, first):
    x, context = noise(rng, B, T, D), noise(rng, B, S, C)
    layer = TransformerDecoderBlock(F, H, self_attention=False, normalize_first=first)
    built(layer, x.shape, context.shape)
    weights = weights_of(layer)
    assert sorted(weights) == [
        "cross_attention", "cross_attention_norm", "feed_forward", "feed_forward_norm"
    ]  # fmt: skip
    expected = reference_composed.block(
        x, weights, H, context, None, CONTEXT_MASK[:, None], normalize_first=first
    )
    assert_close(layer(x, context, context_mask=CONTEXT_MASK), expected, FLOAT32)
    again = TransformerDecoderBlock.from_config(layer.get_config())
    assert again.self_attention is None


# Positions that are added to queries and keys alone


@both_orders
@pytest.mark.parametrize("mode", MODES)
def test_a_position_encoding_of_an_encoder_block(rng, mode, first):
    x, encoding = noise(rng, B, T, D), noise(rng, B, T, D)
    layer = built(TransformerEncoderBlock(F, H, normalize_first=first), x.shape)
    expected = reference_composed.block(
        x, weights_of(layer), H, mask=MASK[:, None], position_encoding=encoding,
        normalize_first=first,
    )  # fmt: skip

    def run(x, mask, encoding):
        return layer(x, mask=mask, position_encoding=encoding)

    assert_close(execute(mode, run, x, MASK, encoding), expected, FLOAT32)
    added = to_numpy(layer(x + encoding, mask=MASK))
    assert np.abs(added - expected).max() > 0.1


@both_orders
@pytest.mark.parametrize("own", [True, False], ids=["", "no self-attention"])
def test_position_encodings_of_a_decoder_block(rng, first, own):
    x, encoding = noise(rng, B, T, D), noise(rng, B, T, D)
    context, context_encoding = noise(rng, B, S, C), noise(rng, B, S, C)
    layer = TransformerDecoderBlock(F, H, causal=False, self_attention=own, normalize_first=first)
    built(layer, x.shape, context.shape)
    actual = layer(
        x, context, mask=MASK, context_mask=CONTEXT_MASK, position_encoding=encoding,
        context_position_encoding=context_encoding,
    )  # fmt: skip
    expected = reference_composed.block(
        x, weights_of(layer), H, context, MASK[:, None], CONTEXT_MASK[:, None], encoding,
        context_encoding, normalize_first=first,
    )  # fmt: skip
    assert_close(actual, expected, FLOAT32)


def test_a_position_encoding_stepped(rng):
    x, encoding = noise(rng, B, T, D), noise(rng, B, T, D)
    context, context_encoding = noise(rng, B, S, C), noise(rng, B, S, C)
    layer = built(TransformerDecoderBlock(F, H), x.shape, context.shape)

    def call(start, end):
        return layer(
            x[:, start:end], context, position_encoding=encoding[:, start:end],
            context_position_encoding=context_encoding,
        )  # fmt: skip

    assert_close(stepped(call, [2, 1, 4]), call(0, T), FLOAT32)


# Parts


class Constant(keras.layers.Layer):
    """A feed-forward network of one's own."""

    def call(self, x):
        return 0 * x + 2

    def compute_output_shape(self, shape):
        return shape


def test_any_layer_may_be_the_feed_forward_network(rng):
    x = noise(rng, B, T, D)
    block = TransformerEncoderBlock(
        num_heads=H, feed_forward=Constant(), residual=residual_of("pre", residual_scale=3.0)
    )
    built(block, x.shape)
    attended = block.self_attention_residual(x, sublayer=block.self_attention)
    assert_close(block(x), 3 * to_numpy(attended) + 2, FLOAT32)


def test_the_residual_is_a_template():
    template = residual_of("sandwich", norm="rms_norm", dropout=0.1)
    block = TransformerDecoderBlock(F, H, residual=template)
    copies = [
        getattr(block, f"{name}_residual")
        for name in ("self_attention", "cross_attention", "feed_forward")
    ]
    assert len({id(copy) for copy in [template, *copies]}) == 4
    own = {**template.get_config()}
    del own["name"]
    for copy in copies:
        assert {name: copy.get_config()[name] for name in own} == own
    block.build((B, T, D), (B, S, C))
    assert not template.built


@saving
def test_a_block_of_parts_is_saved_with_paths_and_order_of_its_weights(rng, tmp_path):
    x = noise(rng, B, T, D)

    def make(given):
        arguments = {"cross_attention": False, "name": "block"}
        if given:
            return TransformerDecoderBlock(
                self_attention=MultiHeadSelfAttention(H, causal=True, name="self_attention"),
                feed_forward=FeedForward(F, name="feed_forward"), residual=residual_of("pre"),
                **arguments,
            )  # fmt: skip
        return TransformerDecoderBlock(F, H, normalize_first=True, **arguments)

    block, short = built(make(True), x.shape), built(make(False), x.shape)
    paths = [weight.path for weight in block.weights]
    assert paths == [weight.path for weight in short.weights]
    assert_close(block(x), short(x), 0.0)
    inputs = keras.Input((None, D))
    model = keras.Model(inputs, block(inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_close(loaded(x), model(x), 0.0)
    assert [weight.path for weight in loaded.weights] == paths


# What is refused


def test_a_part_of_another_block_is_refused():
    for name, part in (
        ("self_attention", MultiHeadSelfAttention(H, name="own")),
        ("feed_forward", FeedForward(F, name="own")),
    ):
        others = {"num_heads": H} if name == "feed_forward" else {"intermediate_dim": F}
        first = TransformerEncoderBlock(**others, **{name: part}, name="first")
        message = f"second: {name} 'own' belongs to the block 'first': make another one"
        with pytest.raises(ValueError, match=message):
            TransformerEncoderBlock(**others, **{name: part}, name="second")
        assert getattr(first, name) is part


def test_a_position_part_may_be_shared():
    position = RotaryEmbedding()
    for _ in range(2):
        attention = MultiHeadSelfAttention(H, position=position)
        assert TransformerEncoderBlock(F, self_attention=attention).self_attention is attention


@pytest.mark.parametrize(
    ("cls", "arguments", "message"),
    [
        (BOTH[0], {"self_attention": FeedForward(F)},
         "block: self_attention must be .* or a TokenMixer, got <FeedForward"),
        (BOTH[0], {"self_attention": MultiHeadCrossAttention(H)},
         "block: self_attention must be .* or a TokenMixer, got <MultiHeadCross"),
        (BOTH[1], {"num_heads": H, "cross_attention": MultiHeadSelfAttention(H)},
         "block: cross_attention must be a MultiHeadCrossAttention, got <MultiHeadSelfAttention"),
        (BOTH[0], {"num_heads": H, "residual": "pre"},
         "block: residual must be a Residual, got 'pre'"),
        (BOTH[1], {"num_heads": H, "residual": FeedForward(F)},
         "block: residual must be a Residual, got <FeedForward"),
        (BOTH[1], {"num_heads": H, "cross_attention": "yes"},
         "block: cross_attention must be a MultiHeadCrossAttention, got 'yes'"),
    ],
)  # fmt: skip
def test_a_part_of_the_wrong_kind_is_refused(cls, arguments, message):
    with pytest.raises(TypeError, match=message) as error:
        cls(F, name="block", **arguments)
    assert "\n" not in str(error.value)


def test_a_feed_forward_network_that_is_no_layer_is_refused():
    with pytest.raises(TypeError, match="block: feed_forward must be a Layer, got 3"):
        TransformerEncoderBlock(num_heads=H, feed_forward=3, name="block")


@pytest.mark.parametrize(
    ("cls", "arguments", "message"),
    [
        (BOTH[0], {"num_heads": H}, "intermediate_dim is required, unless the parts"),
        (BOTH[0], {"intermediate_dim": F}, "num_heads is required, unless the parts"),
        (BOTH[0], {"intermediate_dim": F, "num_heads": 2, "self_attention": True, "causal": False,
                   "feed_forward": FeedForward(F)}, f"intermediate_dim={F} has no effect"),
        (BOTH[1], {"intermediate_dim": F, "num_heads": 2,
                   "self_attention": MultiHeadSelfAttention(H, causal=True),
                   "cross_attention": MultiHeadCrossAttention(H)}, "num_heads=2 has no effect"),
        (BOTH[0], {"intermediate_dim": F, "self_attention": MultiHeadSelfAttention(H),
                   "num_heads": 2}, "num_heads=2 has no effect, because the parts that it"),
        (BOTH[0], {"intermediate_dim": F, "num_heads": H, "normalize_first": True,
                   "residual": residual_of("pre")}, "normalize_first=True has no effect"),
        (BOTH[0], {"intermediate_dim": F, "num_heads": H, "layer_norm_epsilon": 1e-12,
                   "residual": residual_of("pre")}, "layer_norm_epsilon=1e-12 has no effect"),
        (BOTH[1], {"num_heads": H, "activation": "gelu", "feed_forward": FeedForward(F)},
         "activation has no effect with feed_forward=...: pass it to that layer"),
        (BOTH[0], {"intermediate_dim": F, "self_attention": MultiHeadSelfAttention(H, causal=True)},
         "causal=False, but self_attention has causal=True: give both the same"),
        (BOTH[1], {"intermediate_dim": F, "num_heads": H,
                   "self_attention": MultiHeadSelfAttention(H)},
         "causal=True, but self_attention has causal=False: give both the same"),
        (BOTH[0], {"intermediate_dim": F, "num_heads": H, "cross_attention": True},
         "an encoder block has no cross_attention, use TransformerDecoderBlock"),
    ],
)  # fmt: skip
def test_arguments_that_contradict_the_parts_are_refused(cls, arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        cls(**arguments)
    assert "\n" not in str(error.value)


def test_a_part_of_another_width_is_refused():
    attention = MultiHeadSelfAttention(2, name="own")
    attention.build((B, T, 8))
    block = TransformerEncoderBlock(F, self_attention=attention, name="block")
    with pytest.raises(ValueError, match="block: own was built for inputs of width 8, got 6"):
        block.build((B, T, D))


def test_a_feed_forward_network_of_another_width_is_refused():
    dense = keras.layers.Dense(5, name="narrow")
    block = TransformerEncoderBlock(num_heads=H, feed_forward=dense, name="block")
    message = "block: narrow must return the width of its input, 6, got 5"
    with pytest.raises(ValueError, match=message):
        block.build((B, T, D))


@pytest.mark.parametrize("kind", BOTH)
def test_positions_of_the_wrong_rank_are_named(rng, kind):
    x = noise(rng, B, T, D)
    causal = kind is TransformerDecoderBlock
    attention = MultiHeadSelfAttention(H, causal=causal, head_dim=4, position=RotaryEmbedding())
    others = {"cross_attention": False} if causal else {}
    layer = kind(F, self_attention=attention, **others)
    message = r"positions must have shape \(T,\), \(B, T\) or \(B, T, C\) for T = 7, got \(7, 2\)"
    with pytest.raises(ValueError, match=message):
        layer(x, positions=np.zeros((T, B), "int32"))


# Padding ids


@pytest.mark.parametrize("mask_id", [7, 0])
def test_the_padding_id_of_an_embedding_is_masked(mask_id):
    embedding = TokenEmbedding(11, D, mask_id=mask_id)
    ids = np.array([[3, 0, 7, 7], [7, 1, 0, 2]])
    x = embedding(ids)
    np.testing.assert_array_equal(x._keras_mask, ids != mask_id)
    y = TransformerEncoderBlock(F, H)(x)
    np.testing.assert_array_equal(y._keras_mask, ids != mask_id)
    again = TokenEmbedding.from_config(embedding.get_config())
    assert again.mask_id == mask_id
    assert again.get_config() == embedding.get_config()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mask_id": 11}, r"mask_id must be in the vocabulary, 0\.\.10, got 11"),
        ({"mask_id": -2}, "mask_id must be at least -1, got -2"),
        ({"mask_id": 7, "mask_zero": True}, "mask_zero=True means mask_id=0, got mask_id=7"),
    ],
)
def test_an_impossible_padding_id_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        TokenEmbedding(11, D, **arguments)
