"""Tokenizers of other people's files: what would take forever, or all memory, is not built."""

import base64
import time

import pytest
import sentencepiece
from odd_tokenizers import (
    BERT,
    BYTES,
    CATASTROPHIC,
    DOUBLE,
    META,
    PUBLISHED,
    WITHOUT_END,
    WORD_PIECE,
    content,
    replace,
    split,
    template,
)
from small_tokenizers import byte_pairs, sentence_pieces, word_pieces, words

from keras_tfm.checkpoints import load_tokenizer
from keras_tfm.runtime.tokenizers.backtracking import check_regex, least_length
from keras_tfm.runtime.tokenizers.tokenizer import read
from keras_tfm.runtime.tokenizers.tokenizer_limits import read_tokenizer_json


@pytest.mark.parametrize("rules", WITHOUT_END.values(), ids=WITHOUT_END)
def test_what_grows_without_bound_is_refused(rules, tmp_path):
    start = time.perf_counter()
    with pytest.raises(ValueError, match=r"the tokenizer 'x\.json' cannot be read: it") as caught:
        read("x.json", content(**rules))
    assert time.perf_counter() - start < 1 and "\n" not in str(caught.value)
    (tmp_path / "tokenizer.json").write_bytes(content(**rules))
    with pytest.raises(ValueError, match=r"tokenizer\.json cannot be read \(it"):
        load_tokenizer(tmp_path)


def test_what_grows_a_little_is_read():
    """Of rules that do not feed each other there may be many."""
    signs = zip("&%@$#+=<>~^*", "bcdefghijklm", strict=True)
    rules = [replace(sign, f" {letter * 9} ") for sign, letter in signs]
    rules += [replace(r"\s+", " ", "Regex"), replace(" ", "\u2581")]
    tokenizer = read("x.json", content(normalizer=rules, pre_tokenizer=[BYTES]))
    assert tokenizer.encode("a&a%") == [1]
    assert read("x.json", content(normalizer=[DOUBLE] * 8)).encode("aaa") == [1]


def test_the_steps_of_published_tokenizers_are_read():
    """Those of ALBERT, T5, BERT, Llama 3, and XLM's, which normalize the most."""
    nfkc, nfkd, nfd, strip, lower, nfc = (
        {"type": kind} for kind in ("NFKC", "NFKD", "NFD", "StripAccents", "Lowercase", "NFC")
    )
    table = base64.b64encode(bytes(4) + "صلى الله عليه وسلم".encode() + b"\0").decode()
    compiled = {"type": "Precompiled", "precompiled_charsmap": table}
    spaces = replace(" {2,}", " ", "Regex")
    parts = [
        {"normalizer": [nfkd, strip, lower, compiled, spaces], "pre_tokenizer": META},
        {"normalizer": [compiled, spaces], "pre_tokenizer": META, "decoder": META},
        {"normalizer": BERT, "post_processor": template(1), "decoder": WORD_PIECE},
        {"normalizer": nfc, "pre_tokenizer": BYTES, "post_processor": [BYTES], "decoder": BYTES},
        {"normalizer": [nfkc, lower, nfd, strip], "pre_tokenizer": BYTES, "post_processor": BYTES},
    ]
    for part in parts:
        read_tokenizer_json(content(**part))


@pytest.mark.parametrize("damaged", [b"", b"null", b"[]", b"\xff", b'{"model": []}', b"[" * 99_999])
def test_what_is_no_tokenizer_is_refused(damaged):
    with pytest.raises(ValueError, match=r"not a tokenizer\.json"):
        read("x.json", damaged)


@pytest.mark.parametrize("pattern", CATASTROPHIC)
def test_regular_expressions_that_take_forever_are_refused(pattern):
    with pytest.raises(ValueError, match="may take forever: "):
        check_regex(pattern)
    with pytest.raises(ValueError, match=r"the regular expression .* may take forever: "):
        read("x.json", content(pre_tokenizer=split(pattern)))


@pytest.mark.parametrize("pattern", PUBLISHED)
def test_published_regular_expressions_are_read(pattern):
    check_regex(pattern)
    start = time.perf_counter()
    tokenizer = read("x.json", content(pre_tokenizer=split(pattern)))
    for text in ("a" * 3000, " " * 3000 + "a", "1" * 3000, "A\u0301!" * 1000):
        assert tokenizer.encode(text)
    assert time.perf_counter() - start < 2


def test_the_least_length_of_a_match():
    found = {" {2,}": 2, "a*": 0, "ab|": 0, r"(?:ab|cde)+x": 3, r"\s+(?!\S)": 1, r"\b": 0, "": 0}
    assert {pattern: least_length(pattern) for pattern in found} == found


def test_small_tokenizers_are_read():
    for tokenizer in (words(), byte_pairs(), word_pieces()):
        assert read("x.json", tokenizer.to_str().encode()).encode("two")
    assert read("x.model", sentence_pieces()).encode("two")


def test_a_table_of_sentence_pieces_has_short_texts():
    """A character may not become a text of kilobytes."""
    table = (0).to_bytes(4, "little") + b"x" * 1000 + b"\0"
    rules = b"\x12" + _size(len(table)) + table
    damaged = sentence_pieces() + b"\x1a" + _size(len(rules)) + rules
    with pytest.raises(ValueError, match="it replaces a character by 1000 bytes, more than 256"):
        read("x.model", damaged)
    assert sentencepiece.SentencePieceProcessor(model_proto=sentence_pieces()).get_piece_size()


def _size(number):
    """A number of a protocol buffer, from 128 to 16,383."""
    return bytes([number & 127 | 128, number >> 7])
