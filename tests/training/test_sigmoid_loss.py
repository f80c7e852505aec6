"""The sigmoid loss: its value, names of the same thing, weights, training."""

import keras
import numpy as np
import pytest
from compare import assert_close
from execution import gradients, saving, tensorflow_only
from small_clip import pairs, small_siglip

from keras_tfm.training import SigmoidLoss

FLOAT32 = 1e-5


@pytest.fixture
def outputs():
    rng = np.random.default_rng(2)
    vectors = rng.normal(size=(2, 5, 4))
    images, texts = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return {
        "image_embedding": images.astype("float32"),
        "text_embedding": texts.astype("float32"),
        "scale": np.full((5, 1), 7.0, "float32"),
        "bias": np.full((5, 1), -2.0, "float32"),
    }


def reference(outputs, same, weight):
    """The definition, in float64."""
    images, texts = (outputs[name].astype("float64") for name in list(outputs)[:2])
    logits = 7.0 * images @ texts.T - 2.0
    loss = -np.log(1 / (1 + np.exp(-np.where(same, 1, -1) * logits)))
    return np.sum(loss * (weight[:, None] + weight) / 2) / np.sum(weight)


def test_the_value(outputs):
    expected = reference(outputs, np.eye(5, dtype=bool), np.ones(5))
    assert_close(SigmoidLoss()(None, outputs), expected, FLOAT32)
    del outputs["scale"], outputs["bias"]
    assert_close(SigmoidLoss(temperature=1 / 7, bias=-2.0)(None, outputs), expected, FLOAT32)


def test_the_value_is_that_of_transformers():
    torch = pytest.importorskip("torch")
    siglip = pytest.importorskip("transformers.models.siglip")
    sizes = {
        "hidden_size": 6, "num_attention_heads": 3, "num_hidden_layers": 1, "intermediate_size": 7
    }  # fmt: skip
    ids = {"pad_token_id": 1, "bos_token_id": None, "eos_token_id": None}
    text = {**sizes, **ids, "vocab_size": 11, "max_position_embeddings": 5}
    config = siglip.SiglipConfig(
        text_config=text, vision_config={**sizes, "image_size": 8, "patch_size": 4}
    )
    model = siglip.SiglipModel(config).eval()
    with torch.no_grad():
        model.logit_scale.fill_(1.3)
        model.logit_bias.fill_(-0.7)
        found = model(
            torch.arange(20).reshape(4, 5) % 11, torch.randn(4, 3, 8, 8), return_loss=True
        )
    outputs = {
        "image_embedding": found.image_embeds.numpy(), "text_embedding": found.text_embeds.numpy(),
        "scale": np.full((4, 1), np.exp(1.3), "float32"), "bias": np.full((4, 1), -0.7, "float32"),
    }  # fmt: skip
    assert_close(SigmoidLoss()(None, outputs), found.loss.numpy(), FLOAT32)


def test_names_of_the_same_thing_are_positives(outputs):
    things = np.array([3, 1, 3, 2, 3])
    expected = reference(outputs, things[:, None] == things, np.ones(5))
    assert_close(SigmoidLoss()(things, outputs), expected, FLOAT32)
    assert_close(SigmoidLoss()(things[:, None], outputs), expected, FLOAT32)


def test_weights(outputs):
    weight = np.array([0.0, 1.0, 2.0, 0.5, 1.0], "float32")
    expected = reference(outputs, np.eye(5, dtype=bool), weight)
    assert expected != pytest.approx(
        reference(outputs, np.eye(5, dtype=bool), np.ones(5)), rel=0.01
    )
    outputs["image_embedding"][0] = 0.0
    outputs["text_embedding"][0] = 0.0
    expected = reference(outputs, np.eye(5, dtype=bool), weight)
    outputs["image_embedding"][0] = np.nan  # a row of weight 0 counts as zeros
    assert_close(SigmoidLoss()(None, outputs, weight), expected, FLOAT32)


@tensorflow_only
def test_large_logits_keep_their_gradient(outputs):
    """log(sigmoid(x)) is -inf for x = -100 in float32, and its gradient NaN."""
    vectors = np.eye(2, dtype="float32")
    ones = np.ones((2, 1), "float32")

    def loss(images):
        given = {"image_embedding": images, "text_embedding": vectors[::-1].copy()}
        return SigmoidLoss()(None, {**given, "scale": 300 * ones, "bias": 0 * ones})

    value, gradient = loss(vectors), gradients(loss, [], vectors)[1][0]
    assert_close(value, 300 + np.log(2), FLOAT32)
    # Of the images: 150 for the own text, which is a miss, and -150 for the other.
    assert np.isfinite(np.asarray(gradient)).all() and np.abs(gradient).max() > 100


@pytest.mark.slow
def test_a_pair_is_found_after_training():
    """Eight pictures and their texts, learnt by heart: each has a high probability, alone."""
    model, given = small_siglip(noise=False), pairs(8)
    model.compile(keras.optimizers.Adam(0.01), SigmoidLoss())
    first = model.evaluate(given, batch_size=8, verbose=0)
    model.fit(given, batch_size=8, epochs=150, verbose=0)
    assert model.evaluate(given, batch_size=8, verbose=0) < 0.1 * first
    outputs = model.predict(given, verbose=0)
    logits = outputs["scale"] * (outputs["image_embedding"] @ outputs["text_embedding"].T)
    probabilities = 1 / (1 + np.exp(-(logits + outputs["bias"])))
    assert (np.diag(probabilities) > 0.5).all() and (probabilities > 0.5).sum() == 8


@saving
def test_a_compiled_model_is_saved(tmp_path):
    model = small_siglip()
    model.compile("adam", SigmoidLoss(temperature=0.5, bias=-3.0))
    model.fit(pairs(4), batch_size=4, verbose=0)
    model.save(tmp_path / "x.keras")
    loss = keras.models.load_model(tmp_path / "x.keras").loss
    assert isinstance(loss, SigmoidLoss)
    config = loss.get_config()
    assert (config["temperature"], config["bias"]) == (0.5, -3.0)


def test_bad_input(outputs):
    with pytest.raises(TypeError, match="bias must be a number"):
        SigmoidLoss(bias="x")
    with pytest.raises(ValueError, match="sigmoid_loss: y_pred must be a dictionary with"):
        SigmoidLoss()(None, outputs["image_embedding"])
