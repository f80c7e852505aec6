import keras
import numpy as np
import pytest
from attention_features import built, randomize, stepped
from compare import assert_close, to_numpy
from execution import MODES, compiled, execute, gradients, saving, tensorflow_only
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
def test_adds_the_rows_of_the_table(layer, x, mode):
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
def test_a_row_learns_from_its_position_alone(layer, x):
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
def test_half_precision(x, dtype):
    layer = built(PositionEmbedding(LONGEST, dtype=dtype), x.shape)
    y = layer(ops.cast(x, dtype.removeprefix("mixed_")))
    assert keras.backend.standardize_dtype(y.dtype) == dtype.removeprefix("mixed_")
    assert layer.positions.dtype == "float32"
    # Both terms and the sum are rounded: three times 2^-9 or 2^-12.
    tolerance = {"mixed_bfloat16": 6e-3, "mixed_float16": 8e-4}[dtype]
    assert_close(y, x + to_numpy(layer.positions)[:T], tolerance)


@pytest.mark.parametrize("shape", [(0, T, D), (B, 0, D), (1, 1, D), (B, LONGEST, D)])
def test_empty_and_full_inputs(layer, shape):
    expected = np.broadcast_to(to_numpy(layer.positions)[: shape[1]], shape)
    assert_close(layer(np.zeros(shape, "float32")), expected, EXACT)


# Stepping


@pytest.mark.parametrize("steps", [[1] * 5, [2, 2, 1], [4, 1]])
@pytest.mark.parametrize("length", [T, LONGEST, 64])
def test_stepped_equals_full(layer, x, steps, length):
    actual = stepped(lambda start, end: layer(x[:, start:end]), steps, length)
    assert_close(actual, layer(x), EXACT)


@pytest.mark.parametrize("mode", MODES)
def test_a_position_may_be_a_tensor(layer, x, mode):
    def step(x, position):
        with DecodingScope({}, position=position, length=LONGEST):
            return layer(x)

    for start in (0, 3, LONGEST - T):
        expected = x + to_numpy(layer.positions)[start : start + T].astype("float32")
        assert_close(execute(mode, step, x, np.int32(start)), expected, EXACT)


@tensorflow_only
def test_a_position_may_be_a_tensor_and_the_length_unknown(layer, x):
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec((None, None, D)), tf.TensorSpec((), "int32")])
    def step(x, position):
        with DecodingScope({}, position=position, length=LONGEST):
            return layer(x)

    expected = x + to_numpy(layer.positions)[3 : 3 + T].astype("float32")
    assert_close(step(x, 3), expected, EXACT)


S = 7
SOURCE = np.random.default_rng(3).normal(size=(B, S, D)).astype("float32")


def encoder_and_decoder(source_length):
    """Learned positions on both sides; features rather than ids."""
    source, target = keras.Input((None, D), name="source"), keras.Input((None, D), name="target")
    context = keras.Input((None, D), name="context")
    encoded = TransformerEncoderBlock(13, 2)(PositionEmbedding(source_length)(source))
    y = TransformerDecoderBlock(13, 2)(PositionEmbedding(T)(target), context)
    return randomize(keras.Model(source, encoded)), randomize(keras.Model([target, context], y))


@pytest.mark.parametrize("length", [S, S + 2], ids=["full table", "longer table"])
@pytest.mark.parametrize("mode", MODES)
def test_a_decoder_beside_a_longer_encoder_stepped(x, length, mode):
    """The encoder is called once, outside: its table is longer than the steps' caches."""
    encoder, decoder = encoder_and_decoder(length)
    context = to_numpy(encoder(SOURCE)).astype("float32")
    with DecodingScope(length=T) as scope:
        outputs = [to_numpy(decoder([x[:, :1], context]))]

    def step(cache, context, token, position):
        with DecodingScope(cache, position=position, length=T) as scope:
            y = decoder([token, context])
        return y, scope.cache

    step, cache = compiled(mode, step), scope.cache
    for p in range(1, T):
        arguments = (context, x[:, p : p + 1], np.int32(p))
        y, cache = step(cache, *(ops.convert_to_tensor(a) for a in arguments))
        outputs.append(to_numpy(y))
    assert_close(np.concatenate(outputs, axis=1), decoder([x, context]), FLOAT32)


# Positions that are given

# As text.PackedBatches numbers them: two examples a row, and padding.
PACKED = np.array([[0, 1, 2, 0, 1], [0, 1, 0, 0, 0]], "int32")


@pytest.mark.parametrize("mode", MODES)
def test_packed_rows_get_the_positions_of_their_examples(layer, x, mode):
    expected = x + to_numpy(layer.positions)[PACKED].astype("float32")
    assert_close(execute(mode, layer, x, PACKED), expected, EXACT)
    one = x + to_numpy(layer.positions)[PACKED[0]].astype("float32")
    assert_close(execute(mode, layer, x, PACKED[0]), one, EXACT)


