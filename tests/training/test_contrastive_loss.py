"""The contrastive loss: its value, bad input, training, and replicas."""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from compare import assert_close
from execution import gradients, saving, tensorflow_only
from grids import first_of
from small_clip import pairs, small_clip

from keras_tfm.training import ContrastiveLoss, SigmoidLoss

FLOAT32 = 1e-5


@pytest.fixture
def rng():
    return np.random.default_rng(2)


def unit_vectors(rng, rows=5, width=4):
    x = rng.normal(size=(rows, width))
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype("float32")


def outputs_of(rng, scale=7.0):
    return {
        "image_embedding": unit_vectors(rng),
        "text_embedding": unit_vectors(rng),
        "scale": np.full((5, 1), scale, "float32"),
    }


def reference(outputs, targets, weight):
    """The definition, in float64."""
    images, texts = (outputs[name].astype("float64") for name in list(outputs)[:2])
    logits = float(outputs["scale"][0, 0]) * images @ texts.T
    total = 0.0
    for one in (logits, logits.T):
        log_softmax = one - np.log(np.exp(one).sum(-1, keepdims=True))
        total -= np.sum(weight * (targets * log_softmax).sum(-1)) / 2
    return total / np.sum(weight)


def test_the_value(rng):
    outputs = outputs_of(rng)
    expected = reference(outputs, np.eye(5), np.ones(5))
    assert_close(ContrastiveLoss()(None, outputs), expected, FLOAT32)
    del outputs["scale"]
    found = ContrastiveLoss(temperature=1 / 7)(None, outputs)
    assert_close(found, expected, FLOAT32)


def test_the_value_is_that_of_transformers(rng):
    torch = pytest.importorskip("torch")
    clip = pytest.importorskip("transformers.models.clip.modeling_clip")
    outputs = outputs_of(rng)
    logits = 7.0 * outputs["text_embedding"] @ outputs["image_embedding"].T
    expected = clip.image_text_contrastive_loss(torch.tensor(logits)).item()
    assert_close(ContrastiveLoss()(None, outputs), expected, FLOAT32)


def test_names_of_the_same_thing_are_no_negatives(rng):
    outputs, things = outputs_of(rng), np.array([3, 1, 3, 2, 3])
    same = (things[:, None] == things).astype("float64")
    expected = reference(outputs, same / same.sum(-1, keepdims=True), np.ones(5))
    assert_close(ContrastiveLoss()(things, outputs), expected, FLOAT32)
    assert_close(ContrastiveLoss()(things[:, None], outputs), expected, FLOAT32)


def test_weights(rng):
    outputs, weight = outputs_of(rng), np.array([0.0, 1.0, 2.0, 0.5, 1.0], "float32")
    expected = reference(outputs, np.eye(5), weight)
    assert_close(ContrastiveLoss()(None, outputs, weight), expected, FLOAT32)


@tensorflow_only
def test_nan_in_a_pair_of_weight_0_is_a_negative_of_zeros(rng):
    outputs, weight = outputs_of(rng), np.array([1.0, 0.0, 2.0, 0.5, 1.0], "float32")
    scale = outputs.pop("scale")

    def of(images, texts):
        vectors = {"image_embedding": images, "text_embedding": texts, "scale": scale}
        return ContrastiveLoss()(None, vectors, weight)

    results = []
    for fill in (0.0, np.nan):
        filled = [np.where(weight[:, None] == 0, np.float32(fill), x) for x in outputs.values()]
        results.append([of(*filled), *gradients(of, [], *filled)[1]])
    (expected, *wanted), (found, *actual) = results
    assert_close(found, expected, FLOAT32)
    for x, y in zip(actual, wanted, strict=True):  # what was NaN gets none
        assert_close(x, np.where(weight[:, None] == 0, 0.0, y), FLOAT32)


