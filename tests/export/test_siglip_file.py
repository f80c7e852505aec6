"""A SigLIP in one file: padding that attention sees, sigmoid probabilities, rounded weights."""

import numpy as np
import pytest
from compare import assert_close
from execution import tensorflow_only
from small_clip import LENGTH, PROCESSOR, WORDS, pairs, small_siglip, tokenizer

from keras_tfm import models, runtime

pytestmark = tensorflow_only
TEXTS = ["two three", "ten", "four five six eight nine"]


@pytest.fixture(scope="module")
def siglip():
    return small_siglip()


def exported(siglip, path, **options):
    from keras_tfm.export import export_tflite

    given = {"tokenizer": tokenizer(), "images": PROCESSOR, "source_length": [4, LENGTH]}
    return export_tflite(models.clip_towers(siglip), path, **{**given, **options})


@pytest.fixture(scope="module")
def path(siglip, tmp_path_factory):
    path = tmp_path_factory.mktemp("siglip") / "siglip.tflite"
    report = exported(siglip, path)
    assert {x.signature for x in report.verification.checks} == {"image", "text_4", "text_8"}
    return path


def rows_of(texts):
    rows = np.zeros((len(texts), LENGTH), "int32")
    for row, text in zip(rows, texts, strict=True):
        ids = tokenizer().encode(text).ids
        row[: len(ids)] = ids
    return rows


def test_a_text_has_one_vector_at_every_exported_length(siglip, path):
    file, given = runtime.load(path), {**pairs(3), "tokens": rows_of(TEXTS)}
    expected = siglip.predict(given, verbose=0)["text_embedding"]
    assert_close(file.embed_text(TEXTS), expected, 1e-5)
    short = rows_of(TEXTS[:1])[:, :4]
    assert_close(file.models["text"].predict(short)["output"], expected[:1], 1e-5)
    # Attention sees the padding: another id there is another text.
    other = np.where(np.arange(LENGTH) == LENGTH - 1, 7, given["tokens"])
    changed = siglip.predict({**given, "tokens": other}, verbose=0)["text_embedding"]
    assert np.abs(changed - expected).max() > 0.01


def test_probabilities_are_those_of_each_class_alone(siglip, path):
    """By hand: the sigmoid of the scaled cosines and the bias."""
    file, pictures = runtime.load(path), list(pairs(4)["pixels"])
    classify = file.zero_shot(WORDS, template="three {} nine")
    vectors = file.embed_text([f"three {word} nine" for word in WORDS]).astype("float64")
    scale, bias = (np.asarray(siglip.get_layer(f"logit_{x}").weights[0]) for x in ("scale", "bias"))
    logits = np.exp(scale) * file.embed_image(pictures) @ vectors.T + bias
    expected = 1 / (1 + np.exp(-logits))
    assert_close(classify.probabilities(pictures), expected, 1e-5)
    found = {x.label: x.probability for x in classify(pictures[0])}
    assert_close(np.array([found[word] for word in WORDS]), expected[0], 1e-5)
    alone = file.zero_shot(WORDS[:1], template="three {} nine").probabilities(pictures)
    assert_close(alone, expected[:, :1], 1e-5)


@pytest.mark.parametrize(
    ("quantization", "tolerance"),
    # Of vectors of length 1 with 12 elements.
    [("int8", 0.02), pytest.param("int4", 0.15, marks=pytest.mark.slow)],
)
def test_rounded_weights_are_verified(siglip, quantization, tolerance, tmp_path):
    report = exported(siglip, tmp_path / "x.tflite", quantization=quantization)
    assert len(report.verification.checks) == 3 and not report.verification.failures
    file, given = runtime.load(report.path), pairs(5)
    expected = siglip.predict(given, verbose=0)
    image = file.models["image"].predict(given["pixels"])["output"]
    text = file.models["text"].predict(given["tokens"])["output"]
    assert_close(image, expected["image_embedding"], tolerance)
    assert_close(text, expected["text_embedding"], tolerance)
