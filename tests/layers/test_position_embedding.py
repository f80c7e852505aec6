import keras
import numpy as np
import pytest
from attention_features import built, randomize, stepped
from compare import assert_close, to_numpy
from execution import MODES, execute, gradients, saving, tensorflow_only
from keras import ops

from keras_tfm.layers import (
    DecodingScope,
    PositionEmbedding,
    TokenEmbedding,
    TransformerDecoderBlock,
    TransformerEncoderBlock,
)

# One sum of two float32, which eager, graph and XLA round alike.
EXACT = 0.0
# Float32 rounds at 6e-8; the same sums in another order, through some blocks.
FLOAT32 = 1e-5

B, T, D, LONGEST = 2, 5, 6, 11


@pytest.fixture
def x():
    return np.random.default_rng(7).normal(size=(B, T, D)).astype("float32")


@pytest.fixture
def layer():
    return built(PositionEmbedding(LONGEST), (None, None, D))


@pytest.mark.parametrize("mode", MODES)
def test_fault_01_03_adds_the_rows_of_the_table(layer, x, mode):
    expected = x + to_numpy(layer.positions)[:T].astype("float32")
    assert_close(execute(mode, layer, x), expected, EXACT)


@pytest.mark.parametrize("mode", MODES)
def test_lengths_may_be_unknown(layer, x, mode):
    inputs = keras.Input((None, D))
    outputs = layer(inputs)
    assert outputs.shape == (None, None, D)
    model = keras.Model(inputs, outputs)
    for length in (T, 2):
        assert_close(execute(mode, model, x[:, :length]), layer(x[:, :length]), EXACT)


@tensorflow_only
def test_fault_02_a_row_learns_from_its_position_alone(layer, x):
    weighting = np.random.default_rng(1).normal(size=x.shape).astype("float32")
    (of_table,), (of_x,) = gradients(
        lambda x: ops.sum(weighting * layer(x)), layer.trainable_variables, x
    )
    expected = np.zeros((LONGEST, D))
    expected[:T] = weighting.sum(axis=0)
    # A sum of two float32.
    assert_close(ops.convert_to_tensor(of_table), expected, 1e-6)
    assert_close(of_x, weighting, EXACT)


def test_starts_near_zero_as_in_bert():
    keras.utils.set_random_seed(5)
    layer = PositionEmbedding(512)
    layer.build((None, None, 64))
    # The deviation of 32,768 numbers is within 0.4 % of theirs, three times as wide in the tails.
    assert abs(to_numpy(layer.positions).std() / 0.02 - 1.0) < 0.015


def test_the_mask_is_kept(x):
    embedded = TokenEmbedding(13, D, mask_zero=True)(np.array([[1, 2, 0, 3, 0]] * B))
    y = PositionEmbedding(LONGEST)(embedded)
    np.testing.assert_array_equal(y._keras_mask, [[True, True, False, True, False]] * B)


def test_dropout_is_of_the_sum_in_training_only(x):
    layer = built(PositionEmbedding(LONGEST, dropout=0.5), x.shape)
    still = to_numpy(layer(x))
    assert_close(still, built(PositionEmbedding(LONGEST), x.shape)(x), EXACT)
    y = to_numpy(layer(x, training=True))
    dropped = y == 0.0
    assert 0 < dropped.sum() < y.size
    assert_close(y[~dropped], 2.0 * still[~dropped], EXACT)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_fault_01_half_precision(x, dtype):
    layer = built(PositionEmbedding(LONGEST, dtype=dtype), x.shape)
    y = layer(ops.cast(x, dtype.removeprefix("mixed_")))
    assert keras.backend.standardize_dtype(y.dtype) == dtype.removeprefix("mixed_")
    assert layer.positions.dtype == "float32"
    # Both terms and the sum are rounded: three times 2^-9 or 2^-12.
    tolerance = {"mixed_bfloat16": 6e-3, "mixed_float16": 8e-4}[dtype]
    assert_close(y, x + to_numpy(layer.positions)[:T], tolerance)


@pytest.mark.parametrize("shape", [(0, T, D), (B, 0, D), (1, 1, D), (B, LONGEST, D)])
def test_fault_23_empty_and_full_inputs(layer, shape):
    expected = np.broadcast_to(to_numpy(layer.positions)[: shape[1]], shape)
    assert_close(layer(np.zeros(shape, "float32")), expected, EXACT)


# Stepping


@pytest.mark.parametrize("steps", [[1] * 5, [2, 2, 1], [4, 1]])
@pytest.mark.parametrize("length", [T, LONGEST, 64])
def test_fault_19_stepped_equals_full(layer, x, steps, length):
    actual = stepped(lambda start, end: layer(x[:, start:end]), steps, length)
    assert_close(actual, layer(x), EXACT)


@pytest.mark.parametrize("mode", MODES)
def test_fault_19_a_position_may_be_a_tensor(layer, x, mode):
    def step(x, position):
        with DecodingScope({}, position=position, length=LONGEST):
            return layer(x)

    for start in (0, 3, LONGEST - T):
        expected = x + to_numpy(layer.positions)[start : start + T].astype("float32")
        assert_close(execute(mode, step, x, np.int32(start)), expected, EXACT)


@tensorflow_only
def test_fault_19_a_position_may_be_a_tensor_and_the_length_unknown(layer, x):
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec((None, None, D)), tf.TensorSpec((), "int32")])
    def step(x, position):
        with DecodingScope({}, position=position, length=LONGEST):
            return layer(x)

    expected = x + to_numpy(layer.positions)[3 : 3 + T].astype("float32")
    assert_close(step(x, 3), expected, EXACT)