@pytest.mark.slow
def test_a_pair_is_found_after_training(rng):
    """Eight pictures and their texts, learnt by heart: each finds its own."""
    model, given = small_clip(), pairs(8)
    model.compile(keras.optimizers.Adam(0.01), ContrastiveLoss())
    first = model.evaluate(given, batch_size=8, verbose=0)
    model.fit(given, batch_size=8, epochs=60, verbose=0)
    assert model.evaluate(given, batch_size=8, verbose=0) < 0.3 * first
    outputs = model.predict(given, verbose=0)
    similar = outputs["image_embedding"] @ outputs["text_embedding"].T
    assert similar.argmax(-1).tolist() == similar.argmax(0).tolist() == list(range(8))


def test_the_scale_stays_below_its_limit():
    """Section 2.5 of the paper: at most 100."""
    model, given = small_clip(noise=False, logit_scale=4.6), pairs(4)
    model.compile(keras.optimizers.SGD(50.0), ContrastiveLoss())
    model.fit(given, batch_size=4, epochs=3, verbose=0)
    assert float(keras.ops.convert_to_numpy(model.get_layer("logit_scale").scale)) <= 100.01


@saving
def test_a_compiled_model_is_saved(tmp_path):
    model = small_clip()
    model.compile("adam", ContrastiveLoss(temperature=0.5))
    model.fit(pairs(4), batch_size=4, verbose=0)
    model.save(tmp_path / "x.keras")
    loss = keras.models.load_model(tmp_path / "x.keras").loss
    assert isinstance(loss, ContrastiveLoss) and loss.get_config()["temperature"] == 0.5


@tensorflow_only
@pytest.mark.parametrize("loss", first_of(["ContrastiveLoss", "SigmoidLoss"]))
@pytest.mark.parametrize("replicas", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_replicas_see_the_negatives_of_all(replicas, loss):
    """Weights after three steps on one logical device and on several."""
    script = Path(__file__).with_name("contrastive_on_replicas.py")
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, script, str(replicas), loss], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"}, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["changed"] > 1e-3
    # Found: up to 1.2e-7.
    assert result["apart"] < 1e-6


@pytest.mark.parametrize("temperature", [0, -1.0])
def test_bad_temperatures(temperature):
    with pytest.raises(ValueError, match="temperature must be"):
        ContrastiveLoss(temperature)


def test_bad_input(rng):
    outputs = outputs_of(rng)
    with pytest.raises(ValueError, match="y_pred must be a dictionary with"):
        ContrastiveLoss()(None, outputs["image_embedding"])
    other = {**outputs, "text_embedding": unit_vectors(rng, width=3)}
    with pytest.raises(ValueError, match=r"same shape \(B, E\), got \(5, 4\) and \(5, 3\)"):
        ContrastiveLoss()(None, other)


@tensorflow_only
def test_parts_of_a_batch_are_refused():
    with pytest.raises(ValueError, match="a part of it has fewer negatives"):
        small_clip().compile("adam", ContrastiveLoss(), gradient_accumulation_steps=2)


@pytest.mark.parametrize("loss", [ContrastiveLoss(), SigmoidLoss()], ids=["softmax", "sigmoid"])
def test_weights_and_labels_are_one_number_for_each_row(loss):
    vectors = np.eye(2, 3, dtype="float32")
    outputs = {"image_embedding": vectors, "text_embedding": vectors}
    with pytest.raises(ValueError, match=r"sample_weight must have shape \(2,\) or \(2, 1\), got"):
        loss(None, outputs, np.ones((1, 2), "float32"))
    with pytest.raises(ValueError, match=r"y_true must have shape \(2,\) or \(2, 1\), got \(1,\)"):
        loss(np.ones(1, "int32"), outputs)


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="its integers have 32 bits")
@pytest.mark.parametrize("loss", [ContrastiveLoss, SigmoidLoss])
def test_labels_of_64_bits_are_told_apart(loss):
    """Such as hashes: 1 and 2**32 + 1."""
    rng = np.random.default_rng(0)
    names = ("image_embedding", "text_embedding")
    outputs = {x: rng.normal(size=(4, 3)).astype("float32") for x in names}
    outputs["scale"] = np.ones((4, 1), "float32")
    labels = np.array([1, 2**32 + 1, 2, 2**32 + 2])
    assert float(loss()(labels, outputs)) == float(loss()(np.arange(4), outputs))
