"""Dropout: what Keras's does, and that the hashed twin's bits are as good as random ones."""

import contextlib
import itertools

import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy
from execution import compiled, tensorflow_only

from keras_tfm.layers import (
    AttentionProbe,
    Dropout,
    MultiHeadSelfAttention,
    RelativePositionEmbedding,
    RotaryEmbedding,
    attention,
)
from keras_tfm.layers.dropout import DrawnDropout

SHAPE = (1000, 1000)
# A mean of a million draws of p = 0.1 has a deviation of 3e-4; correlations have 1e-3.
FOUR_DEVIATIONS = 4e-3


hashed_only = pytest.mark.skipif(
    keras.backend.backend() == "torch", reason="PyTorch's own dropout is seeded"
)


def dropped(seed, shape=SHAPE, rate=0.1):
    """Which values are dropped."""
    if keras.backend.backend() == "jax":
        from keras_tfm.layers.jax.hashed_dropout import hashed_dropout
    else:
        from keras_tfm.layers.tensorflow.hashed_dropout import hashed_dropout

    seed = keras.ops.convert_to_tensor(np.array(seed, "uint32"))
    return to_numpy(hashed_dropout(keras.ops.ones(shape), rate, seed)) == 0


@pytest.mark.parametrize("rate", [0.1, 0.37, 0.5, 0.9])
@pytest.mark.parametrize("mode", ["eager", pytest.param("graph", marks=tensorflow_only)])
def test_drops_at_the_rate_and_scales_the_rest(mode, rate):
    layer = Dropout(rate, seed=3)
    y = to_numpy(compiled(mode, lambda x: layer(x, training=True))(np.ones(SHAPE, "float32")))
    kept = y != 0
    np.testing.assert_allclose(y[kept], 1 / (1 - rate), rtol=1e-6)
    assert abs(kept.mean() - (1 - rate)) < 4 * np.sqrt(rate * (1 - rate) / kept.size)


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("mode", ["eager", pytest.param("graph", marks=tensorflow_only)])
def test_ends_of_the_rate_and_inference(mode, rate):
    x = np.ones((3, 5), "float32")
    layer = Dropout(rate, seed=3)
    np.testing.assert_array_equal(compiled(mode, layer)(x), x)
    if rate != 0.5:
        y = compiled(mode, lambda x: layer(x, training=True))(x)
        np.testing.assert_array_equal(y, x * (1 - rate))


@pytest.mark.parametrize("rate", [-0.1, 1.5])
def test_a_rate_outside_0_and_1_is_refused(rate):
    with pytest.raises(ValueError, match=f"dropout must be within 0 and 1, got {rate}"):
        Dropout(rate)


def test_a_noise_shape_is_keras_s_own():
    y = to_numpy(Dropout(0.5, noise_shape=(None, 1), seed=1)(np.ones((64, 7)), training=True))
    assert set(y.ravel().tolist()) == {0.0, 2.0}
    np.testing.assert_array_equal(y, np.repeat(y[:, :1], 7, axis=1))


# The hashed twin


@tensorflow_only
@pytest.mark.parametrize("mode", ["graph", "xla"])
def test_the_same_seed_drops_the_same(mode):
    run = Dropout(0.3).with_seed
    x, seed = np.ones((5, 7, 11), "float32"), keras.ops.convert_to_tensor([3, 5], "int64")
    twice = [to_numpy(compiled(mode, run)(x, seed)) for _ in range(2)]
    np.testing.assert_array_equal(*twice)
    assert np.any(twice[0] != compiled(mode, run)(x, seed + 1))
    layers = [Dropout(0.3, seed=9) for _ in range(2)]
    a, b = (compiled(mode, lambda x, layer=layer: layer(x, training=True)) for layer in layers)
    first, second = to_numpy(a(x)), to_numpy(a(x))
    assert np.any(first != second)
    np.testing.assert_array_equal(first, b(x))
    np.testing.assert_array_equal(second, b(x))


@tensorflow_only
def test_graph_and_xla_drop_the_same():
    x, seed = np.ones((5, 7, 11), "float32"), keras.ops.convert_to_tensor([3, 5], "int64")
    run = [compiled(mode, Dropout(0.3).with_seed) for mode in ("graph", "xla")]
    np.testing.assert_array_equal(run[0](x, seed), run[1](x, seed))


