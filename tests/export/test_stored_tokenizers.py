"""Tokenizers inside a .tflite file: what goes in, what is refused, and nothing half done."""

import json
import subprocess
import sys
import textwrap

import keras
import pytest
import sentencepiece
import tokenizers
from ai_edge_litert import schema_py_generated as schema
from keras import layers
from small_exports import MAX_LENGTH, SOURCE_LENGTH, small
from small_models import START, decoder_only
from small_tokenizers import END, byte_pairs, sentence_pieces, source_words, words
from tokenizers.implementations import SentencePieceUnigramTokenizer

from keras_tfm import runtime
from keras_tfm.export import export_tflite
from keras_tfm.export.member import store_tokenizers
from keras_tfm.export.signatures.request import Request
from keras_tfm.layers import TokenEmbedding
from keras_tfm.models import transformer

SIZES = {"source_length": SOURCE_LENGTH, "max_length": MAX_LENGTH, "start_id": START}


def classifier(size=400):
    x = keras.Input((None,), dtype="int32", name="text")
    y = TokenEmbedding(size, 3, mask_zero=True)(x)
    return keras.Model(x, layers.Dense(2)(layers.GlobalAveragePooling1D()(y)), name="classifier")


def pieces(**options):
    return sentencepiece.SentencePieceProcessor(model_proto=sentence_pieces(), **options)


@pytest.fixture(scope="module")
def wide():
    """A classifier with a place for every id of the tokenizers here."""
    return Request(classifier(), batch_size=1, source_length=7)


@pytest.fixture(scope="module")
def request_of():
    """What is asked of an export of `small`."""
    return Request(small(seed=6), batch_size=1, end_id=END, **SIZES)


def metadata(path):
    model = schema.Model.GetRootAsModel(path.read_bytes(), 0)
    entries = (model.Metadata(i) for i in range(model.MetadataLength()))
    return {x.Name().decode(): model.Buffers(x.Buffer()).DataAsNumpy().tobytes() for x in entries}


def test_the_format(tmp_path):
    """What a reader in another language finds: entries by name, and their names by input."""
    path, source, target = tmp_path / "model.tflite", source_words(), words()
    options = {"end_id": END, "tokenizer": source, "detokenizer": target, "verify": False}
    export_tflite(small(seed=6), path, **SIZES, **options)
    entries = metadata(path)
    manifest = json.loads(entries["keras_tfm"])
    names = {"source": "source_tokenizer.json", "target": "target_tokenizer.json"}
    assert manifest["tokenizers"] == names
    assert "tokenizer_options" not in manifest
    assert entries["source_tokenizer.json"].decode() == source.to_str()
    assert entries["target_tokenizer.json"].decode() == target.to_str()


def test_a_classifier_of_text(tmp_path):
    """From the file alone, what Keras and SentencePiece say together."""
    model, path, processor = classifier(), tmp_path / "model.tflite", pieces(add_eos=True)
    export_tflite(model, path, source_length=7, tokenizer=processor)
    texts = ["hello", "日本"]
    ids = [processor.encode(text) for text in texts]
    assert {row[-1] for row in ids} == {processor.eos_id()}
    rows = keras.utils.pad_sequences(ids, 7, padding="post")
    script = f"""
        import json, sys
        for name in ("keras", "tensorflow", "tokenizers"):
            sys.modules[name] = None
        from keras_tfm import runtime
        outputs = runtime.load({str(path)!r}).predict_text({texts!r})["output"]
        print(json.dumps(outputs.tolist()))
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    expected = keras.ops.convert_to_numpy(model(rows))
    assert json.loads(done.stdout) == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert runtime.load(path).manifest["tokenizer_options"] == {
        "tokenizer.model": {"add_eos": True}
    }


# Kinds


def test_every_kind(wide, tmp_path):
    """A tokenizer, one of `tokenizers`' own wrappers, a processor, and their files."""
    pairs = byte_pairs()
    wrapped = SentencePieceUnigramTokenizer([("▁", 0.0), ("a", -1.0)])
    (tmp_path / "a.json").write_text(pairs.to_str())
    (tmp_path / "spiece").write_bytes(sentence_pieces())
    for given, name, content in (
        (pairs, "tokenizer.json", pairs.to_str().encode()),
        (wrapped, "tokenizer.json", wrapped.to_str().encode()),
        (pieces(), "tokenizer.model", sentence_pieces()),
        (tmp_path / "a.json", "tokenizer.json", pairs.to_str().encode()),
        (str(tmp_path / "spiece"), "tokenizer.model", sentence_pieces()),
    ):
        stored = store_tokenizers(wide, given, None)
        assert stored.entries == {name: content}
        assert (stored.names, stored.options) == ({"text": name}, {})


