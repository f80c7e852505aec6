import dataclasses
import math

import keras
import numpy as np
import pytest
import reference_positions as rp
from attention_features import (
    built,
    expected_self_attention,
    randomize,
    rotary_arguments,
    stepped,
)
from compare import assert_close, to_numpy
from execution import MODES, execute, saving, tensorflow_only
from keras import ops

from keras_tfm.layers import (
    DecodingScope,
    LinearScaling,
    LongRoPEScaling,
    MultiHeadCrossAttention,
    MultiHeadSelfAttention,
    NTKScaling,
    RMSNormalization,
    RotaryEmbedding,
    YaRNScaling,
)
from keras_tfm.layers.decoding.scope import columns_of
from keras_tfm.layers.positions.attention_position import Span
from keras_tfm.layers.target import TARGETS, export_target

# Two float32 products of values of size 3 and their difference, rounded at 6e-8 each.
FLOAT32 = 1e-6
# As much, and sums of 60 terms, and weights that follow scores of size 3.
ATTENTION = 1e-5
# Frequencies are computed in float64: a power, a product or two.
FLOAT64 = 1e-14

B, H, T, K = 2, 3, 7, 8
FORMS = {
    "halves": {},
    "neighbours": {"interleaved": True},
    "part": {"rotary_dim": 6},
    "part, neighbours": {"rotary_dim": 2, "interleaved": True},
    "wavelength": {"max_wavelength": 13.0},
    "linear": {"scaling": LinearScaling(4.0)},
    "NTK": {"scaling": NTKScaling(4.0)},
    "YaRN": {"scaling": YaRNScaling(4.0, original_length=512)},
    "YaRN, part": {"scaling": YaRNScaling(2.0, original_length=64), "rotary_dim": 6},
    "LongRoPE, part": {
        "scaling": LongRoPEScaling(3.0, 7, (1.0,) * 3, (1.0, 2.5, 40.0), is_long=True),
        "rotary_dim": 6,
    },
}
every_form = pytest.mark.parametrize("options", FORMS.values(), ids=FORMS)


@pytest.fixture
def rng():
    return np.random.default_rng(11)


# The rotation


def rotated(position, x):
    """(B, H, T, K), rotated by the positions at which the layers' tokens stand."""
    return position.rotate(x, columns_of(x))


@every_form
@pytest.mark.parametrize("mode", MODES)
def test_rotates_each_pair_by_its_angle(rng, options, mode):
    position = RotaryEmbedding(**options)
    x = rng.normal(size=(B, H, T, K)).astype("float32")
    expected = rp.rotate(x, **rotary_arguments(position, K))
    assert_close(execute(mode, lambda x: rotated(position, x), x), expected, FLOAT32)
    part = position.rotary_dim or K
    np.testing.assert_array_equal(to_numpy(rotated(position, x))[..., part:], x[..., part:])


def test_a_quarter_turn_by_hand():
    """At position 1 the first pair turns by 1 radian, the second by 1/10 where w = 100, K = 4."""
    x = np.array([[[[9.0, 9.0, 9.0, 9.0], [1.0, 2.0, 3.0, 4.0]]]], "float32")
    (s1, c1), (s2, c2) = ((math.sin(a), math.cos(a)) for a in (1.0, 0.1))
    halves = [1 * c1 - 3 * s1, 2 * c2 - 4 * s2, 3 * c1 + 1 * s1, 4 * c2 + 2 * s2]
    pairs = [1 * c1 - 2 * s1, 2 * c1 + 1 * s1, 3 * c2 - 4 * s2, 4 * c2 + 3 * s2]
    for interleaved, row in ((False, halves), (True, pairs)):
        y = rotated(RotaryEmbedding(max_wavelength=100.0, interleaved=interleaved), x)
        assert_close(y[0, 0], [[9.0, 9.0, 9.0, 9.0], row], FLOAT32)


@every_form
def test_norms_are_kept_up_to_the_magnitude(rng, options):
    position = RotaryEmbedding(**options)
    x = rng.normal(size=(B, H, T, K)).astype("float32")
    part = position.rotary_dim or K
    factor = 1.0 if position.scaling is None else position.scaling.magnitude
    actual = np.linalg.norm(to_numpy(rotated(position, x))[..., :part], axis=-1)
    assert_close(actual, factor * np.linalg.norm(x[..., :part], axis=-1), FLOAT32)


