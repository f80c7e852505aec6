"""Several models in one file: their signatures, shared weights, verification and errors."""

import shutil
import sys

import keras
import numpy as np
import pytest
from compare import assert_close
from execution import tensorflow_only
from PIL import Image
from small_clip import LENGTH, PROCESSOR, WORDS, pairs, small_clip, tokenizer

from keras_tfm import models, runtime

pytestmark = tensorflow_only
LENGTHS = [4, LENGTH]


@pytest.fixture(scope="module")
def clip():
    return small_clip()


def exported(models, path, **options):
    from keras_tfm.export import export_tflite

    given = {"tokenizer": tokenizer(), "images": PROCESSOR, "source_length": LENGTHS}
    return export_tflite(models, path, **{**given, **options})


@pytest.fixture(scope="module")
def path(clip, tmp_path_factory):
    """Verified, float32."""
    path = tmp_path_factory.mktemp("clip") / "clip.tflite"
    report = exported(models.clip_towers(clip), path)
    assert {x.signature for x in report.verification.checks} == {"image", "text_4", "text_8"}
    return path


def test_each_model_answers_by_its_name(clip, path):
    file, given = runtime.load(path), pairs(5)
    expected = clip.predict(given, verbose=0)
    assert list(file.models) == ["image", "text"]
    image = file.models["image"].predict(given["pixels"])["output"]
    text = file.models["text"].predict(given["tokens"])["output"]
    assert_close(image, expected["image_embedding"], 1e-5)
    assert_close(text, expected["text_embedding"], 1e-5)


def test_texts_and_pictures_become_vectors(clip, path, tmp_path):
    file = runtime.load(path)
    texts = ["two three", "ten", "four five six eight nine"]
    rows = np.zeros((3, LENGTH), "int32")
    for row, text in zip(rows, texts, strict=True):
        ids = tokenizer().encode(text).ids
        row[: len(ids)] = ids
    pictures = pairs(3)["pixels"]
    expected = clip.predict({"pixels": pictures, "tokens": rows}, verbose=0)
    assert_close(file.embed_text(texts), expected["text_embedding"], 1e-5)
    assert_close(file.embed_text(texts[1]), expected["text_embedding"][1], 1e-5)
    Image.fromarray(pictures[0]).save(tmp_path / "x.png")
    several = [tmp_path / "x.png", *pictures[1:]]
    assert_close(file.embed_image(several), expected["image_embedding"], 1e-5)
    assert_close(file.embed_image(tmp_path / "x.png"), expected["image_embedding"][0], 1e-5)


def test_zero_shot_classification(clip, path):
    """By hand: cosines with the texts' vectors times the learned scale."""
    file, pictures = runtime.load(path), pairs(4)["pixels"]
    classify = file.zero_shot(WORDS, template="three {} nine")
    vectors = file.embed_text([f"three {word} nine" for word in WORDS]).astype("float64")
    scale = float(keras.ops.convert_to_numpy(clip.get_layer("logit_scale").scale))
    logits = scale * file.embed_image(list(pictures)) @ vectors.T
    expected = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    assert_close(classify.probabilities(list(pictures)), expected, 1e-5)
    (first, *_), *_ = classify(list(pictures))
    assert first.label == WORDS[expected[0].argmax()]
    assert [x.label for x in classify(pictures[0])] == [WORDS[i] for i in np.argsort(-expected[0])]
    averaged = file.zero_shot(WORDS, template=["{}", "three {} nine"])
    plain = file.embed_text(WORDS).astype("float64") + vectors
    assert_close(averaged.vectors, plain / np.linalg.norm(plain, axis=-1, keepdims=True), 1e-5)


@pytest.mark.parametrize(
    ("quantization", "tolerance"),
    # Of vectors of length 1 with 6 elements; found: 7e-4, 2.4e-3 and 1.5e-2.
    [
        pytest.param("float16", 3e-3, marks=pytest.mark.slow),
        ("int8", 0.01),
        pytest.param("int4", 0.06, marks=pytest.mark.slow),
    ],
)
def test_rounded_weights_are_verified(clip, quantization, tolerance, tmp_path):
    report = exported(models.clip_towers(clip), tmp_path / "x.tflite", quantization=quantization)
    assert len(report.verification.checks) == 3 and not report.verification.failures
    file, given = runtime.load(report.path), pairs(5)
    expected = clip.predict(given, verbose=0)
    image = file.models["image"].predict(given["pixels"])["output"]
    text = file.models["text"].predict(given["tokens"])["output"]
    assert_close(image, expected["image_embedding"], tolerance)
    assert_close(text, expected["text_embedding"], tolerance)


