"""A small CLIP and SigLIP with a tokenizer of words, and pairs of pictures and texts."""

import keras
import numpy as np
from keras_weights import randomize
from small_tokenizers import END, words

from keras_tfm import models, runtime

SIZE, LENGTH, VOCABULARY = 16, 8, 13
IMAGE = {"dim": 12, "num_layers": 2, "num_heads": 3, "intermediate_dim": 20}
TEXT = {"dim": 10, "num_layers": 1, "num_heads": 2, "intermediate_dim": 14}
PROCESSOR = runtime.ImageProcessor((SIZE, SIZE))
WORDS = ["two", "three", "four", "five"]


def small_clip(noise=True, **arguments):
    """Towers of different widths."""
    keras.utils.set_random_seed(4)
    model = models.clip(
        SIZE, 8, VOCABULARY, LENGTH, END, projection_dim=6, image=IMAGE, text=TEXT, **arguments
    )
    return randomize(model) if noise else model


def small_siglip(noise=True, **arguments):
    """Encoders of different widths; texts are padded with an id that is also a token."""
    keras.utils.set_random_seed(4)
    text = {**TEXT, "num_layers": 2}
    model = models.siglip(SIZE, 8, VOCABULARY, LENGTH, 0, image=IMAGE, text=text, **arguments)
    return randomize(model) if noise else model


def tokenizer():
    """A text ends with the end token."""
    return words(around="$A end")


def pairs(count, seed=0):
    """Inputs of a model: pictures (N, SIZE, SIZE, 3), and texts of up to LENGTH tokens."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (count, SIZE, SIZE, 3)).astype("uint8")
    tokens = np.zeros((count, LENGTH), "int32")
    for row in tokens:
        length = rng.integers(1, LENGTH)
        row[:length] = rng.choice([2, 3, 4, 5, 6, 8, 9, 10, 11, 12], length)
        row[length] = END
    return {"pixels": pixels, "tokens": tokens}
