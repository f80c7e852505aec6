"""A small model that answers questions about pictures: the picture stands inside the text."""

import functools

import keras
import numpy as np
from keras_weights import randomize
from small_exports import once_a_run
from small_tokenizers import END, WORDS, words

from keras_tfm import layers, runtime
from keras_tfm.export import export_tflite

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
    """Its file, by default with the loop inside."""
    return export_tflite(
        model(), path, roles, target="target", max_length=LENGTH, end_id=END, prompt_length=9,
        images=PROCESSOR, tokenizer={"target": words(len(WORDS))}, **options,
    )  # fmt: skip


@once_a_run
def _export(path, roles):
    return export(path, roles.split(","))


def file(roles="generate"):
    """The verified float32 file, made once a run."""
    return _export(roles).path
