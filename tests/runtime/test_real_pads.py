"""Texts with tokens that have the padding id, in files of classifiers and of T5."""

import functools

import keras
import numpy as np
import pytest
from keras_weights import randomize
from small_exports import new_path
from small_tokenizers import words

from keras_tfm import models, runtime
from keras_tfm.export import export_tflite
from keras_tfm.generation import Generator, generate

SMALL = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 12}
# float32, one block, logits of order 1.
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@functools.cache
def classifier():
    """Its padding id is a word of the vocabulary, as a Llama's end token often is."""
    llama = models.llama(13, **SMALL, pad_id=0)
    return randomize(models.sequence_classifier(llama, 3, dropout=0.0), 2)


@functools.cache
def exported():
    report = export_tflite(
        classifier(), new_path(), source_length=[3, 6], tokenizer=words(), batch_size=2
    )
    return runtime.load(report.path)


def logits(row, last):
    """Of the features at `last`, where every id of the row is a token."""
    features = models.backbone(classifier())
    x = np.asarray(features(np.array([row]), mask=np.ones((1, len(row)), "bool")))[0, last]
    return x @ np.asarray(classifier().get_layer("classifier").kernel)


def test_a_classifier_reads_the_last_other_id():
    """As that of transformers: ids of padding count as tokens before it, not after it."""
    texts = ["two <pad> three", "<pad> two", "two <pad>", "six <pad> <pad> ten <pad> <pad>"]
    rows = [[2, 0, 3], [0, 2], [2, 0], [6, 0, 0, 10, 0, 0]]
    expected = np.stack([logits(row, int(np.flatnonzero(row)[-1])) for row in rows])
    found = exported().predict_text(texts)["output"]
    np.testing.assert_allclose(found, expected, **CLOSE)
    # Ids of a caller: those before the first other id are padding on the left.
    ids = np.array([[2, 0, 3, 0, 0, 0], [6, 0, 0, 10, 0, 0]])
    np.testing.assert_allclose(exported().predict(ids)["output"], expected[[0, 3]], **CLOSE)
    np.testing.assert_allclose(classifier().predict(ids, verbose=0), expected[[0, 3]], **CLOSE)


def test_t5_reads_a_padding_token_in_its_source():
    """Its start token is the padding id, too."""
    model = randomize(models.t5(13, **SMALL, head_dim=4), 3)
    text, row = "two <pad> three <pad>", np.array([[2, 0, 3, 0]])
    target = {"source": row, "target": np.array([[0, 5]])}
    masks = {"source": np.ones(row.shape, "bool"), "target": None}
    whole = np.asarray(model(target, mask=masks))
    assert np.abs(whole - np.asarray(model(target))).max() > 1e-3  # the last one is padding
    given = {"source_length": [3, 6], "max_length": 5, "start_id": 0, "tokenizer": words()}
    file = runtime.load(export_tflite(model, new_path(), **given, verify=False).path)
    assert file.signatures["generate_6"]["inputs"]["source"]["padding"] == "ends"
    tokens = generate(model, {"source": np.array([[2, -2, 3, -2]])}, 5, start_id=0).tokens
    longer = generate(model, {"source": np.array([[2, -2, 3, -2, 0, 0]])}, 5, start_id=0).tokens
    np.testing.assert_array_equal(longer, tokens)
    generator = Generator(model, 5, start_id=0, tokenizer=words())
    expected = words().decode(tokens[0, 1:].tolist())
    for one in (file, generator):
        assert one.generate_text([text, "six"])[0] == expected


@pytest.mark.parametrize("end", ["<pad>", "<pad> <pad>"])
def test_prompts_that_end_in_the_padding_id(end):
    """The model masks no id: in a tokenizer's rows 0 is a word, as "!" in GPT-2."""
    model = randomize(models.gpt(13, **SMALL, max_length=9), 5)
    generator = Generator(model, 7, tokenizer=words())
    texts = [f"two {end}", f"six {end}"]
    zeros = [0] * len(end.split())
    for text, row, found in zip(texts, [[2], [6]], generator.generate_text(texts), strict=True):
        tokens = generate(model, [[*row, *zeros]], 7).tokens[0]
        assert found == words().decode(tokens.tolist()), text


def test_nothing_but_an_embedding_may_read_the_ids():
    from keras_tfm import layers
    from keras_tfm.generation.interface import interface_of

    def paddings(model):
        return {name: x.padding for name, x in interface_of(model).inputs.items()}

    ids = keras.Input((None,), dtype="int32", name="ids")
    embedding = layers.TokenEmbedding(7, 4, mask_id=0, padding="ends")
    x = layers.SequencePooling()(embedding(ids))
    assert paddings(keras.Model(ids, x)) == {"ids": "ends"}
    largest = keras.ops.max(ids, axis=1)
    assert paddings(keras.Model(ids, [x, largest])) == {"ids": None}
    assert paddings(classifier()) == {"tokens": "by_id"}