@every_form
def test_scores_depend_on_distances_alone(rng, options):
    """One query and one key vector, put at every position: each diagonal is constant."""
    position = RotaryEmbedding(**options)
    query, key = (np.tile(rng.normal(size=(1, 1, 1, K)), (1, 1, 31, 1)) for _ in range(2))
    query, key = (to_numpy(rotated(position, x.astype("float32")))[0, 0] for x in (query, key))
    scores = query @ key.T
    for distance in range(-30, 31):
        diagonal = np.diagonal(scores, distance)
        # K products of two values that are off by 1e-7 of their size, some 3.
        np.testing.assert_allclose(diagonal, diagonal[0], rtol=0.0, atol=1e-5)
    assert np.ptp(scores[0]) > 0.1  # and it does depend on them


def test_queries_are_multiplied_by_a_factor_of_their_position(rng):
    """1 + b ln(1 + floor(p / n)): 1 up to n, then more, as in Ministral 3."""
    position = RotaryEmbedding(scaling=YaRNScaling(4.0, 3), query_beta=0.5)
    x = rng.normal(size=(B, H, T, K)).astype("float32")
    factors = [1.0] * 3 + [1 + 0.5 * math.log(2)] * 3 + [1 + 0.5 * math.log(3)]
    expected = x * np.array(factors, "float32")[:, np.newaxis]

    def scaled(x, positions):
        return position.scale_query(ops.convert_to_tensor(x), positions)

    assert_close(scaled(x, Span(0, T)), expected, FLOAT32)
    moved = Span(ops.convert_to_tensor(2), T - 2)
    assert_close(scaled(x[:, :, 2:], moved), expected[:, :, 2:], FLOAT32)
    rows = np.array([np.arange(T), np.arange(T)[::-1]], "int32")
    both = np.stack([expected[0], expected[0, :, ::-1]])
    again = np.stack([x[0], x[0, :, ::-1]])
    assert_close(scaled(again, ops.convert_to_tensor(rows)), both, FLOAT32)
    assert position.scale_query(x, Span(0, 3, limit=3)) is x  # nothing to compute


