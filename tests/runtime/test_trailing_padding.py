"""Prompts in an array, padded at the end: files read them as the Keras model does."""

import functools

import keras
import numpy as np
import pytest
from small_exports import new_path

from keras_tfm import layers, models, runtime
from keras_tfm.export import export_tflite
from keras_tfm.generation import generate

SMALL = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 11}
PADDED = np.array([[1, 5, 7, 0], [1, 0, 6, 4]])
ROLES = pytest.mark.parametrize("role", ["generate", "decode"])


@functools.cache
def model_of(family):
    if family == "gpt":  # no id is masked
        return models.gpt(13, **SMALL, max_length=9)
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    embedding = layers.TokenEmbedding(13, 8, mask_zero=True)
    x = layers.PositionalEncoding()(embedding(tokens))
    x = layers.TransformerDecoderBlock(11, 2, cross_attention=False)(x)
    return keras.Model(tokens, embedding(x, reverse=True))


@functools.cache
def loaded(family, role):
    lengths = {"max_length": 7, **({"prompt_length": 4} if role == "generate" else {})}
    report = export_tflite(model_of(family), new_path(), [role], verify=False, **lengths)
    return runtime.load(report.path)


@ROLES
def test_trailing_padding_is_not_a_token(role):
    file, expected = loaded("masked", role), generate(model_of("masked"), PADDED, 7).tokens
    np.testing.assert_array_equal(file.generate(PADDED).tokens, expected)
    np.testing.assert_array_equal(file.generate([[1, 5, 7], [1, 0, 6, 4]]).tokens, expected)
    if role == "decode":
        streamed = np.stack(list(file.stream(PADDED[:1])), axis=1)
        np.testing.assert_array_equal(streamed, expected[:1, 3:])


@ROLES
def test_padding_that_the_model_would_read_is_refused(role):
    file = loaded("gpt", role)
    for call in (file.generate, lambda x: next(file.stream(x))):
        if role == "decode" or call == file.generate:
            with pytest.raises(ValueError, match="row 0 of 'tokens' must not end in padding"):
                call(PADDED)
    expected = generate(model_of("gpt"), [[1, 5, 0], [1, 3, 6, 4]], 7).tokens
    np.testing.assert_array_equal(file.generate([[1, 5, 0], [1, 3, 6, 4]]).tokens, expected)


@ROLES
def test_a_prompt_of_padding_alone_is_refused(role):
    with pytest.raises(ValueError, match=r"a prompt must have .*, got \[?0"):
        loaded("masked", role).generate(np.zeros((1, 3), "int32"))
