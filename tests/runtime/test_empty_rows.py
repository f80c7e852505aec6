"""Rows without a token: refused with the row's number where the model would return NaN."""

import keras
import numpy as np
import pytest
from keras import layers, ops
from small_exports import new_path
from small_models import SOURCE_SIZE
from small_tokenizers import source_words

from keras_tfm import runtime
from keras_tfm.export import export_tflite
from keras_tfm.layers import SequencePooling, TokenEmbedding


def ids(name):
    return keras.Input((None,), dtype="int32", name=name)


def exported(model, **options):
    return runtime.load(export_tflite(model, new_path(), source_length=5, **options).path)


@pytest.fixture(scope="module")
def average():
    """A masked average of embeddings: 0 / 0 where no token is."""
    x = ids("source")
    embedded = TokenEmbedding(SOURCE_SIZE, 3, mask_zero=True)(x)
    y = layers.Dense(2)(layers.GlobalAveragePooling1D()(embedded))
    return exported(keras.Model(x, y), tokenizer=source_words(), batch_size=2)


@pytest.mark.parametrize(
    ("rows", "row"),
    [([[0]], 0), ([[]], 0), ([[3, 4], [5], [0, 0, 0]], 2), (np.zeros((1, 5), "int32"), 0)],
    ids=["padding", "empty", "third", "array"],
)
def test_rows_of_padding_alone_are_refused(average, rows, row):
    with pytest.raises(ValueError, match=rf"^source: row {row} is empty or only padding \(id 0\)"):
        average.predict(rows)


def test_texts_without_a_token_are_refused(average):
    assert np.isfinite(average.predict_text(["two", "three four"])["output"]).all()
    for texts, row in (("", 0), ("   ", 0), (["two", "three", ""], 2)):
        with pytest.raises(ValueError, match=f"^source: row {row} is empty or only padding"):
            average.predict_text(texts)


def test_a_padding_id_other_than_0():
    x = ids("x")
    embedded = TokenEmbedding(11, 3, mask_id=7)(x)
    model = exported(keras.Model(x, layers.GlobalAveragePooling1D()(embedded)))
    assert np.isfinite(model.predict([[0]])["output"]).all()
    with pytest.raises(ValueError, match=r"row 1 is empty or only padding \(id 7\)"):
        model.predict([[3], [7, 7]])


def test_a_mask_without_a_masking_embedding():
    """The model is asked, not its layers."""
    x = ids("x")
    mask = ops.cast(ops.not_equal(x, 0), "float32")
    embedded = layers.Embedding(11, 3)(x)
    y = ops.sum(embedded * mask[..., None], 1) / ops.sum(mask, 1, keepdims=True)
    with pytest.raises(ValueError, match="row 0 is empty or only padding"):
        exported(keras.Model(x, y)).predict([[0, 0]])


def test_only_the_input_that_needs_a_token_is_checked():
    """Segments are all 0 in most texts; a first token without others has a finite output."""
    tokens, segments = ids("tokens"), ids("segments")
    embedded = TokenEmbedding(11, 3, mask_zero=True)(tokens) + layers.Embedding(2, 3)(segments)
    y = layers.GlobalAveragePooling1D()(embedded, mask=ops.not_equal(tokens, 0))
    model = exported(keras.Model([tokens, segments], y))
    needing = {
        name for name, x in model.signatures["predict"]["inputs"].items() if x.get("needs_token")
    }
    assert needing == {"tokens"}
    zeros = np.zeros((1, 2), "int32")
    result = model.predict({"tokens": zeros + 3, "segments": zeros})["output"]
    assert np.isfinite(result).all()
    with pytest.raises(ValueError, match=r"^tokens: row 0"):
        model.predict({"tokens": zeros, "segments": zeros + 1})


def test_models_that_stay_finite_take_empty_rows():
    x = ids("x")
    embedded = TokenEmbedding(11, 3, mask_zero=True)(x)
    model = exported(keras.Model(x, SequencePooling()(embedded)))
    assert np.isfinite(model.predict([[]])["output"]).all()
