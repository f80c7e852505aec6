"""Constants that are no weights: int8_full rounds them, and a verification knows their values."""

import functools

import keras
import numpy as np
import pytest
from small_exports import new_path

from keras_tfm import layers
from keras_tfm.export import VerificationError, export_tflite, verify

pytestmark = pytest.mark.filterwarnings("ignore:int8_full. XNNPACK runs")
LENGTH, WIDTH = 32, 6


def model(max_wavelength=10000.0):
    keras.utils.set_random_seed(0)
    values = keras.Input((LENGTH, WIDTH), name="values")
    x = keras.layers.Dense(32)(values)
    x = layers.PositionalEncoding(max_wavelength=max_wavelength)(x)
    x = layers.TransformerEncoderBlock(64, num_heads=2)(x)
    x = layers.TransformerEncoderBlock(64, num_heads=2)(x)
    return keras.Model(values, keras.layers.Dense(4)(layers.SequencePooling()(x)))


@functools.cache
def report():
    rows = np.random.default_rng(0).normal(size=(60, 1, LENGTH, WIDTH)).astype("float32")
    data = [{"values": row} for row in rows]
    return export_tflite(model(), new_path(), quantization="int8_full", representative_data=data)


def test_rounded_sinusoids_are_no_error_of_the_graph():
    """A random draw of the rounding has errors of both signs, slow sinusoids have those of one."""
    (check,) = report().verification.checks
    assert check.graph_error < 2e-6  # float32, two blocks
    assert check.graph_tolerance == 1e-4  # every constant is known


def test_other_sinusoids_are_an_error():
    with pytest.raises(VerificationError, match="with unrounded weights"):
        verify(model(max_wavelength=8000.0), report().path)