@tensorflow_only
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_the_gradient_is_dropped_where_the_value_was(dtype):
    import tensorflow as tf

    from keras_tfm.layers.tensorflow.hashed_dropout import hashed_dropout

    x = tf.cast(np.random.default_rng(0).normal(size=(13, 17)), dtype)

    @tf.function
    def run(x):
        with tf.GradientTape(persistent=True) as outer:
            outer.watch(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = hashed_dropout(x, 0.25, tf.constant([1, 2]))
                square = tf.reduce_sum(y * y)
            first = tape.gradient(square, x)
        return y, first, outer.gradient(first, x)

    y, first, second = (to_numpy(tf.cast(z, "float64")) for z in run(x))
    kept = y != 0
    assert 0 < kept.sum() < kept.size
    scale = float(tf.cast(1 / 0.75, dtype))
    # y = s x: dy^2/dx = 2 s^2 x, and once more 2 s^2; bfloat16 rounds at 4e-3, three times.
    tolerance = {"bfloat16": 2e-2, "float16": 3e-3}.get(dtype, 1e-6)
    exact = to_numpy(tf.cast(x, "float64"))
    np.testing.assert_allclose(first, 2 * scale**2 * exact * kept, rtol=tolerance)
    np.testing.assert_allclose(second, 2 * scale**2 * kept, rtol=tolerance)


@hashed_only
@pytest.mark.parametrize("lag", [1, 2, 3, 7, 16, 64, 1000, 1024, 2**16])
def test_neighbours_are_dropped_independently(lag):
    bits = dropped([3, 5]).ravel()
    assert abs(np.corrcoef(bits[lag:], bits[:-lag])[0, 1]) < FOUR_DEVIATIONS


@hashed_only
@pytest.mark.parametrize(
    "seed", [[3, 6], [4, 5], [4, 6], [5, 3], [0, 0], [0, 1], [2**32 - 1, 5], [3, 5 + 2**20]]
)
def test_seeds_are_independent(seed):
    a, b = dropped([3, 5]), dropped(seed)
    assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < FOUR_DEVIATIONS
    assert abs(b.mean() - 0.1) < 1.2e-3


@hashed_only
def test_rows_and_columns_are_dropped_as_often_as_chance_has_it():
    """Chi-square of the counts of 1,000 rows and columns: 1,000 +- 4 sqrt(2,000)."""
    bits = dropped([7, 1])
    for axis in (0, 1):
        counts = bits.sum(axis)
        chi_square = np.sum((counts - 100) ** 2 / 90)
        assert abs(chi_square - 1000) < 4 * np.sqrt(2000)


@hashed_only
def test_patterns_of_eight_are_as_frequent_as_chance_has_it():
    bits = dropped([1, 1], (1_000_000,), rate=0.5)
    patterns = np.bincount(np.packbits(bits), minlength=256)
    expected = bits.size / 8 / 256
    chi_square = np.sum((patterns - expected) ** 2 / expected)
    assert abs(chi_square - 255) < 4 * np.sqrt(2 * 255)


def test_steps_of_a_layer_are_independent():
    layer = Dropout(0.1, seed=0)
    mode = "graph" if keras.backend.backend() == "tensorflow" else "eager"
    step = compiled(mode, lambda x: layer(x, training=True))
    x = np.ones((300, 300), "float32")
    masks = np.stack([to_numpy(step(x)).ravel() == 0 for _ in range(6)])
    correlations = np.corrcoef(masks)[np.triu_indices(6, 1)]
    assert np.abs(correlations).max() < 4 / 300  # a deviation of 1/300


@tensorflow_only
def test_unknown_lengths_are_left_to_keras():
    import tensorflow as tf

    layer = Dropout(0.2, seed=3)
    run = compiled("graph", lambda x: layer(x, training=True))
    graphs = [
        run.get_concrete_function(tf.TensorSpec(shape)).graph.as_graph_def()
        for shape in ((None, 8), (None, None, 8))
    ]
    called = [any("PartitionedCall" in node.op for node in graph.node) for graph in graphs]
    assert called == [True, False]


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="the hashes of JAX")
def test_the_gradient_on_jax_is_dropped_where_the_value_was():
    """Forward-mode, reverse-mode and second derivatives, and values of any rank."""
    import jax

    run = Dropout(0.25).with_seed
    seed = keras.ops.convert_to_tensor(np.array([1, 2], "uint32"))
    for shape in ((), (17,), (3, 0), (2, 3, 5, 7)):
        x = keras.ops.convert_to_tensor(np.random.default_rng(0).normal(size=shape), "float32")
        kept = to_numpy(run(keras.ops.ones(shape), seed))
        square = jax.grad(lambda x: keras.ops.sum(run(x, seed) ** 2))
        assert_close(square(x), 2 * kept**2 * to_numpy(x), 1e-6)
        second = jax.jvp(square, (x,), (keras.ops.ones(shape),))[1]
        assert_close(second, 2 * kept**2, 1e-6)


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="PyTorch's generators")
def test_a_seed_leaves_pytorch_s_generator_as_it_is():
    import torch

    x = np.ones((30, 30), "float32")
    before = torch.get_rng_state()
    first, second = (to_numpy(Dropout(0.5, seed=3)(x, training=True)) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert torch.equal(before, torch.get_rng_state())
    layer = Dropout(0.5)
    assert np.any(to_numpy(layer(x, training=True)) != to_numpy(layer(x, training=True)))
    assert not torch.equal(before, torch.get_rng_state())


# The softmax of attention, dropout and the product with the values as one


# Each rounds what it adds up: 2^-24, 2^-11 and 2^-8, over a dozen numbers, twice.
TOLERANCES = {"float32": 2e-6, "float64": 2e-6, "float16": 5e-3, "bfloat16": 4e-2}
JOINED = [("graph", 4, "float32"), ("graph", 2, "bfloat16"), ("xla", 2, "float16")]  # by default


@tensorflow_only
@pytest.mark.parametrize(
    ("mode", "key_heads", "dtype"),
    [
        pytest.param(*x, marks=[pytest.mark.slow] * (x not in JOINED))
        for x in itertools.product(["graph", "xla"], [4, 2], TOLERANCES)
    ],
)
def test_joined_gradients_are_those_of_the_parts(mode, key_heads, dtype):
    """The second derivatives as well, and where a query has no key."""
    import tensorflow as tf

    generator = np.random.default_rng(0)
    shapes = (2, 4, 5, 6), (2, key_heads, 7, 6), (2, key_heads, 7, 3)
    inputs = [tf.cast(generator.normal(size=shape), dtype) for shape in shapes]
    mask = generator.random((2, 1, 5, 7)) < 0.7
    mask[0, 0, 2] = False
    drawn = DrawnDropout(Dropout(0.3), tf.constant([3, 5], "int64"))

    def run(dropout, *inputs):
        with tf.GradientTape() as outer:
            outer.watch(inputs)
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                y = attention(*inputs, mask=mask, dropout=dropout)
                loss = tf.reduce_sum(tf.sin(3 * tf.cast(y, "float32")))
            first = tape.gradient(loss, inputs)
            norm = tf.add_n([tf.reduce_sum(tf.cast(x, "float32") ** 2) for x in first])
        return y, *first, *outer.gradient(norm, inputs)

    joined = compiled(mode, lambda *x: run(drawn, *x))(*inputs)
    apart = compiled(mode, lambda *x: run(lambda weights: drawn(weights), *x))(*inputs)
    assert np.any(to_numpy(joined[1]))
    for actual, expected in zip(joined, apart, strict=True):
        assert actual.dtype == dtype
        assert_close(actual, to_numpy(expected), TOLERANCES[dtype])


@tensorflow_only
@pytest.mark.parametrize(
    ("length", "position", "probed", "is_joined"),
    [
        (6, None, False, True),
        (6, RotaryEmbedding, False, True),
        (6, lambda: RelativePositionEmbedding(3), False, False),  # which reads the weights
        (6, None, True, False),  # and so does a probe
        (None, None, False, False),
    ],
)
def test_attention_in_training_is_joined_where_nobody_reads_its_weights(
    monkeypatch, length, position, probed, is_joined
):
    import tensorflow as tf

    layer = MultiHeadSelfAttention(2, dropout=0.4, position=position and position())
    x = np.random.default_rng(1).normal(size=(3, 6, 8)).astype("float32")
    layer(x)
    probe = AttentionProbe() if probed else contextlib.nullcontext()
    calls = []
    whole = DrawnDropout.weighted_sum
    monkeypatch.setattr(
        DrawnDropout, "weighted_sum", lambda *inputs: calls.append(1) or whole(*inputs)
    )

    def run():
        layer.dropout_layer.seed_generator.state.assign([7, 0])

        @tf.function(input_signature=[tf.TensorSpec((None, length, 8))], autograph=False)
        def gradients(x):
            with tf.GradientTape() as tape, probe:
                tape.watch(x)
                loss = tf.reduce_sum(layer(x, training=True) ** 2)
            return tape.gradient(loss, [x, *[v.value for v in layer.trainable_variables]])

        return gradients(x)

    actual = run()
    assert bool(calls) == is_joined
    monkeypatch.setattr(DrawnDropout, "is_joined", lambda *_: False)
    for one, other in zip(actual, run(), strict=True):
        assert_close(one, to_numpy(other), 1e-5)
