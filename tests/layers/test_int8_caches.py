"""Decoding against KV caches in int8, and the same arithmetic in NumPy float64."""

import numpy as np
import pytest
import reference
from blocks import head_norms
from compare import assert_close, to_numpy
from keras import ops
from keras.backend import standardize_dtype
from keras_weights import built, dense

from keras_tfm.layers import (
    AttentionProbe,
    DecodingScope,
    MultiHeadCrossAttention,
    MultiHeadSelfAttention,
    RelativePositionEmbedding,
    RotaryEmbedding,
)
from keras_tfm.layers.decoding.cache import (
    is_int8,
    key_of,
    longer,
    make_entry,
    value_of,
)

# Float32 rounds at 6e-8, a few sums in another order. No key here lies so near to the middle
# between two integers that float32 and float64 round it to different ones.
FLOAT32 = 1e-5
# A value is at most 1/254 of a head's largest one off, and a result is a mean of values.
ROUNDED = 2e-2
B, T, S, D, H, G, K, V = 2, 7, 11, 12, 6, 3, 5, 8


def rounded(x):
    """(..., K) as `scale` times an integer from -127 to 127, in float64."""
    x = np.asarray(x, "float64")
    scale = np.maximum(np.abs(x).max(axis=-1, keepdims=True) / 127.0, 1e-30)
    return scale * np.rint(x / scale)


def heads(x, number):
    """(B, T, N) -> (B, N heads, T, N / heads)."""
    return np.moveaxis(x.reshape(*x.shape[:-1], number, -1), -2, -3)


def projected(layer, x, context=None):
    """Queries, keys and values in float64, and a function of the heads' results."""
    if context is None:
        cuts = [H * K, (H + G) * K]
        together = to_numpy(layer.query_key_value(x)).astype("float64")
        q, k, v = np.split(together, cuts, axis=-1)
    else:
        q, k, v = (
            reference._dense(y, *dense(part, "w").values())
            for part, y in ((layer.query, x), (layer.key, context), (layer.value, context))
        )
    weights = dense(layer.output_projection, "w")

    def output(y):
        merged = np.moveaxis(y, -3, -2).reshape(*y.shape[:1], y.shape[-2], -1)
        return reference._dense(merged, *weights.values())

    return heads(q, H), heads(k, G), heads(v, G), output


