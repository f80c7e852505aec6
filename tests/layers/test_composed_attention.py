"""Gates, separate queries and keys, positions of one's own: attention as later models have it."""

import keras
import numpy as np
import pytest
import reference_composed
import reference_positions as rp
from attention_features import built, stepped
from compare import assert_close, to_numpy
from execution import MODES, execute, saving
from keras import ops
from keras_weights import cross_attention, self_attention

from keras_tfm.layers import (
    AttentionPosition,
    DecodingScope,
    MultiHeadCrossAttention,
    MultiHeadSelfAttention,
    PositionTerms,
    RotaryEmbedding,
)
from keras_tfm.layers.multi_head_attention.base import PROJECTIONS

# Float32 rounds at 6e-8; sums of up to 30 terms, four in a row.
FLOAT32 = 1e-5

B, T, S, D, C, H, K = 2, 7, 5, 9, 11, 3, 4
MASK = np.array([[True] * T, [True, False, True, True, False, True, False]])
CONTEXT_MASK = np.array([[True, False, True, True, True], [False] * S])
PAIRS = np.random.default_rng(5).random((B, T, T)) < 0.7
CAUSAL = np.tri(T, dtype=bool)


@pytest.fixture
def rng():
    return np.random.default_rng(11)


def noise(rng, *shape):
    return rng.normal(size=shape).astype("float32")


@keras.saving.register_keras_serializable("tests")
class Disentangled(AttentionPosition):
    """DeBERTa's c2p and p2c (arXiv:2006.03654), with one table and the layer's own projections."""

    reads_keys = True

    def __init__(self, reach, dim, **kwargs):
        super().__init__(**kwargs)
        self.reach, self.dim = reach, dim

    def build_for(self, num_heads, head_dim, value_dim):
        if not self.built:
            self.table = self.add_weight(name="table", shape=(2 * self.reach, self.dim))
            self.built = True

    def terms(self, inputs):
        query, distances = inputs.query, inputs.positions.distances()  # j - i
        of_keys = self._products(query, inputs.project_key(self.table), -distances)
        keys = inputs.keys() * ops.cast(inputs.scale, query.dtype)
        back = ops.swapaxes(distances, -1, -2)
        of_queries = self._products(keys, inputs.project_query(self.table), back)
        return PositionTerms(scores=of_keys + ops.swapaxes(of_queries, -1, -2))

    def _products(self, x, relative, distances):
        """x_i r_d(i, j), with distances i - j (M, N): (B, H, M, K), (H, R, K) -> (B, H, M, N)."""
        rows = ops.clip(distances + self.reach, 0, 2 * self.reach - 1)
        scores = ops.matmul(x, ops.swapaxes(relative, -1, -2))
        return ops.take_along_axis(scores, ops.broadcast_to(rows, (*x.shape[:2], *rows.shape)), -1)

    def get_config(self):
        return {**super().get_config(), "reach": self.reach, "dim": self.dim}


def disentangled(**options):
    options = {"head_dim": K, "scale": (3 * K) ** -0.5, **options}
    return MultiHeadSelfAttention(H, position=Disentangled(2, D), **options)


# Gates


@pytest.mark.parametrize("use_bias", [True, False, ["gate"], ["query", "output"]], ids=str)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("gate", [True, "head"])
def test_gated_self_attention(rng, gate, mode, use_bias):
    x = noise(rng, B, T, D)
    options = {"head_dim": K, "value_dim": 5, "gate": gate, "use_bias": use_bias}
    layer = built(MultiHeadSelfAttention(H, **options), x.shape)
    actual = execute(mode, lambda x, mask: layer(x, mask=mask), x, MASK)
    weights = self_attention(layer)
    expected = reference_composed.attention(x, x, x, weights, H, MASK[:, None], gate=x)
    assert_close(actual, expected, FLOAT32)
    del weights["gate"]
    ungated = reference_composed.attention(x, x, x, weights, H, MASK[:, None])
    assert np.abs(expected - ungated).max() > 0.1