SOURCE = np.array([[5, 6, 7, 8, 9, 1, 2], [4, 3, 0, 0, 0, 0, 0]])
TARGET = np.array([[3, 4, 5, 6, 7], [1, 2, 3, 0, 0]])


def encoder_decoder(source_length):
    """Learned positions on both sides, the source's table just long enough."""
    source = keras.Input((None,), dtype="int32", name="source")
    context = TokenEmbedding(13, D, mask_zero=True)(source)
    context = PositionEmbedding(source_length)(context)
    context = TransformerEncoderBlock(7, 2)(context)
    target = keras.Input((None,), dtype="int32", name="target")
    embedding = TokenEmbedding(13, D, mask_zero=True)
    x = PositionEmbedding(T)(embedding(target))
    x = TransformerDecoderBlock(7, 2)(x, context)
    return randomize(keras.Model([source, target], embedding(x, reverse=True)))


@pytest.mark.parametrize("length", [7, 9], ids=["full table", "longer table"])
def test_fault_19_an_encoder_of_its_own_is_no_obstacle(length):
    """Later steps run the encoder, eagerly, at the scope's position: nothing reads its output."""
    model = encoder_decoder(length)
    actual = stepped(lambda start, end: model([SOURCE, TARGET[:, start:end]]), [1] * 5)
    assert_close(actual, model([SOURCE, TARGET]), FLOAT32)


@pytest.mark.parametrize("mode", MODES)
def test_fault_19_an_encoder_of_its_own_is_no_obstacle_to_a_tensor(mode):
    model = encoder_decoder(7)
    source, target = SOURCE.astype("int32"), TARGET.astype("int32")
    with DecodingScope(length=T) as scope:
        outputs = [to_numpy(model([source, target[:, :1]]))]

    def step(cache, token, position):
        with DecodingScope(cache, position=position, length=T) as scope:
            logits = model([source, token])
        return logits, scope.cache

    cache = scope.cache
    for p in range(1, T):
        logits, cache = execute(mode, step, cache, target[:, p : p + 1], np.int32(p))
        outputs.append(to_numpy(logits))
    assert_close(np.concatenate(outputs, axis=1), model([SOURCE, TARGET]), FLOAT32)


# Errors


@pytest.mark.parametrize("length", [LONGEST + 1, 50])
def test_fault_22_a_longer_input_is_refused(length):
    layer = PositionEmbedding(LONGEST, name="learned")
    message = rf"learned: got {length} positions, the table holds max_length={LONGEST}"
    with pytest.raises(ValueError, match=message):
        layer(np.zeros((B, length, D), "float32"))


def test_fault_22_a_step_beyond_the_table_is_refused(layer, x):
    message = rf"got {LONGEST + 1} positions, the table holds max_length={LONGEST}"
    with (
        DecodingScope({}, position=LONGEST + 1 - T, length=64),
        pytest.raises(ValueError, match=message),
    ):
        layer(x)


@tensorflow_only
@pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])
def test_fault_22_a_longer_input_of_unknown_length_is_refused(layer, jit):
    """XLA clamps what is beyond a table: the last row would be repeated in silence."""
    import tensorflow as tf

    signature = [tf.TensorSpec((None, None, D))]
    run = tf.function(layer, input_signature=signature, jit_compile=jit, autograph=False)
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"{LONGEST}"):
        assert np.all(np.isfinite(run(np.zeros((B, LONGEST + 2, D), "float32"))))


@tensorflow_only
@pytest.mark.parametrize("mode", MODES)
def test_fault_22_a_step_beyond_the_table_is_never_a_wrong_row(layer, x, mode):
    """An error, or NaN where a compiled program can raise none; not the last row again."""
    import tensorflow as tf

    def step(x, position):
        with DecodingScope({}, position=position, length=64):
            return layer(x)

    try:
        y = execute(mode, step, x[:, :2], np.int32(LONGEST - 1))
    except (tf.errors.InvalidArgumentError, ValueError):
        return
    assert np.all(np.isnan(to_numpy(y)[:, 1]))


@pytest.mark.parametrize("max_length", [0, -1])
def test_an_impossible_length_is_refused(max_length):
    with pytest.raises(ValueError, match=f"max_length must be at least 1, got {max_length}"):
        PositionEmbedding(max_length)


@pytest.mark.parametrize("shape", [(B, T), (B, T, D, 1), (B, T, None)])
def test_fault_16_an_input_of_the_wrong_rank_is_named(shape):
    with pytest.raises(ValueError, match=r"PositionEmbedding expects \(B, T, D\), got shape"):
        PositionEmbedding(LONGEST).build(shape)


# Configuration


@saving
def test_fault_42_a_keras_file_holds_the_table(x, tmp_path):
    initializer = keras.initializers.RandomUniform(-0.5, 0.5, seed=3)
    layer = PositionEmbedding(LONGEST, initializer=initializer, dropout=0.3, name="learned")
    inputs = keras.Input((None, D))
    model = keras.Model(inputs, layer(inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    again = loaded.get_layer("learned")
    assert again.get_config() == layer.get_config()
    assert (again.max_length, again.dropout) == (LONGEST, 0.3)
    assert again.initializer.get_config() == initializer.get_config()
    assert_close(loaded(x), model(x), EXACT)
    assert [weight.path for weight in layer.weights] == ["learned/positions"]