def test_positions_may_be_an_input_of_a_model(layer, x):
    inputs, places = keras.Input((None, D)), keras.Input((None,), dtype="int32")
    model = keras.Model([inputs, places], layer(inputs, places))
    assert_close(model([x, PACKED]), layer(x, PACKED), EXACT)


@pytest.mark.parametrize("shape", [(), (B, T + 1), (B + 1, T), (B, T, 1), (T + 1,)])
def test_positions_of_another_shape_are_named(layer, x, shape):
    message = r"positions must have shape \(T,\) or \(B, T\) for T = 5, got \("
    with pytest.raises(ValueError, match=message):
        layer(x, np.zeros(shape, "int32"))


def test_positions_that_are_no_integers_are_refused(layer, x):
    with pytest.raises(TypeError, match=r"positions must be integers, got .*float32"):
        layer(x, PACKED.astype("float32"))


# Errors


@pytest.mark.parametrize("length", [LONGEST + 1, 50])
def test_a_longer_input_is_refused(length):
    layer = PositionEmbedding(LONGEST, name="learned")
    message = rf"learned: got {length} positions, the table holds max_length={LONGEST}"
    with pytest.raises(ValueError, match=message):
        layer(np.zeros((B, length, D), "float32"))


def refused_or_nan(function, *arguments):
    """Whether it raises, or gives NaN where a compiled program cannot raise: no wrong rows."""
    import tensorflow as tf

    try:
        return bool(np.all(np.isnan(to_numpy(function(*arguments)))))
    except tf.errors.InvalidArgumentError:
        return True
    except ValueError as error:
        return str(LONGEST) in str(error)


@tensorflow_only
@pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])
def test_beyond_the_table_no_row_is_repeated(layer, jit):
    """XLA clamps what is beyond a table: the last row would be added in silence."""
    import tensorflow as tf

    signature = [tf.TensorSpec((None, None, D))]
    run = tf.function(layer, input_signature=signature, jit_compile=jit, autograph=False)
    x = np.zeros((B, LONGEST + 2, D), "float32")
    assert refused_or_nan(lambda: run(x)[:, LONGEST:])


@tensorflow_only
@pytest.mark.parametrize("mode", ["integer", *MODES])
def test_a_step_beyond_the_table_is_never_a_wrong_row(layer, x, mode):
    def step(x, position):
        with DecodingScope({}, position=position, length=64):
            return layer(x)

    if mode == "integer":
        assert refused_or_nan(lambda: step(x[:, :2], LONGEST - 1)[:, 1:])
    else:
        assert refused_or_nan(lambda: execute(mode, step, x[:, :2], np.int32(LONGEST - 1))[:, 1:])


@pytest.mark.parametrize("max_length", [0, -1])
def test_an_impossible_length_is_refused(max_length):
    with pytest.raises(ValueError, match=f"max_length must be at least 1, got {max_length}"):
        PositionEmbedding(max_length)


@pytest.mark.parametrize("shape", [(B, T), (B, T, None)])
def test_an_input_of_the_wrong_rank_is_named(shape):
    with pytest.raises(
        ValueError, match=r"inputs must have shape \(B, T, D\) with D known, got \("
    ):
        PositionEmbedding(LONGEST).build(shape)


# Configuration


@saving
def test_a_keras_file_holds_the_table(x, tmp_path):
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


@tensorflow_only
def test_a_position_before_the_table_is_no_other_row():
    """In a graph; an eager call is refused."""
    layer = PositionEmbedding(5)
    y = to_numpy(execute("graph", layer, np.zeros((1, 2, 3), "float32"), np.array([[-1, 4]])))
    assert np.isnan(y[0, 0]).all()
    assert_close(y[0, 1], to_numpy(layer.positions)[4], 0.0)


@pytest.mark.parametrize("length", [2, 5])
def test_rows_before_that_of_position_0_are_unused(length):
    """As in RoBERTa's checkpoints."""
    layer = PositionEmbedding(5, offset=2)
    x = np.zeros((1, length, 3), "float32")
    expected = to_numpy(layer(x))
    assert layer.positions.shape == (7, 3)
    assert_close(expected[0], to_numpy(layer.positions)[2 : 2 + length], 0.0)
    assert_close(layer(x, np.arange(length)), expected, 0.0)
    assert type(layer).from_config(layer.get_config()).offset == 2
    with pytest.raises(ValueError, match="offset must be at least 0, got -1"):
        PositionEmbedding(5, offset=-1)


@pytest.mark.parametrize("positions", [[0, LONGEST, 1], [0, 1, -1]])
def test_positions_outside_the_table_are_refused(positions):
    layer = PositionEmbedding(LONGEST, name="learned")
    message = (
        rf"learned: positions must be in 0..{LONGEST - 1}, got {min(positions)}..{max(positions)}"
    )
    with pytest.raises(ValueError, match=message):
        layer(np.zeros((B, 3, D), "float32"), positions=np.array(positions, "int32"))
