import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy
from execution import tensorflow_only

from keras_tfm import layers
from keras_tfm.layers.multi_head_attention import masks

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
        ((3, 4, 0), False, (1, 3), [[T, T, T, F], [F, T, T, T], [F, F, T, T]]),
        ((3, 4, 0), False, (2, 1), [[T, F, F, F], [T, T, F, F], [F, T, T, F]]),
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
def test_a_float_mask_is_refused(dtype):
    additive = np.array([[0.0, -1e4]], dtype)
    with pytest.raises(TypeError, match=r"context_mask must be boolean \(True = attend\), got flo"):
        masks.as_boolean(additive, "context_mask")


@pytest.mark.parametrize("shape", [(2, 5), (3, 7), (2, 1), (2, 7, 1), (7,), ()])
def test_a_wrong_shape_is_named(shape):
    message = rf"mask must have shape \(B, S\) = \(2, 7\), got \({', '.join(map(str, shape))},?\)"
    with pytest.raises(ValueError, match=message):
        masks.check_shape(np.ones(shape, bool), "mask", (2, 7), "(B, S)")


def test_an_unknown_axis_fits_anything():
    masks.check_shape(np.ones((2, 7), bool), "mask", (None, 7), "(B, S)")
    with pytest.raises(ValueError, match=r"\(B, S\) = \(\?, 7\), got \(2, 5\)"):
        masks.check_shape(np.ones((2, 5), bool), "mask", (None, 7), "(B, S)")


@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("shape", [(5, 5), (1, 5), (5, 1), (1, 5, 5), (2, 1, 5), (2, 1, 5, 5)])
def test_an_attention_mask_is_broadcast(shape, causal):
    layer = layers.MultiHeadSelfAttention(2, causal=causal)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 5, 6)).astype("float32")
    mask = rng.random(shape) < 0.6
    whole = np.broadcast_to(mask[:, 0] if len(shape) == 4 else mask, (2, 5, 5))
    expected = layer(x, attention_mask=whole)
    assert_close(layer(x, attention_mask=mask), expected, 1e-6)
    inputs, pairs = keras.Input((None, 6)), keras.Input(batch_shape=shape, dtype="bool")
    model = keras.Model([inputs, pairs], layer(inputs, attention_mask=pairs))
    if shape[0] in (1, 2):  # Keras's rule: as many rows of each input
        assert_close(model([x, mask]), expected, 1e-6)


def test_an_attention_mask_is_broadcast_in_blocks():
    layer = layers.MultiHeadSelfAttention(1, causal=True)
    x = np.random.default_rng(0).normal(size=(1, 2048, 2)).astype("float32")
    mask = np.arange(2048)[None] % 3 != 1
    whole = np.broadcast_to(mask, (1, 2048, 2048))
    assert_close(layer(x, attention_mask=mask), layer(x, attention_mask=whole), 1e-6)


def test_a_penalty_is_0_or_the_masked_score():
    """Exactly, as the score of a key that is attended must not change."""
    mask = np.array([[True, False], [False, True]])
    found = masks.penalty(mask, -1e4)
    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    np.testing.assert_array_equal(found, [[0.0, -1e4], [-1e4, 0.0]])


@pytest.mark.parametrize(
    ("shape", "axes"), [((2, 7, 3), r"\(B, S\) = \(2, 7\)"), ((2, 5, 7, 3), r"\(\.\.\., S\) = ")]
)
def test_a_key_mask_of_a_wrong_shape_is_named(shape, axes):
    keys = np.zeros(shape, "float32")
    right = np.ones(shape[:-1], bool)
    np.testing.assert_array_equal(masks.key_mask("mask", right, keys), right)
    assert masks.key_mask("mask", None, keys) is None
    with pytest.raises(ValueError, match=f"mask must have shape {axes}"):
        masks.key_mask("mask", np.ones((2, 6), bool), keys)


@pytest.mark.parametrize(
    ("keys", "dtype"),
    [
        (3, "float32"),
        (3, "float16"),
        pytest.param(0, "float32", marks=tensorflow_only),  # elsewhere attention returns before
    ],
)
def test_queries_that_see_a_key(keys, dtype):
    mask = np.array([[True, False, True], [False, False, False], [False, False, True]])[:, :keys]
    found = masks.sees_any(mask, dtype)
    assert keras.backend.standardize_dtype(found.dtype) == dtype
    np.testing.assert_array_equal(found, [[keys > 0], [False], [keys > 0]])
