"""Features of single blocks: those that the model computes on its way."""

import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy
from families import small_model
from keras_weights import randomize

from keras_tfm import models

MODELS = {
    "vit": {"num_layers": 3, "image_size": 12},
    "resnet": {"image_size": 12},
    "bert": {"num_layers": 3},
    "llama": {"num_layers": 3},
    "gemma4_text": {},
}


def inputs_of(model):
    arrays = {
        "pixels": np.random.default_rng(0).integers(0, 256, (2, 12, 12, 3)),
        "tokens": np.array([[5, 6, 7, 8], [9, 4, 3, 11]]),
        "segments": np.zeros((2, 4)),
    }
    return {x.name: arrays[x.name].astype(x.dtype) for x in model.inputs}


@pytest.mark.parametrize(("name", "options"), MODELS.items(), ids=MODELS)
def test_features_are_those_on_the_way(name, options):
    model = randomize(small_model(name, **options), seed=1)
    inputs = inputs_of(model)
    given = inputs if isinstance(model.input, dict) else next(iter(inputs.values()))
    first, last = (to_numpy(x) for x in models.features_of(model, [0, -1])(given))
    for block, found in ((model.blocks[0], first), (model.blocks[-1], last)):
        output = block.output[0] if isinstance(block.output, tuple | list) else block.output
        expected = to_numpy(
            keras.Model(model.inputs, output)([inputs[x.name] for x in model.inputs])
        )
        assert_close(found, expected, 0.0)
    assert np.abs(first).max() > 0.1
    assert first.shape != last.shape or np.abs(first - last).max() > 0.1


def test_later_blocks_are_left_out():
    model = small_model("llama", num_layers=3)
    part = models.features_of(model, [1, 0])
    assert "decoder_2" not in {layer.name for layer in part.layers}
    assert [x.shape for x in part.outputs] == [(None, None, 12)] * 2


@pytest.mark.parametrize(
    ("blocks", "message"),
    [([2], "has the blocks 0 to 1, got 2"), ([-3], "at least -2"), ([], "at least one number")],
)
def test_other_numbers_are_refused(blocks, message):
    with pytest.raises(ValueError, match=message):
        models.features_of(small_model("vit"), blocks)


def test_a_model_without_blocks_is_refused():
    x = keras.Input((3,))
    model = keras.Model(x, keras.layers.Dense(2)(x), name="dense")
    with pytest.raises(ValueError, match="expected a model of a builder, with blocks, got 'dense'"):
        models.features_of(model, [0])
