"""What is compared before a folder is kept: random texts, each with what the model reads in it."""

import keras
import numpy as np
import pytest
from keras_weights import randomize

from keras_tfm import models
from keras_tfm.checkpoints.round_trip import check_equal, place_image

SIZES = {"dim": 6, "num_layers": 1, "num_heads": 3, "intermediate_dim": 8}


def test_another_end_token_is_seen():
    """CLIP pools the features of the end token, which random ids of 2,000 rarely have."""
    first, second = (
        randomize(models.clip_text(2000, **SIZES, max_length=9, end_id=end), 3)
        for end in (1999, 1998)
    )
    check_equal(first, first)
    with pytest.raises(ValueError, match="its outputs differ by"):
        check_equal(first, second)


def test_rounded_weights_are_named():
    model = randomize(models.gpt(40, dim=32, num_layers=1, num_heads=2, max_length=8), 3)
    floats = keras.models.clone_model(model)
    floats.set_weights(model.get_weights())
    models.enable_quantization(model, "int4")
    message = "is trained with int4 weights, which are not saved: call models.disable_quantization"
    with pytest.raises(ValueError, match=message):
        check_equal(model, floats)
    models.disable_quantization(model)
    check_equal(model, floats)


def test_each_text_has_one_image():
    model = models.smolvlm(
        11, **SIZES, num_key_value_heads=1, image_size=8, patch_size=2, scale_factor=2, image_id=10,
        image=SIZES,
    )  # fmt: skip
    check_equal(model, model)
    placed = place_image(model, np.array([[3, 10, 5], [10, 1, 2]], "int32"))
    assert placed.tolist() == [[3, 10, 10, 10, 10, 0, 5], [0, 10, 10, 10, 10, 1, 2]]
    assert placed.dtype == "int32"
