"""Small models that describe pictures, by cross-attention and by a prefix, with words as tokens."""

import functools
from pathlib import Path

import keras
import numpy as np
from keras_weights import randomize
from small_exports import once_a_run
from small_tokenizers import END, WORDS, text_of, words

from keras_tfm import layers
from keras_tfm.export import export_tflite
from keras_tfm.generation import Generator
from keras_tfm.runtime import ImageProcessor

KINDS = ("cross-attention", "prefix")
SIZE, START, LENGTH, DIM = (8, 12), 1, 11, 10
VOCABULARY = len(WORDS)
PROCESSOR = ImageProcessor(SIZE, resize="fit")
# Seeds and factors of kernels with which each of PICTURES gets words and lengths of its own.
WEIGHTS = {"cross-attention": (5, 3), "prefix": (18, 2)}
WHOLE, STEPPED = "generate", "encode,prefill,decode"
# Six squares of two rows, of other sizes than the model reads.
PICTURES = [
    np.random.default_rng(seed)
    .integers(0, 256, (2, 3, 3), "uint8")
    .repeat(edge, axis=0)
    .repeat(edge, axis=1)
    for seed, edge in enumerate([15, 4, 31, 8, 22])
]


@functools.cache
def captioner(by):
    """Six patches; two blocks that attend to them, or continue them."""
    keras.utils.set_random_seed(3)
    pixels = keras.Input((*SIZE, 3), name="pixels")
    x = layers.ImageNormalization((0.5,) * 3, (0.25,) * 3)(pixels)
    features = keras.layers.Reshape((6, DIM))(layers.PatchEmbedding(DIM, 4)(x))
    features = layers.LayerNormalization()(features)
    target = keras.Input((None,), dtype="int32", name="target")
    embedding = layers.TokenEmbedding(VOCABULARY, DIM, mask_zero=True)
    x = embedding(target)
    is_prefix = by == "prefix"
    if is_prefix:
        x = layers.ConcatenatePrefix()([features, x])
    for _ in range(2):
        block = layers.TransformerDecoderBlock(
            self_attention=layers.MultiHeadSelfAttention(
                5, causal=True, position=layers.RotaryEmbedding()
            ),
            cross_attention=False if is_prefix else layers.MultiHeadCrossAttention(2),
            feed_forward=layers.FeedForward(17),
        )
        x = block(x) if is_prefix else block(x, features)
    if is_prefix:
        x = layers.RemovePrefix()([features, x])
    # Not the embedding: with random weights its transpose repeats the last token.
    logits = keras.layers.Dense(VOCABULARY)(layers.LayerNormalization()(x))
    seed, gain = WEIGHTS[by]
    model = randomize(keras.Model({"pixels": pixels, "target": target}, logits), seed)
    for weight in model.weights:
        if weight.name == "kernel":
            weight.assign(gain * weight)
    return model


@once_a_run
def _export(path, by, roles):
    return export_tflite(
        captioner(by), path, roles.split(","), target="target", max_length=LENGTH, start_id=START,
        end_id=END, prompt_length=3, images=PROCESSOR, tokenizer={"target": words(VOCABULARY)},
        verify=False,
    )  # fmt: skip


def file(by, roles=WHOLE) -> Path:
    """The float32 file, with the loop inside or for a loop on the host."""
    return _export(by, roles).path


@functools.cache
def captions(by, prompt=(START,)):
    """What Keras writes of each of PICTURES: the texts."""
    generator = Generator(captioner(by), LENGTH, START, END)
    pixels = PROCESSOR(PICTURES)
    tokens = generator({"pixels": pixels, "target": [list(prompt)] * len(pixels)}).tokens
    return [text_of(row[len(prompt) :]) for row in tokens]
