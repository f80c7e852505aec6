"""Checks what a tokenizer's file contains before its package builds it.

A few hundred bytes of rules can turn a character into gigabytes, whose allocation ends the process:
the growth of a text is bounded here, from the rules alone. Regular expressions are checked by
`backtracking`. keras_tfm/web/runtime/tokenizer_check.js has the same rules.
"""

import base64
import binascii
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from keras_tfm.runtime.tokenizers.backtracking import check_regex, least_length
from keras_tfm.runtime.tokenizers.protobuf import message_fields

# Characters that a character of a text may become.
MOST = 256
# Characters that are put before or after each text.
_ADDED = 1 << 14
_STEPS = 1000
# The largest id in a file with fewer bytes; characters of affixes; characters of a word.
_IDS, _AFFIX, _WORD = 1 << 22, 64, 1000
# The most characters that one becomes: a byte is a character for ByteLevel, and BertNormalizer
# decomposes (Hangul: 3) and lowers ("İ": 2).
_FACTORS = {"ByteLevel": 4, "BertNormalizer": 6, "Lowercase": 2}
_UNICODE_FORMS = {"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18}


class _Weights:
    """The number of characters that each character becomes in the steps from some step on."""

    def __init__(self) -> None:
        self.default, self.of = 1.0, dict[str, float]()

    def __getitem__(self, char: str) -> float:
        return self.of.get(char, self.default)

    def text(self, text: str) -> float:
        return sum(map(self.__getitem__, text))

    @property
    def largest(self) -> float:
        return max([self.default, *self.of.values()])

    def change(self, times: float = 1, plus: float = 0, least: float = 0) -> None:
        """Each number x becomes times x + plus, and at least `least`."""
        self.default = max(least, times * self.default + plus)
        self.of = {char: max(least, times * x + plus) for char, x in self.of.items()}

    def replace(self, pattern: Any, content: str) -> None:
        """Puts a step before the others that replaces what a pattern matches by a text."""
        new, literal = self.text(content), pattern.get("String")
        if literal:
            # The first character of a match pays for all of it.
            self.of[literal[0]] = max(self[literal[0]], new)
        elif literal == "" or least_length(pattern["Regex"]) == 0:  # inserted everywhere
            self.change(plus=new)
        else:
            self.change(least=new)


def read_tokenizer_json(content: bytes) -> dict[str, Any]:
    """The settings of a tokenizer that can be built and run in bounded memory and time.

    Args:
        content: the bytes of a tokenizer.json.

    Raises:
        ValueError: they cannot be read, or describe another tokenizer.

    >>> from keras_tfm.runtime.tokenizers.tokenizer_limits import read_tokenizer_json
    >>> doubled = '{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}'
    >>> text = '{"normalizer": {"type": "Sequence", "normalizers": [%s]}, "model": {"vocab": {}}}'
    >>> read_tokenizer_json((text % doubled).encode())["model"]
    {'vocab': {}}
    >>> read_tokenizer_json((text % ", ".join([doubled] * 30)).encode())
    Traceback (most recent call last):
    ValueError: it makes up to 512 characters of one of a text, more than 256
    """
    try:
        settings: dict[str, Any] = json.loads(content)
    except (RecursionError, ValueError) as error:
        raise ValueError(f"not a tokenizer.json ({error})") from None
    try:
        _check_model(settings["model"], settings.get("added_tokens") or [], len(content))
        steps = {key: [*_steps(settings.get(key), name)] for key, name in _CHILDREN.items()}
        decoder = steps.pop("decoder")
        # As a post-processor, ByteLevel only moves offsets.
        template = [x for x in steps["post_processor"] if x.get("type") != "ByteLevel"]
        _check_growth([*steps["normalizer"], *steps["pre_tokenizer"], *template], "text")
        _check_growth(decoder, "token")
    except (AttributeError, KeyError, RecursionError, TypeError) as error:
        raise ValueError(f"not a tokenizer.json ({error!r})"[:200]) from None
    return settings


_CHILDREN = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
    "decoder": "decoders",
}


def _steps(part: Any, children: str) -> Iterator[dict[str, Any]]:
    """The steps of a part in their order, without the sequences that hold them."""
    if part is None:
        return
    if part.get("type") != "Sequence":
        yield part
        return
    for one in part[children]:
        yield from _steps(one, children)


