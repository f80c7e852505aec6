"""Checks what a tokenizer's file contains before its package builds it.

A few hundred bytes of rules can turn a character into gigabytes, whose allocation ends the process:
the growth of a text is bounded here, from the rules alone. Regular expressions are checked by
`backtracking`. examples/web/tokenizer_check.js has the same rules.
"""

import base64
import binascii
import json
from collections.abc import Iterator
from typing import Any

from keras_tfm.runtime.backtracking import check_regex, least_length
from keras_tfm.runtime.protobuf import message_fields

# Characters that a character of a text may become.
MOST = 256
# Characters that are put before or after each text.
_ADDED = 1 << 14
_STEPS = 1000
# The largest id in a file with fewer bytes; characters of affixes; characters of a word.
_IDS, _AFFIX, _WORD = 1 << 22, 64, 1000


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


def check_tokenizer_json(content: bytes) -> None:
    """Raises ValueError unless a tokenizer can be built and run in bounded memory and time.

    Args:
        content: the bytes of a tokenizer.json.

    >>> from keras_tfm.runtime.tokenizer_limits import check_tokenizer_json
    >>> doubled = '{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}'
    >>> text = '{"normalizer": {"type": "Sequence", "normalizers": [%s]}, "model": {"vocab": {}}}'
    >>> check_tokenizer_json((text % doubled).encode())
    >>> check_tokenizer_json((text % ", ".join([doubled] * 30)).encode())
    Traceback (most recent call last):
    ValueError: it makes up to 512 characters of one of a text, more than 256
    """
    try:
        settings = json.loads(content)
    except (RecursionError, ValueError) as error:
        raise ValueError(f"not a tokenizer.json ({error})") from None
    try:
        _check_model(settings["model"], settings.get("added_tokens") or [], len(content))
        steps = {key: [*_steps(settings.get(key), name)] for key, name in _CHILDREN.items()}
    except (AttributeError, KeyError, RecursionError, TypeError) as error:
        raise ValueError(f"not a tokenizer.json ({error!r})"[:200]) from None
    decoder = steps.pop("decoder")
    try:
        _check_growth([step for part in steps.values() for step in part], "text")
        _check_growth(decoder, "token")
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"a step of it is odd ({error!r})"[:200]) from None


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
    if len(steps) > _STEPS:
        raise ValueError(f"it takes {len(steps)} steps for a {of}, more than {_STEPS}")
    weights, added = _Weights(), 0.0
    for step in reversed(steps):
        kind = step.get("type")
        for pattern in [step["pattern"]] if isinstance(step.get("pattern"), dict) else []:
            if "Regex" in pattern:
                check_regex(pattern["Regex"])
        if kind == "Replace":
            weights.replace(step["pattern"], step["content"])
        elif kind == "Precompiled":
            longest = _longest_replacement(step.get("precompiled_charsmap") or "")
            weights.change(least=longest * weights.largest)
        elif kind == "ByteLevel" and of == "text":
            weights.change(times=2)
        elif kind == "BertNormalizer":  # spaces around Chinese characters
            weights.change(plus=2 * weights[" "])
        elif kind == "Metaspace":
            weights.replace({"String": " "}, step.get("replacement") or "")
        elif kind == "TemplateProcessing":
            pieces = [*step["single"]]
            copies = sum("Sequence" in piece for piece in pieces)
            special = step.get("special_tokens") or {}
            added += sum(len(x["ids"]) for x in special.values()) * max(1, len(pieces))
            weights.change(times=max(1, copies))
        elif kind == "BPEDecoder" and not step.get("suffix", "</w>"):
            weights.change(times=2)
        added += weights.text(step.get("prepend") or "") if kind == "Prepend" else 0
        if weights.largest > MOST:
            raise ValueError(
                f"it makes up to {weights.largest:.3g} characters of one of a {of}, "
                f"more than {MOST}"
            )
        if added > _ADDED:
            raise ValueError(f"it adds {added:.3g} to each {of}, more than {_ADDED}")


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
