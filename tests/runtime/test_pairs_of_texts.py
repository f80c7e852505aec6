"""Pairs of texts: cross-encoders and classifiers of a premise and a hypothesis."""

import functools
import io
import json
import sys

import keras
import numpy as np
import pytest
from keras_weights import randomize
from small_exports import new_path
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers import models as tokenizer_models

from keras_tfm import layers, models, runtime
from keras_tfm.export import export_tflite

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "which", "planet"]
WORDS += ["is", "red", "mars", "venus", "earth"]
SMALL = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 12, "max_length": 12}
PAIRS = [("which planet is red", "mars"), ("is venus", "venus is red"), ("earth", "is")]
# Templates of BERT and of RoBERTa.
BERT = {"single": "[CLS] $A [SEP]", "pair": "[CLS] $A [SEP] $B:1 [SEP]:1"}
ROBERTA = {"single": "[CLS] $A [SEP]", "pair": "[CLS] $A [SEP] [SEP] $B [SEP]"}
# float32, one block, logits of order 1.
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def tokenizer(template):
    result = Tokenizer(
        tokenizer_models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]")
    )
    result.add_special_tokens(WORDS[:4])
    result.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = [("[CLS]", 2), ("[SEP]", 3)]
    result.post_processor = processors.TemplateProcessing(**template, special_tokens=special)
    return result


def by_hand():
    """The inputs of a model ported from transformers: ids, a mask of floats, and types."""
    ids, types, mask = (
        keras.Input((None,), dtype=dtype, name=name)
        for name, dtype in [
            ("input_ids", "int32"),
            ("token_type_ids", "int32"),
            ("attention_mask", "float32"),
        ]
    )
    x = layers.TokenEmbedding(len(WORDS), 8)(ids) + keras.layers.Embedding(2, 8)(types)
    x = layers.PositionalEncoding()(x)
    x = layers.TransformerEncoderBlock(12, 2)(x, mask=mask > 0.5)
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    return keras.Model(inputs, keras.layers.Dense(3)(x[:, 0]))


@functools.cache
def model(kind):
    if kind == "by hand":
        return randomize(by_hand(), 4)
    options = {} if kind in ("bert", "albert") else {"pad_id": 0}
    encoder = getattr(models, kind)(len(WORDS), **SMALL, **options)
    return randomize(models.sequence_classifier(encoder, 3, dropout=0.0), 4)


@functools.cache
def exported(kind):
    template = ROBERTA if kind == "roberta" else BERT
    report = export_tflite(
        model(kind),
        new_path(),
        source_length=[6, 12],
        tokenizer=tokenizer(template),
        labels=["a", "b", "c"],
        verify=False,
    )
    return runtime.load(report.path)


def logits(kind, row):
    """Of one row alone, with the types of the tokenizer."""
    text = [row] if isinstance(row, str) else row
    encoding = tokenizer(ROBERTA if kind == "roberta" else BERT).encode(*text)
    ids, types = np.array([encoding.ids]), np.array([encoding.type_ids])
    if kind == "by hand":
        mask = np.ones(ids.shape, "float32")
        inputs = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}
    else:
        inputs = {"tokens": ids, "segments": types}
        inputs = {name: inputs[name] for name in model(kind).input}
    return np.asarray(model(kind)(inputs))[0]


@pytest.mark.parametrize(
    "kind", ["bert", "by hand", pytest.param("roberta", marks=pytest.mark.slow)]
)
def test_pairs_have_the_segments_of_their_tokenizer(kind):
    file = exported(kind)
    rows = [*PAIRS, "which planet"]
    expected = np.stack([logits(kind, row) for row in rows])
    np.testing.assert_allclose(file.predict_text(rows)["output"], expected, **CLOSE)
    np.testing.assert_allclose(file.predict_text(PAIRS[2:])["output"], expected[2:3], **CLOSE)
    listed = [list(pair) for pair in PAIRS]  # of JSON
    np.testing.assert_allclose(file.predict_text(listed)["output"], expected[:3], **CLOSE)
    if kind == "bert":
        assert list(file.tokenizers) == ["tokens"]
        swapped = file.predict_text([(b, a) for a, b in PAIRS])["output"]
        assert np.abs(swapped - expected[:3]).max() > 0.01
        named = file.predict_text({"tokens": PAIRS})["output"]
        np.testing.assert_allclose(named, expected[:3], **CLOSE)
        zeros = [[0] * len(tokenizer(BERT).encode(*pair).ids) for pair in PAIRS]
        own = file.predict_text({"tokens": PAIRS, "segments": zeros})["output"]
        assert np.abs(own - expected[:3]).max() > 0.01  # given segments are not replaced