def test_what_belongs_to_training_stays_there(wide):
    tokenizer = tokenizers.Tokenizer.from_str(byte_pairs().to_str())
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=5)
    tokenizer.model.dropout = 0.5
    stored = store_tokenizers(wide, tokenizer, None)
    assert json.loads(stored.entries["tokenizer.json"]) == json.loads(byte_pairs().to_str())
    assert tokenizer.truncation is not None  # the user's own is as it was


def test_one_for_both_inputs_stands_once():
    model = transformer(13, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    request = Request(model, batch_size=1, end_id=END, **SIZES)
    for given in (words(), {"source": words(), "target": words()}, {"source": words()}):
        stored = store_tokenizers(request, given, None)
        assert list(stored.entries) == ["tokenizer.json"]
        assert stored.names == dict.fromkeys(("source", "target"), "tokenizer.json")


def test_a_detokenizer_alone(request_of):
    """As for a model of images: what it takes is no text."""
    stored = store_tokenizers(request_of, None, words())
    assert (stored.names, stored.options) == ({"target": "tokenizer.json"}, {})


def test_none(request_of):
    stored = store_tokenizers(request_of, None, None)
    assert (stored.entries, stored.names, stored.options) == ({}, {}, {})


def test_the_same_pieces_with_other_options():
    model = transformer(400, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    request = Request(model, batch_size=1, end_id=2, **SIZES)
    given = {
        name: pieces(**options) for name, options in (("source", {"add_eos": True}), ("target", {}))
    }
    stored = store_tokenizers(request, given, None)
    assert len(stored.entries) == 2
    assert stored.options == {"source_tokenizer.model": {"add_eos": True}}


# Refusals, before anything is converted


def refused(request, tokenizer, detokenizer, message, error=ValueError):
    with pytest.raises(error, match=message) as caught:
        store_tokenizers(request, tokenizer, detokenizer)
    assert "\n" not in str(caught.value)


def test_more_ids_than_the_model(tmp_path, request_of):
    message = "tokenizer of input 'source' has 13 ids, but the model's embedding takes 11"
    with pytest.raises(ValueError, match=message):
        export_tflite(
            small(seed=6), tmp_path / "model.tflite", **SIZES, end_id=END, tokenizer=words()
        )
    assert list(tmp_path.iterdir()) == []
    refused(request_of, source_words(), byte_pairs(), r"'target' has \d+ ids, .* takes 13")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start_id": 12}, r"start_id 12 is not in the tokenizer of input 'target', .* 0\.\.10"),
        ({"start_id": START, "end_id": [3, 11]}, r"end_id 11 is not in the tokenizer"),
    ],
)
def test_a_start_or_an_end_that_it_lacks(options, message):
    request = Request(small(seed=6), batch_size=1, **{**SIZES, **options})
    refused(request, source_words(), None, message)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"sauce": None}, ValueError, r"inputs of ids \(B, S\) \['source', 'target'\], got"),
        ({}, ValueError, r"got \[\]"),
        (str.split, TypeError, "stores no code, got method_descriptor"),
        (layers.TextVectorization(), TypeError, "stores no code, got TextVectorization"),
        ("missing.json", FileNotFoundError, r"no such tokenizer file: missing\.json"),
    ],
)
def test_bad_tokenizers(request_of, given, error, message):
    refused(request_of, given, None, message, error)


