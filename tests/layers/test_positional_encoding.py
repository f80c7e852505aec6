import math

import keras
import numpy as np
import pytest
import reference
from compare import assert_close, to_numpy
from execution import GRAPHS, compiled, execute, tensorflow_only
from keras import ops

from keras_tfm.layers import DecodingScope, PositionalEncoding, TokenEmbedding

# Values are at most 1, tables are float64: one rounding to float32.
ROUNDING = 6e-8
# Two products and a sum of float32 numbers of at most 1: four roundings.
DIGITS = 3e-7


def encoding(length, dim, **options):
    """The layer's addition to zeros: (T, D)."""
    return to_numpy(PositionalEncoding(**options)(np.zeros((1, length, dim), "float32")))[0]


def dynamic_encoding(length, dim, mode="graph", **options):
    """The same, of a length that the graph does not know."""
    import tensorflow as tf

    layer = PositionalEncoding(**options)

    def run(length):
        return layer(tf.zeros((1, length, dim)))

    assert layer(keras.Input((None, dim))).shape == (None, None, dim)
    return to_numpy(compiled(mode, run)(tf.constant(length)))[0]


def test_by_hand():
    expected = [
        [0.0, 1.0, 0.0, 1.0],
        [math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)],
        [math.sin(2), math.cos(2), math.sin(0.02), math.cos(0.02)],
    ]
    assert_close(encoding(3, 4), expected, ROUNDING)
    # w^(2/D) = 8^(2/3) = 4, and an odd width ends in a sine.
    expected = [[math.sin(p), math.cos(p), math.sin(p / 4)] for p in range(5)]
    assert_close(encoding(5, 3, max_wavelength=8), expected, ROUNDING)
    # A width of 1 is one sine.
    assert_close(encoding(3, 1), [[0.0], [math.sin(1)], [math.sin(2)]], ROUNDING)


@pytest.mark.parametrize("max_wavelength", [10000.0, 10000, 7.5, 1e6])
@pytest.mark.parametrize("dim", [1, 2, 7, 12])
def test_equals_the_float64_reference(dim, max_wavelength):
    expected = reference.positional_encoding(29, dim, max_wavelength)
    assert_close(encoding(29, dim, max_wavelength=max_wavelength), expected, ROUNDING)


def test_it_is_added():
    x = np.random.default_rng(0).normal(size=(2, 5, 7)).astype("float32")
    expected = x + reference.positional_encoding(5, 7)
    assert_close(PositionalEncoding()(x), expected, 3e-7)  # a sum of up to 4 is rounded


@tensorflow_only
@pytest.mark.parametrize("dim", [1, 6, 7])
def test_a_length_known_at_run_time_equals_one_known_before(dim):
    """At position 100,000 a float32 angle would be off by 6e-3."""
    length = 100_003
    static, dynamic = encoding(length, dim), dynamic_encoding(length, dim)
    assert_close(dynamic, static, DIGITS)
    for start in (0, 1020, 65_530, 99_990):  # 1024 is where the second digit changes
        expected = reference.positional_encoding(13, dim, start=start)
        assert_close(static[start : start + 13], expected, ROUNDING)
        assert_close(dynamic[start : start + 13], expected, DIGITS)


@pytest.mark.parametrize("mode", GRAPHS)
@pytest.mark.parametrize("length", [0, 1, 1025])
def test_graph_and_xla_of_any_length(length, mode):
    if mode == "graph":
        assert_close(dynamic_encoding(length, 7), encoding(length, 7), DIGITS)
    run = compiled(mode, PositionalEncoding())
    zeros = ops.zeros((3, length, 7))
    assert_close(run(zeros), np.tile(encoding(length, 7), (3, 1, 1)), ROUNDING)


@pytest.mark.parametrize("batch", [0, 1])
def test_batches_of_none_and_one(batch):
    actual = PositionalEncoding()(np.zeros((batch, 5, 4), "float32"))
    assert_close(actual, np.tile(encoding(5, 4), (batch, 1, 1)), 0.0)


# The scope


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("position", [0, 1, 1023, 4000])
def test_positions_begin_at_the_scopes(position, n):
    layer = PositionalEncoding()
    expected = reference.positional_encoding(n, 7, start=position)
    cache = {} if position else None
    with DecodingScope(cache, position=position, length=4003):
        actual = layer(np.zeros((1, n, 7), "float32"))
    assert_close(actual, expected[None], ROUNDING)


@pytest.mark.parametrize("mode", ["eager", *GRAPHS])
@pytest.mark.parametrize("position", [0, 1, 1023, 4000])
def test_a_position_may_be_a_tensor(position, mode):
    layer = PositionalEncoding()

    def run(position):
        with DecodingScope({}, position=position, length=4003):
            return layer(ops.zeros((1, 3, 7)))

    actual = compiled(mode, run)(ops.convert_to_tensor(position, "int32"))
    expected = reference.positional_encoding(3, 7, start=position)
    assert_close(actual, expected[None], ROUNDING)


@tensorflow_only
@pytest.mark.parametrize("position", [0, 1, 1023, 4000])
def test_position_and_length_may_both_be_known_at_run_time_only(position):
    import tensorflow as tf

    layer = PositionalEncoding()

    @tf.function
    def run(position, length):
        with DecodingScope({}, position=position, length=4003):
            return layer(tf.zeros((1, length, 7)))

    expected = reference.positional_encoding(3, 7, start=position)
    assert_close(run(tf.constant(position), tf.constant(3)), expected[None], DIGITS)


