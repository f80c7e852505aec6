"""Keras's warning of a lost mask: once, when the model is built."""

import keras
import pytest
from small_exports import new_path

from keras_tfm import layers
from keras_tfm.export import export_saved_model, export_tflite


def test_an_export_does_not_repeat_it(tmp_path):
    """Warnings are errors in tests."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = layers.TokenEmbedding(11, 4, mask_zero=True)(ids)
    with pytest.warns(UserWarning, match="mask attached"):
        x = keras.layers.Conv1D(4, 3, padding="same")(x)
    model = keras.Model(ids, x)
    export_tflite(model, new_path(), source_length=5)
    export_saved_model(model, tmp_path / "saved")