@pytest.mark.parametrize("gate", [True, "head"])
def test_gated_cross_attention(rng, gate):
    """The gate is a function of the queries' input, not of the context."""
    x, context = noise(rng, B, T, D), noise(rng, B, S, C)
    layer = MultiHeadCrossAttention(H, head_dim=K, value_dim=5, gate=gate)
    built(layer, x.shape, context.shape)
    expected = reference_composed.attention(
        x, context, context, cross_attention(layer), H, CONTEXT_MASK[:, None], gate=x
    )
    assert_close(layer(x, context, context_mask=CONTEXT_MASK), expected, FLOAT32)


@pytest.mark.parametrize("gate", [True, "head", "query"])
def test_gated_attention_stepped(rng, gate):
    x = noise(rng, B, T, D)
    layer = built(MultiHeadSelfAttention(H, causal=True, gate=gate, window=3), x.shape)
    actual = stepped(lambda start, end: layer(x[:, start:end]), [3, 1, 3])
    assert_close(actual, layer(x), FLOAT32)


def test_a_gate_per_head_multiplies_whole_heads(rng):
    """Far below 0 for one head: as if the rows of the output projection were zeros for it."""
    x = noise(rng, B, T, D)
    layer = built(MultiHeadSelfAttention(H, gate="head", head_dim=K), x.shape)
    assert layer.gate_projection.kernel.shape == (D, H)
    layer.gate_projection.kernel.assign(np.zeros((D, H)))
    layer.gate_projection.bias.assign([50.0, -50.0, 50.0])
    actual = layer(x)
    plain = built(MultiHeadSelfAttention(H, head_dim=K), x.shape)
    weights = [w for w in layer.weights if "gate" not in w.path]
    plain.set_weights([to_numpy(w) for w in weights])
    kernel = to_numpy(plain.output_projection.kernel).copy()
    kernel[K : 2 * K] = 0.0
    plain.output_projection.kernel.assign(kernel)
    assert_close(actual, plain(x), FLOAT32)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (MultiHeadSelfAttention, "False or True or 'head' or 'query'"),
        (MultiHeadCrossAttention, "False or True or 'head'"),
    ],
)
def test_an_unknown_gate_is_refused(kind, expected):
    with pytest.raises(ValueError, match=f"gate must be {expected}, got 'heads'$"):
        kind(H, gate="heads")


# Biases of some projections


@pytest.mark.parametrize("kind", [MultiHeadSelfAttention, MultiHeadCrossAttention])
@pytest.mark.parametrize(
    "biased",
    [[], ["query"], ["key", "value"], ["query", "key", "value"], ["output"], ["gate", "value"]],
    ids=" ".join,
)
def test_only_the_projections_listed_add_a_bias(rng, kind, biased):
    x = noise(rng, B, T, D)
    layer = kind(H, gate=True, use_bias=biased)
    inputs = [x] if kind is MultiHeadSelfAttention else [x, noise(rng, B, S, C)]
    built(layer, *(y.shape for y in inputs))
    weights = (self_attention if len(inputs) == 1 else cross_attention)(layer)
    assert {name for name in PROJECTIONS if f"{name}_bias" in weights} == set(biased)
    context = inputs[-1]
    expected = reference_composed.attention(x, context, context, weights, H, gate=x)
    assert_close(layer(*inputs), expected, FLOAT32)
    again = kind.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    again.build(*(y.shape for y in inputs))
    assert [w.path.split("/", 1)[1] for w in again.weights] == [
        w.path.split("/", 1)[1] for w in layer.weights
    ]


@pytest.mark.parametrize("value", ["query", ["query", "keys"], ["inner"], None, 1])
def test_an_unknown_projection_is_refused(value):
    message = r"use_bias must be True, False or a list of \['query', .*'gate'\], got "
    with pytest.raises(ValueError, match=message):
        MultiHeadSelfAttention(H, use_bias=value)


