"""Small decoder-only models of rotary positions, exported for a loop on the host."""

import functools

import keras
import numpy as np
from blocks import decoder_block
from small_exports import new_path
from small_models import randomize
from small_tokenizers import byte_pairs

from keras_tfm import layers
from keras_tfm.export import export_tflite

SIZE, LENGTH = 300, 200
END = 2


def story(window=None):
    """Rotary positions, two layers, grouped keys, masked padding."""
    return _story(window)


@functools.cache
def _story(window):
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = layers.TokenEmbedding(SIZE, 16, mask_zero=True)(tokens)
    for _ in range(2):
        x = decoder_block(
            16,
            num_heads=4,
            num_key_value_heads=2,
            cross_attention=False,
            position=layers.RotaryEmbedding(),
            window=window,
        )(x)
    return randomize(keras.Model(tokens, keras.layers.Dense(SIZE)(x)), seed=0)


def recurrent_story():
    """A convolution, a recurrent layer and attention of Keras."""
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = layers.TokenEmbedding(SIZE, 16)(tokens)
    x = keras.layers.Conv1D(16, 4, padding="causal", activation="silu")(x) + x
    x = keras.layers.LSTM(16, return_sequences=True)(x) + x
    x = keras.layers.MultiHeadAttention(2, 8)(x, x, use_causal_mask=True) + x
    return randomize(keras.Model(tokens, keras.layers.Dense(SIZE)(x)), seed=0)


@functools.cache
def written(window=None, length=LENGTH, **options):
    """Two capacities, and prompts of two lengths."""
    given = {"prompt_length": (6, 20), "end_id": END, "tokenizer": byte_pairs(), **options}
    roles = ["decode"] if given["prompt_length"] is None else ["prefill", "decode"]
    return export_tflite(
        story(window), new_path(), roles, max_length=length, verify=False, **given
    ).path


def ids(count, seed=0):
    return np.random.default_rng(seed).integers(3, SIZE, count).astype("int32")
