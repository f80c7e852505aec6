"""Mamba-2, beside NumPy in float64: token by token, and in chunks."""

import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy
from execution import compiled, gradients, tensorflow_only
from keras import ops
from keras_weights import randomize

from keras_tfm.layers import DecodingScope, Mamba2
from keras_tfm.layers.recurrent.chunks import decays_between
from keras_tfm.layers.recurrent.state_space import CHUNK, scan_state_space

# Float32 rounds at 6e-8: sums of some 30 products, in another order.
FLOAT32 = 1e-5
B, T, D, H, P, N, G, SIZE = 2, 37, 6, 4, 3, 5, 2, 3
X = np.random.default_rng(1).normal(size=(B, T, D)).astype("float32")
MASK = np.arange(T) >= np.array([[0], [4]])
LENGTHS = [2, CHUNK - 1, CHUNK, CHUNK + 1, 20 * CHUNK + 3]


def drawn(length, kind, seed=0):
    """Queries, keys, values and decays of H heads in one group, and a state."""
    rng = np.random.default_rng(seed)
    query, key = rng.normal(size=(2, B, length, N))
    value, decay = rng.normal(size=(B, length, H * P)), -np.abs(rng.normal(size=(B, length, H)))
    if kind == "forgets":
        decay = 90 * decay
    elif kind == "forgets at times":
        decay *= np.where(np.arange(length)[:, None] % 3, 1e-2, 1e3)
    elif kind == "remembers":
        decay = 1e-4 * decay
    return query, key, value, decay, rng.normal(size=(B, N, H * P))


KINDS = ["random", "forgets", "forgets at times", "remembers"]


def recurrent(query, key, value, decay, state):
    """The state space, a token at a time."""
    outputs, state = [], state.astype("float64")
    for t in range(query.shape[1]):
        kept = np.repeat(np.exp(decay[:, t]), P, axis=-1)
        state = kept[:, None] * state + key[:, t, :, None] * value[:, t, None]
        outputs.append(np.einsum("rn,rnv->rv", query[:, t], state))
    return np.stack(outputs, 1), state


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", LENGTHS)
def test_chunks_are_the_recurrence(length, kind):
    given = drawn(length, kind)
    y, state = recurrent(*given)
    found = scan_state_space(*(ops.convert_to_tensor(x.astype("float32")) for x in given))
    assert_close(found[0], y, FLOAT32)
    assert_close(found[1], state, FLOAT32)


def test_decays_after_a_large_one_are_exact():
    """Differences of sums of 10^4 would round at 10^-3."""
    decay = np.random.default_rng(5).uniform(-0.2, 0.0, size=(3, 40)).astype("float32")
    decay[:, ::7] = -2e3
    expected = np.zeros((3, 40, 40))
    for i in range(40):
        for j in range(i + 1):
            expected[:, i, j] = np.exp(decay[:, j + 1 : i + 1].astype("float64").sum(-1))
    found = decays_between(ops.convert_to_tensor(decay))
    np.testing.assert_allclose(to_numpy(found), expected, rtol=3e-6, atol=1e-30)


@tensorflow_only
@pytest.mark.parametrize("length", [5, CHUNK + 3])
def test_gradients_of_chunks_are_those_of_the_recurrence(length):
    given = drawn(length, "random")
    weights = np.random.default_rng(3).normal(size=(B, length, H * P))

    def loss(whole, *given):
        if whole:
            y, state = scan_state_space(*given)
        else:
            *given, state = given
            parts = []
            for t in range(length):
                y, state = scan_state_space(*(x[:, t : t + 1] for x in given), state)
                parts.append(y)
            y = ops.concatenate(parts, axis=1)
        return ops.sum(y * weights) + ops.sum(state * state)

    _, found = gradients(lambda *x: loss(True, *x), [], *given)
    _, expected = gradients(lambda *x: loss(False, *x), [], *given)
    for actual, wanted in zip(found, expected, strict=True):
        assert_close(actual, wanted, 1e-10)


def layer_of(**options):
    layer = Mamba2(H, P, N, num_groups=G, kernel_size=SIZE, epsilon=1e-3, **options)
    layer(X)
    return randomize(layer)


def silu(x):
    return x / (1 + np.exp(-x))


def reference(layer, x, mask=None):
    """The layer's equations, a token at a time, for each head alone."""
    values = {x.path.split("/", 1)[1]: to_numpy(x).astype("float64") for x in layer.weights}
    x = x.astype("float64") @ values["input_projection/kernel"]
    x = x + values.get("input_projection/bias", 0.0)
    if layer.projection_scales is not None:
        widths = [H * P, H * P, G * N, G * N, H]
        x = x * np.repeat(layer.projection_scales, widths)
    gate, inner, steps = np.split(x, [H * P, 2 * H * P + 2 * G * N], axis=-1)
    inner = inner if mask is None else np.where(mask[..., None], inner, 0)
    mixed = np.zeros_like(inner) + values.get("bias", 0.0)
    for t in range(x.shape[1]):
        for j in range(min(SIZE, t + 1)):
            mixed[:, t] += values["kernel"][SIZE - 1 - j, 0] * inner[:, t - j]
    value, key, query = np.split(silu(mixed), [H * P, H * P + G * N], axis=-1)
    steps = np.log1p(np.exp(steps + values["time_step_bias"]))
    if layer.time_step_limit is not None:
        steps = np.clip(steps, *layer.time_step_limit)
    if mask is not None:
        steps = steps * mask[..., None]
    heads = []
    for h in range(H):
        group = np.s_[..., h // (H // G) * N : (h // (H // G) + 1) * N]
        v, step = value[..., h * P : (h + 1) * P], steps[..., h : h + 1]
        decay = -np.exp(values["log_rate"][h]) * step
        y, _ = recurrent(query[group], key[group], step * v, decay, np.zeros((B, N, P)))
        heads.append(y + values["skip"][h] * v)
    y = np.concatenate(heads, -1)
    y = y if layer.norm == "before_gate" else y * silu(gate)
    if layer.norm is not None:
        y = y.reshape(B, -1, G, H * P // G)
        y = y / np.sqrt((y * y).mean(-1, keepdims=True) + 1e-3)
        y = y.reshape(B, -1, H * P) * values["scale"]
    y = y * silu(gate) if layer.norm == "before_gate" else y
    return y @ values["output_projection/kernel"] + values.get("output_projection/bias", 0.0)


@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "masked"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_bias": True, "convolution_bias": False, "time_step_limit": (0.4, 0.8)},
        {"norm": "before_gate", "projection_scales": (0.6, 1.3, 0.7, 1.2, 0.8)},
        {"norm": None, "use_bias": ["output_projection"]},
    ],
    ids=["default", "other options", "norm before the gate, scales", "no norm"],
)
def test_the_equations(options, mask):
    layer = layer_of(**options)
    assert_close(layer(X, mask=mask), reference(layer, X, mask), FLOAT32)