# Queries and keys from other inputs than the values


@pytest.mark.parametrize("use_bias", [True, ["value"]], ids=["fused", "apart"])
@pytest.mark.parametrize("given", [("query", "key"), ("query",), ("key",)], ids=" ".join)
@pytest.mark.parametrize("mode", MODES)
def test_queries_and_keys_from_other_inputs(rng, mode, given, use_bias):
    x = noise(rng, B, T, D)
    others = {name: noise(rng, B, T, D) for name in given}
    layer = built(MultiHeadSelfAttention(H, head_dim=K, use_bias=use_bias), x.shape)

    def run(x, *values):
        return layer(x, attention_mask=PAIRS, **dict(zip(given, values, strict=True)))

    inputs = others.get("query", x), others.get("key", x), x
    expected = reference_composed.attention(*inputs, self_attention(layer), H, PAIRS)
    assert_close(execute(mode, run, x, *others.values()), expected, FLOAT32)


def test_keys_of_a_context_from_another_input(rng):
    x, context, key = noise(rng, B, T, D), noise(rng, B, S, C), noise(rng, B, S, C)
    layer = built(MultiHeadCrossAttention(H), x.shape, context.shape)
    expected = reference_composed.attention(x, key, context, cross_attention(layer), H)
    assert_close(layer(x, context, key=key), expected, FLOAT32)


def test_queries_and_keys_from_other_inputs_stepped(rng):
    x, moved = noise(rng, B, T, D), noise(rng, B, T, D)
    layer = built(MultiHeadSelfAttention(H, causal=True), x.shape)

    def call(start, end):
        return layer(x[:, start:end], query=moved[:, start:end], key=moved[:, start:end])

    assert_close(stepped(call, [2, 1, 4]), call(0, T), FLOAT32)


# Disentangled positions


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("use_bias", [True, False, ["query"]], ids=["bias", "none", "apart"])
@pytest.mark.parametrize("mode", MODES)
def test_disentangled_positions(rng, mode, use_bias, causal):
    x = noise(rng, B, T, D)
    layer = built(disentangled(causal=causal, use_bias=use_bias), x.shape)
    mask = MASK[:, None] & (CAUSAL if causal else True)
    table, weights = to_numpy(layer.position.table), self_attention(layer)
    expected = reference_composed.attention(x, x, x, weights, H, mask, relative=table)
    actual = execute(mode, lambda x, mask: layer(x, mask=mask), x, MASK)
    assert_close(actual, expected, FLOAT32)
    without = reference_composed.attention(x, x, x, weights, H, mask)
    assert np.abs(expected - without).max() > 0.1


@pytest.mark.parametrize("steps", [[1] * T, [3, 1, 2, 1], [4, 3]], ids=str)
@pytest.mark.parametrize("padded", [False, True])
def test_disentangled_positions_stepped(rng, steps, padded):
    x = noise(rng, B, T, D)
    layer = built(disentangled(causal=True), x.shape)
    mask = MASK if padded else None

    def call(start, end):
        return layer(x[:, start:end], mask=None if mask is None else mask[:, start:end])

    assert_close(stepped(call, steps, length=T + 2), call(0, T), FLOAT32)


class Doubling(AttentionPosition):
    """Its second argument has a name of its own: attention passes positions by place."""

    def rotate(self, x, where):
        return 2.0 * x


@pytest.mark.parametrize("kind", [MultiHeadSelfAttention, MultiHeadCrossAttention])
def test_a_rotation_may_name_its_arguments(rng, kind):
    """Queries and keys twice as long: four times the scores."""
    x = noise(rng, B, T, D)
    inputs = [x] if kind is MultiHeadSelfAttention else [x, noise(rng, B, S, C)]
    layer = built(kind(H, head_dim=K, position=Doubling()), *(y.shape for y in inputs))
    scaled = built(kind(H, head_dim=K, scale=4 * K**-0.5), *(y.shape for y in inputs))
    scaled.set_weights(layer.get_weights())
    assert_close(layer(*inputs), scaled(*inputs), FLOAT32)


