"""Vocabularies from texts: ids by hand, texts there and back, in a file and in Keras."""

import functools
import json
import string
import sys

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_tfm import runtime
from keras_tfm.text import Rows, train_sentence_piece, train_word_piece

pytest.importorskip("tokenizers")
pytest.importorskip("sentencepiece")

TEXTS = [
    "Choose Format - Spacing - Line Spacing: 1.5 (tabs).",
    "Wählen Sie „Format“ – Ländereinstellungen, z.B. Größe!",  # noqa: RUF001
    f"{string.ascii_letters} {' '.join(string.ascii_letters)} {string.digits}",
] * 2
LETTERS = st.text(string.ascii_letters + " .,:()-", max_size=40)


def test_word_pieces_by_hand():
    """Three characters with the space, each at the beginning and within, then three merges.

    "aab" three times, "ba" once: the pairs are _a 3, aa 3, ab 3, _b 1, ba 1. Of those that occur
    equally often the one whose pieces are older comes first: _a, then ab, then _a with ab.
    """
    tokenizer = train_word_piece(["aab aab", "aab ba"], 13)
    vocabulary = tokenizer.get_vocab()
    assert sorted(vocabulary, key=vocabulary.get) == [
        *("<pad>", "<start>", "<end>", "<unknown>"),
        *("\u2581", "\ue000\u2581", "a", "\ue000a", "b", "\ue000b"),
        *("\u2581a", "\ue000ab", "\u2581aab"),
    ]
    encoding = tokenizer.encode("aab")
    assert encoding.tokens == ["<start>", "\u2581aab", "<end>"]
    assert encoding.ids == [1, 12, 2]
    assert tokenizer.encode("ba", add_special_tokens=False).tokens == [
        "\u2581",
        "\ue000b",
        "\ue000a",
    ]
    assert tokenizer.encode("aab cab").tokens == ["<start>", "\u2581aab", "<unknown>", "<end>"]
    assert tokenizer.decode(encoding.ids) == "aab"


@settings(deadline=None)
@given(LETTERS)
def test_word_pieces_give_the_text_back(text):
    tokenizer = trained()
    assert tokenizer.decode(tokenizer.encode(text).ids) == text.removeprefix(" ")


@functools.cache
def trained():
    return train_word_piece(TEXTS, 400)


def test_capitals_punctuation_and_composed_letters():
    tokenizer = trained()
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    # A letter and its mark become one character.
    assert tokenizer.decode(tokenizer.encode("Wa\u0308hlen").ids) == "Wählen"


def test_the_same_texts_give_the_same_vocabulary():
    """`tokenizers`' own trainer of WordPiece gives another one at each call."""
    texts = [f"{x} {x[::-1]}" for x in dir(str) + dir(np)]
    first, second = (train_word_piece(iter(texts), 500).to_str() for _ in range(2))
    assert first == second
    assert train_sentence_piece(texts, 300).serialized_model_proto() == (
        train_sentence_piece(texts, 300).serialized_model_proto()
    )


def test_more_special_tokens_and_no_ends():
    tokenizer = train_word_piece(TEXTS, 300, special_tokens=["<mask>", "<sep>"], ends=False)
    assert tokenizer.encode("Line<mask>Format").ids[1] == 4 or 4 in tokenizer.encode("a<mask>b").ids
    assert tokenizer.token_to_id("<sep>") == 5
    assert 1 not in tokenizer.encode("Line").ids
    pieces = train_sentence_piece(TEXTS, 100, special_tokens=["<mask>"], ends=False)
    assert pieces.piece_to_id("<mask>") == 4
    assert 4 in pieces.encode("Line<mask>Format")
    assert 1 not in pieces.encode("Line")


def test_sentence_pieces():
    for kind in ("unigram", "bpe", "char"):
        pieces = train_sentence_piece(TEXTS, 120, kind=kind)
        assert pieces.get_piece_size() <= 120
        assert [pieces.id_to_piece(i) for i in range(4)] == [
            "<pad>", "<start>", "<end>", "<unknown>",
        ]  # fmt: skip
        ids = pieces.encode("Format (tabs)")
        assert (ids[0], ids[-1]) == (1, 2)
        assert pieces.decode(ids) == "Format (tabs)"
    assert 3 in pieces.encode("日本")
    in_bytes = train_sentence_piece(TEXTS, 400, byte_fallback=True)
    assert in_bytes.decode(in_bytes.encode("日本")) == "日本"


