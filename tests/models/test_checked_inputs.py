"""A model takes inputs by their names in every call."""

import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy

import keras_tfm
from keras_tfm import models

SMALL = {"dim": 6, "num_layers": 1, "num_heads": 2, "intermediate_dim": 11}
IDS = np.array([[3, 4, 5, 0], [7, 2, 0, 0]])
INPUTS = {"tokens": IDS, "segments": 0 * IDS}
SURPLUS = r"bert expects the inputs \['tokens', 'segments'\]; ignored: 'attention_mask'"
MISSING = "bert expects the inputs ['tokens', 'segments'], got ['tokens']"


@pytest.fixture(scope="module")
def classifier():
    model = models.sequence_classifier(models.bert(13, **SMALL, dropout=0.0), 3, dropout=0.0)
    model.compile("sgd", "sparse_categorical_crossentropy", run_eagerly=True)
    return model


def batches(inputs):
    while True:
        yield inputs, np.array([0, 1])


def outer(model, inputs):
    symbols = {name: keras.Input((4,), dtype="int32", name=name) for name in inputs}
    return keras.Model(symbols, model(symbols))


CALLS = {
    "fit": lambda model, x: model.fit(x, np.array([0, 1]), verbose=0),
    "fit, generator": lambda model, x: model.fit(
        batches(x), steps_per_epoch=1, shuffle=False, verbose=0
    ),
    "evaluate": lambda model, x: model.evaluate(x, np.array([0, 1]), verbose=0),
    "predict": lambda model, x: model.predict(x, verbose=0),
    "train_on_batch": lambda model, x: model.train_on_batch(x, np.array([0, 1])),
    "test_on_batch": lambda model, x: model.test_on_batch(x, np.array([0, 1])),
    "predict_on_batch": lambda model, x: model.predict_on_batch(x),
    "call": lambda model, x: model(x),
    "inside another model": outer,
    "stateless_call": lambda model, x: model.stateless_call(
        model.trainable_variables, model.non_trainable_variables, x
    ),
}


def weights_or_outputs(model, call, inputs):
    """What a call returns, and the weights after it."""
    before = model.get_weights()
    result = CALLS[call](model, inputs)
    found = model.get_weights() if "fit" in call or "train" in call else result
    model.set_weights(before)
    return (
        [] if isinstance(found, keras.Model) else [to_numpy(x) for x in keras.tree.flatten(found)]
    )


# Keras warns of keys that are no inputs, too, and shows the shapes.
@pytest.mark.filterwarnings("ignore:The structure of `inputs`:UserWarning")
@pytest.mark.parametrize("call", CALLS)
def test_every_call_ignores_other_names(classifier, call):
    # "attention_mask" comes before "segments" in the alphabet: Keras took it for the segments.
    expected = weights_or_outputs(classifier, call, INPUTS)
    with pytest.warns(UserWarning, match=SURPLUS):
        found = weights_or_outputs(classifier, call, {**INPUTS, "attention_mask": IDS > 0})
    for x, y in zip(found, expected, strict=True):
        assert_close(x, y, 1e-6)  # PyTorch adds the embedding's gradients in any order


@pytest.mark.parametrize("call", CALLS)
def test_every_call_refuses_missing_names(classifier, call):
    with pytest.raises(ValueError) as error:
        CALLS[call](classifier, {"tokens": IDS})
    assert str(error.value) == MISSING


def structures():
    """Models that sum their inputs, weighted by 1, 10, 100 ..., and inputs of ones for each."""

    def total(xs):
        return sum(10.0**i * x for i, x in enumerate(xs))

    a, b, c = (keras.Input((1,), name=name) for name in "abc")
    one = np.ones((1, 1), "float32")
    return {
        "one": (keras_tfm.Model(a, total([a])), {"a": one}, 1),
        "a list of one": (keras_tfm.Model([a], total([a])), {"a": one}, 1),
        "a list": (keras_tfm.Model([b, a], total([a, b])), {"a": one, "b": 2 * one}, 21),
        "a tuple": (keras_tfm.Model((b, a), total([a, b])), {"a": one, "b": 2 * one}, 21),
        "a dict": (
            keras_tfm.Model({"b": b, "a": a}, total([a, b])),
            {"a": one, "b": 2 * one},
            21,
        ),
        "nested": (
            keras_tfm.Model({"x": {"b": b, "a": a}, "c": c}, total([a, b, c])),
            {"x": {"a": one, "b": 2 * one}, "c": 3 * one},
            321,
        ),
        "in a list": (
            keras_tfm.Model([{"b": b, "a": a}, c], total([a, b, c])),
            [{"a": one, "b": 2 * one}, 3 * one],
            321,
        ),
    }


# Keras warns of the dictionary {"a": ...} for the input "a", and takes it.
@pytest.mark.filterwarnings("ignore:The structure of `inputs`:UserWarning")
@pytest.mark.parametrize("name", structures())
def test_structures_of_inputs(name):
    model, inputs, total = structures()[name]
    assert float(model(inputs)[0, 0]) == total
    for place in (["x"], ["x", "c"], [0]):  # with one more key in every dictionary
        wrong = keras.tree.map_structure(lambda x: x, inputs)
        holder = wrong[0] if name == "in a list" else wrong
        if place == ["x"] and name == "nested":
            holder = wrong["x"]
        holder["Surplus"] = np.full((1, 1), 9.0, "float32")  # first in the alphabet
        with pytest.warns(UserWarning, match=r"expects the inputs \[.*\]; ignored: 'Surplus'"):
            assert float(model(wrong)[0, 0]) == total
        del holder["Surplus"], holder["a" if "a" in holder else "c"]
        with pytest.raises(ValueError, match="expects the inputs"):
            model(wrong)


