"""One file: a picture and a text with `<image>` in it, text out."""

import functools

import keras
import numpy as np
import pytest
from keras_weights import randomize
from small_tokenizers import END, WORDS, words

from keras_tfm import layers, runtime
from keras_tfm.export import export_tflite
from keras_tfm.generation import Generator

SIZE, DIM, IMAGE, START, LENGTH = (8, 12), 10, 6, 1, 17
QUESTION = "two six three"  # "six" stands for the picture
IDS = [2, *[IMAGE] * 6, 3]
PROCESSOR = runtime.ImageProcessor(SIZE, resize="fit")
PICTURES = [
    np.random.default_rng(i).integers(0, 256, (2, 3, 3), "uint8").repeat(9, 0).repeat(9, 1)
    for i in range(4)
]


@functools.cache
def model():
    """Six patches at the placeholders of a text, and two blocks."""
    keras.utils.set_random_seed(3)
    pixels = keras.Input((*SIZE, 3), name="pixels")
    x = layers.ImageNormalization((0.5,) * 3, (0.25,) * 3)(pixels)
    features = keras.layers.Reshape((6, DIM))(layers.PatchEmbedding(DIM, 4)(x))
    target = keras.Input((None,), dtype="int32", name="target")
    x = layers.TokenEmbedding(len(WORDS), DIM, mask_zero=True)(target)
    x = layers.ReplacePlaceholders(IMAGE)(x, target, layers.LayerNormalization()(features))
    for _ in range(2):
        x = layers.TransformerDecoderBlock(
            self_attention=layers.MultiHeadSelfAttention(
                5, causal=True, position=layers.RotaryEmbedding()
            ),
            feed_forward=layers.FeedForward(17),
            cross_attention=False,
        )(x)
    logits = keras.layers.Dense(len(WORDS))(layers.LayerNormalization()(x))
    made = randomize(keras.Model({"pixels": pixels, "target": target}, logits), 24)
    for weight in made.weights:
        if weight.name == "kernel":
            weight.assign(3 * weight)
    return made


def export(path, roles=None, **options):
    return export_tflite(
        model(), path, roles, target="target", max_length=LENGTH, end_id=END, prompt_length=9,
        images=PROCESSOR, tokenizer={"target": words(len(WORDS))}, **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    report = export(tmp_path_factory.mktemp("placeholders") / "model.tflite")
    return runtime.load(report.path)


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
    message = r"token 6 as often as there are features \(6\), or never; row 0 has it 2 times"
    with pytest.raises(ValueError, match=message):
        file.generate({"pixels": pixels, "target": [[2, IMAGE, IMAGE]]})
    with pytest.raises(ValueError, match=message):
        file.caption(PICTURES[0], prompt="six two six")


def test_verification_reads_the_features(tmp_path):
    """Half of the features are gone: random prompts with placeholders notice it."""
    entry = export(tmp_path / "a.tflite", verify=False)
    known = runtime.load(entry.path).file.signatures["generate"].inputs["target"]
    assert (known.placeholder_id, known.placeholders) == (IMAGE, 6)
    from keras_tfm.export import VerificationError, verify

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
