"""Gated DeltaNet, beside NumPy in float64: token by token, and in chunks."""

import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy
from execution import compiled, gradients, tensorflow_only
from keras import ops
from keras_weights import randomize

from keras_tfm.layers import DecodingScope, GatedDeltaNet
from keras_tfm.layers.recurrent.delta_rule import CHUNK, gated_delta_rule, inverse

# Float32 rounds at 6e-8: sums of some 30 products, in another order.
FLOAT32 = 1e-5
B, T, D, H, K, V, N = 2, 37, 6, 4, 3, 5, 3
X = np.random.default_rng(1).normal(size=(B, T, D)).astype("float32")
MASK = np.arange(T) >= np.array([[0], [4]])
LENGTHS = [2, CHUNK - 1, CHUNK, CHUNK + 1, 20 * CHUNK + 3]


def drawn(length, kind, seed=0):
    """Queries, keys, values, decays, beta and a state."""
    rng = np.random.default_rng(seed)
    q, k = rng.normal(size=(2, B, length, K))
    decay, beta = -np.abs(rng.normal(size=(2, B, length)))
    if kind == "equal keys":  # nearly no decay: the hardest system to solve
        k, decay, beta = np.repeat(k[:, :1], length, 1), 1e-3 * decay, 0 * beta + 7.0
    elif kind == "forgets":
        decay = 90 * decay
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    values, state = rng.normal(size=(B, length, V)), rng.normal(size=(B, K, V))
    return q, k, values, decay, 1 / (1 + np.exp(-beta)), state


def recurrent(q, k, v, decay, beta, state):
    """The gated delta rule, a token at a time."""
    outputs, state = [], state.astype("float64")
    for t in range(q.shape[1]):
        state = np.exp(decay[:, t])[:, None, None] * state
        change = beta[:, t, None] * (v[:, t] - np.einsum("rk,rkv->rv", k[:, t], state))
        state = state + k[:, t, :, None] * change[:, None]
        outputs.append(np.einsum("rk,rkv->rv", q[:, t], state))
    return np.stack(outputs, 1), state


def in_one_chunk(q, k, v, decay, beta, state):
    """The same for all tokens at once, by a triangular system."""
    total = np.cumsum(decay, 1)
    between = np.tril(np.exp(total[:, :, None] - total[:, None]))
    system = np.tril(beta[..., None] * between * np.einsum("rik,rjk->rij", k, k), -1)
    kept = np.exp(total)[..., None]
    right = beta[..., None] * (v - kept * np.einsum("rtk,rkv->rtv", k, state))
    change = np.linalg.solve(np.eye(q.shape[1]) + system, right)
    scores = between * np.einsum("rik,rjk->rij", q, k)
    y = kept * np.einsum("rtk,rkv->rtv", q, state) + np.einsum("rij,rjv->riv", scores, change)
    written = np.exp(total[:, -1:] - total)[..., None] * k
    last = np.exp(total[:, -1])[:, None, None]
    return y, last * state + np.einsum("rtk,rtv->rkv", written, change)


@pytest.mark.parametrize("kind", ["random", "equal keys", "forgets"])
@pytest.mark.parametrize("length", LENGTHS)
def test_chunks_are_the_recurrence(length, kind):
    given = drawn(length, kind)
    y, state = recurrent(*given)
    if length <= CHUNK and kind != "forgets":
        for actual, expected in zip(in_one_chunk(*given), (y, state), strict=True):
            assert_close(actual, expected, 1e-12)
    found = gated_delta_rule(*(ops.convert_to_tensor(x.astype("float32")) for x in given))
    assert_close(found[0], y, FLOAT32)
    assert_close(found[1], state, FLOAT32)


@pytest.mark.parametrize("count", [2, 5, 16, 27, 64])
def test_the_inverse_of_a_triangle(count):
    weights = np.random.default_rng(2).uniform(-1, 1, size=(3, count, count)) / 2
    expected = np.linalg.inv(np.eye(count) + np.tril(weights, -1))
    assert_close(inverse(ops.convert_to_tensor(weights.astype("float32"))), expected, FLOAT32)
    equal = inverse(ops.ones((1, count, count), "float32"))  # 1 and -1 beside it
    np.testing.assert_array_equal(to_numpy(equal)[0], np.eye(count) - np.eye(count, k=-1))


@tensorflow_only
@pytest.mark.parametrize("length", [5, CHUNK + 3])
def test_gradients_of_chunks_are_those_of_the_recurrence(length):
    given = drawn(length, "random")
    weights = np.random.default_rng(3).normal(size=(B, length, V))

    def loss(whole, *given):
        if whole:
            y, state = gated_delta_rule(*given)
        else:
            *given, state = given
            parts = []
            for t in range(length):
                y, state = gated_delta_rule(*(x[:, t : t + 1] for x in given), state)
                parts.append(y)
            y = ops.concatenate(parts, axis=1)
        return ops.sum(y * weights) + ops.sum(state * state)

    _, found = gradients(lambda *x: loss(True, *x), [], *given)
    _, expected = gradients(lambda *x: loss(False, *x), [], *given)
    for actual, wanted in zip(found, expected, strict=True):
        assert_close(actual, wanted, 1e-10)