def test_scaled_queries_change_the_scores_alone(rng):
    """Queries, not keys, after the rotation: an attention whose queries are scaled by hand."""
    options = {"scaling": YaRNScaling(4.0, 2, attention_factor=1.0)}
    x = rng.normal(size=(B, T, H * K)).astype("float32")
    layer, plain = (
        MultiHeadSelfAttention(H, causal=True, position=RotaryEmbedding(**options, query_beta=b))
        for b in (0.8, 0.0)
    )
    layer.build(x.shape)
    plain.build(x.shape)
    plain.set_weights(layer.get_weights())
    actual, unscaled = to_numpy(layer(x)), to_numpy(plain(x))
    np.testing.assert_array_equal(actual[:, :2], unscaled[:, :2])
    assert np.abs(actual[:, 2:] - unscaled[:, 2:]).max() > 1e-3
    for t in range(2, T):
        plain._scale = K**-0.5 * (1 + 0.8 * math.log(1 + t // 2))
        assert_close(actual[:, t], to_numpy(plain(x))[:, t], ATTENTION)


def test_norms_after_the_rotation(rng):
    """As in HunYuan: the gains of a norm do not turn with the pairs."""
    position = RotaryEmbedding(max_wavelength=20.0)
    norms = {name: RMSNormalization(epsilon=1e-6) for name in ("query_norm", "key_norm")}
    options = {"use_bias": False, "position": position, "rotate_first": True}
    layer = built(MultiHeadSelfAttention(H, **options, **norms), (B, T, H * K))
    x = rng.normal(size=(B, T, H * K)).astype("float32")
    kernel, output = (to_numpy(y.kernel) for y in (layer.query_key_value, layer.output_projection))
    heads = (x @ kernel).reshape(B, T, 3, H, K).transpose(2, 0, 3, 1, 4)
    query, key = (rp.rotate(y, **rotary_arguments(position, K)) for y in heads[:2])
    query, key = (
        y / np.sqrt(np.mean(y**2, axis=-1, keepdims=True) + 1e-6) * to_numpy(norm.scale)
        for y, norm in zip((query, key), norms.values(), strict=True)
    )
    scores = query @ key.swapaxes(-1, -2) * K**-0.5
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    result = weights / weights.sum(axis=-1, keepdims=True) @ heads[2]
    expected = result.transpose(0, 2, 1, 3).reshape(B, T, H * K) @ output
    assert_close(layer(x), expected, ATTENTION)
    again = {name: RMSNormalization(epsilon=1e-6) for name in norms}
    cross = MultiHeadCrossAttention(H, **options, **again)
    cross.build(x.shape, x.shape)
    for name, part in zip(("query", "key", "value"), np.split(kernel, 3, axis=1), strict=True):
        getattr(cross, name).kernel.assign(part)
    cross.output_projection.kernel.assign(output)
    for name, norm in norms.items():
        getattr(cross, name).scale.assign(norm.scale)
    assert_close(cross(x, x), expected, ATTENTION)


# Far positions

FAR = 100_000


def rotate_at(form, position, x, start):
    """`x` rotated at `start`, by each of the ways that a position may be known."""
    scope = {"cache": {}, "length": start + x.shape[2]}
    if form == "integer":
        with DecodingScope(position=start, **scope):
            return rotated(position, x)
    if form == "tensor":
        with DecodingScope(position=ops.convert_to_tensor(start, "int32"), **scope):
            return rotated(position, x)
    import tensorflow as tf

    @tf.function(
        input_signature=[tf.TensorSpec((1, 1, None, x.shape[-1])), tf.TensorSpec((), "int32")]
    )
    def dynamic(x, start):
        with DecodingScope(position=start, **scope):
            return rotated(position, x)

    return dynamic(x, start)


@pytest.mark.parametrize(
    "form", ["integer", "tensor", pytest.param("dynamic length", marks=tensorflow_only)]
)
@pytest.mark.parametrize("scaling", [None, YaRNScaling(32.0, 4096)], ids=["plain", "YaRN"])
def test_far_positions_are_exact(rng, form, scaling):
    """Float32 angles would be off by 6e-3 here."""
    position = RotaryEmbedding(scaling=scaling)
    x = rng.uniform(-1.0, 1.0, size=(1, 1, 5, K)).astype("float32")
    expected = rp.rotate(x, start=FAR - 2, **rotary_arguments(position, K))
    actual = to_numpy(rotate_at(form, position, x, FAR - 2))
    # Two products, a difference and a table, of values up to 1: some roundings of 6e-8; half as
    # many again where two tables are joined.
    np.testing.assert_allclose(actual, expected, rtol=0.0, atol=1e-6)


def test_rows_at_positions_of_their_own(rng):
    """Of left-padded prompts: two rows of three heads, each rotated as it is alone."""
    position, starts = RotaryEmbedding(), [4, 9]
    x = rng.normal(size=(2, 3, 5, 6)).astype("float32")
    positions = np.arange(5) + np.array(starts)[:, np.newaxis]
    actual = to_numpy(position.rotate(x, ops.convert_to_tensor(positions, "int32")))
    for row, start in enumerate(starts):
        alone = slice(row, row + 1)
        expected = rp.rotate(x[alone], rp.rotary_frequencies(6), start=start)
        np.testing.assert_allclose(actual[alone], expected, rtol=0.0, atol=1e-6)


def test_a_sequence_of_100000_is_exact_at_its_end(rng):
    position = RotaryEmbedding()
    x = rng.uniform(-1.0, 1.0, size=(1, 1, FAR, 4)).astype("float32")
    expected = rp.rotate(x[:, :, -3:], rp.rotary_frequencies(4), start=FAR - 3)
    actual = to_numpy(rotated(position, x))[:, :, -3:]
    np.testing.assert_allclose(actual, expected, rtol=0.0, atol=1e-6)  # as above


# Frequencies


@pytest.mark.parametrize("dim", [2, 4, 10, 64, 128])
@pytest.mark.parametrize("base", [10000.0, 500000.0, 50.0])
def test_frequencies_are_those_of_the_papers(dim, base):
    def check(scaling, expected):
        np.testing.assert_allclose(scaling.frequencies(dim, base), expected, rtol=FLOAT64)

    check(LinearScaling(3.0), rp.linear_frequencies(dim, 3.0, base))
    if dim > 2:
        check(NTKScaling(3.0), rp.ntk_frequencies(dim, 3.0, base))
    for length in (64, 2048, 8192):
        for turns in ((32.0, 1.0), (4.0, 0.25)):
            expected = rp.yarn_frequencies(dim, 3.0, length, base, *turns)
            check(YaRNScaling(3.0, length, *turns), expected)


def test_linear_scaling_by_hand():
    expected = np.array([0.25, 0.0025])
    assert_close(LinearScaling(4.0).frequencies(4, 10000.0), expected, FLOAT64)


def test_ntk_scaling_by_hand():
    """D = 4: b' = 100 * 9^2 = 8100, whose root is 90; the slowest, 1/10, becomes a ninth of it."""
    assert_close(NTKScaling(9.0).frequencies(4, 100.0), np.array([1.0, 1 / 90]), FLOAT64)
    np.testing.assert_array_equal(NTKScaling(9.0).frequencies(2, 100.0), [1.0])


@pytest.mark.parametrize("dim", [6, 64, 128])
def test_ntk_scaling_keeps_the_fastest_and_stretches_the_slowest_by_the_factor(dim):
    plain, stretched = rp.rotary_frequencies(dim), NTKScaling(7.0).frequencies(dim, 10000.0)
    assert stretched[0] == plain[0]
    assert_close(stretched[-1] * 7.0 / plain[-1], 1.0, 1e-12)  # a power of a power
    assert np.all(np.diff(plain / stretched) > 0)


def test_yarn_scaling_by_hand():
    """w = 10^4, D = 8: frequencies 1, 0.1, 0.01, 0.001; they turn L f / 2 pi times in L.

    L = 2 pi 100: 100, 10, 1 and 0.1 turns. At 10 turns i = 8 ln(10) / (2 ln 10^4) = 1, at 0.1 turns
    8 ln(1000) / (2 ln 10^4) = 3: pair 2 is half way between.
    """
    length = 200 * math.pi
    # An inch inside of the whole numbers 1 and 3, which floor and ceil would otherwise miss.
    scaling = YaRNScaling(5.0, length, beta_fast=10 - 1e-9, beta_slow=0.1 + 1e-11)
    expected = [1.0, 0.1, 0.01 * (0.5 + 0.5 / 5.0), 0.001 / 5.0]
    np.testing.assert_allclose(scaling.frequencies(8, 10000.0), expected, rtol=FLOAT64)
    assert scaling.magnitude == 0.1 * math.log(5.0) + 1.0


@pytest.mark.parametrize("length", [512, 2048, 4096])
@pytest.mark.parametrize("dim", [16, 64, 128])
def test_yarn_keeps_and_divides_what_the_paper_keeps_and_divides(dim, length):
    """Between, the paper's ramp is linear in the turns, its code's and ours in the index."""
    plain = rp.rotary_frequencies(dim)
    paper = rp.yarn_paper_frequencies(dim, 8.0, length)
    actual = YaRNScaling(8.0, length).frequencies(dim, 10000.0)
    turns = length * plain / (2 * np.pi)
    kept, divided = turns >= 32, turns <= 1
    assert kept.any()
    assert divided.any()
    np.testing.assert_allclose(actual[kept], paper[kept], rtol=FLOAT64)
    np.testing.assert_allclose(actual[kept], plain[kept], rtol=FLOAT64)
    np.testing.assert_allclose(actual[divided], paper[divided], rtol=FLOAT64)
    np.testing.assert_allclose(actual[divided], plain[divided] / 8.0, rtol=FLOAT64)
    between = ~kept & ~divided
    assert np.all(actual[between] <= plain[between])
    assert np.all(actual[between] >= plain[between] / 8.0)


def test_a_factor_of_1_changes_nothing(rng):
    x = rng.normal(size=(B, H, T, K)).astype("float32")
    for scaling in (LinearScaling(1.0), NTKScaling(1.0), YaRNScaling(1.0, 64)):
        actual = rotated(RotaryEmbedding(scaling=scaling), x)
        assert_close(actual, rotated(RotaryEmbedding(), x), 1e-7)  # one rounding


def test_longrope_by_hand():
    """D = 4, w = 100: frequencies 1 and 0.1. L = 16, 4 times longer: sqrt(1 + ln 4 / ln 16)."""
    short = LongRoPEScaling(4.0, 16, short_factors=[1.0, 2.0], long_factors=[4.0, 8.0])
    assert_close(short.frequencies(4, 100.0), np.array([1.0, 0.05]), FLOAT64)
    assert_close(short.magnitude, math.sqrt(1.5), FLOAT64)
    long = dataclasses.replace(short, is_long=True, attention_factor=1.25)
    assert_close(long.frequencies(4, 100.0), np.array([0.25, 0.0125]), FLOAT64)
    assert long.magnitude == 1.25
    with pytest.raises(ValueError, match=r"short_factors must have 3 entries for 6 .*, got 2"):
        short.frequencies(6, 100.0)


def test_short_factors_refuse_longer_sequences():
    scaling = LongRoPEScaling(4.0, 5, short_factors=[1.0] * 4, long_factors=[2.0] * 4)
    layer = MultiHeadSelfAttention(
        2, causal=True, head_dim=8, position=RotaryEmbedding(scaling=scaling)
    )
    x = ops.ones((1, 6, 16))
    assert layer(x[:, :5]).shape == (1, 5, 16)
    message = r"at most original_length \(5\) tokens with LongRoPE's short factors, got 6"
    with pytest.raises(ValueError, match=message):
        layer(x)
    with pytest.raises(ValueError, match=message), DecodingScope({}, position=0, length=6):
        layer(x[:, :1])
    scaling = dataclasses.replace(scaling, is_long=True)
    long = MultiHeadSelfAttention(
        2, causal=True, head_dim=8, position=RotaryEmbedding(scaling=scaling)
    )
    assert long(x).shape == (1, 6, 16)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"original_length": 1}, "original_length must be at least 2, got 1"),
        ({"short_factors": [1.0, 0.0]}, "each of short_factors must be positive, got 0.0"),
        ({"long_factors": [-1.0]}, "each of long_factors must be positive, got -1.0"),
        ({"factor": 0.5}, "factor must be at least 1, got 0.5"),
    ],
)
def test_impossible_longrope_is_refused(options, message):
    good = {"factor": 2.0, "original_length": 8, "short_factors": [1.0], "long_factors": [2.0]}
    with pytest.raises(ValueError, match=message):
        LongRoPEScaling(**{**good, **options})


