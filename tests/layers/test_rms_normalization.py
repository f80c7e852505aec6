"""RMSNormalization, in Keras and in the form for LiteRT."""

import keras
import numpy as np
import pytest

from keras_tfm.layers import RMSNormalization
from keras_tfm.layers.target import export_target


@pytest.mark.fast
@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
def test_both_forms_are_the_equation(dtype):
    x = np.random.default_rng(0).normal(0, 3, (2, 5, 7)).astype("float32")
    layer = RMSNormalization(epsilon=1e-3, dtype=dtype)
    layer.build(x.shape)
    gamma = np.linspace(-2, 3, 7, dtype="float32")
    layer.scale.assign(gamma)
    exact = x.astype(layer.compute_dtype).astype("float64")
    exact = gamma * exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-3)
    with export_target("cpu-edge"):
        edge = layer(x)
    tolerance = 1e-6 if dtype == "float32" else 4e-3
    for found in (layer(x), edge):
        assert keras.backend.standardize_dtype(found.dtype) == layer.compute_dtype
        values = keras.ops.convert_to_numpy(found).astype("float64")
        np.testing.assert_allclose(values, exact, rtol=tolerance, atol=tolerance)
