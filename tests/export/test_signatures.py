"""The functions that an export offers: their inputs, what they answer, what they refuse."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from small_exports import small, small_tokens
from small_models import SOURCE_SIZE, SOURCES, START, TARGET_SIZE, decoder_only, logits_of

from keras_tfm.export.signatures.make import make_signatures
from keras_tfm.export.signatures.request import Request
from keras_tfm.layers import TokenEmbedding

DEFAULTS = {
    "roles": None,
    "batch_size": 1,
    "source_length": 5,
    "max_length": 9,
    "start_id": START,
    "end_id": None,
    "target": None,
    "static": True,
}


def made(model=None, **options):
    options = {**DEFAULTS, **options}
    return make_signatures(Request(small() if model is None else model, **options))


def shapes(signature):
    return {
        name: (x.spec.shape.as_list(), x.spec.dtype.name) for name, x in signature.inputs.items()
    }


def test_the_names_by_default():
    assert [s.name for s in made()] == ["generate"]
    assert [s.name for s in made(start_id=None)] == ["predict"]
    assert [s.name for s in made(roles=["predict", "generate"])] == ["predict", "generate"]


def test_static_inputs():
    generate, predict = made(roles=["generate", "predict"], batch_size=3)
    assert shapes(generate) == {"source": ([3, 5], "int32")}
    assert shapes(predict) == {"source": ([3, 5], "int32"), "target": ([3, 9], "int32")}


def test_open_inputs():
    options = {"batch_size": None, "source_length": None, "static": False}
    generate, predict = made(roles=["generate", "predict"], **options)
    assert shapes(generate) == {"source": ([None, None], "int32")}
    assert shapes(predict) == dict.fromkeys(["source", "target"], ([None, None], "int32"))


def test_a_length_that_the_model_fixes_is_kept():
    x = keras.Input((3, 4), name="x")
    (predict,) = made(keras.Model(x, layers.Dense(5)(x)), source_length=None, start_id=None)
    assert shapes(predict) == {"x": ([1, 3, 4], "float32")}


@pytest.mark.parametrize("name", ["target", "tokens"])
def test_the_length_of_a_single_input(name):
    x = keras.Input((None,), dtype="int32", name=name)
    model = keras.Model(x, layers.Dense(5)(TokenEmbedding(11, 7)(x)))
    (predict,) = made(model, start_id=None, max_length=None)
    assert shapes(predict) == {name: ([1, 5], "int32")}


def test_inputs_in_any_order_have_their_own_shape_and_type():
    text = keras.Input((None,), dtype="int32", name="text")
    kind = keras.Input((3,), dtype="float32", name="kind")
    x = layers.Add()([TokenEmbedding(11, 7)(text), layers.Reshape((1, 7))(layers.Dense(7)(kind))])
    model = keras.Model({"text": text, "kind": kind}, x)
    (predict,) = made(model, start_id=None, max_length=None)
    assert shapes(predict) == {"text": ([1, 5], "int32"), "kind": ([1, 3], "float32")}
    outputs = predict.function({"text": tf.constant(SOURCES[:1]), "kind": tf.zeros((1, 3))})
    assert outputs["output"].shape == (1, 5, 7)


@pytest.mark.default
def test_generate_answers_as_keras():
    (generate,) = made(batch_size=len(SOURCES))
    tokens = tf.function(generate.function)({"source": SOURCES})["tokens"].numpy()
    np.testing.assert_array_equal(tokens, small_tokens()[: len(SOURCES)])


def test_predict_answers_as_keras():
    (predict,) = made(roles=["predict"])
    targets = np.random.default_rng(0).integers(1, TARGET_SIZE, (4, 9))
    outputs = predict.function({"source": SOURCES, "target": targets})
    # Eager and graph round differently, logits are of order 1.
    expected = logits_of(small(), SOURCES, targets)
    np.testing.assert_allclose(outputs["output"], expected, rtol=0.0, atol=1e-5)


def test_dropout_is_off():
    (predict,) = made(roles=["predict"])
    first, second = (
        predict.function({"source": SOURCES, "target": SOURCES})["output"] for _ in range(2)
    )
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    ("outputs", "names"),
    [
        (lambda a, b: a, ["output"]),
        (lambda a, b: [a], ["output"]),
        (lambda a, b: {"only": a}, ["only"]),
        (lambda a, b: {"b": b, "a": a}, ["a", "b"]),
        (lambda a, b: (a, b), ["one", "two"]),
    ],
)
def test_outputs_have_names(outputs, names):
    x = keras.Input((4,), name="x")
    model = keras.Model(x, outputs(layers.Dense(3, name="one")(x), layers.Dense(5, name="two")(x)))
    (predict,) = made(model, start_id=None)
    assert sorted(predict.function({"x": tf.zeros((1, 4))})) == names


def test_the_outputs_of_one_layer_are_as_many_as_its_calls():
    x = keras.Input((4,), name="x")
    dense = layers.Dense(4, name="dense")
    first = dense(x)
    second = dense(first)
    model = keras.Model(x, [first, second, dense(second)])
    (predict,) = made(model, start_id=None)
    outputs = predict.function({"x": tf.ones((1, 4))})
    assert len(outputs) == 3
    # Eager and graph round differently; what is compared is of order 1.
    for actual, expected in zip(outputs.values(), model(np.ones((1, 4))), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=0.0, atol=1e-5)


@pytest.mark.parametrize("integer", [int, np.int32, np.int64])
def test_the_manifest_is_json(integer):
    """Ids come out of vocabularies as NumPy's, too."""
    numbers = {"source_length": 5, "max_length": 9, "start_id": START, "end_id": 2, "batch_size": 1}
    (generate,) = made(**{name: integer(value) for name, value in numbers.items()})
    manifest = json.loads(json.dumps(generate.manifest({}).to_json()))
    source = {"shape": [1, 5], "dtype": "int32", "vocabulary_size": SOURCE_SIZE}
    assert manifest["inputs"].keys() == {"source"}
    assert manifest["inputs"]["source"].items() >= source.items()
    settings = {"max_length": 9, "start_id": START, "end_id": 2, "pad_id": 0}
    assert manifest.items() >= settings.items()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"roles": ["encore"]}, r"signatures must be among \['predict', .*\], got \['encore'\]"),
        ({"roles": []}, r"signatures must be among .*, got \[\]"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"source_length": -1}, "source_length must be at least 1, got -1"),
        ({"source_length": None}, r"input 'source' has shape \(None, None\): give source_length"),
        ({"roles": ["predict"], "source_length": None}, r"input 'source' .*give source_length"),
        ({"max_length": None}, "the signature 'generate' needs max_length, got None"),
        ({"roles": ["generate"], "start_id": None}, "a generate signature needs a start_id"),
        ({"max_length": 1}, "max_length must be at least 2"),
        ({"start_id": TARGET_SIZE}, r"start_id must be in 0\.\.12, got 13"),
        ({"end_id": -1}, r"end_id must be in 0\.\.12, got -1"),
        ({"target": "sauce"}, "no input 'sauce' to step"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        made(**options)


def test_a_model_of_its_target_alone_does_not_generate():
    with pytest.raises(ValueError, match="small has no input but 'tokens'"):
        made(decoder_only())
    assert [s.name for s in made(decoder_only(), start_id=None)] == ["predict"]
