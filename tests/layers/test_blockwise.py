"""Attention block by block equals attention at once: forward, backward, with dropout."""

import itertools

import keras
import numpy as np
import pytest
import reference_positions as rp
from attention_features import POSITIONS, built, expected_self_attention, randomize, stepped
from blocks import encoder_block, head_norms
from compare import assert_close, to_numpy
from execution import compiled, gradients, tensorflow_only
from grids import pairwise
from keras import ops

from keras_tfm.layers import (
    AttentionProbe,
    MultiHeadCrossAttention,
    MultiHeadSelfAttention,
    TransformerDecoderBlock,
)
from keras_tfm.layers.multi_head_attention import blockwise
from keras_tfm.layers.multi_head_attention.blockwise import WHOLE, blocks

# The same sums of float32 in another order, as issue 3 asks; gradients relative to the largest.
FLOAT32 = 1e-5

B, T, S, D = 2, 11, 5, 6
MASK = np.random.default_rng(1).random((B, T)) < 0.8
PAIRS = np.random.default_rng(3).random((B, T, T)) < 0.7
PAIRS[0, 4] = False  # one query sees nothing
BIAS = np.random.default_rng(4).normal(size=(B, 4, T, T)).astype("float32")
HEADS = {"num_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "value_dim": 5}
both_directions = pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
every_position = pytest.mark.parametrize("position", POSITIONS.values(), ids=POSITIONS)


@pytest.fixture
def x():
    return np.random.default_rng(7).normal(size=(B, T, D)).astype("float32")


@pytest.fixture
def blocks_of(monkeypatch):
    """Sets the size of a block; 0: attention at once."""

    def set_size(size):
        monkeypatch.setattr(blockwise, "FEW", 1 if size else 10**9)
        monkeypatch.setattr(blockwise, "BLOCK", size or 10**9)

    return set_size


# Spans


def long_spans(*arguments):
    result = blocks(*arguments)
    assert result != [WHOLE]
    return result


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@both_directions
@pytest.mark.parametrize("window", [None, 1, 2, 4, 100, (1, 3), (4, 2)])
def test_spans_cover_every_visible_pair_and_no_more_than_they_must(blocks_of, size, causal, window):
    blocks_of(size)
    for queries, after in itertools.product((6, 7, 11), (0, 3)):
        keys = queries + after
        seen = rp.visible(queries, keys, causal, window)
        rows = []
        for span in long_spans(queries, keys, causal, window):
            part = range(queries)[span.rows]
            assert 1 <= len(part) <= size
            rows.extend(part)
            visible = np.flatnonzero(seen[span.rows].any(axis=0))
            # From the first to the last key that some query of the block sees, and no further.
            assert (span.columns.start, span.columns.stop) == (visible[0], visible[-1] + 1)
        assert rows == list(range(queries))


def test_keys_that_no_query_sees_still_make_a_span(blocks_of):
    """An empty slice would make a softmax of nothing."""
    blocks_of(2)
    for span in long_spans(9, 3, False, 2):
        assert 0 <= span.columns.start < span.columns.stop <= 3


@pytest.mark.parametrize(
    "arguments",
    [
        (None, 5000, False, None),
        (5000, None, True, None),
        (512, 100_000, False, None),  # one block
        (2048, 1023, True, 5),  # few scores
        (0, 0, True, None),
    ],
)
def test_unknown_or_short_lengths_are_computed_at_once(arguments):
    assert blocks(*arguments) == [WHOLE]


def test_long_lengths_are_computed_in_blocks():
    """Chosen by the number of scores: 2,097,152 of them in blocks of 512 queries."""
    whole = blocks(2048, 1024, False, None)
    assert [(s.rows.start, s.rows.stop) for s in whole] == [
        (0, 512), (512, 1024), (1024, 1536), (1536, 2048)
    ]  # fmt: skip
    assert {(s.columns.start, s.columns.stop) for s in whole} == {(0, 1024)}
    windowed = blocks(16384, 16384, True, 100)
    assert max(s.columns.stop - s.columns.start for s in windowed) == 512 + 99
    assert len(blocks(2049, 2049, False, None)) == 5


# Equal to attention at once


def both(blocks_of, size, layer, x, mode="eager", learn_bias=False, **call):
    """Outputs and gradients of weights, of x and of a bias, at once and in blocks."""
    weighting = np.random.default_rng(11).normal(size=x.shape).astype("float32")
    inputs = [x, BIAS] if learn_bias else [x]

    def run(*inputs):
        def loss(x, *bias):
            extra = {"attention_bias": bias[0]} if bias else {}
            y = layer(x, **call, **extra)
            outputs.append(y)
            return ops.sum(weighting * ops.cast(y, "float32"))

        outputs = []
        of_weights, of_inputs = gradients(loss, layer.trainable_variables, *inputs)
        return outputs[0], of_weights, of_inputs

    results = []
    for length in (0, size):
        blocks_of(length)
        tensors = [ops.convert_to_tensor(value) for value in inputs]
        results.append(compiled(mode, run)(*tensors))
    return results


def assert_both_agree(results, layer, tolerance=FLOAT32):
    (whole, *of_whole), (parts, *of_parts) = results
    assert_close(parts, whole, tolerance)
    names = [*(variable.path for variable in layer.trainable_variables), "x", "bias"]
    expected, actual = (keras.tree.flatten(part) for part in (of_whole, of_parts))
    for name, one, other in zip(names, expected, actual, strict=False):
        one, other = to_numpy(one), to_numpy(other)
        assert np.any(one != 0.0), f"{name} has no gradient at all"
        scale = np.abs(one).max()
        assert np.abs(other - one).max() <= tolerance * max(1.0, scale), name


@tensorflow_only
@pytest.mark.parametrize(
    ("position", "causal", "window"),
    pairwise(POSITIONS, {"": False, "causal": True}, [None, 4]),
)
def test_forward_and_gradients_are_those_of_attention_at_once(
    blocks_of, x, position, causal, window
):
    layer = MultiHeadSelfAttention(2, head_dim=6, causal=causal, window=window, position=position())
    built(layer, x.shape)
    assert_both_agree(both(blocks_of, 3, layer, x), layer)


def everything(position, causal):
    return {
        **HEADS, "causal": causal, "window": 7, "scale": 0.4, "soft_cap": 1.5, "gate": "head",
        **head_norms(), "position": POSITIONS[position](),
    }  # fmt: skip


@tensorflow_only
@pytest.mark.parametrize("position", POSITIONS)
@both_directions
def test_with_masks_and_all_else(blocks_of, x, position, causal):
    layer = built(MultiHeadSelfAttention(**everything(position, causal)), x.shape)
    call = {"mask": MASK, "attention_mask": PAIRS}
    assert_both_agree(both(blocks_of, 4, layer, x, **call), layer)


@tensorflow_only
@pytest.mark.parametrize(
    ("position", "mode"),
    [("rotary", "graph"), ("T5", "graph"), pytest.param("Shaw", "xla", marks=pytest.mark.slow)],
)
def test_in_graphs(blocks_of, x, position, mode):
    layer = built(MultiHeadSelfAttention(**everything(position, True)), x.shape)
    call = {"mask": MASK, "attention_mask": PAIRS}
    assert_both_agree(both(blocks_of, 6, layer, x, mode, **call), layer)


@tensorflow_only
@both_directions
@pytest.mark.parametrize("position", POSITIONS)
def test_a_bias_gets_the_gradient_that_it_gets_at_once(blocks_of, x, position, causal):
    """Another layer may have computed it."""
    layer = built(MultiHeadSelfAttention(**everything(position, causal)), x.shape)
    assert_both_agree(both(blocks_of, 4, layer, x, learn_bias=True), layer)


@tensorflow_only
def test_a_bias_gets_its_gradient_in_a_graph(blocks_of, x):
    layer = built(MultiHeadSelfAttention(4, head_dim=3, causal=True), x.shape)
    assert_both_agree(both(blocks_of, 6, layer, x, "graph", learn_bias=True), layer)


@tensorflow_only
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 10])
@both_directions
def test_a_ragged_last_block(blocks_of, x, size, causal):
    layer = built(MultiHeadSelfAttention(2, causal=causal), x.shape)
    assert_both_agree(both(blocks_of, size, layer, x, mask=MASK), layer)


