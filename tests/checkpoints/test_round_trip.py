"""What is compared before a folder is kept: random texts, each with what the model reads in it."""

import numpy as np
import pytest
from compare import assert_close, to_numpy
from keras_weights import randomize

from keras_tfm import checkpoints, models
from keras_tfm.checkpoints.round_trip import check_equal, place_image
from keras_tfm.models.quantization.state import quantization_of

IDS = np.array([[3, 4, 5, 6, 7]])
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


def test_rounded_weights_are_saved_as_floats(tmp_path):
    """Those that the model computes with, which are not those that it trains."""
    model = randomize(models.gpt(40, dim=32, num_layers=1, num_heads=2, max_length=8), 3)
    options = {"activations": True, "cache": "int8"}
    models.enable_quantization(model, "int4", **options)
    before = model(IDS)
    checkpoints.save_huggingface(model, tmp_path)
    again = checkpoints.load_huggingface(tmp_path)
    assert_close(model(IDS), before, 0)
    weights = {x.path: x for x in again.weights}
    for variable, grid in quantization_of(model).weights:
        np.testing.assert_array_equal(weights[variable.path], grid.straight_through(variable))
        assert np.abs(to_numpy(weights[variable.path]) - to_numpy(variable)).max() > 1e-3
    # These values lie on the grid that they get, so that nothing is lost.
    models.enable_quantization(again, "int4", **options)
    assert_close(again(IDS), before, 1e-5)


def test_each_text_has_one_image():
    model = models.smolvlm(
        11, **SIZES, num_key_value_heads=1, image_size=8, patch_size=2, scale_factor=2, image_id=10,
        image=SIZES,
    )  # fmt: skip
    check_equal(model, model)
    placed = place_image(model, np.array([[3, 10, 5], [10, 1, 2]], "int32"))
    assert placed.tolist() == [[3, 10, 10, 10, 10, 0, 5], [0, 10, 10, 10, 10, 1, 2]]
    assert placed.dtype == "int32"
