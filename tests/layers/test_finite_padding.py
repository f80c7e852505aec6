"""What is NaN or infinite in padding reaches neither tokens nor gradients: 0 * NaN is NaN."""

import keras
import numpy as np
import pytest
from blocks import head_norms
from compare import assert_close, to_numpy
from keras import ops

from keras_tfm.layers import (
    BottleneckEncoderBlock,
    DecodingScope,
    EndTokenPooling,
    MSABlock,
    MultiHeadCrossAttention,
    MultiHeadSelfAttention,
    NGramEncoding,
    PairBlock,
    RegionEmbedding,
    RelativePositionEmbedding,
    RotaryEmbedding,
    TransformerDecoderBlock,
    TransformerEncoderBlock,
    segment_mask,
)
from keras_tfm.layers.target import export_target

B, T, D = 2, 5, 6
RIGHT = np.array([[True, True, True, False, False], [True] * 4 + [False]])
LEFT = RIGHT[:, ::-1]
ALIGNED = np.broadcast_to(RIGHT[:, None], (B, 3, T))
X = np.random.default_rng(3).normal(size=(B, T, D)).astype("float32")
MSA = np.random.default_rng(4).normal(size=(B, 3, T, D)).astype("float32")
PAIRS = np.random.default_rng(5).normal(size=(B, T, T, D)).astype("float32")
BOXES = np.random.default_rng(6).uniform(size=(B, T, 4)).astype("float32")


def spoiled(x, mask, values=(np.nan, np.inf, -np.inf)):
    """`x` with all of `values` at each masked position."""
    x = x.copy()
    x[~mask] = np.resize(np.array(values, x.dtype), x.shape[-1])
    return x


def self_attention(**options):
    return MultiHeadSelfAttention(2, **options)


def pairs_of(mask):
    return mask[:, :, None] & mask[:, None, :]


def both(fill):
    """Alignment and pairs with `fill` in their padding."""
    return fill(MSA, ALIGNED), fill(PAIRS, pairs_of(RIGHT))


# name: (layer, mask, function of the layer, of `fill(x, mask)` and of the mask)
CASES = {
    "encoder block": (
        lambda: TransformerEncoderBlock(11, 2),
        RIGHT,
        lambda layer, fill, mask: layer(fill(X, mask), mask=mask),
    ),
    "encoder block, pre-norm, fewer parts": (
        lambda: TransformerEncoderBlock(11, 2, normalize_first=True),
        RIGHT,
        lambda layer, fill, mask: layer(
            fill(X, mask), mask=mask, position_encoding=fill(X, mask), attention_mask=pairs_of(mask)
        ),
    ),
    "causal block, left padding": (
        lambda: TransformerDecoderBlock(11, 2, cross_attention=False),
        LEFT,
        lambda layer, fill, mask: layer(fill(X, mask), mask=mask),
    ),
    "decoder block": (
        lambda: TransformerDecoderBlock(11, 2),
        RIGHT,
        lambda layer, fill, mask: layer(
            fill(X, mask),
            fill(X, LEFT),
            mask=mask,
            context_mask=LEFT,
            context_position_encoding=fill(X, LEFT),
        ),
    ),
    "self-attention": (
        self_attention,
        RIGHT,
        lambda layer, fill, mask: layer(fill(X, mask), mask=mask),
    ),
    "gate, grouped keys, rotary positions, norm": (
        lambda: MultiHeadSelfAttention(
            2,
            head_dim=4,
            num_key_value_heads=1,
            gate=True,
            use_bias=["gate"],
            **head_norms(),
            soft_cap=3.0,
            position=RotaryEmbedding(),
        ),
        LEFT,
        lambda layer, fill, mask: layer(fill(X, mask), mask=mask),
    ),
    "window, relative positions": (
        lambda: self_attention(causal=True, window=2, position=RelativePositionEmbedding(4)),
        LEFT,
        lambda layer, fill, mask: layer(fill(X, mask), mask=mask),
    ),
    "packed rows with a padding mask": (
        self_attention,
        RIGHT,
        lambda layer, fill, mask: layer(
            fill(X, mask), mask=mask, attention_mask=segment_mask(mask.astype("int32"))
        ),
    ),
    "cross-attention": (
        lambda: MultiHeadCrossAttention(2),
        np.ones_like(RIGHT),
        lambda layer, fill, mask: layer(X, fill(X, LEFT), context_mask=LEFT, key=fill(X, LEFT)),
    ),
    "wide values": (
        lambda: MultiHeadSelfAttention(2),
        RIGHT,
        lambda layer, fill, mask: layer(
            fill(X, mask), mask=mask, value=np.repeat(fill(X, mask), 2, axis=-1)
        ),
    ),
    "bottleneck block": (
        lambda: BottleneckEncoderBlock(11, 2, bottleneck_dim=4, num_feed_forward=2),
        RIGHT,
        lambda layer, fill, mask: layer(fill(X, mask), mask=mask),
    ),
    "n-grams": (
        NGramEncoding,
        RIGHT,
        lambda layer, fill, mask: layer(fill(X, mask), fill(X, mask), mask=mask),
    ),
    "regions": (
        lambda: RegionEmbedding(8),
        RIGHT,
        lambda layer, fill, mask: layer(fill(X, mask), fill(BOXES, mask), features_mask=mask),
    ),
    "alignment": (
        lambda: MSABlock(2, 4),
        ALIGNED,
        lambda layer, fill, mask: layer(*both(fill), mask=mask),
    ),
    "alignment, global attention": (
        lambda: MSABlock(2, 4, global_attention=True),
        ALIGNED,
        lambda layer, fill, mask: layer(*both(fill), mask=mask),
    ),
    "pairs": (
        lambda: PairBlock(2, 4, outer_dim=3, hidden_dim=4),
        pairs_of(RIGHT),
        lambda layer, fill, mask: layer(*both(fill)[::-1], mask=ALIGNED),
    ),
}


