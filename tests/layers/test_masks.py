import numpy as np
import pytest
from compare import to_numpy
from execution import tensorflow_only

from keras_tfm.layers import masks

T, F = True, False


@pytest.mark.parametrize(
    ("lengths", "causal", "window", "expected"),
    [
        ((3, 3, 0), True, None, [[T, F, F], [T, T, F], [T, T, T]]),
        # Two queries at positions 2 and 3 over a cache of 5.
        ((2, 5, 2), True, None, [[T, T, T, F, F], [T, T, T, T, F]]),
        ((2, 5, 2), True, 2, [[F, T, T, F, F], [F, F, T, T, F]]),
        ((3, 4, 0), False, 2, [[T, T, F, F], [T, T, T, F], [F, T, T, T]]),
        ((2, 3, 0), False, 1, [[T, F, F], [F, T, F]]),
    ],
)
def test_causality_and_windows_by_hand(lengths, causal, window, expected):
    mask = masks.in_sight(masks.distances(*lengths), causal, window)
    np.testing.assert_array_equal(mask, expected)


def test_without_causality_and_window_everything_is_seen():
    assert masks.in_sight(masks.distances(3, 3, 0), causal=False, window=None) is None


@tensorflow_only
def test_distances_of_lengths_known_at_run_time():
    import tensorflow as tf

    spec = tf.TensorSpec((), "int32")
    function = tf.function(masks.distances, input_signature=[spec] * 3)
    np.testing.assert_array_equal(function(2, 5, 2), [[-2, -1, 0, 1, 2], [-3, -2, -1, 0, 1]])
    for arguments in ((3, 3, 0), (1, 7, 6), (0, 2, 1)):
        np.testing.assert_array_equal(function(*arguments), masks.distances(*arguments))


def test_axes():
    keys = np.array([[T, F, T], [F, F, T]])
    np.testing.assert_array_equal(masks.from_keys(keys), keys[:, None, None, :])
    pairs = np.arange(2 * 5 * 3).reshape(2, 5, 3) % 4 == 0
    np.testing.assert_array_equal(masks.from_pairs(pairs), pairs[:, None])


def test_combine_is_a_logical_and():
    row, column = np.array([[T, F, T]]), np.array([[T], [F]])
    assert masks.combine() is None
    assert masks.combine(None, None) is None
    np.testing.assert_array_equal(masks.combine(None, row), row)
    np.testing.assert_array_equal(masks.combine(row, None, column), [[T, F, T], [F, F, F]])


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "int64"])
def test_integers_are_booleans(dtype):
    mask = to_numpy(masks.as_boolean(np.array([[1, 0, 1]], dtype), "mask"))
    assert mask.dtype == bool
    np.testing.assert_array_equal(mask, [[T, F, T]])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_fault_15_a_float_mask_is_refused(dtype):
    additive = np.array([[0.0, -1e4]], dtype)
    with pytest.raises(TypeError, match=r"context_mask must be boolean \(True = attend\), got flo"):
        masks.as_boolean(additive, "context_mask")


@pytest.mark.parametrize("shape", [(2, 5), (3, 7), (2, 1), (2, 7, 1), (7,), ()])
def test_fault_16_a_wrong_shape_is_named(shape):
    message = rf"mask must have shape \(B, S\) = \(2, 7\), got \({', '.join(map(str, shape))},?\)"
    with pytest.raises(ValueError, match=message):
        masks.check_shape(np.ones(shape, bool), "mask", (2, 7), "(B, S)")


def test_an_unknown_axis_fits_anything():
    masks.check_shape(np.ones((2, 7), bool), "mask", (None, 7), "(B, S)")
    with pytest.raises(ValueError, match=r"\(B, S\) = \(\?, 7\), got \(2, 5\)"):
        masks.check_shape(np.ones((2, 5), bool), "mask", (None, 7), "(B, S)")
