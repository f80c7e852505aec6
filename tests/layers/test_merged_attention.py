"""One softmax over the keys of a sequence and of a context, with the same projections."""

import keras
import numpy as np
import pytest
import reference_positions as rp
from compare import assert_close, to_numpy
from execution import MODES, execute
from keras_weights import randomize

from keras_tfm import layers
from keras_tfm.layers.multi_head_attention import blockwise

B, T, S, D, H, G, K = 2, 7, 5, 10, 4, 2, 6
# Sums of some ten terms, and a softmax, in float32.
TOLERANCE = 3e-6
MASK = np.array([[True] * 6 + [False], [False, True, True, True, True, False, True]])
CONTEXT_MASK = np.array([[True, True, True, False, False], [True, False, True, True, True]])
PAIRS = np.random.default_rng(3).random((B, T, T)) < 0.7
BIAS = np.random.default_rng(4).normal(size=(B, H, T, T)).astype("float32")
CASES = {
    "causal": ({"causal": True}, {}),
    "both ways": ({}, {}),
    "window": ({"causal": True, "window": 3}, {"memory_mask": CONTEXT_MASK}),
    "window of two sides": ({"window": (2, 3)}, {"mask": MASK}),
    "masks": ({"causal": True}, {"mask": MASK, "memory_mask": CONTEXT_MASK}),
    "masks, both ways": ({}, {"mask": MASK, "memory_mask": CONTEXT_MASK}),
    "pairs": (
        {"causal": True, "soft_cap": 1.5},
        {"attention_mask": PAIRS, "attention_bias": BIAS, "memory_mask": CONTEXT_MASK},
    ),
    "pairs, both ways": ({}, {"attention_mask": PAIRS, "attention_bias": BIAS}),
}


@pytest.fixture
def x():
    return np.random.default_rng(5).normal(size=(B, T, D)).astype("float32")


@pytest.fixture
def context():
    return np.random.default_rng(6).normal(size=(B, S, D)).astype("float32")


def attention(**options):
    norms = {name: layers.RMSNormalization() for name in ("query_norm", "key_norm")}
    layer = layers.MultiHeadSelfAttention(
        H, head_dim=K, num_key_value_heads=G, scale=0.6, merged=True,
        position=layers.RotaryEmbedding(50.0), **norms, **options,
    )  # fmt: skip
    sample = np.ones((1, 2, D), "float32")
    layer(sample, memory=sample)
    return randomize(layer, seed=1)


def expected(layer, x, context, mask=None, memory_mask=None, attention_mask=None, **more):
    """In float64, one query of one head after the other."""
    x, context = x.astype("float64"), context.astype("float64")
    bias = more.get("attention_bias")

    def heads(name, x):
        part = getattr(layer, name)
        y = x @ to_numpy(part.kernel).astype("float64") + to_numpy(part.bias)
        y = y.reshape(*x.shape[:2], -1, K).swapaxes(1, 2)
        norm = getattr(layer, f"{name}_norm")
        return y if norm is None else rp.rms_norm(y, to_numpy(norm.scale), 1e-6)

    q, k, v = (heads(name, x) for name in ("query", "key", "value"))
    q, k = (rp.rotate(y, 50.0 ** -(np.arange(0, K, 2) / K)) for y in (q, k))
    sight = rp.visible(T, T, layer.causal, layer.window)
    y = np.zeros((B, T, H, K))
    for b, t, h in np.ndindex(B, T, H):
        g = h // (H // G)
        seen = sight[t] & (True if mask is None else mask[b])
        seen = seen & (True if attention_mask is None else attention_mask[b, t])
        there = np.ones(S, bool) if memory_mask is None else memory_mask[b]
        keys = np.concatenate([k[b, g], heads("key", context)[b, g]])
        scores = 0.6 * keys @ q[b, h, t]
        if layer.soft_cap is not None:
            scores = layer.soft_cap * np.tanh(scores / layer.soft_cap)
        if bias is not None:
            scores[:T] += bias[b, h, t]
        weights = np.exp(scores) * np.concatenate([seen, there])
        values = np.concatenate([v[b, g], heads("value", context)[b, g]])
        y[b, t, h] = weights @ values / weights.sum()
    output = layer.output_projection
    return y.reshape(B, T, H * K) @ to_numpy(output.kernel) + to_numpy(output.bias)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mode", MODES)
def test_is_one_softmax(x, context, case, mode):
    options, masks = CASES[case]
    layer = attention(**options)
    y = execute(mode, lambda given: layer(**given), {"x": x, "memory": context, **masks})
    assert_close(y, expected(layer, x, context, **masks), TOLERANCE)


def test_lengths_may_be_unknown_and_masks_implicit():
    tokens, source = (keras.Input((None,), dtype="int32") for _ in range(2))
    table = layers.TokenEmbedding(11, D, mask_zero=True)
    layer = attention(causal=True)
    model = keras.Model([tokens, source], layer(table(tokens), memory=table(source)))
    x, context = np.array([[3, 4, 5, 0], [6, 7, 8, 9]]), np.array([[5, 6, 7], [8, 0, 0]])
    y = layer(table(x), memory=table(context), mask=x > 0, memory_mask=context > 0)
    assert_close(model([x, context]), to_numpy(y), TOLERANCE)
    assert_close(model([x[1:], context[1:, :1]]), to_numpy(y)[1:], TOLERANCE)