@pytest.mark.parametrize("mode", ["eager", *GRAPHS])
def test_a_source_longer_than_the_caches_is_numbered_from_0_on_the_first_step(mode):
    layer = PositionalEncoding()

    def run(x):
        with DecodingScope(length=2):
            return layer(x)

    assert_close(compiled(mode, run)(ops.zeros((1, 11, 7))), encoding(11, 7)[None], ROUNDING)


# Precision


@pytest.mark.parametrize("dtype", ["bfloat16", "mixed_bfloat16", "float16", "mixed_float16"])
def test_half_precision_is_rounded_once(dtype):
    length, dim = 4096, 32
    half = dtype.removeprefix("mixed_")
    zeros = ops.zeros((1, length, dim), half)
    actual = PositionalEncoding(dtype=dtype)(zeros)
    assert keras.backend.standardize_dtype(actual.dtype) == half
    exact = ops.cast(encoding(length, dim), half)
    np.testing.assert_array_equal(to_numpy(actual)[0], to_numpy(exact))


def test_positions_stay_distinct_in_bfloat16():
    """Positions computed in bfloat16 would be alike from 256 on: of 2,048 rows 641 differed."""
    rows = to_numpy(PositionalEncoding(dtype="bfloat16")(np.zeros((1, 4096, 32))))[0]
    assert len(np.unique(rows, axis=0)) == 4096


def test_dropout_is_of_the_sum_and_in_training_only():
    layer = PositionalEncoding(dropout=0.5)
    x = 10.0 + np.zeros((1, 50, 8), "float32")
    still = to_numpy(layer(x))
    assert_close(still, 10.0 + encoding(50, 8)[None], 1e-6)
    dropped = to_numpy(layer(x, training=True))
    kept = dropped != 0.0
    assert 100 < kept.sum() < 300  # of 400 with probability 1/2: ten deviations
    assert_close(dropped[kept], 2.0 * still[kept], 1e-6)


# Positions that are given

# As text.PackedBatches numbers them: two examples a row, and padding.
PACKED = np.array([[0, 1, 2, 0, 1], [0, 1, 0, 0, 0]], "int32")


@pytest.mark.parametrize("mode", ["eager", *GRAPHS])
def test_packed_rows_get_the_positions_of_their_examples(mode):
    layer, x = PositionalEncoding(), np.ones((2, 5, 7), "float32")
    table = reference.positional_encoding(3, 7)
    assert_close(execute(mode, layer, x, PACKED), x + table[PACKED], ROUNDING)
    assert_close(execute(mode, layer, x, PACKED[0]), x + table[PACKED[0]], ROUNDING)


@pytest.mark.parametrize("shape", [(), (2, 6), (3, 5), (1, 2, 5, 1), (6,), (2, 5, 1)])
def test_positions_of_another_shape_are_named(shape):
    message = r"positions must have shape \(T,\) or \(B, T\) for T = 5, got \("
    with pytest.raises(ValueError, match=message):
        PositionalEncoding()(np.ones((2, 5, 7), "float32"), np.zeros(shape, "int32"))


@pytest.mark.parametrize("positions", [None, np.array([[0, 1, 2, 3, 4], [0, 0, 1, 2, 3]])])
def test_an_offset_is_added_to_every_position(positions):
    x = np.zeros((2, 5, 8), "float32")
    at = np.arange(5) if positions is None else positions
    expected = to_numpy(PositionalEncoding(interleaved=False)(x, at + 3))
    found = PositionalEncoding(interleaved=False, offset=3)(x, positions)
    assert_close(to_numpy(found), expected, DIGITS)


@pytest.mark.parametrize("padding", [None, [0, 2]])
def test_an_offset_is_added_in_steps(padding):
    x, layer = np.zeros((2, 1, 6), "float32"), PositionalEncoding(offset=2)
    given = {} if padding is None else {"padding": np.array(padding, "int32")}
    with DecodingScope({}, position=4, length=9, **given):
        found = to_numpy(layer(x))
    at = np.array([[6], [6 if padding is None else 4]])
    assert_close(found, to_numpy(PositionalEncoding()(x, at)), DIGITS)


# Masks and errors


def test_the_mask_is_kept():
    ids = np.array([[3, 4, 0], [5, 0, 0]])
    x = PositionalEncoding()(TokenEmbedding(7, 4, mask_zero=True)(ids))
    np.testing.assert_array_equal(x._keras_mask, ids != 0)


@pytest.mark.parametrize("shape", [(5, 4), (2, 5, None)])
def test_an_input_of_the_wrong_rank_is_named(shape):
    with pytest.raises(
        ValueError, match=r"inputs must have shape \(B, T, D\) with D known, got \("
    ):
        PositionalEncoding().build(shape)


@pytest.mark.parametrize("max_wavelength", [0, -1.0])
def test_a_wavelength_is_positive(max_wavelength):
    with pytest.raises(ValueError, match=f"max_wavelength must be positive, got {max_wavelength}"):
        PositionalEncoding(max_wavelength=max_wavelength)
