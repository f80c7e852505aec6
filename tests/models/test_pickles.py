"""Models as pickles, as joblib, scikit-learn's wrappers, Ray and `multiprocessing` carry them."""

import copy
import os
import pickle
import subprocess
import sys

import keras
import numpy as np
import pytest
from compare import assert_close
from execution import tensorflow_only
from grids import first_of

import keras_tfm
from keras_tfm import layers, models, training

SMALL = {"dim": 6, "num_layers": 1, "num_heads": 2, "intermediate_dim": 11}
IDS = np.array([[3, 4, 5, 0], [7, 2, 0, 0]])
INPUTS = {"tokens": IDS, "segments": 0 * IDS}


def composed(kind=keras_tfm.Model):
    ids = keras.Input((None,), dtype="int32", name="tokens")
    x = layers.TokenEmbedding(13, dim=6, mask_zero=True)(ids)
    x = layers.SequencePooling()(layers.TransformerEncoderBlock(11, num_heads=2)(x))
    return kind(ids, keras.layers.Dense(3)(x))


class Registered(keras_tfm.Model):
    """A user's class, found by its module."""


class Subclassed(keras_tfm.Model):
    """A model made of layers and a `call`."""

    def __init__(self, width, **kwargs):
        super().__init__(**kwargs)
        self.width = width
        self.block = layers.TransformerEncoderBlock(11, num_heads=2)

    def call(self, x):
        return self.block(x)

    def get_config(self):
        return {**super().get_config(), "width": self.width}


def subclassed():
    model = Subclassed(3)
    model(np.zeros((1, 2, 6), "float32"))
    return model


MODELS = {
    "composed": (composed, IDS),
    "a user's class": (lambda: composed(Registered), IDS),
    "made of layers": (subclassed, np.ones((1, 2, 6), "float32")),
    "gpt": (lambda: models.gpt(13, **SMALL), IDS),
    "transformer": (lambda: models.transformer(13, **SMALL), {"source": IDS, "target": IDS}),
    "classifier": (lambda: models.sequence_classifier(models.bert(13, **SMALL), 3), INPUTS),
}


def pickled(model):
    return pickle.loads(pickle.dumps(model))


# A deep copy is made of what a pickle is made of.
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("carry", first_of([pickled, copy.deepcopy]))
def test_a_copy_is_the_same_model(name, carry):
    make, inputs = MODELS[name]
    model = make()
    again = carry(model)
    assert type(again) is type(model)
    assert_close(again(inputs), model(inputs), 1e-6)  # float32
    assert (again.family, again.arguments, again.head) == (
        model.family,
        model.arguments,
        model.head,
    )


def test_a_copy_with_adapters_has_them_merged():
    """As in a `.keras` file."""
    model = models.gpt(13, **SMALL)
    models.enable_lora(model, rank=2)
    for layer in (x for x in model.variables if x.name == "lora_kernel_b"):
        layer.assign(np.ones(layer.shape))
    again = pickle.loads(pickle.dumps(model))
    assert_close(again(IDS), model(IDS), 1e-5)  # float32, W + A B rounded once more


@tensorflow_only
def test_training_continues():
    def loss_of(model):
        return model.train_on_batch(IDS, np.array([0, 2]))

    model = composed()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        keras.optimizers.Adam(0.01), loss, run_eagerly=True, gradient_accumulation_steps=2
    )
    loss_of(model)
    again = pickle.loads(pickle.dumps(model))
    assert again.gradient_accumulation_steps == 2
    assert int(again.optimizer.iterations) == 1
    assert loss_of(again) == pytest.approx(loss_of(model), rel=1e-6)
    assert_close(again(IDS), model(IDS), 1e-6)  # the moments of Adam too


def test_through_cloudpickle():
    """A class of a notebook is carried by its code."""
    cloudpickle = pytest.importorskip("cloudpickle")
    cls = type("OfANotebook", (keras_tfm.Model,), {"__module__": "__main__"})
    model = composed(cls)
    again = pickle.loads(cloudpickle.dumps(model))
    assert type(again).__name__ == "OfANotebook"
    assert_close(again(IDS), model(IDS), 1e-6)


def test_through_joblib_and_the_wrapper_of_scikit_learn(tmp_path):
    joblib = pytest.importorskip("joblib")
    from keras.wrappers import SKLearnClassifier

    def make(X, y):
        model = composed()
        loss = keras.losses.CategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, run_eagerly=True)
        return model

    classifier = SKLearnClassifier(make).fit(IDS[[0, 1, 0]], np.array([0, 1, 2]), verbose=0)
    classifier.model = None  # a function inside a function: no pickle holds it
    joblib.dump(classifier, tmp_path / "classifier")
    again = joblib.load(tmp_path / "classifier")
    assert_close(again.model_(IDS), classifier.model_(IDS), 1e-6)


@pytest.mark.slow
def test_in_another_process(tmp_path):
    """It imports what the pickle names, as `multiprocessing` does under "spawn"."""
    model = models.gpt(13, **SMALL)
    (tmp_path / "model").write_bytes(pickle.dumps(model))
    program = (
        "import pickle; from pathlib import Path; import numpy as np\n"
        "model = pickle.loads(Path('model').read_bytes())\n"
        f"np.save('logits', np.asarray(model(np.array({IDS.tolist()}))))\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, env=os.environ)
    assert_close(np.load(tmp_path / "logits.npy"), model(IDS), 1e-6)


def test_a_compiled_loss_of_this_package():
    model = models.gpt(13, **SMALL)
    model.compile("adam", training.LabelSmoothedCrossEntropy(), metrics=[training.Perplexity()])
    model.optimizer.build(model.trainable_variables)
    again = pickle.loads(pickle.dumps(model))
    assert again.evaluate(IDS, IDS, verbose=0) == pytest.approx(
        model.evaluate(IDS, IDS, verbose=0), rel=1e-6
    )


LAYERS = {
    "block": (lambda: layers.TransformerEncoderBlock(11, num_heads=2), np.ones((1, 2, 6))),
    "feed-forward": (lambda: layers.FeedForward(11), np.ones((1, 2, 6))),
    "embedding": (lambda: layers.TokenEmbedding(13, dim=6), IDS),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name):
    make, x = LAYERS[name]
    layer = make()
    y = layer(x)
    assert_close(pickle.loads(pickle.dumps(layer))(x), y, 1e-6)