def test_padding_that_is_not_finite_changes_nothing(x, context):
    layer, masks = attention(causal=True), {"mask": MASK, "memory_mask": CONTEXT_MASK}
    y = to_numpy(layer(x, memory=context, **masks))
    x[~MASK], context[~CONTEXT_MASK] = np.nan, np.inf
    assert_close(to_numpy(layer(x, memory=context, **masks))[MASK], y[MASK], 0.0)


@pytest.mark.parametrize("causal", [False, True])
def test_long_sequences_are_computed_in_blocks(monkeypatch, x, context, causal):
    layer = attention(causal=causal, window=3)
    whole = to_numpy(layer(x, memory=context, memory_mask=CONTEXT_MASK))
    monkeypatch.setattr(blockwise, "FEW", 1)
    monkeypatch.setattr(blockwise, "BLOCK", 3)
    blocks = layer(x, memory=context, memory_mask=CONTEXT_MASK)
    assert_close(blocks, whole, TOLERANCE)


def test_leading_axes(x, context):
    layer = attention(causal=True)
    y = to_numpy(layer(x, memory=context))
    assert_close(layer(x[None], memory=context[None]), y[None], TOLERANCE)


def block(**options):
    made = layers.TransformerDecoderBlock(
        13, self_attention=attention(causal=True, **options), cross_attention=False,
        residual=layers.Residual(input_norm=layers.RMSNormalization()),
    )  # fmt: skip
    sample = np.ones((1, 2, D), "float32")
    made(sample, sample)
    return randomize(made, seed=2)


SCOPES = {
    "": {},
    "xla": {"xla": True},
    "write first": {"write_first": True},
    "int8": {"int8": True},
}


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("window", [None, 3])
def test_steps_are_a_full_pass(x, context, scope, masked, window):
    """With the context in the first step alone, and a second block of the same scope."""
    first, second = block(window=window), block(window=window)
    pairs = {"attention_mask": PAIRS, "attention_bias": BIAS} if masked else {}
    given = {"context_mask": CONTEXT_MASK} if masked else {}
    context_mask = given.get("context_mask")
    whole = second(first(x, context, **given, **pairs), context, **given)
    cache, parts = None, []
    for start, end in ((0, 3), (3, 4), (4, 6), (6, 7)):
        with layers.DecodingScope(cache, position=start, length=T, **SCOPES[scope]) as opened:
            there = context if start == 0 else np.full_like(context, np.nan)
            rows = {name: y[..., start:end, :] for name, y in pairs.items()}
            if start == 0:
                rows = {name: y[..., : end - start] for name, y in rows.items()}
            y = first(x[:, start:end], there, context_mask=context_mask, **rows)
            parts.append(to_numpy(second(y, there, context_mask=context_mask)))
        cache = opened.cache
    assert len(cache) == 4
    tolerance = 0.05 if scope == "int8" else 10 * TOLERANCE
    assert_close(np.concatenate(parts, 1), to_numpy(whole), tolerance)


def test_a_probe_has_columns_for_both(x, context):
    layer = attention(causal=True)
    with layers.AttentionProbe() as probe:
        layer(x, memory=context, memory_mask=CONTEXT_MASK)
    (weights,) = (to_numpy(y) for y in probe.maps.values())
    assert weights.shape == (B, H, T, T + S)
    np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-6)
    assert (weights[0, ..., T + 3 :] == 0).all()
    assert (weights[:, :, 0, 1:T] == 0).all()


def test_a_block_passes_its_context(x, context):
    made = block()
    tokens, source = keras.Input((None, D)), keras.Input((None, D))
    model = keras.Model([tokens, source], made(tokens, source))
    again = keras.Model.from_config(model.get_config())
    again.set_weights(model.get_weights())
    np.testing.assert_array_equal(to_numpy(again([x, context])), to_numpy(model([x, context])))
    changed = context.copy()
    changed[:, 2] += 1.0
    assert np.abs(to_numpy(model([x, changed])) - to_numpy(model([x, context]))).min() > 0


def test_what_does_not_fit_is_refused(x, context):
    with pytest.raises(ValueError, match="a memory is required with merged=True"):
        attention()(x)
    with pytest.raises(ValueError, match="a memory is for merged=True"):
        layers.MultiHeadSelfAttention(2)(x, memory=context)
    with pytest.raises(ValueError, match=r"memory must have shape .* = \(2, 5, 10\), got"):
        attention()(x, memory=context[..., :-1])
    for options in ({"key_value": "returned", "causal": True}, {"position": layers.ALiBi()}):
        with pytest.raises(ValueError, match='merged=True needs key_value="own"'):
            layers.MultiHeadSelfAttention(2, merged=True, **options)
    with pytest.raises(ValueError, match="cross_attention must be False with a self_attention"):
        layers.TransformerDecoderBlock(13, 2, self_attention=attention(causal=True))
    with pytest.raises(ValueError, match="an encoder block has no context"):
        layers.TransformerEncoderBlock(13, self_attention=attention())
    with pytest.raises(ValueError, match="needs a context, got none"):
        block()(x)