@saving
def test_a_part_of_ones_own_is_saved(rng, tmp_path):
    x = noise(rng, B, T, D)
    inputs = keras.Input((None, D))
    layer = disentangled()
    model = keras.Model(inputs, layer(inputs))
    for weight in model.weights:
        weight.assign(noise(rng, *weight.shape))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_close(loaded(x), model(x), 0.0)


# Positions in cross-attention


def rotate_rows(frequencies, positions):
    """Rotates each row's T vectors by the row's own positions."""

    def apply(x):
        rows = [
            np.concatenate(
                [rp.rotate(x[b, t : t + 1], frequencies, start=int(p)) for t, p in enumerate(row)]
            )
            for b, row in enumerate(positions)
        ]
        return np.stack(rows)

    return apply


@pytest.mark.parametrize("given", ["both", "context", "none"])
@pytest.mark.parametrize("mode", MODES)
def test_rotary_positions_in_cross_attention(rng, mode, given):
    x, context = noise(rng, B, T, D), noise(rng, B, S, C)
    part = RotaryEmbedding(max_wavelength=20.0)
    layer = built(MultiHeadCrossAttention(H, head_dim=K, position=part), x.shape, context.shape)
    positions, context_positions = (np.tile(np.arange(n, dtype="int32"), (B, 1)) for n in (T, S))
    call = {}
    if given == "both":
        call["positions"] = positions = rng.integers(0, 40, (B, T)).astype("int32")
    if given != "none":
        call["context_positions"] = context_positions = rng.integers(0, 40, (B, S)).astype("int32")

    def run(x, context, *values):
        return layer(x, context, **dict(zip(call, values, strict=True)))

    frequencies = rp.rotary_frequencies(K, 20.0)
    expected = reference_composed.attention(
        x, context, context, cross_attention(layer), H,
        rotate=(rotate_rows(frequencies, positions), rotate_rows(frequencies, context_positions)),
    )  # fmt: skip
    assert_close(execute(mode, run, x, context, *call.values()), expected, FLOAT32)


def test_positions_in_cross_attention_stepped(rng):
    """Queries stand where the scope says, and the context's keys where they stood."""
    x, context = noise(rng, B, T, D), noise(rng, B, S, C)
    layer = MultiHeadCrossAttention(H, head_dim=K, position=RotaryEmbedding(max_wavelength=20.0))
    built(layer, x.shape, context.shape)
    whole = to_numpy(layer(x, context))
    cache, outputs = None, []
    for start, end in ((0, 3), (3, 4), (4, T)):
        with DecodingScope(cache, position=start, length=T) as scope:
            outputs.append(to_numpy(layer(x[:, start:end], context)))
        cache = scope.cache
    assert_close(np.concatenate(outputs, axis=1), whole, FLOAT32)


@pytest.mark.parametrize(
    ("name", "shape"), [("positions", (B, 1, 1, T)), ("context_positions", (B, T, 1, 2))]
)
def test_positions_of_the_wrong_rank_are_named(rng, name, shape):
    x, context = noise(rng, B, T, D), noise(rng, B, S, C)
    layer = MultiHeadCrossAttention(H, head_dim=K, position=RotaryEmbedding())
    message = rf"{name} must have shape \(T,\), \(B, T\) or \(B, T, C\) for T = .*, got "
    with pytest.raises(ValueError, match=message):
        layer(x, context, **{name: np.zeros(shape, "int32")})
    with pytest.raises(TypeError, match=f"{name} must be integers, got .*float32"):
        layer(x, context, **{name: np.zeros((B, T if name == "positions" else S), "float32")})
