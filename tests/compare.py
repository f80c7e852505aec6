"""How far apart two arrays may be."""

import keras
import numpy as np
from keras import ops


def to_numpy(x):
    """Any tensor or array as float64, or as it is where it holds no floats."""
    if not isinstance(x, np.ndarray):
        # Cast, as NumPy 2 warns about how Keras reads TensorFlow's variables and bfloat16.
        x = ops.convert_to_tensor(x)
        dtype = keras.backend.standardize_dtype(x.dtype)
        x = ops.cast(x, "float32" if dtype == "bfloat16" else dtype)
    x = ops.convert_to_numpy(x)
    return x if x.dtype.kind in "biu" else x.astype("float64")


def assert_close(actual, expected, tolerance):
    """|actual - expected| <= tolerance max(1, |expected|_max), in shape alike, nowhere NaN."""
    assert tolerance < 1.0, "is relative already: zeros would pass"
    actual, expected = to_numpy(actual), to_numpy(expected)
    assert actual.shape == expected.shape
    scale = max(1.0, np.abs(expected).max(initial=0.0))
    np.testing.assert_allclose(actual, expected, rtol=0.0, atol=tolerance * scale, equal_nan=False)


def assert_best(logits, tokens, tolerance):
    """Each token (B, T) has the largest of its logits (B, T, V), as close as `assert_close`."""
    logits, tokens = to_numpy(logits), to_numpy(tokens)
    chosen = np.take_along_axis(logits, tokens[..., np.newaxis], -1)[..., 0]
    assert_close(chosen, logits.max(-1), tolerance)
