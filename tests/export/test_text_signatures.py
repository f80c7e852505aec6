"""Strings in, strings out: tokenizers inside a SavedModel."""

import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from small_exports import MAX_LENGTH, small
from small_models import SOURCE_SIZE, START, logits_of

from keras_tfm.export import export_saved_model
from keras_tfm.generation import generate
from keras_tfm.layers import TokenEmbedding

END = 7
# With the padding and the unknown word, eleven and thirteen: the model's vocabularies.
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
MORE_WORDS = [*WORDS, "ten", "eleven"]
ALL = ["generate_text", "generate", "predict_text", "predict"]
TEXTS = ["two three FOUR five six", "seven eight nine", "one nobody", ""]
IDS = np.array([[3, 4, 5, 6, 7], [8, 9, 10, 0, 0], [2, 1, 0, 0, 0], [0] * 5], "int32")
TARGETS = ["eleven ten two", "three", "", "one one"]
TARGET_IDS = np.array([[12, 11, 3], [4, 0, 0], [0, 0, 0], [2, 2, 0]], "int32")
LENGTHS = {"max_length": MAX_LENGTH, "start_id": START, "end_id": END}


def tokenizer(words, **options):
    return layers.TextVectorization(vocabulary=words, standardize="lower", **options)


def tokenizers(**options):
    return {"source": tokenizer(WORDS, **options), "target": tokenizer(MORE_WORDS, **options)}


def words_of():
    return layers.StringLookup(vocabulary=MORE_WORDS, mask_token="", invert=True)


def expected_texts():
    """By hand from the ids that Keras generates."""
    names = ["", "[UNK]", *MORE_WORDS]
    rows = generate(small(seed=6), IDS, MAX_LENGTH, START, END).tokens[:, 1:].tolist()
    rows = [row[: row.index(END)] if END in row else row for row in rows]
    assert len({tuple(row) for row in rows}) > 1
    return [" ".join(names[i] for i in row) for row in rows]


