"""Tokenizers of other people's files: what would take forever, or all memory, is not built."""

import json
import time

import pytest
import sentencepiece
from small_tokenizers import byte_pairs, sentence_pieces, word_pieces, words

from keras_tfm.checkpoints import load_tokenizer
from keras_tfm.runtime.backtracking import check_regex, least_length
from keras_tfm.runtime.tokenizer import read

# Published with the tokenizers of Llama 3, Qwen 2, cl100k, o200k, DeepSeek, CLIP, BLOOM, XLM-R,
# DeBERTa and SuperBPE.
PUBLISHED = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s+(?!\S)|\s+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺ]+",
    r"\s+$",
    r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+",
    " {2,}",
    r"\s{2,}|[\n\r\t]",
    r"(?=(\d{3})+(?!\d))",
    r"[\p{Lu}\p{M}&&[^\p{Han}]]*[\p{Ll}&&[^\p{Han}]]+",
]
CATASTROPHIC = [
    "(a+)+b", "(a|a)*b", "(a*)*", "(?:a|aa)+$", "([a-zA-Z]+)*$", "(.*a){20}", "(a?){50}b",
    "((a{0,100}){0,100}){0,100}b", "(x+x+)+y", "(?>(a+)+)b", "(?<=(a+)+)b", "(?:a{1,20})+b",
    "a*a*b", ".*.*=.*", r"\s*\s*\s*x", "(?=a*a*b)", r"(a*)\1b", r"\g<0>", "a+*", "(((", "[a",
    "(" * 100 + ")" * 100, "a" * 30_000,
]  # fmt: skip


def replace(pattern, content, kind="String"):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def template(copies):
    pieces = [{"Sequence": {"id": "A", "type_id": 0}}] * copies
    return {"type": "TemplateProcessing", "single": pieces, "pair": [], "special_tokens": {}}


def content(model=None, **parts):
    """A tokenizer.json of two words, with other parts; a list is a sequence."""
    names = {
        "normalizer": "normalizers",
        "pre_tokenizer": "pretokenizers",
        "post_processor": "processors",
        "decoder": "decoders",
    }
    given = {
        name: {"type": "Sequence", names[name]: part} if isinstance(part, list) else part
        for name, part in parts.items()
    }
    words_of = {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"}
    settings = {"version": "1.0", "added_tokens": [], "truncation": None, "padding": None}
    settings |= {**dict.fromkeys(names), **given, "model": words_of | (model or {})}
    return json.dumps(settings).encode()


DOUBLE, BYTES = (
    replace("a", "aa"),
    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
)
WITHOUT_END = {
    "doubled again and again": {"normalizer": [DOUBLE] * 40},
    "two rules in turn": {"normalizer": [replace("a", "bb"), replace("b", "aa")] * 20},
    "of several characters": {"normalizer": [replace("ab", "abab")] * 40},
    "a long text": {"normalizer": replace("a", "a" * 100_000)},
    "inserted everywhere": {"normalizer": [replace("", "a")] * 40},
    "a regular expression": {"normalizer": [replace(".", "xx", "Regex")] * 40},
    "one that matches nothing": {"normalizer": [replace("b*", "xx", "Regex")] * 40},
    "put before a text": {"normalizer": [{"type": "Prepend", "prepend": "a"}, *[DOUBLE] * 40]},
    "much put before a text": {"normalizer": {"type": "Prepend", "prepend": "a" * 100_000}},
    "a table": {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAAAHh4" + "eHh4" * 1000}
    },
    "bytes as characters": {"pre_tokenizer": [BYTES] * 30},
    "copies of a text": {"post_processor": [template(10)] * 8},
    "decoded tokens": {"decoder": [DOUBLE] * 40},
    "an id of 32 bits": {"model": {"vocab": {"a": 2**32 - 1}}},
    "a long affix": {"model": {"continuing_subword_prefix": "#" * 1000}},
    "long words": {"model": {"type": "WordPiece", "max_input_chars_per_word": 10**9}},
}


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


@pytest.mark.parametrize("damaged", [b"", b"null", b"[]", b"\xff", b'{"model": []}', b"[" * 99_999])
def test_what_is_no_tokenizer_is_refused(damaged):
    with pytest.raises(ValueError, match=r"not a tokenizer\.json"):
        read("x.json", damaged)


@pytest.mark.parametrize("pattern", CATASTROPHIC)
def test_regular_expressions_that_take_forever_are_refused(pattern):
    with pytest.raises(ValueError, match="may take forever: "):
        check_regex(pattern)
    split = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    with pytest.raises(ValueError, match=r"the regular expression .* may take forever: "):
        read("x.json", content(pre_tokenizer=split))


@pytest.mark.parametrize("pattern", PUBLISHED)
def test_published_regular_expressions_are_read(pattern):
    check_regex(pattern)
    split = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    start = time.perf_counter()
    tokenizer = read("x.json", content(pre_tokenizer=split))
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