def test_both_are_carried_in_a_file(tmp_path):
    from keras_tfm.export import export_tflite
    from keras_tfm.models import transformer

    keras.utils.set_random_seed(0)
    pieces, words = train_sentence_piece(TEXTS, 110), train_word_piece(TEXTS, 300)
    model = transformer(
        pieces.get_piece_size(),
        words.get_vocab_size(),
        dim=8,
        num_layers=1,
        num_heads=2,
        intermediate_dim=8,
    )
    path = tmp_path / "model.tflite"
    export_tflite(
        model, path, source_length=20, max_length=5, start_id=1, end_id=2, tokenizer=pieces,
        detokenizer=words, verify=False,
    )  # fmt: skip
    file = runtime.load(path)
    expected = file.generate(np.array([pieces.encode("Format")])).tokens[0]
    assert file.generate_text("Format") == words.decode(expected.tolist())


def test_word_pieces_are_kept_as_json(tmp_path):
    from tokenizers import Tokenizer

    path = tmp_path / "tokenizer.json"
    trained().save(str(path))
    assert json.loads(path.read_text())["model"]["type"] == "WordPiece"
    again = Tokenizer.from_file(str(path))
    assert again.encode(TEXTS[0]).ids == trained().encode(TEXTS[0]).ids


def test_rows_of_keras_hub_word_pieces():
    """Where keras-hub is installed its tokenizer serves as well: ids are ids."""
    hub = pytest.importorskip("keras_hub")
    words = ["[PAD]", "[UNK]", "low", "##er", "##est", "new"]
    tokenizer = hub.tokenizers.WordPieceTokenizer(vocabulary=words, lowercase=False)
    rows = Rows.of([np.array(tokenizer(text)) for text in ("lower new", "newest")])
    assert [row.tolist() for row in rows] == [[2, 3, 5], [5, 4]]


@pytest.mark.parametrize("train", [train_word_piece, train_sentence_piece])
def test_refused(train):
    with pytest.raises(ValueError, match="at least one text, got none"):
        train([], 50)
    with pytest.raises(ValueError, match="vocabulary_size must be at least 4, got 0"):
        train(["a"], 0)
    with pytest.raises(TypeError, match="texts must be an iterable of str, got one str"):
        train("The file is open.", 50)
    with pytest.raises(TypeError, match="texts must be str, got NoneType as text 1"):
        train(["The file is open.", None], 50)
    with pytest.raises(TypeError, match="vocabulary_size must be an integer"):
        train(["a"], 8.5)


def test_too_small_a_vocabulary():
    with pytest.raises(
        ValueError, match=r"at least 16, special tokens and all characters that occur, got 10"
    ):
        train_word_piece(["low lower"], 10)
    with pytest.raises(ValueError, match="empty or has more than 10,000 bytes; pass sentences"):
        train_sentence_piece(["a b " * 5_000], 50)
    with pytest.raises(ValueError, match="smaller than required_chars"):
        train_sentence_piece(["low lower"], 5)
    with pytest.raises(ValueError, match="special tokens must differ"):
        train_word_piece(["low"], 50, special_tokens=["<pad>"])
    with pytest.raises(ValueError, match="kind must be one of unigram, bpe, char, got 'words'"):
        train_sentence_piece(["low"], 50, kind="words")


@pytest.mark.parametrize(
    ("train", "package"),
    [(train_word_piece, "tokenizers"), (train_sentence_piece, "sentencepiece")],
)
def test_without_the_package(train, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=rf'pip install .*{package}.* \(the extra "text"'):
        train(["a"], 50)


LONG = {
    "Chinese": "".join(chr(0x4E00 + 7 * i % 50) for i in range(250)),
    "Thai": "".join(chr(0x0E01 + 5 * i % 40) for i in range(250)),
    "URL": "https://example.com/" + "abcdefgh" * 30,
}


@pytest.mark.parametrize("length", [99, 100, 101, 200, 201, 250])
@pytest.mark.parametrize("language", LONG)
def test_long_spans_without_spaces_are_no_unknown_words(language, length):
    tokenizer = train_word_piece([LONG[language], "some words before"], 500)
    text = f"some {LONG[language][:length]} words"
    encoding = tokenizer.encode(text)
    assert "<unknown>" not in encoding.tokens
    assert tokenizer.decode(encoding.ids) == text
