"""Strings in, strings out inside a .tflite file, with tensorflow-text's kernels for LiteRT."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import InterpreterWithCustomOps
from keras import layers
from small_exports import MAX_LENGTH, SOURCE_LENGTH, small
from small_models import START
from small_tokenizers import END, sentence_pieces

from keras_tfm import runtime
from keras_tfm.export import export_tflite
from keras_tfm.layers import TokenEmbedding

SIZES = {
    "source_length": SOURCE_LENGTH,
    "max_length": MAX_LENGTH,
    "start_id": START,
    "end_id": END,
}
WORDS = ["[PAD]", "[UNK]", "two", "three", "four", "five", "six", "end", "eight", "nine", "ten"]
MORE_WORDS = [*WORDS, "eleven", "twelve"]
TEXTS = ["three four five six end", "eight nine ten", "nobody two", ""]
IDS = [[3, 4, 5, 6, 7], [8, 9, 10], [1, 2], []]


@pytest.fixture(scope="module")
def text():
    """tensorflow-text, in the extra "hub"."""
    return pytest.importorskip("tensorflow_text")


class Wrapped(tf.Module):
    """A tokenizer of tensorflow-text as `export_saved_model` takes it."""

    def __init__(self, tokenizer):
        super().__init__()
        self.tokenizer = tokenizer

    def __call__(self, strings):
        return self.tokenizer.tokenize(strings)

    def detokenize(self, ids):
        return self.tokenizer.detokenize(ids)


def word_pieces(text, words):
    options = {"unknown_token": "[UNK]", "support_detokenization": True}
    return Wrapped(text.FastWordpieceTokenizer(words, token_out_type=tf.int32, **options))


def runner(report, name):
    from tensorflow_text.core.pybinds import tflite_registrar

    interpreter = InterpreterWithCustomOps(
        model_path=report.path, custom_op_registerers=tflite_registrar.SELECT_TFTEXT_OPS
    )
    signature = interpreter.get_signature_runner(name)
    return lambda texts, key="source": signature(
        **{key: np.array([one.encode() for one in texts], dtype=object)}
    )


def text_of(tokens):
    tokens = tokens[1:].tolist()
    tokens = tokens[: tokens.index(END)] if END in tokens else tokens
    return " ".join(MORE_WORDS[i] for i in tokens).encode()


@pytest.mark.parametrize(("batch_size", "quantization"), [(1, "float32"), (2, "int8")])
def test_generate_text(text, tmp_path, batch_size, quantization):
    """What the same file says in ids, which any LiteRT runs."""
    report = export_tflite(
        small(seed=6),
        tmp_path / "model.tflite",
        ["generate_text"],
        quantization,
        batch_size=batch_size,
        tokenizer={"source": word_pieces(text, WORDS), "target": word_pieces(text, MORE_WORDS)},
        **SIZES,
    )
    assert set(report.custom_operators) == {
        "FastWordpieceTokenizeWithOffsets",
        "RaggedTensorToTensor",
        "TFText>FastWordpieceDetokenize",
    }
    expected = [text_of(row) for row in runtime.load(report.path).generate(IDS).tokens]
    assert len(set(expected)) > 2
    run = runner(report, "generate_text")
    for start in range(0, len(TEXTS), batch_size):
        found = run(TEXTS[start : start + batch_size])["text"].tolist()
        assert found == expected[start : start + batch_size]
    with pytest.raises(RuntimeError, match=f"{6 * batch_size} != {SOURCE_LENGTH * batch_size}"):
        run(["two two two two two two"] * batch_size)


def test_predict_text(text, tmp_path):
    x = keras.Input((None,), dtype="int32", name="text")
    y = layers.GlobalAveragePooling1D()(TokenEmbedding(400, 3, mask_zero=True)(x))
    model = keras.Model(x, layers.Dense(2)(y), name="classifier")
    tokenizer = text.FastSentencepieceTokenizer(sentence_pieces())
    report = export_tflite(
        model,
        tmp_path / "model.tflite",
        ["predict_text"],
        source_length=20,
        tokenizer=Wrapped(tokenizer),
    )
    ids = tokenizer.tokenize(["hello"]).to_list()
    expected = runtime.load(report.path).predict(ids)["output"]
    outputs = runner(report, "predict_text")(["hello"], "text")["output"]
    np.testing.assert_allclose(outputs, expected, rtol=1e-6, atol=1e-6)


# Without tensorflow-text


class Split(layers.Layer):
    """Of TensorFlow's own operations, for which LiteRT has no kernels."""

    def call(self, strings):
        letters = tf.strings.bytes_split(strings)
        return letters.with_flat_values(tf.strings.to_hash_bucket_fast(letters.flat_values, 11))

    def detokenize(self, ids):
        return ids.with_flat_values(tf.strings.as_string(ids.flat_values)).to_tensor("")


def test_other_operators_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"needs operators that LiteRT does not have: .*Hash"):
        export_tflite(
            small(seed=6), tmp_path / "a.tflite", ["generate_text"], tokenizer=Split(), **SIZES
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"\['generate_text'\] need a tokenizer, got None"),
        ({"tokenizer": Split(), "source_length": [3, 5]}, "needs one source_length"),
        (
            {"tokenizer": Split(), "signatures": ["predict", "predict", "generate_text"]},
            "signatures must be different",
        ),
    ],
)
def test_bad_arguments(tmp_path, options, message):
    given = {"signatures": ["generate_text"], **SIZES, **options}
    with pytest.raises(ValueError, match=message):
        export_tflite(small(seed=6), tmp_path / "a.tflite", **given)
    assert list(tmp_path.iterdir()) == []
