"""A picture's encoder before a decoder of text, by composition alone: stepped, exported, run."""

import keras
import numpy as np
import pytest
from execution import tensorflow_only
from keras_weights import randomize

import keras_tfm
from keras_tfm import generation, layers, models, runtime

pytestmark = tensorflow_only
VOCABULARY, LENGTH, START, END = 23, 9, 1, 2
PIXELS = np.random.default_rng(3).integers(0, 256, (3, 16, 24, 3)).astype("uint8")


@pytest.fixture(scope="module")
def captioner():
    """ViT's features are the context of three decoder blocks."""
    encoder = models.vit((16, 24), 8, dim=12, num_layers=2, num_heads=3, intermediate_dim=16)
    target = keras.Input((None,), dtype="int32", name="target")
    embedding = layers.TokenEmbedding(VOCABULARY, 20, mask_zero=True)
    x = layers.PositionalEncoding()(embedding(target))
    for _ in range(3):
        block = layers.TransformerDecoderBlock(28, num_heads=5, normalize_first=True)
        x = block(x, encoder.output)
    logits = embedding(layers.LayerNormalization()(x), reverse=True)
    inputs = {"pixels": encoder.input, "target": target}
    return randomize(keras_tfm.Model(inputs, logits, name="captioner"))


@pytest.fixture(scope="module")
def captions(captioner):
    """Chosen by full passes, token by token."""
    tokens = np.full((3, 1), START, "int32")
    for _ in range(LENGTH - 1):
        logits = captioner({"pixels": PIXELS, "target": tokens})
        tokens = np.concatenate([tokens, np.argmax(logits[:, -1:], -1).astype("int32")], axis=1)
    ended = np.cumsum(tokens == END, axis=1) - (tokens == END) > 0
    return np.where(ended, 0, tokens)


def test_stepping_chooses_what_full_passes_choose(captioner, captions):
    generated = generation.generate(captioner, {"pixels": PIXELS}, LENGTH, START, END)
    np.testing.assert_array_equal(generated.tokens, captions)
    assert len({tuple(row) for row in captions}) > 1  # the pictures make a difference


@pytest.mark.parametrize("quantization", ["float32", pytest.param("int8", marks=pytest.mark.slow)])
def test_one_file_reads_a_picture_and_writes(captioner, captions, quantization, tmp_path):
    from keras_tfm.export import export_tflite

    processor = runtime.ImageProcessor((16, 24))
    report = export_tflite(
        captioner,
        tmp_path / "captioner.tflite",
        ["generate", "encode", "decode"],
        quantization,
        max_length=LENGTH,
        start_id=START,
        end_id=END,
        images=processor,
    )
    file = runtime.load(report.path)
    for role in ("generate", "encode"):
        assert file.signatures[role]["inputs"]["pixels"]["dtype"] == "uint8"
    for picture, caption in zip(PIXELS, captions, strict=True):
        whole = file.generate({"pixels": picture}).tokens[0]
        steps = [int(token[0]) for token in file.stream({"pixels": picture})]
        if quantization == "float32":
            np.testing.assert_array_equal(whole, caption)
        shown = [x for x in whole[1:].tolist() if x not in (0, END)]
        assert [x for x in steps if x not in (0, END)] == shown
