"""Draft heads: saved, cloned, trained alone or with the model, and its own logits unchanged."""

import keras
import numpy as np
import pytest
from grids import first_of
from keras_weights import randomize

from keras_tfm import models, training

SIZE = {"dim": 16, "num_layers": 2, "num_heads": 2, "intermediate_dim": 16}
IDS = np.array([[3, 4, 5, 6, 7], [8, 9, 10, 1, 2]], "int32")


def base():
    return randomize(models.gpt(11, max_length=9, **SIZE))


def test_untrained_heads_predict_what_the_model_predicts():
    logits, drafts = models.with_draft_heads(base(), 3).predict(IDS, verbose=0)
    np.testing.assert_allclose(drafts, np.repeat(logits[:, :, None], 3, axis=2), atol=1e-5)


def test_the_equation():
    model = base()
    fast = randomize(models.with_draft_heads(model, 2), seed=3)
    kernel, bias = fast.get_layer("draft_heads").get_weights()
    h = keras.Model(model.input, model.features).predict(IDS, verbose=0)
    z = h @ kernel + bias
    expected = np.split(z / (1 + np.exp(-z)), 2, axis=-1)
    projected = keras.Model(model.features, model.output)
    expected = [projected.predict(h + x, verbose=0) for x in expected]
    found = fast.predict(IDS, verbose=0)[1]
    np.testing.assert_allclose(found, np.stack(expected, axis=2), atol=1e-4)


@pytest.mark.parametrize("copied", first_of(["saved", "from_config", "cloned"], 2))
def test_a_copy_has_the_same_outputs(copied, tmp_path):
    model = randomize(models.with_draft_heads(base(), 2), seed=1)
    if copied == "saved":
        model.save(tmp_path / "model.keras")
        copy = keras.models.load_model(tmp_path / "model.keras")
    else:
        make = keras.models.clone_model if copied == "cloned" else None
        copy = make(model) if make else type(model).from_config(model.get_config())
        copy.set_weights(model.get_weights())
    for x, y in zip(copy.predict(IDS, verbose=0), model.predict(IDS, verbose=0), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("frozen", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_fit(frozen):
    keras.utils.set_random_seed(0)
    model = base()
    before = [np.array(x) for x in model.get_weights()]
    logits = model.predict(IDS, verbose=0)
    fast = models.with_draft_heads(model, 2)
    for layer in model.layers:
        layer.trainable = not frozen
    own = None if frozen else training.LabelSmoothedCrossEntropy()
    fast.compile(keras.optimizers.Adam(0.03), loss=[own, training.DraftLoss()])
    rows = np.tile(IDS, (10, 1))  # ten steps an epoch
    labels = (rows[:, 1:], rows[:, 1:])
    history = fast.fit(rows[:, :-1], labels, batch_size=2, epochs=6, verbose=0).history["loss"]
    assert history[-1] < 0.6 * history[0]
    same = [np.array_equal(x, y) for x, y in zip(model.get_weights(), before, strict=True)]
    assert all(same) if frozen else not any(same)
    if frozen:
        np.testing.assert_array_equal(fast.predict(IDS, verbose=0)[0], logits)


def test_bad_input():
    with pytest.raises(TypeError, match="num_heads must be an integer"):
        models.with_draft_heads(base(), 2.5)
    with pytest.raises(ValueError, match="num_heads"):
        models.with_draft_heads(base(), 0)
    with pytest.raises(ValueError, match="one output, the logits, got 2"):
        models.with_draft_heads(models.with_draft_heads(base(), 2), 2)