@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_rows_of_a_mask_are_padded_as_those_of_ids(kind):
    encodings = [tokenizer(BERT).encode(*text) for text in (PAIRS[0], ["is"])]
    inputs = {
        "input_ids": [x.ids for x in encodings],
        "token_type_ids": [x.type_ids for x in encodings],
        "attention_mask": [kind(x.attention_mask) for x in encodings],
    }
    expected = np.stack([logits("by hand", text) for text in (PAIRS[0], "is")])
    found = exported("by hand").predict(inputs)["output"]
    np.testing.assert_allclose(found, expected, **CLOSE)
    alone = {name: rows[1] for name, rows in inputs.items()}
    found = exported("by hand").predict(alone)["output"]
    np.testing.assert_allclose(found, expected[1:], **CLOSE)


@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        ([[1] * 13, [1]], ValueError, "attention_mask must be an array, got rows of different"),
        ([[1, 1, "a"]] * 2, TypeError, "attention_mask must be numbers, got "),
    ],
)
def test_bad_masks(mask, error, message):
    inputs = {"input_ids": [[2, 4, 3]] * 2, "token_type_ids": [[0, 0, 0]] * 2}
    with pytest.raises(error, match=message):
        exported("by hand").predict({**inputs, "attention_mask": mask})


@pytest.mark.parametrize(
    ("texts", "error", "message"),
    [
        ([("is " * 8, "mars red")], ValueError, "has 13 tokens, but .* at most 12"),
        ([("is", "a", "b")], TypeError, r"a list of texts or of pairs of texts, got list of tuple"),
        ([("is", 3)], TypeError, "or of pairs of texts"),
        ([], ValueError, "got no texts"),
    ],
)
def test_bad_pairs(texts, error, message):
    with pytest.raises(error, match=message):
        exported("bert").predict_text(texts)


def test_a_sentence_piece_model_joins_no_texts():
    from small_tokenizers import sentence_pieces

    from keras_tfm.runtime.tokenizers.tokenizer import read

    made = read("tokenizer.model", sentence_pieces())
    assert made.encode_typed("hello") == (made.encode("hello"), [0] * len(made.encode("hello")))
    with pytest.raises(ValueError, match="does not say how two texts are joined"):
        made.encode_typed(("hello", "world"))


def test_pairs_on_the_command_line(monkeypatch, capsys):
    from keras_tfm import cli

    def run(*arguments, lines=()):
        content = "".join(f"{line}\n" for line in lines).encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        path = str(exported("bert").path)
        monkeypatch.setattr(sys, "argv", ["keras-tfm", "predict", path, *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code or 0, *capsys.readouterr()

    best = ["abc"[int(np.argmax(logits("bert", pair)))] for pair in PAIRS]
    code, output, _ = run("--pairs", lines=["\t".join(pair) for pair in PAIRS])
    assert code == 0 and [line[0] for line in output.splitlines()] == best
    lines = [json.dumps(PAIRS[0]), json.dumps({"tokens": PAIRS[1]})]
    code, output, _ = run("--from-json", lines=lines)
    assert code == 0 and [line[0] for line in output.splitlines()] == best[:2]
    code, _, error = run("--pairs", "mars", "mars\tred\tis")
    assert code == 1 and "expected two texts with a tab between them, got 3" in error
    code, _, error = run("--pairs", "--from-json", "[]")
    assert code == 2 and "a pair is an array of two texts" in error
