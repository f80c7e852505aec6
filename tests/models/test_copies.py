"""A part that several layers share is shared in every copy of a model."""

import itertools

import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy
from execution import saving

import keras_tfm
from keras_tfm import models
from keras_tfm.layers import (
    RelativePositionBias,
    RelativePositionEmbedding,
    TransformerEncoderBlock,
)
from keras_tfm.models.with_dtype import dequantize

SMALL = {"dim": 6, "num_layers": 2, "num_heads": 2, "intermediate_dim": 11}
IDS = {
    "source": np.array([[3, 4, 5, 7, 0]]),
    "target": np.array([[1, 7, 2]]),
    "tokens": np.array([[3, 4, 5, 7, 0]]),
}


def composed(kind):
    """Two blocks around one part, and its weights: another number than a model with two parts."""
    inputs = keras.Input((None, 6), name="x")
    part, x = RelativePositionEmbedding(max_distance=3, name="shaw"), inputs
    for name in ("one", "two"):
        x = TransformerEncoderBlock(
            11,
            self_attention=keras_tfm.layers.MultiHeadSelfAttention(2, position=part),
            name=name,
        )(x)
    return kind(inputs, x)


class Unregistered(keras.layers.Layer):
    """Known to no registry, as a class of a notebook."""

    def call(self, x):
        return x + 1.0


def with_unregistered_layer():
    model = composed(keras_tfm.Model)
    return keras_tfm.Model(model.input, Unregistered()(model.output))


def nested():
    inputs = keras.Input((None, 6), name="x")
    return keras.Model(inputs, keras.layers.Dense(3)(composed(keras_tfm.Model)(inputs)))


def with_position():
    return models.transformer(13, **SMALL, position=RelativePositionBias(8, 16))


MODELS = {
    "t5": lambda: models.t5(13, **SMALL),
    "t5 in mixed precision": lambda: models.t5(13, **SMALL, dtype="mixed_bfloat16"),
    "deberta": lambda: models.deberta(13, **SMALL),
    "deberta, own projections": lambda: models.deberta(13, **SMALL, position_projections=True),
    "t5 with a head": lambda: models.sequence_classifier(models.t5(13, **SMALL), 3),
    "transformer": with_position,
    "composed by hand": lambda: composed(keras_tfm.Model),
    "unregistered layer": with_unregistered_layer,
    "inside a keras.Model": nested,
}
every_model = pytest.mark.parametrize("name", MODELS)


def saved(model, folder):
    model.save(folder / "model.keras")
    objects = {"Unregistered": Unregistered}
    return keras.saving.load_model(folder / "model.keras", custom_objects=objects)


def from_json(model, _):
    objects = {"Unregistered": Unregistered}
    return keras.models.model_from_json(model.to_json(), custom_objects=objects)


def from_config(model, _):
    return type(model).from_config(model.get_config(), {"Unregistered": Unregistered})


def layer_by_layer(layer):
    return type(layer).from_config(layer.get_config())


COPIES = {
    "clone_model": lambda model, _: keras.models.clone_model(model),
    "clone_model with a function": lambda model, _: keras.models.clone_model(
        model, clone_function=layer_by_layer
    ),
    "from_config": from_config,
    "to_json": from_json,
    ".keras": saved,
    "with_dtype": lambda model, _: models.with_dtype(model, "mixed_float16"),
    "with_dtype of a copy": lambda model, _: models.with_dtype(keras.models.clone_model(model)),
}


def tables(model):
    """The learned tables of the position parts, by their names."""
    return [x.path.rsplit("/", 1)[-1] for x in model.weights if x.path.endswith("table")]


# By default a clone, a file, and a copy of a copy; models of every family are copied elsewhere.
DEFAULT = {("t5", "clone_model"), ("t5", ".keras"), ("deberta", "with_dtype of a copy")}
PAIRS = [
    pytest.param(*x, marks=[pytest.mark.slow] * (x not in DEFAULT))
    for x in itertools.product(MODELS, COPIES)
]


@saving
@pytest.mark.parametrize(("name", "copy"), PAIRS)
def test_a_shared_part_is_shared_in_the_copy(name, copy, tmp_path):
    model = MODELS[name]()
    again = COPIES[copy](model, tmp_path)
    assert [x.shape for x in again.weights] == [x.shape for x in model.weights]
    assert tables(again) == tables(model) != []
    assert [x.path for x in again.weights] == [x.path for x in model.weights]
    x = np.random.default_rng(1).normal(size=(2, 5, 6)).astype("float32")
    if isinstance(model.input, dict):
        inputs = {i.name: IDS[i.name] for i in model.inputs}
    else:
        inputs = IDS.get(model.input.name, x)
    again.set_weights(model.get_weights())
    # bfloat16 rounds at 4e-3, a dozen times in a row
    half = "mixed" in name or copy == "with_dtype"
    assert_close(again(inputs), model(inputs), 5e-2 if half else 1e-6)


@every_model
def test_a_copy_shares_nothing_with_the_model(name):
    model = MODELS[name]()
    first, second = (keras.models.clone_model(model) for _ in range(2))
    weights = [{id(x) for x in m.weights} for m in (model, first, second)]
    assert len(set.union(*weights)) == 3 * len(model.weights)


def test_the_same_part_in_two_models_is_one_in_each_copy():
    """A model is copied as a whole, whatever else uses its part."""
    part = RelativePositionBias(8, 16)
    first, second = (models.transformer(13, **SMALL, position=part) for _ in range(2))
    assert len(keras.models.clone_model(first).weights) == len(first.weights)
    assert len(keras.models.clone_model(second).weights) == len(second.weights)


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="has it")
def test_accumulation_inside_a_batch_needs_tensorflow():
    with pytest.raises(ValueError, match="needs Keras's TensorFlow backend"):
        composed(keras_tfm.Model).compile("sgd", "mse", gradient_accumulation_steps=2)


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="has it")
def test_a_model_saved_with_accumulation_says_how_to_load_it():
    model = composed(keras_tfm.Model)
    with pytest.raises(ValueError, match="load it with compile=False"):
        model.compile_from_config({"gradient_accumulation_steps": 2})


@pytest.mark.parametrize("change", ["with_dtype", "resize_vocabulary", "dequantize"])
def test_a_changed_copy_shares_no_array(change):
    """On JAX, a model gives its arrays away when it predicts."""
    size = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 16, "max_length": 8}
    model, ids = models.gpt(11, **size), np.array([[3, 4, 5]])
    if change == "dequantize":
        model.get_layer("decoder_0").feed_forward.inner.quantize("int8")
    before = to_numpy(model(ids))
    copies = {
        "with_dtype": lambda: models.with_dtype(model, "float32"),
        "resize_vocabulary": lambda: models.resize_vocabulary(model, 13),
        "dequantize": lambda: dequantize(model),
    }
    copy = copies[change]()
    copy.predict(ids, verbose=0)
    np.testing.assert_array_equal(to_numpy(model(ids)), before)