def test_a_list_in_the_order_of_the_inputs():
    model, inputs, total = structures()["a list"]
    assert float(model([inputs["b"], inputs["a"]])[0, 0]) == total


def test_a_call_of_the_users_own_may_take_more():
    class Scaled(keras_tfm.Model):
        def call(self, inputs, training=None):
            inputs = dict(inputs)
            factor = keras.ops.convert_to_tensor(inputs.pop("factor"))
            return super().call(inputs, training=training) * factor

    x = keras.Input((1,), name="x")
    model = Scaled({"x": x}, x + 1.0)
    one = np.ones((1, 1), "float32")
    assert float(model({"x": one, "factor": 3 * one})[0, 0]) == 6.0
    with pytest.warns(UserWarning, match=r"ignored: 'other'"):
        assert float(model({"x": one, "factor": 3 * one, "other": one})[0, 0]) == 6.0


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="ragged tensors")
def test_ragged_tensors_are_refused_in_one_line(classifier):
    import tensorflow as tf

    ragged = tf.ragged.constant([[3, 4], [5]])
    for call in (classifier, lambda x: classifier.predict(x, verbose=0)):
        with pytest.raises(ValueError) as error:
            call({"tokens": ragged, "segments": ragged})
        message = "bert expects dense inputs, got a ragged tensor: pad it, x.to_tensor()"
        assert str(error.value) == message


LABELS = np.array([[1, 0, 2, 0], [2, 1, 0, 0]])
CLASS_WEIGHT = {0: 0.5, 1: 2.0, 2: 3.0}


@pytest.fixture(scope="module")
def tagger():
    tokens = keras.Input((4,), dtype="int32")
    model = keras_tfm.Model(tokens, keras.layers.Embedding(13, 3)(tokens))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, run_eagerly=True)
    return model


@pytest.mark.parametrize("labels", [LABELS, LABELS[..., None]], ids=["(B, T)", "(B, T, 1)"])
def test_class_weights_of_tokens_are_refused(tagger, labels):
    """Keras would weigh rows by the position of their largest label."""
    message = r"class_weight needs a model with one output for each row, got outputs \(None, 4, 3\)"
    with pytest.raises(ValueError, match=message):
        tagger.fit(IDS, labels, class_weight=CLASS_WEIGHT, verbose=0)
    with pytest.raises(ValueError, match=message):
        tagger.train_on_batch(IDS, labels, class_weight=CLASS_WEIGHT)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="tf.data")
def test_class_weights_of_datasets(tagger):
    """Of labels with a last axis, Keras weighs each."""
    import tensorflow as tf

    rows = tf.data.Dataset.from_tensor_slices((IDS, LABELS))
    with pytest.raises(ValueError, match="class_weight needs"):
        tagger.fit(rows.batch(2), class_weight=CLASS_WEIGHT, verbose=0)
    rows = rows.map(lambda ids, labels: (ids, labels[..., None])).batch(2)
    weights = np.array([0.5, 2.0, 3.0])[LABELS]
    start = tagger.get_weights()
    tagger.fit(rows, class_weight=CLASS_WEIGHT, shuffle=False, verbose=0)
    found = tagger.get_weights()
    tagger.set_weights(start)
    tagger.fit(IDS, LABELS, sample_weight=weights, verbose=0)
    assert_close(found[0], tagger.get_weights()[0], 1e-6)  # float32, sums in another order
    assert not np.allclose(found[0], start[0], atol=1e-4)


@pytest.mark.parametrize("labels", [np.array([1, 0]), np.array([[1], [0]])], ids=["(B,)", "(B, 1)"])
def test_class_weights_of_rows_with_many_outputs(tagger, labels):
    """A label for each row, and a loss that reads all of its outputs."""
    model = keras_tfm.Model(tagger.input, tagger.output)
    model.compile("sgd", lambda y, x: keras.ops.sum(x, axis=(1, 2)), run_eagerly=True)
    before = model.get_weights()
    model.fit(IDS, labels, class_weight={0: 0.0, 1: 0.0}, verbose=0)
    model.train_on_batch(IDS, labels, class_weight={0: 0.0, 1: 0.0})
    assert_close(model.get_weights()[0], before[0], 0.0)


def test_class_weights_of_rows(classifier):
    before = classifier.get_weights()
    classifier.fit(INPUTS, np.array([0, 1]), class_weight={0: 0.0, 1: 0.0}, verbose=0)
    for x, y in zip(classifier.get_weights(), before, strict=True):
        assert_close(x, y, 0.0)


def test_a_file_that_keras_could_not_load_is_not_saved(tmp_path):
    ids = keras.Input((None,), dtype="int32", name="ids")
    embedding = keras_tfm.layers.TokenEmbedding(13, 6)
    masked = keras_tfm.layers.TransformerEncoderBlock(11, num_heads=2)(
        embedding(ids), mask=keras.ops.not_equal(ids, 0)
    )
    model = keras_tfm.Model(ids, masked, name="masked")
    with pytest.raises(ValueError, match=r"masked must be saved as .keras, .* such as NotEqual"):
        model.save(tmp_path / "model.h5")
    assert not (tmp_path / "model.h5").exists()
    model.save(tmp_path / "model.keras")
    keras_tfm.load_model(tmp_path / "model.keras")
