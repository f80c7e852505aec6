"""One file: a picture and a text with `<image>` in it, text out."""

import keras
import numpy as np
import pytest
import small_answerer
from keras_weights import randomize
from small_answerer import IDS, IMAGE, LENGTH, PICTURES, PROCESSOR, QUESTION, export, model
from small_tokenizers import END, WORDS, words

from keras_tfm import layers, runtime
from keras_tfm.export import VerificationError, verify
from keras_tfm.generation import Generator


@pytest.fixture(scope="module")
def file():
    return runtime.load(small_answerer.file())


def keras_tokens(prompt):
    generator = Generator(model(), LENGTH, end_id=END, target="target")
    pixels = np.concatenate([PROCESSOR(x) for x in PICTURES])
    return generator({"pixels": pixels, "target": [prompt] * len(PICTURES)}).tokens


def test_the_file_writes_the_tokens_of_keras(file):
    pixels = np.concatenate([PROCESSOR(x) for x in PICTURES])
    wanted = keras_tokens(IDS)
    found = file.generate({"pixels": pixels, "target": [IDS] * len(PICTURES)}).tokens
    np.testing.assert_array_equal(found, wanted)
    assert len(np.unique(wanted, axis=0)) > 1, "the pictures make no difference"


def test_one_word_of_a_text_stands_for_all_features(file):
    texts = file.caption(PICTURES, prompt=QUESTION)
    assert texts == file.caption(PICTURES, prompt=IDS)
    answers = [row[len(IDS) :] for row in keras_tokens(IDS)]
    decode = words(len(WORDS)).decode
    wanted = [decode([int(i) for i in row[: (row == END).argmax()]]) for row in answers]
    assert [x for x, row in zip(texts, answers, strict=True) if END in row] == [
        x for x, row in zip(wanted, answers, strict=True) if END in row
    ]
    generator = Generator(
        model(), LENGTH, end_id=END, target="target", tokenizer={"target": words(len(WORDS))}
    )
    pixels = np.concatenate([PROCESSOR(x) for x in PICTURES])
    whole = generator.generate_text({"pixels": pixels, "target": [QUESTION] * len(PICTURES)})
    assert whole == file.generate_text({"pixels": pixels, "target": [QUESTION] * len(PICTURES)})


def test_wrong_numbers_are_refused(file):
    pixels = PROCESSOR(PICTURES[0])
    message = r"token 6 as often as it has features \(6\), or never; row 0 has it 2 times"
    with pytest.raises(ValueError, match=message):
        file.generate({"pixels": pixels, "target": [[2, IMAGE, IMAGE]]})
    with pytest.raises(ValueError, match=message):
        file.caption(PICTURES[0], prompt="six two six")


def test_verification_reads_the_features(tmp_path):
    """Half of the features are gone: random prompts with placeholders notice it."""
    entry = export(tmp_path / "a.tflite", verify=False)
    known = runtime.load(entry.path).file.signatures["generate"].inputs["target"]
    assert (known.placeholder_id, known.placeholders) == (IMAGE, 6)
    other = randomize(keras.models.clone_model(model()), 5)
    for mine, theirs in zip(other.weights, model().weights, strict=True):
        mine.assign(theirs)
    patches = next(x for x in other.layers if isinstance(x, layers.PatchEmbedding))
    for weight in patches.weights:
        weight.assign(-weight)
    with pytest.raises(VerificationError):
        verify(other, entry.path)


@pytest.mark.slow
@pytest.mark.parametrize("quantization", ["float32", "int8", "int4"])
def test_steps_on_the_host(quantization, tmp_path):
    report = export(
        tmp_path / "model.tflite", ["encode", "prefill", "decode"], quantization=quantization,
        tolerance=None if quantization == "float32" else 0.5,
    )  # fmt: skip
    pixels = np.concatenate([PROCESSOR(x) for x in PICTURES])
    found = runtime.load(report.path).generate({"pixels": pixels, "target": [IDS] * len(PICTURES)})
    assert found.tokens[:, : len(IDS)].tolist() == [IDS] * len(PICTURES)
    if quantization == "float32":
        np.testing.assert_array_equal(found.tokens, keras_tokens(IDS))