# In the layer


@every_form
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("length", [T, 1])
def test_self_attention_equals_the_float64_reference(rng, options, causal, length):
    """Also as it is exported, where queries and keys are rotated together."""
    heads = {"num_heads": 4, "num_key_value_heads": 2, "head_dim": K}
    position = RotaryEmbedding(**options)
    x = rng.normal(size=(B, length, 5)).astype("float32")
    layer = built(MultiHeadSelfAttention(**heads, causal=causal, position=position), x.shape)
    expected = expected_self_attention(layer, x, **heads, causal=causal, position=position)
    for target in TARGETS:
        with export_target(target):
            assert_close(layer(x), expected, ATTENTION)
    other = built(MultiHeadSelfAttention(**heads, causal=causal), x.shape)
    if length > 1:
        assert np.abs(to_numpy(other(x)) - expected).max() > 100 * ATTENTION


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_rounds_last(rng, dtype):
    """In bfloat16 position 257 would be 256; here far positions are as exact as near ones."""
    position = RotaryEmbedding(dtype=dtype)
    x = ops.cast(rng.normal(size=(1, 1, 5, K)), dtype.removeprefix("mixed_"))
    with DecodingScope({}, position=FAR, length=FAR + 5):
        y = rotated(position, x)
    assert keras.backend.standardize_dtype(y.dtype) == dtype.removeprefix("mixed_")
    expected = rp.rotate(to_numpy(x), rp.rotary_frequencies(K), start=FAR)
    # One rounding: 2^-9 of a value up to 3 in bfloat16, 2^-12 in float16, and the scale is 1.5.
    assert_close(y, expected, {"mixed_bfloat16": 2**-8, "mixed_float16": 2**-11}[dtype])