def test_the_other_towers_weights_are_a_failure(clip, path):
    """Verification compares each model of the file with its own model."""
    from keras_tfm.export import VerificationError, verify

    towers = models.clip_towers(clip)
    assert verify(towers, path).failures == []
    wrong = models.clip_towers(small_clip(noise=False))
    with pytest.raises(VerificationError, match=r"text_4.*text_8"):
        verify({"image": towers["image"], "text": wrong["text"]}, path)
    with pytest.raises(VerificationError, match="image"):
        verify({"image": wrong["image"], "text": towers["text"]}, path)
    with pytest.raises(ValueError, match=r"holds the models \['image', 'text'\]"):
        verify(towers["text"], path)
    with pytest.raises(ValueError, match=r"holds the models \['image', 'text'\]"):
        verify({**towers, "third": towers["text"]}, path)
    for inputs, found in ((pairs(1)["tokens"], "ndarray"), (pairs(1), r"\['pixels', 'tokens'\]")):
        with pytest.raises(ValueError, match=f"a dictionary by model, .* got {found}"):
            verify(towers, path, inputs)


def test_the_whole_file_is_no_single_model(path):
    file = runtime.load(path)
    expected = r"clip.tflite holds the models \['image', 'text'\]: choose one, such as "
    with pytest.raises(ValueError, match=expected + r"runtime.load\(path\).models\['image'\]"):
        file.predict(pairs(1)["pixels"])
    with pytest.raises(ValueError, match=expected):
        file.predict_text("two")


def test_closing_and_pickling_a_part(path, tmp_path):
    import pickle

    copy = tmp_path / "copy.tflite"
    shutil.copy(path, copy)
    file = runtime.load(copy)
    part = pickle.loads(pickle.dumps(file.models["text"]))
    expected = file.embed_text("two three")
    np.testing.assert_array_equal(part.embed_text("two three"), expected)
    part.close()
    with pytest.raises(ValueError, match="was closed"):
        part.embed_text("two")
    np.testing.assert_array_equal(file.embed_text("two three"), expected)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("", "text 0 must have at least one character, got ''"),
        (["two", "  "], "text 1 must have at least one character"),
        ("two " * LENGTH, "tokens"),
    ],
)
def test_bad_texts(path, texts, message):
    with pytest.raises(ValueError, match=message):
        runtime.load(path).embed_text(texts)


def test_a_text_without_its_end_token(path):
    with pytest.raises(ValueError, match=r"row 0 has no end token \(id 7\)"):
        runtime.load(path).models["text"].predict(np.array([[2, 3, 4]]))


def test_the_command_line_says_what_to_do(path, monkeypatch, capsys):
    from keras_tfm import cli

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["keras-tfm", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code or 0, capsys.readouterr()

    code, shown = run("predict", str(path), "two three")
    assert code == 1 and "holds the models ['image', 'text']" in shown.err
    assert "runtime.load('clip.tflite').models" in shown.err and shown.err.count("\n") == 1
    code, shown = run("inspect", str(path))
    assert code == 0 and "text_8(tokens (1, 8) int32) -> output (1, 6) float32" in shown.out


def bad_exports(towers):
    return [
        ({"image": towers["image"]}, {}, ValueError, "expected two or more models by name"),
        ({"a b": towers["image"], "c": towers["text"]}, {}, ValueError, "letters, digits and"),
        ({"a": towers["image"], "b": "text"}, {}, TypeError, "model 'b'"),
        (towers, {"max_length": 5}, ValueError, "max_length is for a file of one model"),
        (towers, {"images": {"picture": PROCESSOR}}, ValueError, "dictionary by model"),
        (
            {"one": towers["image"], "other": towers["image"]},
            {"tokenizer": None, "source_length": None},
            ValueError,
            "images must be a dictionary by model",
        ),
    ]


@pytest.mark.parametrize("case", range(6))
def test_bad_exports(clip, case, tmp_path):
    given, options, error, message = bad_exports(models.clip_towers(clip))[case]
    with pytest.raises(error, match=message):
        exported(given, tmp_path / "x.tflite", **options)
    assert not list(tmp_path.iterdir())
