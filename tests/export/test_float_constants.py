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


def model(seed, max_wavelength=10000.0):
    keras.utils.set_random_seed(seed)
    values = keras.Input((LENGTH, WIDTH), name="values")
    x = keras.layers.Dense(32)(values)
    x = layers.PositionalEncoding(max_wavelength=max_wavelength)(x)
    x = layers.TransformerEncoderBlock(64, num_heads=2)(x)
    x = layers.TransformerEncoderBlock(64, num_heads=2)(x)
    return keras.Model(values, keras.layers.Dense(4)(layers.SequencePooling()(x)))


@functools.cache
def report(seed):
    rows = np.random.default_rng(0).normal(size=(60, 1, LENGTH, WIDTH)).astype("float32")
    data = [{"values": row} for row in rows]
    return export_tflite(
        model(seed), new_path(), quantization="int8_full", representative_data=data
    )


# Seeds whose files were refused: one random draw of a table's rounding has errors of both signs,
# and those of slow sinusoids have one.
@pytest.mark.parametrize("seed", [0, 2])
def test_rounded_sinusoids_are_no_error_of_the_graph(seed):
    (check,) = report(seed).verification.checks
    assert check.graph_error < 2e-6  # float32, two blocks
    assert check.graph_tolerance == 1e-4  # every constant is known


def test_other_sinusoids_are_an_error():
    with pytest.raises(VerificationError, match="with unrounded weights"):
        verify(model(0, max_wavelength=8000.0), report(0).path)