@every_form
@pytest.mark.parametrize("steps", [[1] * 7, [3, 1, 2, 1]], ids=["ones", "prefill"])
def test_stepped_equals_full(rng, options, steps):
    x = rng.normal(size=(B, T, 16)).astype("float32")
    layer = MultiHeadSelfAttention(2, causal=True, position=RotaryEmbedding(**options))
    built(layer, x.shape)
    actual = stepped(lambda start, end: layer(x[:, start:end]), steps)
    assert_close(actual, layer(x), ATTENTION)


# Configuration


@saving
@every_form
def test_a_keras_file_holds_the_part(rng, options, tmp_path):
    layer = MultiHeadSelfAttention(2, position=RotaryEmbedding(**options))
    inputs = keras.Input((T, 16))
    model = keras.Model(inputs, layer(inputs))
    randomize(layer)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    again = loaded.layers[-1].position
    assert type(again) is RotaryEmbedding
    assert again.get_config() == layer.position.get_config()
    assert again.scaling == options.get("scaling")
    assert again.interleaved == options.get("interleaved", False)
    x = rng.normal(size=(B, T, 16)).astype("float32")
    assert_close(loaded(x), model(x), 0.0)


# Errors


@pytest.mark.parametrize("head_dim", [5, 7])
def test_an_odd_width_is_refused(head_dim):
    layer = MultiHeadSelfAttention(2, head_dim=head_dim, position=RotaryEmbedding())
    message = rf"rotary_dim must be even and at most head_dim \({head_dim}\), got {head_dim}"
    with pytest.raises(ValueError, match=message):
        layer.build((B, T, 6))