def texts_of(served, texts=TEXTS):
    outputs = served.signatures["generate_text"](source=tf.constant(texts))
    assert set(outputs) == {"text"}
    return [text.decode() for text in outputs["text"].numpy()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("served") / "model"
    options = {"tokenizer": tokenizers(), "detokenizer": words_of()}
    return export_saved_model(small(seed=6), path, ALL, **LENGTHS, **options)


@pytest.fixture(scope="module")
def served(folder):
    return tf.saved_model.load(str(folder))


def test_all_signatures_are_there(served):
    assert set(served.signatures) == {*ALL, "serve", "serving_default"}
    (_, inputs) = served.signatures["serving_default"].structured_input_signature
    assert inputs["source"].dtype == tf.string
    assert inputs["source"].shape.as_list() == [None]


def test_generate_text(served):
    assert texts_of(served) == expected_texts()


@pytest.mark.parametrize("rows", [slice(0, 1), slice(1, 3), slice(3, 4)])
def test_rows_do_not_see_one_another(served, rows):
    """Not even by how far they are padded; the last row is empty."""
    assert texts_of(served, TEXTS[rows]) == expected_texts()[rows]


def test_predict_text(served):
    outputs = served.signatures["predict_text"](
        source=tf.constant(TEXTS), target=tf.constant(TARGETS)
    )
    expected = logits_of(small(seed=6), IDS, TARGET_IDS)
    # The same operations: only their order may differ, and logits are of order 1.
    np.testing.assert_allclose(outputs["output"], expected, rtol=0.0, atol=1e-6)


def test_the_graphs_are_those_of_the_ids(folder):
    """`generate_text` calls `generate`: no second copy."""
    from tensorflow.core.protobuf import saved_model_pb2

    message = saved_model_pb2.SavedModel()
    message.ParseFromString((folder / "saved_model.pb").read_bytes())
    library = message.meta_graphs[0].graph_def.library.function
    names = [f.signature.name for f in library if len(f.node_def) > 250]
    assert len(names) == 3, names  # generate, its loop, predict


@pytest.mark.parametrize(
    "from_file", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["list", "file"]
)
def test_tensorflow_alone_serves_it(from_file, tmp_path):
    """In a process with neither this library nor Keras, with the vocabulary carried along."""
    given, file = tokenizer(WORDS), tmp_path / "words.txt"
    if from_file:
        file.write_text("\n".join(WORDS) + "\n")
        given = tokenizer(str(file))
    options = {"tokenizer": {"source": given}, "detokenizer": words_of(), **LENGTHS}
    path = export_saved_model(small(seed=6), tmp_path / "model", ["generate_text"], **options)
    file.unlink(missing_ok=True)
    moved = path.rename(tmp_path / "moved")
    script = f"""
        import json, sys
        sys.modules["keras_tfm"] = sys.modules["keras"] = None
        import tensorflow as tf
        served = tf.saved_model.load({str(moved)!r})
        text = served.signatures["generate_text"](source=tf.constant({TEXTS!r}))["text"]
        assert sys.modules["keras_tfm"] is sys.modules["keras"] is None
        print(json.dumps([row.decode() for row in text.numpy()]))
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().replace('"', "'") == str(expected_texts())


class Ragged(layers.Layer):
    """Words to ragged ids, and ids to text: of TensorFlow's own operations, as a user writes it."""

    def __init__(self, words):
        super().__init__()
        self.ids = layers.StringLookup(vocabulary=words, mask_token="")
        self.words = layers.StringLookup(vocabulary=words, mask_token="", invert=True)

    def build(self, shape):
        """Both have their tables."""

    def vocabulary_size(self):
        return self.ids.vocabulary_size()

    def call(self, texts):
        words = tf.strings.split(tf.strings.lower(texts))
        return words.with_flat_values(self.ids(words.flat_values))

    def detokenize(self, ids):
        words = ids.with_flat_values(self.words(ids.flat_values))
        return tf.strings.reduce_join(words, axis=1, separator=" ")


def test_a_tokenizer_that_detokenizes(tmp_path):
    """One without an entry for each of the model's ids."""
    both = {"source": Ragged(WORDS), "target": Ragged(MORE_WORDS)}
    path = export_saved_model(small(seed=6), tmp_path / "model", tokenizer=both, **LENGTHS)
    served = tf.saved_model.load(str(path))
    assert set(served.signatures) == {"generate", "generate_text", "serve", "serving_default"}
    assert texts_of(served) == expected_texts()


def classifier(mask_zero, length=None):
    x = keras.Input((length,), dtype="int32", name="text")
    y = TokenEmbedding(SOURCE_SIZE, 3, mask_zero=mask_zero)(x)
    return keras.Model(x, layers.Dense(2)(layers.GlobalAveragePooling1D()(y)), name="classifier")


@pytest.mark.parametrize("length", [None, 5])
def test_a_classifier(tmp_path, length):
    model = classifier(mask_zero=True, length=length)
    path = export_saved_model(model, tmp_path / "model", tokenizer=Ragged(WORDS))
    signature = tf.saved_model.load(str(path)).signatures["predict_text"]
    outputs = signature(text=tf.constant(TEXTS[:3]))["output"]
    np.testing.assert_allclose(outputs, model(IDS[:3]), rtol=1e-6, atol=1e-6)
    alone = signature(text=tf.constant(TEXTS[1:2]))["output"]
    np.testing.assert_allclose(alone, model(IDS[1:2]), rtol=1e-6, atol=1e-6)


def test_more_words_than_an_input_of_fixed_length(tmp_path):
    model = classifier(mask_zero=True, length=4)
    path = export_saved_model(model, tmp_path / "model", tokenizer=Ragged(WORDS))
    signature = tf.saved_model.load(str(path)).signatures["predict_text"]
    with pytest.raises(tf.errors.InvalidArgumentError, match="text: more ids than 4"):
        signature(text=tf.constant(TEXTS))


class Bytes(layers.Layer):
    """Letters as their bytes, a vocabulary that it does not tell."""

    def call(self, texts):
        return tf.cast(tf.io.decode_raw(texts, tf.uint8, fixed_length=3), tf.int32)


def test_ids_of_a_tokenizer_that_tells_no_size(tmp_path):
    path = export_saved_model(classifier(True), tmp_path / "model", tokenizer=Bytes())
    signature = tf.saved_model.load(str(path)).signatures["predict_text"]
    assert signature(text=tf.constant(["\n\t\n"]))["output"].shape == (1, 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"text: ids .* must be in 0\.\.10"):
        signature(text=tf.constant(["abc"]))


# Failures: nothing is written


@pytest.fixture
def path(tmp_path):
    yield tmp_path / "model"
    assert list(tmp_path.iterdir()) == []


def test_more_ids_than_the_model_has(path):
    given = {"tokenizer": tokenizer(MORE_WORDS), "detokenizer": words_of()}
    message = "tokenizer of input 'source' has 13 ids, but the model's embedding takes 11"
    with pytest.raises(ValueError, match=message):
        export_saved_model(small(seed=6), path, **LENGTHS, **given)


@pytest.mark.parametrize(
    ("signatures", "options", "message"),
    [
        (["generate_text"], {}, r"\['generate_text'\] need a tokenizer, got None"),
        (["generate"], {"tokenizer": str.split}, "a tokenizer needs the signature"),
        (["generate"], {"detokenizer": str.split}, "a tokenizer needs the signature"),
        (["summarise_text"], {"tokenizer": str.split}, "signatures must be among"),
        (None, {"tokenizer": {}}, r"inputs of ids \(B, S\) \['source', 'target'\], got \[\]"),
        (None, {"tokenizer": {"sauce": str.split}}, r"'target'\], got \['sauce'\]"),
        (
            ["generate_text"],
            {"tokenizer": {"target": str.split}},
            "generate_text needs a tokenizer",
        ),
        (None, {"tokenizer": {"source": str.split}}, "generate_text needs a detokenizer"),
        (
            ["predict_text", "predict_text"],
            {"tokenizer": str.split},
            "signatures must be different",
        ),
    ],
)
def test_bad_arguments(path, signatures, options, message):
    with pytest.raises(ValueError, match=message):
        export_saved_model(small(), path, signatures, **LENGTHS, **options)


def test_a_tokenizer_that_cannot_be_called(path):
    with pytest.raises(TypeError, match="tokenizer of input 'source' must be callable, got str"):
        export_saved_model(small(), path, **LENGTHS, tokenizer="words.txt")


def test_ragged_ids_for_a_model_that_sees_padding(path):
    with pytest.raises(ValueError, match="padded with 0, but the model does not mask padding"):
        export_saved_model(classifier(mask_zero=False), path, tokenizer=Ragged(WORDS))


class Wrong(layers.Layer):
    def call(self, x):
        return tf.strings.length(x) if x.dtype == tf.string else x.to_tensor()


def test_a_tokenizer_of_another_shape(path):
    with pytest.raises(ValueError, match=r"must return integer ids \(B, S\), got int32 of shape"):
        export_saved_model(classifier(mask_zero=True), path, tokenizer=Wrong())


def test_a_detokenizer_that_makes_no_strings(path):
    given = {"tokenizer": {"source": tokenizer(WORDS)}, "detokenizer": Wrong()}
    with pytest.raises(ValueError, match="the detokenizer must return strings, got int32"):
        export_saved_model(small(), path, **LENGTHS, **given)


def test_tables_that_cannot_be_found(path):
    """In a bare function TensorFlow cannot see what it reads."""
    layer = tokenizer(WORDS)
    with pytest.raises(ValueError, match=r"must be a Keras layer or a tf\.Module that holds"):
        export_saved_model(classifier(True), path, tokenizer=lambda texts: layer(texts))