@pytest.mark.parametrize("sizes", [[1] * T, [3, 1, 33], [35, 2]])
def test_stepped_equals_full(sizes):
    layer, cache, position, parts = layer_of(), None, 0, []
    for size in sizes:
        with DecodingScope(cache, position=position, length=T) as scope:
            parts.append(to_numpy(layer(X[:, position : position + size])))
        cache, position = scope.cache, position + size
    shapes = [tuple(x.shape) for entry in cache.values() for x in entry.values()]
    assert shapes == [(B, SIZE - 1, H * P + 2 * G * N), (B, G, N, H * P // G)]
    assert_close(np.concatenate(parts, axis=1), layer(X), FLOAT32)


def test_a_row_is_the_same_behind_padding():
    layer = layer_of(use_bias=True, time_step_limit=(0.3, 2.0))
    padded = layer(X, mask=MASK)
    assert_close(padded[1:, 4:], layer(X[1:, 4:]), FLOAT32)
    broken = np.where(MASK[..., None], X, np.nan).astype("float32")
    assert_close(layer(broken, mask=MASK)[1:, 4:], padded[1:, 4:], FLOAT32)


@pytest.mark.default
@tensorflow_only
def test_memory_grows_with_the_tokens():
    """No tensor of the graph, forward or backward, has a number of elements for each pair."""
    import tensorflow as tf

    layer, length = layer_of(), 16 * CHUNK

    def train(x):
        with tf.GradientTape() as tape:
            loss = ops.sum(ops.square(layer(x)))
        return tape.gradient(loss, layer.trainable_variables)

    graph = tf.function(train).get_concrete_function(tf.TensorSpec((1, length, D))).graph
    sizes = [x.shape.num_elements() for op in graph.get_operations() for x in op.outputs]
    assert max(x for x in sizes if x) == length * CHUNK * H


@tensorflow_only
@pytest.mark.parametrize("mode", ["graph", "xla"])
def test_many_chunks_are_a_loop(mode):
    given = [ops.convert_to_tensor(x.astype("float32")) for x in drawn(LENGTHS[-1], "random")]
    y, state = compiled(mode, scan_state_space)(*given)
    expected = scan_state_space(*given)
    assert_close(y, expected[0], FLOAT32)
    assert_close(state, expected[1], FLOAT32)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_the_state_of_long_rows_is_in_float32(policy):
    """In half precision a state would stop to grow, and small decays would be lost."""
    x = np.random.default_rng(2).normal(size=(1, 500, D)).astype("float32")
    layer = layer_of()
    half = Mamba2.from_config({**layer.get_config(), "dtype": policy})
    half.build(x.shape)
    half.set_weights(layer.get_weights())
    expected = to_numpy(layer(x))
    found = to_numpy(ops.cast(half(x), "float32"))
    assert np.abs(found - expected)[:, -50:].max() < 0.03 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Mamba2(0, 3, 5), ValueError, "num_heads must be at least 1, got 0"),
        (lambda: Mamba2(2, 3, "5"), TypeError, "state_dim must be an integer, got '5'"),
        (
            lambda: Mamba2(3, 4, 5, num_groups=2),
            ValueError,
            r"num_groups \(2\) must divide num_heads \(3\)",
        ),
        (lambda: Mamba2(2, 3, 5, kernel_size=1), ValueError, "kernel_size must be at least 2"),
        (
            lambda: Mamba2(2, 3, 5, time_step_limit=0.1),
            TypeError,
            "time_step_limit must be a pair of numbers, got 0.1",
        ),
        (
            lambda: Mamba2(2, 3, 5, time_step_limit=(0.2, 0.1)),
            ValueError,
            r"time_step_limit must be 0 <= least <= largest, got \(0.2, 0.1\)",
        ),
        (
            lambda: Mamba2(2, 3, 5, norm="first"),
            ValueError,
            r"norm must be one of \('after_gate', 'before_gate', None\), got 'first'",
        ),
        (
            lambda: Mamba2(2, 3, 5, projection_scales=[1.0]),
            ValueError,
            r"projection_scales must have 5 numbers, got \[1.0\]",
        ),
        (
            lambda: Mamba2(2, 3, 5, use_bias=["output"]),
            ValueError,
            "use_bias must be True, False or a list of",
        ),
        (
            lambda: Mamba2(2, 3, 5, name="net")(keras.Input((None, None, 3))),
            ValueError,
            r"net: x must have shape \(B, T, D\)",
        ),
    ],
)
def test_wrong_arguments(make, error, message):
    with pytest.raises(error, match=message):
        make()