@pytest.mark.parametrize("rotary_dim", [3, 10, 0, -2])
def test_a_part_that_cannot_be_rotated_is_refused(rotary_dim):
    message = rf"rotary_dim must .*, got {rotary_dim}"
    with pytest.raises(ValueError, match=message):
        MultiHeadSelfAttention(
            2, head_dim=8, position=RotaryEmbedding(rotary_dim=rotary_dim)
        ).build((B, T, 6))


@pytest.mark.parametrize("max_wavelength", [0.0, -1.0])
def test_a_wavelength_is_positive(max_wavelength):
    with pytest.raises(ValueError, match=f"max_wavelength must be positive, got {max_wavelength}"):
        RotaryEmbedding(max_wavelength=max_wavelength)


@pytest.mark.parametrize(
    "make", [LinearScaling, NTKScaling, lambda factor: YaRNScaling(factor, original_length=64)]
)
@pytest.mark.parametrize("factor", [0.0, 0.5, -2.0])
def test_a_factor_is_at_least_1(make, factor):
    with pytest.raises(ValueError, match=f"factor must be at least 1, got {factor}"):
        make(factor)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"original_length": 0}, "original_length .*0"),
        ({"original_length": -5}, "original_length .*-5"),
        ({"original_length": 64, "beta_slow": 0.0}, "beta_slow .*0.0"),
        ({"original_length": 64, "beta_fast": 1.0, "beta_slow": 2.0}, "beta_fast .*1.0.*2.0"),
    ],
)
def test_impossible_yarn_is_refused(options, message):
    """By name, when it is made: in use, math.log would only say "math domain error"."""
    with pytest.raises(ValueError, match=message):
        YaRNScaling(2.0, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"query_beta": -0.1, "scaling": YaRNScaling(2.0, 8)}, "query_beta must be at least 0"),
        ({"query_beta": 0.1}, "query_beta requires a scaling with an original_length, .* None"),
        ({"query_beta": 0.1, "scaling": LinearScaling(2.0)}, "query_beta requires a scaling wit"),
    ],
)
def test_queries_that_cannot_be_scaled(options, message):
    with pytest.raises(ValueError, match=message):
        RotaryEmbedding(**options)


def test_a_scaling_must_be_a_scaling():
    with pytest.raises(TypeError, match=r"scaling must be .*float"):
        RotaryEmbedding(scaling=2.0)


def test_the_position_must_be_a_part():
    message = r"position must be an AttentionPosition such as RotaryEmbedding\(\), got 'rotary'"
    with pytest.raises(TypeError, match=message):
        MultiHeadSelfAttention(2, position="rotary")