def layer_of(**options):
    layer = GatedDeltaNet(H, K, V, num_key_heads=2, kernel_size=N, epsilon=1e-3, **options)
    layer(X)
    return randomize(layer)


def silu(x):
    return x / (1 + np.exp(-x))


def reference(layer, x, mask=None):
    """The layer's equations, a token at a time."""
    values = {name.path.split("/", 1)[1]: to_numpy(name) for name in layer.weights}
    x = x.astype("float64")
    inner = x @ values["query_key_value/kernel"]
    inner = inner if mask is None else np.where(mask[..., None], inner, 0)
    mixed = np.zeros_like(inner)
    for t in range(x.shape[1]):
        for j in range(min(N, t + 1)):
            mixed[:, t] += values["kernel"][N - 1 - j, 0] * inner[:, t - j]
    q, k, v = np.split(silu(mixed), [2 * K, 4 * K], axis=-1)
    q, k = (np.repeat(y.reshape(B, -1, 2, K), 2, axis=2) for y in (q, k))
    q, k = (y / np.sqrt((y * y).sum(-1, keepdims=True) + 1e-6) for y in (q, k))
    beta = 1 / (1 + np.exp(-x @ values["beta/kernel"]))
    decay = np.log1p(np.exp(x @ values["decay/kernel"] + values["bias"]))
    decay = -np.exp(values["log_rate"]) * decay
    if mask is not None:
        beta, decay = beta * mask[..., None], decay * mask[..., None]
    heads = []
    for h in range(H):
        given = (q[:, :, h] / np.sqrt(K), k[:, :, h], v.reshape(B, -1, H, V)[:, :, h])
        y, _ = recurrent(*given, decay[..., h], beta[..., h], np.zeros((B, K, V)))
        heads.append(y)
    y = np.stack(heads, 2)
    y = y / np.sqrt((y * y).mean(-1, keepdims=True) + 1e-3) * values["norm/scale"]
    y = y.reshape(B, -1, H * V) * silu(x @ values["gate/kernel"])
    return y @ values["output_projection/kernel"]


@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "masked"])
def test_the_equations(mask):
    layer = layer_of()
    assert_close(layer(X, mask=mask), reference(layer, X, mask), FLOAT32)


@pytest.mark.parametrize("sizes", [[1] * T, [3, 1, 33], [35, 2]])
def test_stepped_equals_full(sizes):
    layer, cache, position, parts = layer_of(), None, 0, []
    for size in sizes:
        with DecodingScope(cache, position=position, length=T) as scope:
            parts.append(to_numpy(layer(X[:, position : position + size])))
        cache, position = scope.cache, position + size
    shapes = [tuple(x.shape) for entry in cache.values() for x in entry.values()]
    assert shapes == [(B, N - 1, 4 * K + H * V), (B, H, K, V)]
    assert_close(np.concatenate(parts, axis=1), layer(X), FLOAT32)


@tensorflow_only
def test_a_file_keeps_the_epsilon_of_short_queries_and_keys(tmp_path):
    """Of a sum of squares and an epsilon, LiteRT's converter leaves out the epsilon."""
    from keras_tfm.export import export_tflite

    x = keras.Input((5, 12), name="x")
    layer = GatedDeltaNet(4, head_dim=3, num_key_heads=2)
    model = randomize(keras.Model(x, layer(x)))
    layer.query_key_value.kernel.assign(1e-3 * layer.query_key_value.kernel)
    report = export_tflite(model, tmp_path / "x.tflite")
    assert report.verification.checks[0].relative_error < 1e-5


def test_a_row_is_the_same_behind_padding():
    layer = layer_of()
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
    y, state = compiled(mode, gated_delta_rule)(*given)
    expected = gated_delta_rule(*given)
    assert_close(y, expected[0], FLOAT32)
    assert_close(state, expected[1], FLOAT32)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: GatedDeltaNet(0, 3), ValueError, "num_heads must be at least 1, got 0"),
        (lambda: GatedDeltaNet(2, "3"), TypeError, "head_dim must be an integer, got '3'"),
        (
            lambda: GatedDeltaNet(3, 4, num_key_heads=2),
            ValueError,
            r"num_key_heads \(2\) must divide num_heads \(3\)",
        ),
        (
            lambda: GatedDeltaNet(2, 3, kernel_size=1),
            ValueError,
            "kernel_size must be at least 2, got 1",
        ),
        (
            lambda: GatedDeltaNet(2, 3, name="net")(keras.Input((None, None, 3))),
            ValueError,
            r"net: x must have shape \(B, T, D\)",
        ),
    ],
)
def test_wrong_arguments(make, error, message):
    with pytest.raises(error, match=message):
        make()