CALLS = {
    "mask": {"mask": MASK},
    "attention_mask": {"attention_mask": PAIRS},
    **{f"a bias {n, h}": {"attention_bias": BIAS[:n, :h]} for n in (1, B) for h in (1, 4)},
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@both_directions
def test_each_mask_and_bias_alone(blocks_of, x, call, causal):
    """Biases of one row of the batch or of one head are cut along the other axes only."""
    layer = built(MultiHeadSelfAttention(4, head_dim=3, causal=causal), x.shape)
    blocks_of(0)
    expected = layer(x, **call)
    blocks_of(3)
    assert_close(layer(x, **call), expected, FLOAT32)


@both_directions
@every_position
def test_equals_the_float64_reference(blocks_of, x, position, causal):
    options = {**HEADS, "causal": causal, "window": 5, "position": position()}
    layer = built(MultiHeadSelfAttention(**options), x.shape)
    blocks_of(3)
    expected = expected_self_attention(layer, x, **options, mask=MASK)
    assert_close(layer(x, mask=MASK), expected, FLOAT32)


@tensorflow_only
@pytest.mark.parametrize("position", ["none", "T5", "Shaw"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    # Bfloat16 rounds at 4e-3 some five times, float16 at 5e-4; sums are cut in other places, and
    # gradients are summed in half precision too.
    [("mixed_bfloat16", 5e-2), ("mixed_float16", 6e-3)],
)
def test_half_precision(blocks_of, x, position, dtype, tolerance):
    """The backward pass recomputes outside of the layer's call, and so of its autocast scope."""
    layer = MultiHeadSelfAttention(
        2, head_dim=6, causal=True, position=POSITIONS[position](), dtype=dtype
    )
    built(layer, x.shape)
    assert_both_agree(both(blocks_of, 4, layer, x, mask=MASK), layer, tolerance)


@tensorflow_only
@pytest.mark.parametrize("learn_bias", [False, True], ids=["", "a bias learns"])
def test_cross_attention_in_blocks(blocks_of, x, learn_bias):
    context = np.random.default_rng(8).normal(size=(B, S, 13)).astype("float32")
    mask = np.array([[True] * S, [True, False, True, True, False]])
    bias = BIAS[:, :, :, :S]
    layer = MultiHeadCrossAttention(**HEADS, **head_norms())
    built(layer, x.shape, context.shape)
    weighting = np.random.default_rng(11).normal(size=x.shape).astype("float32")

    def loss(x, context, bias=bias):
        y = layer(x, context, context_mask=mask, attention_bias=bias)
        return ops.sum(weighting * y)

    results = []
    for size in (0, 4):
        blocks_of(size)
        inputs = (x, context, bias) if learn_bias else (x, context)
        results.append(gradients(loss, layer.trainable_variables, *inputs))
    for one, other in zip(*(keras.tree.flatten(r) for r in results), strict=True):
        assert np.any(to_numpy(one) != 0.0)
        assert_close(other, one, FLOAT32)


STEPS = {"1": [11], "2": [7, 4], "3": [4, 4, 3], "4": [8, 1, 1, 1]}


@pytest.mark.parametrize(("steps", "position", "window"), pairwise(STEPS, POSITIONS, [None, 4]))
def test_prefill_in_blocks(blocks_of, x, steps, position, window):
    """Chunks of more tokens than a block, at a position known when the graph is made."""
    layer = MultiHeadSelfAttention(**HEADS, causal=True, window=window, position=position())
    built(layer, x.shape)
    blocks_of(0)
    expected = layer(x, mask=MASK)
    blocks_of(3)
    actual = stepped(
        lambda start, end: layer(x[:, start:end], mask=MASK[:, start:end]), steps, T + 2
    )
    assert_close(actual, expected, FLOAT32)


@tensorflow_only
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_blocks_of_a_transformer_block(blocks_of, x, kind, mode):
    layer = {
        "encoder": lambda: encoder_block(13, 2, norm="rms_norm", normalize_first=True),
        "decoder": lambda: TransformerDecoderBlock(13, 2, cross_attention=False),
    }[kind]()
    built(layer, x.shape)
    assert_both_agree(both(blocks_of, 4, layer, x, mode, mask=MASK), layer)


def test_an_open_probe_sees_whole_maps(blocks_of, x):
    layer = built(MultiHeadSelfAttention(2, causal=True, name="attend"), x.shape)
    blocks_of(3)
    expected = to_numpy(layer(x))
    with AttentionProbe() as probe:
        assert_close(layer(x), expected, FLOAT32)
    assert list(probe.maps) == ["000_attend"]
    assert probe.maps["000_attend"].shape == (B, 2, T, T)


# Dropout

RATE = 0.4


def transparent(causal):
    """A layer whose output is its attention weights after dropout, and x that makes it so.

    Positions are one-hot, values are the positions, and the output projection is the identity.
    """
    layer = MultiHeadSelfAttention(1, causal=causal, dropout=RATE, use_bias=False)
    layer.build((None, T, T))
    kernel = np.random.default_rng(2).normal(size=(T, 3 * T))
    kernel[:, 2 * T :] = np.eye(T)
    layer.query_key_value.kernel.assign(kernel)
    layer.output_projection.kernel.assign(np.eye(T))
    return layer, np.tile(np.eye(T, dtype="float32"), (B, 1, 1))


@both_directions
def test_dropout_in_blocks_drops_weights_at_its_rate(blocks_of, causal):
    layer, x = transparent(causal)
    blocks_of(3)
    whole = to_numpy(layer(x))
    draws = [to_numpy(layer(x, training=True)) for _ in range(10)]
    visible = np.broadcast_to(np.tri(T, dtype=bool) if causal else True, whole.shape)
    kept = [y != 0.0 for y in draws]
    for y, some in zip(draws, kept, strict=True):
        assert_close(y[some], whole[some] / (1.0 - RATE), FLOAT32)
        assert np.all(visible[some])
    share = np.mean([some[visible] for some in kept])
    # Four deviations of a binomial of that many weights.
    assert abs(share - (1.0 - RATE)) < 4 * np.sqrt(RATE * (1 - RATE) / (10 * visible.sum()))


def test_no_two_blocks_rows_or_calls_drop_the_same(blocks_of):
    layer, x = transparent(causal=False)
    blocks_of(3)
    draws = [to_numpy(layer(x, training=True)) != 0.0 for _ in range(3)]
    blocks = [
        draw[row, first : first + 3] for draw in draws for row in range(B) for first in (0, 3, 6)
    ]
    for i, one in enumerate(blocks):
        for other in blocks[:i]:
            # 33 weights agree by chance with 0.52 each: three quarters of them once in 1e3 pairs.
            assert np.mean(one == other) < 0.85


@tensorflow_only
@pytest.mark.parametrize(
    ("mode", "causal", "size"),
    [
        ("eager", False, 0), ("eager", False, 4), ("eager", True, 3),
        ("graph", False, 4), ("graph", True, 3), ("xla", True, 6),
    ],
)  # fmt: skip
def test_recomputed_blocks_drop_the_same_weights_again(blocks_of, causal, mode, size):
    """The values' kernel has the gradient A^T W, A the weights after dropout, which y shows."""
    layer, x = transparent(causal)
    blocks_of(size)
    weighting = np.random.default_rng(5).normal(size=x.shape).astype("float32")
    kernel = layer.query_key_value.kernel

    def run(x):
        outputs = []

        def loss(x):
            outputs.append(layer(x, training=True))
            return ops.sum(weighting * outputs[0])

        (of_kernel,), _ = gradients(loss, [kernel], x)
        return outputs[0], of_kernel

    run = compiled(mode, run)
    for _ in range(2):
        weights, of_kernel = run(ops.convert_to_tensor(x))
        weights = to_numpy(weights)
        assert np.mean(weights == 0.0) > 0.2
        expected = np.einsum("bts,btj->sj", weights, weighting)
        assert_close(to_numpy(of_kernel)[:, 2 * T :], expected, FLOAT32)


@tensorflow_only
@every_position
@both_directions
def test_gradients_with_dropout_are_those_of_the_reference(
    blocks_of, monkeypatch, x, position, causal
):
    """What was dropped is recorded; central differences of the float64 reference that drops it."""
    blocks_of(4)
    options = {"num_heads": 2, "head_dim": 6, "causal": causal, "position": position()}
    layer = built(MultiHeadSelfAttention(**options, dropout=RATE), x.shape)
    recorded, original = [], keras.random.dropout

    def recording(inputs, rate, noise_shape=None, seed=None):
        result = original(inputs, rate, noise_shape, seed)
        # Where nothing is attended to nothing can be dropped.
        recorded.append(to_numpy(original(ops.ones_like(inputs), rate, noise_shape, seed)))
        return result

    monkeypatch.setattr(keras.random, "dropout", recording)
    rng = np.random.default_rng(13)
    weighting, direction = rng.normal(size=x.shape), rng.normal(size=x.shape)

    def loss(x):
        return ops.sum(weighting.astype("float32") * layer(x, training=True))

    _, (gradient,) = gradients(loss, [], x)
    cuts = [(0, 4), (4, 8), (8, 11)]
    assert len(recorded) == 2 * len(cuts), "each block is computed twice"
    drop = np.zeros((B, 2, T, T))
    for (first, last), part in zip(cuts, recorded[: len(cuts)], strict=True):
        drop[:, :, first:last, : part.shape[-1]] = part

    def expected(step):
        y = expected_self_attention(layer, x + step * direction, **options, drop=drop)
        return np.sum(weighting * y)

    wanted = (expected(1e-5) - expected(-1e-5)) / 2e-5
    # Float32 gradients are sums of some 100 products, rounded at 6e-8 each.
    assert_close(np.sum(to_numpy(gradient) * direction), wanted, 5e-5)


# Training


@tensorflow_only
def test_a_model_trains_in_blocks_as_it_does_at_once(blocks_of, x):
    target = np.random.default_rng(9).normal(size=x.shape)

    def trained(size):
        blocks_of(size)
        inputs = keras.Input((T, D))
        y = inputs
        for name in ("T5", "Shaw"):
            y = encoder_block(13, 2, position=POSITIONS[name]())(y)
        model = randomize(keras.Model(inputs, y))
        model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
        model.fit(x, target, epochs=3, batch_size=B, verbose=0)
        return model.get_weights()

    for one, other in zip(trained(0), trained(4), strict=True):
        assert_close(other, one, FLOAT32)