def test_a_path_of_no_tokenizer(request_of, tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("garbage")
    refused(request_of, path, None, rf"{path} is no tokenizer: .*not a SentencePiece model")


def test_two_for_what_is_stepped(request_of):
    refused(request_of, {"target": words()}, words(), "input 'target' is also the detokenizer")
    request = Request(decoder_only(), ["decode"], batch_size=1, max_length=MAX_LENGTH)
    refused(request, words(), words(), "input 'tokens' is also the detokenizer: .*two different")
    assert store_tokenizers(request, words(), None).names == {"tokens": "tokenizer.json"}


def test_a_detokenizer_where_nothing_is_generated(wide):
    refused(
        wide,
        byte_pairs(),
        byte_pairs(),
        "for generated text, got one without a signature that generates",
    )


def test_no_ids_at_all():
    x = keras.Input((3,), name="x")
    request = Request(keras.Model(x, layers.Dense(2)(x)), batch_size=1)
    refused(request, words(), None, "has no input of ids")


def test_damaged_files(wide, tmp_path):
    for name, contents in (
        ("a.json", ["", "{", "null", "[]", "3", "{}", '{"model": 3}', "[" * 100_000]),
        ("a.json", [byte_pairs().to_str()[:-9], '{"model": {"type": "BPE"}}']),
        ("a.model", ["", "x" * 99, "\0" * 99]),
    ):
        for content in contents:
            (tmp_path / name).write_text(content)
            refused(wide, tmp_path / name, None, "tokenizer")
    (tmp_path / "a.json").write_bytes(b"\xff\xfe{")
    refused(wide, tmp_path / "a.json", None, "tokenizer")


def test_a_part_that_is_a_program(wide):
    class Reversed:
        def normalize(self, text):
            text.map(lambda x: x)

    tokenizer = words()
    tokenizer.normalizer = tokenizers.normalizers.Normalizer.custom(Reversed())
    refused(wide, tokenizer, None, "cannot be stored: .*a .tflite file stores no code")


def test_a_processor_that_turns_ids_around(wide):
    refused(wide, pieces(reverse=True), None, "must not reverse ids")


# keras-hub


@pytest.fixture
def hub():
    """keras-hub, which takes ten seconds to import; in the extra "hub"."""
    return pytest.importorskip("keras_hub").tokenizers


PIECES = [
    "[PAD]",
    "[UNK]",
    "hel",
    "##lo",
    "w",
    "##or",
    "##ld",
    ",",
    "é",
    "e",
    "##\u0301",
    "日",
    ".",
]


def test_pieces_of_keras_hub(hub, wide):
    given = hub.SentencePieceTokenizer(proto=sentence_pieces(), add_eos=True)
    stored = store_tokenizers(wide, given, None)
    assert stored.entries == {"tokenizer.model": sentence_pieces()}
    assert stored.options == {"tokenizer.model": {"add_eos": True}}


@pytest.mark.parametrize("options", [{}, {"strip_accents": True}, {"split_on_cjk": False}])
def test_word_pieces_of_keras_hub(hub, wide, options):
    from keras_tfm.runtime.tokenizers.tokenizer import read

    given = hub.WordPieceTokenizer(PIECES, **options)
    ((name, content),) = store_tokenizers(wide, given, None).entries.items()
    for text in ("hello, world.", "日日 é e\u0301 nobody", ""):
        ids = [int(i) for i in given.tokenize([text])[0]]
        assert read(name, content).encode(text) == ids
        if 1 not in ids:
            assert read(name, content).decode(ids) == given.detokenize([ids])[0]


def test_keras_hub_refused(hub, wide):
    for given, message in (
        (hub.WordPieceTokenizer(PIECES, split=False), r"takes words \(split=False\)"),
        (hub.WordPieceTokenizer(PIECES, sequence_length=5), "truncates rows"),
        (hub.WordPieceTokenizer(PIECES, dtype="string"), "must return integer ids, got string"),
        (hub.ByteTokenizer(), "make a tokenizers.Tokenizer"),
    ):
        refused(wide, given, None, f"input 'text', .*Tokenizer, cannot be stored: .*{message}")


def test_a_tokenizer_of_keras_hub_that_is_another_underneath(hub, wide):
    """Ids moved by one, as XLM-RoBERTa's are."""

    class Moved(hub.SentencePieceTokenizer):
        def tokenize(self, inputs):
            return [[int(i) + 1 for i in row] for row in super().tokenize(inputs)]

    refused(wide, Moved(proto=sentence_pieces()), None, "gives the ids .*, its stored form ")