def repeated(x):
    """Keys or values of groups, one for each query head."""
    return np.repeat(x, H // G, axis=1)


def stepped(layer, x, steps, **options):
    outputs, cache, start = [], None, 0
    for n in steps:
        with DecodingScope(cache, position=start, length=T, int8=True, **options) as scope:
            outputs.append(to_numpy(layer(x[:, start : start + n])))
        cache, start = scope.cache, start + n
    return np.concatenate(outputs, axis=1), cache


@pytest.fixture
def x():
    return np.random.default_rng(7).normal(size=(B, T, D)).astype("float32")


@pytest.fixture
def context():
    return np.random.default_rng(8).normal(size=(B, S, D)).astype("float32")


def self_attention(**options):
    layer = MultiHeadSelfAttention(
        H, causal=True, head_dim=K, value_dim=V, num_key_value_heads=G, **options
    )
    return built(layer, (None, None, D))


@pytest.mark.parametrize("write_first", [False, True])
def test_self_attention_reads_rounded_keys_and_values(x, write_first):
    """A token's own key is exact, or with `write_first` rounded, too."""
    layer = self_attention()
    found, cache = stepped(layer, x, [1] * T, write_first=write_first)
    q, k, v, output = projected(layer, x)
    for t in range(1, T):
        keys, values = (
            np.concatenate([rounded(y[:, :, :t]), y[:, :, t : t + 1]], axis=2)
            if not write_first
            else rounded(y[:, :, : t + 1])
            for y in (k, v)
        )
        wanted = output(reference.attention(q[:, :, t : t + 1], repeated(keys), repeated(values)))
        assert_close(found[:, t : t + 1], wanted, FLOAT32)
    (entry,) = cache.values()
    assert is_int8(entry)
    assert {part: (standardize_dtype(y.dtype), *y.shape) for part, y in entry.items()} == {
        "transposed_key": ("int8", B, G, K, T),
        "key_scale": ("float32", B, G, 1, T),
        "value": ("int8", B, G, T, V),
        "value_scale": ("float32", B, G, 1, T),
    }
    assert_close(key_of(entry), rounded(k), FLOAT32)
    assert_close(value_of(entry), rounded(v), FLOAT32)
    assert np.abs(to_numpy(entry["transposed_key"])).max() == 127


def test_several_tokens_see_rounded_cached_keys_and_their_own(x):
    layer = self_attention()
    found, _ = stepped(layer, x, [3, 4])
    q, k, v, output = projected(layer, x)
    keys, values = (np.concatenate([rounded(y[:, :, :3]), y[:, :, 3:]], axis=2) for y in (k, v))
    mask = np.tril(np.ones((T, T), bool))[3:]
    wanted = output(reference.attention(q[:, :, 3:], repeated(keys), repeated(values), mask))
    assert_close(found[:, 3:], wanted, FLOAT32)


@pytest.mark.parametrize(
    "options",
    [
        {"position": RotaryEmbedding(), **head_norms()},
        {"position": RelativePositionEmbedding(3), "num_key_value_heads": None},
        {"window": 3, "soft_cap": 2.0},
    ],
    ids=["rotary", "relative", "window"],
)
def test_with_other_parts_it_is_near_to_float_caches(x, options):
    layer = MultiHeadSelfAttention(
        **{"num_heads": H, "num_key_value_heads": G, **options}, head_dim=6, causal=True
    )
    built(layer, (None, None, D))
    found, _ = stepped(layer, x, [2] + [1] * (T - 2))
    wanted = to_numpy(layer(x))
    assert_close(found, wanted, ROUNDED)
    assert np.abs(found[:, 2:] - wanted[:, 2:]).max() > 1e-5  # rounded at all


def test_padding_is_not_seen(x):
    """Rows of another text behind a mask change nothing, whatever their scale."""
    layer, mask = self_attention(), np.arange(T) >= [[0], [2]]
    results = []
    for factor in (1.0, 1e6):
        filled = np.where(mask[..., np.newaxis], x, factor * x)
        cache, outputs = None, []
        for t in range(T):
            with DecodingScope(cache, position=t, length=T, int8=True) as scope:
                outputs.append(to_numpy(layer(filled[:, t : t + 1], mask=mask[:, t : t + 1])))
            cache = scope.cache
        results.append(np.concatenate(outputs, axis=1)[mask])
    assert_close(results[0], results[1], 0.0)


@pytest.mark.parametrize("tokens", [1, 2])
@pytest.mark.parametrize("masked", [False, True])
def test_cross_attention_reads_rounded_keys_and_values(x, context, masked, tokens):
    layer = built(
        MultiHeadCrossAttention(H, head_dim=K, value_dim=V, num_key_value_heads=G),
        (None, None, D),
        (None, None, D),
    )
    mask, pairs, options = None, None, {}
    if masked:  # the second row sees nothing, and its third token not the first key
        mask = np.array([[True] * 6 + [False] * 5, [False] * S])
        pairs = np.random.default_rng(3).uniform(size=(B, T, S)) < 0.7
        options = {"context_mask": mask}
    cache, outputs = None, []
    for t in range(0, T - 1, tokens):
        here = {} if pairs is None else {"attention_mask": pairs[:, t : t + tokens]}
        # Only the first step reads the context.
        given = context if cache is None else np.full_like(context, np.nan)
        with DecodingScope(cache, position=t, length=T, int8=True) as scope:
            outputs.append(to_numpy(layer(x[:, t : t + tokens], given, **options, **here)))
        cache = scope.cache
    q, k, v, output = projected(layer, x, context)
    seen = None if mask is None else (mask[:, np.newaxis] & pairs)[:, np.newaxis, : T - 1]
    y = reference.attention(q[:, :, : T - 1], repeated(rounded(k)), repeated(rounded(v)), seen)
    assert_close(np.concatenate(outputs, axis=1), output(y), FLOAT32)


def test_cross_attention_with_bias_positions_and_probe(x, context):
    layer = built(
        MultiHeadCrossAttention(H, head_dim=4, position=RotaryEmbedding(), soft_cap=3.0),
        (None, None, D),
        (None, None, D),
    )
    bias = np.random.default_rng(5).normal(size=(1, H, 1, S)).astype("float32")
    with AttentionProbe() as wanted:
        expected = to_numpy(layer(x[:, :1], context, attention_bias=bias))
    with AttentionProbe() as found, DecodingScope(length=T, int8=True):
        y = to_numpy(layer(x[:, :1], context, attention_bias=bias))
    assert_close(y, expected, ROUNDED)
    (ours,), (theirs,) = (list(probe.maps.values()) for probe in (found, wanted))
    assert_close(ours, theirs, ROUNDED)


def test_half_precision_keeps_its_dtype(x, context):
    """Scales stay in float32: a scale below 6e-8 would be 0 in float16."""
    layer = MultiHeadSelfAttention(H, causal=True, dtype="float16")
    built(layer, (None, None, D))
    cross = built(MultiHeadCrossAttention(H, dtype="float16"), (None, None, D), (None, None, D))
    with DecodingScope(length=T, int8=True) as scope:
        first = cross(layer(x[:, :1]), context)
    with DecodingScope(scope.cache, position=1, length=T) as scope:
        second = cross(layer(x[:, 1:2]), context)
    assert {standardize_dtype(y.dtype) for y in (first, second)} == {"float16"}
    wanted = to_numpy(layer(x[:, :2]))[:, 1:]
    with DecodingScope(length=T):
        assert_close(second, to_numpy(cross(wanted.astype("float16"), context)), ROUNDED)


@pytest.mark.parametrize("size", [0.0, 1e-38, 1e30])
def test_extreme_keys(size):
    key = np.full((1, 1, 1, 3), size, "float32") * np.array([1, -1, 0], "float32")
    entry = make_entry(ops.convert_to_tensor(key), ops.convert_to_tensor(key), False, int8=True)
    found = to_numpy(key_of(entry))
    assert np.all(np.isfinite(found))
    # Keys below 1e-30 become 0.
    assert_close(found / max(size, 1.0), (key if size > 1 else 0 * key) / max(size, 1.0), 1e-6)


def test_longer_entries_keep_their_columns(x):
    _, cache = stepped(self_attention(), x, [T])
    (entry,) = cache.values()
    grown = {part: longer(part, y, 2 * T + 3) for part, y in entry.items()}
    for read in (key_of, value_of):
        assert read(grown).shape[2] == 3 * T + 3
        assert_close(to_numpy(read(grown))[:, :, :T], to_numpy(read(entry)), 0.0)
        assert not np.any(to_numpy(read(grown))[:, :, T:])  # their scales are zero