def _check_model(model: dict[str, Any], added: list[Any], size: int) -> None:
    """The numbers and texts of a model that cost time or memory for each word."""
    vocabulary = model["vocab"]
    ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
    largest = max([*ids, *(token["id"] for token in added)], default=0)
    if not 0 <= largest <= max(size, _IDS):  # an array has a place for each
        raise ValueError(f"it has the id {largest} in {size} bytes")
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if len(model.get(key) or "") > _AFFIX:
            raise ValueError(f"its {key} has more than {_AFFIX} characters")
    longest = model.get("max_input_chars_per_word") or 0
    if longest > _WORD:
        raise ValueError(f"its max_input_chars_per_word is {longest}, more than {_WORD}")


def _check_growth(steps: list[dict[str, Any]], of: str) -> None:
    """Raises ValueError if the steps make too much of a text, or of a token that is decoded."""
    if len(steps) > _STEPS:
        raise ValueError(f"it takes {len(steps)} steps for a {of}, more than {_STEPS}")
    weights, added, has_form = _Weights(), 0.0, False
    for step in reversed(steps):
        kind, pattern = step.get("type"), step.get("pattern")
        if isinstance(pattern, dict) and "Regex" in pattern:
            check_regex(pattern["Regex"])
        if kind == "Replace":
            weights.replace(step["pattern"], step["content"])
        elif kind == "Prepend":
            added += weights.text(step.get("prepend") or "")
        elif kind == "Metaspace":
            mark = step.get("replacement") or ""
            if of == "token":
                weights.replace({"String": mark}, " ")
            else:  # for spaces, and before each word
                weights.replace({"String": " "}, mark)
                weights.change(plus=weights.text(mark))
        elif kind == "BPEDecoder":
            weights.replace({"String": step.get("suffix", "</w>")}, " ")
        elif kind == "TemplateProcessing":
            templates = [step["single"], step.get("pair") or []]
            special = step.get("special_tokens") or {}
            longest = max(1, *map(len, templates))
            added += sum(len(x["ids"]) for x in special.values()) * longest
            weights.change(times=max(1, *map(_copies, templates)))
        elif kind == "Precompiled":
            longest = _longest_replacement(step.get("precompiled_charsmap") or "")
            weights.change(least=longest * weights.largest)
        elif not _keeps_characters(step):
            # Whatever it makes of a character. One of Unicode's forms is not counted: it makes at
            # most 18 characters of one, but alternating with other steps they would grow.
            factor = _FACTORS.get(kind, 1)
            if kind in _UNICODE_FORMS:
                factor = _UNICODE_FORMS[kind] if has_form else 1
                has_form = True
            weights.change(least=factor * weights.largest)
        if kind == "BertNormalizer":  # spaces around Chinese characters
            weights.change(plus=2 * weights[" "])
        elif kind == "WordPiece":  # a space before each token
            added += weights[" "]
        if weights.largest > MOST:
            raise ValueError(
                f"it makes up to {weights.largest:.3g} characters of one of a {of}, "
                f"more than {MOST}"
            )
        if added > _ADDED:
            raise ValueError(f"it adds {added:.3g} to each {of}, more than {_ADDED}")


def _keeps_characters(step: dict[str, Any]) -> bool:
    """Whether a step is a BertNormalizer that neither decomposes characters nor lowers them."""
    options = [step.get("strip_accents"), step.get("lowercase")]
    return step.get("type") == "BertNormalizer" and options == [False, False]


def _copies(template: list[Any]) -> int:
    """How often a template has the same text."""
    texts = Counter(piece["Sequence"]["id"] for piece in template if "Sequence" in piece)
    return max(texts.values(), default=0)


def check_sentence_piece(content: bytes) -> None:
    """Raises ValueError unless the tables of a SentencePiece model replace by short texts.

    Args:
        content: the bytes of a tokenizer.model.
    """
    for number, value in message_fields(content):
        # The rules of normalization and, for decoded texts, of the reverse.
        if number not in (3, 5) or not isinstance(value, bytes):
            continue
        longest = max(
            (_longest(x) for key, x in message_fields(value) if key == 2 and isinstance(x, bytes)),
            default=0,
        )
        if longest > MOST:
            raise ValueError(f"it replaces a character by {longest} bytes, more than {MOST}")


def _longest_replacement(charsmap: str) -> int:
    """`_longest` of a table in Base64."""
    try:
        return _longest(base64.b64decode(charsmap, validate=True))
    except (binascii.Error, ValueError):
        raise ValueError("its precompiled_charsmap is not in Base64") from None


def _longest(table: bytes) -> int:
    """The bytes of the longest text in SentencePiece's table of replacements."""
    texts = table[4 + int.from_bytes(table[:4], "little") :]
    return max(map(len, texts.split(b"\0")), default=0)