def zeros(x, mask):
    return np.where(mask[..., None], x, np.float32(0))


def weight_gradients(layer, loss):
    """The gradients of the scalar `loss()`, by weight."""
    weights = layer.trainable_variables
    if keras.backend.backend() == "torch":
        layer.zero_grad()
        loss().backward()
        return [0.0 * x if x.value.grad is None else x.value.grad for x in weights]
    import tensorflow as tf

    with tf.GradientTape() as tape:
        value = loss()
    return tape.gradient(value, [x.value for x in weights], unconnected_gradients="zero")


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="gradients by TensorFlow or PyTorch")
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_tokens_and_gradients_are_those_with_zeros_as_padding(name, dtype):
    make, mask, run = CASES[name]
    keras.utils.set_random_seed(1)
    previous = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype)
    try:
        layer = make()
        expected = run(layer, zeros, mask)
    finally:
        keras.config.set_dtype_policy(previous)
    rng = np.random.default_rng(2)
    for weight in layer.weights:  # some start as zeros
        if "seed" not in weight.path:
            weight.assign(rng.normal(size=weight.shape))
    expected = run(layer, zeros, mask)
    actual = run(layer, spoiled, mask)
    assert_close(to_numpy(actual)[mask], to_numpy(expected)[mask], 1e-6)

    def loss(fill):
        y = ops.cast(run(layer, fill, mask), "float32")
        return ops.sum(ops.square(ops.where(mask[..., None], y, 0.0)))

    wanted = weight_gradients(layer, lambda: loss(zeros))
    wanted = [to_numpy(x) for x in wanted]
    found = weight_gradients(layer, lambda: loss(spoiled))
    for a, b, weight in zip(found, wanted, layer.trainable_variables, strict=True):
        assert np.isfinite(to_numpy(a)).all(), weight.path
        assert_close(a, b, 1e-6)


def test_long_rows_in_blocks():
    """Blocks of queries are recomputed in the backward pass, and have slices of the mask."""
    length = 2048
    x = np.random.default_rng(0).normal(size=(1, length, 4)).astype("float32")
    mask = np.arange(length)[None] >= 700
    layer = MultiHeadSelfAttention(1, causal=True)
    expected = to_numpy(layer(zeros(x, mask), mask=mask))[mask]
    assert_close(to_numpy(layer(spoiled(x, mask), mask=mask))[mask], expected, 1e-6)


def test_finite_padding_is_kept_and_nan_in_tokens_too():
    layer = TransformerEncoderBlock(11, 2)
    y = to_numpy(layer(X, mask=RIGHT))
    assert_close(layer(zeros(X, RIGHT), mask=RIGHT)[RIGHT], y[RIGHT], 1e-6)
    other = to_numpy(layer(zeros(X, RIGHT), mask=RIGHT))
    assert np.abs(other - y)[~RIGHT].max() > 0.1  # padding's own features are not those of zeros
    x = X.copy()
    x[0, 1] = np.nan
    y = to_numpy(layer(x, mask=RIGHT))
    assert np.isnan(y[0, :3]).all() and np.isfinite(y[1]).all()


def stepped(layer, lengths, run, **options):
    outputs, cache, start = [], None, 0
    for count in lengths:
        with DecodingScope(cache, position=start, length=T, **options) as scope:
            outputs.append(to_numpy(run(layer, start, start + count)))
        cache, start = scope.cache, start + count
    return np.concatenate(outputs, axis=1)


@pytest.mark.parametrize("lengths", [[T], [3, 1, 1], [1] * T, [1, 4]])
@pytest.mark.parametrize("given", ["mask", "padding"])
@pytest.mark.parametrize("int8", [False, True])
def test_stepped_with_left_padding(lengths, given, int8):
    keras.utils.set_random_seed(1)
    layer = TransformerDecoderBlock(11, 2, cross_attention=False)
    options = {"int8": int8}
    if given == "padding":
        options["padding"] = (~LEFT).sum(axis=1).astype("int32")

    def run(x):
        def step(layer, start, end):
            mask = {"mask": LEFT[:, start:end]} if given == "mask" else {}
            return layer(x[:, start:end], **mask)

        return stepped(layer, lengths, step, **options)[LEFT]

    assert_close(run(spoiled(X, LEFT)), run(zeros(X, LEFT)), 1e-6)


@pytest.mark.parametrize("int8", [False, True])
def test_stepped_cross_attention(int8):
    keras.utils.set_random_seed(1)
    layer = TransformerDecoderBlock(11, 2)

    def run(context):
        return stepped(
            layer,
            [2, 1, 2],
            lambda layer, start, end: layer(X[:, start:end], context, context_mask=RIGHT),
            int8=int8,
        )

    assert_close(run(spoiled(X, RIGHT)), run(zeros(X, RIGHT)), 1e-6)


def test_end_token_pooling():
    tokens = np.array([[4, 7, 2, 0, 0], [5, 6, 7, 2, 0]])
    expected = EndTokenPooling(end_id=2)(X, tokens)
    assert_close(EndTokenPooling(end_id=2)(spoiled(X, RIGHT), tokens), expected, 1e-6)


def test_graphs_for_devices_have_no_select():
    """XNNPACK would split the graph at one: a file reads the padding that it is given."""
    layer = TransformerEncoderBlock(11, 2)
    layer(X, mask=RIGHT)
    with export_target():
        assert np.isnan(to_numpy(layer(spoiled(X, RIGHT), mask=RIGHT))[RIGHT]).any()
