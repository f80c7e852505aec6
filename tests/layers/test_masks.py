import numpy as np
import pytest
from compare import to_numpy
from execution import tensorflow_only

from keras_tfm.layers import masks

T, F = True, False


def test_causal_by_hand():
    expected = [[T, F, F], [T, T, F], [T, T, T]]
    np.testing.assert_array_equal(masks.causal(3, 3), [[expected]])
    # Two queries at positions 2 and 3 over a cache of 5.
    expected = [[T, T, T, F, F], [T, T, T, T, F]]
    np.testing.assert_array_equal(masks.causal(2, 5, position=2), [[expected]])


@tensorflow_only
def test_causal_of_lengths_known_at_run_time():
    import tensorflow as tf

    spec = tf.TensorSpec((), "int32")
    function = tf.function(masks.causal, input_signature=[spec] * 3)
    for arguments in ((3, 3, 0), (2, 5, 2), (1, 7, 6)):
        expected = masks.causal(*arguments)
        np.testing.assert_array_equal(function(*arguments), expected)


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
