"""Constraints of generated text: `JsonSchema` and `Regex`.

They run in `llguidance`, an optional package: 3 MB, without dependencies, for every tokenizer whose
tokens are bytes. In each step it computes which tokens may follow, without an index made before.
"""

import json
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from keras_tfm.optional_package import optional_package
from keras_tfm.runtime.manifest.manifest import Decode
from keras_tfm.runtime.tokenizers.tokenizer import Tokenizer, refusing

# As `json.dumps` writes: the model cannot fill its answer with spaces.
_JSON = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# Tokenizers in the form of llguidance, which takes up to a second to make.
_converted: "weakref.WeakKeyDictionary[Tokenizer, dict[Any, Any]]" = weakref.WeakKeyDictionary()


class Constraint:
    """The base of constraints: what `constraint=` of a `Session` takes."""

    _grammar: str

    def begin(self, tokenizer: Tokenizer, end_ids: Sequence[int], size: int) -> "Allowed":
        """The tokens that are allowed in one generation.

        Args:
            tokenizer: that of the generated text.
            end_ids: the end tokens.
            size: int, number of logits (V), which may exceed the tokenizer's number of tokens.

        Raises:
            ValueError: the tokens of the tokenizer are not bytes.
        """
        return Allowed(self._grammar, tokenizer, tuple(end_ids), size)


def begin(
    constraint: Constraint | None, tokenizer: Callable[[], Tokenizer], decode: Decode
) -> "Allowed | None":
    """What a constraint allows in the texts of a decode signature; None without a constraint."""
    if constraint is None:
        return None
    if not isinstance(constraint, Constraint):
        raise TypeError(f"constraint must be a JsonSchema or a Regex, got {constraint!r}")
    return constraint.begin(tokenizer(), decode.end_ids, decode.vocabulary_size)


@dataclass(frozen=True)
class JsonSchema(Constraint):
    """The generated text is JSON that a schema describes.

    Args:
        schema: dict, or str, the JSON schema; `{}` takes any JSON value. Separators are ", " and
            ": ", and there is no other whitespace.

    Raises:
        ValueError: no JSON, or no schema that llguidance supports.
        TypeError: neither a dictionary nor a text.
        ModuleNotFoundError: llguidance is missing; the message names the extra.

    Example:

    >>> from keras_tfm.runtime import JsonSchema
    >>> city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    >>> def city_of(session):
    ...     reply = session.generate(constraint=JsonSchema(city))
    ...     return json.loads(reply.text)["city"]
    >>> JsonSchema({"type": "cty"})
    Traceback (most recent call last):
    ValueError: not a JSON schema (Invalid type: cty)
    """

    schema: dict[str, Any] | str
    _grammar: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.schema, (dict, str)):
            raise TypeError(f"schema must be a dictionary or a text, got {self.schema!r}")
        with refusing("not a JSON schema"):
            schema = json.loads(self.schema) if isinstance(self.schema, str) else self.schema
            text = json.dumps(schema)
        matcher = _package().LLMatcher
        with refusing("not a JSON schema"):
            grammar = matcher.grammar_from_json_schema(text, overrides=_JSON)
        object.__setattr__(self, "_grammar", _check("not a JSON schema", grammar))


@dataclass(frozen=True)
class Regex(Constraint):
    """The generated text, as a whole, matches a regular expression.

    Args:
        pattern: str, in the syntax of Rust's `regex`: without look-around and back references.

    Raises:
        ValueError: no regular expression that llguidance supports.
        TypeError: not a text.
        ModuleNotFoundError: llguidance is missing; the message names the extra.

    Example:

    >>> from keras_tfm.runtime import Regex
    >>> date = Regex("[0-9]{4}-[0-9]{2}-[0-9]{2}")
    >>> def date_of(session):
    ...     return session.generate(constraint=date).text
    """

    pattern: str
    _grammar: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, str):
            raise TypeError(f"pattern must be a text, got {self.pattern!r}")
        what = f"not a regular expression: {self.pattern!r}"
        # \d is ASCII: a date has no digits of other scripts.
        grammar = f"start: /{_package().regex_to_lark(self.pattern, use_ascii='d')}/"
        object.__setattr__(self, "_grammar", _check(what, grammar))


class Allowed:
    """The tokens that may follow; moves on with every chosen token."""

    def __init__(self, grammar: str, tokenizer: Tokenizer, end_ids: tuple[int, ...], size: int):
        self._end_ids, self._size = list(end_ids), size
        converted = _for_llguidance(tokenizer, end_ids, size)
        self._guess = converted.eos_token  # llguidance looks for one where the file has none
        self._matcher = _package().LLMatcher(converted, grammar, log_level=0)
        self._check()

    def mask(self) -> np.ndarray | None:
        """(V,), boolean, True = allowed; None: the text is complete."""
        if self._matcher.is_stopped():
            return None
        bits = np.frombuffer(self._matcher.compute_bitmask(), "uint8")
        self._check()
        allowed = np.zeros(self._size, bool)
        found = np.unpackbits(bits, bitorder="little")[: self._size].astype(bool)
        allowed[: len(found)] = found
        if not self._end_ids:
            allowed[self._guess] = False
        return allowed if allowed.any() else None

    def advance(self, token: int) -> None:
        """Continues after a token."""
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise ValueError(f"the constraint failed ({_first_line(self._matcher.get_error())})")


def _for_llguidance(tokenizer: Tokenizer, end_ids: tuple[int, ...], size: int) -> Any:
    known, key = _converted.setdefault(tokenizer, {}), (end_ids, size)
    if key not in known:
        package = _package()
        with refusing("constraints need a tokenizer of bytes, such as byte-level BPE"):
            tokens = tokenizer.for_grammar()
            if isinstance(tokens, list):
                tokens = package.TokenizerWrapper(_Tokens(tokens, end_ids, size))
            known[key] = package.LLTokenizer(tokens, n_vocab=size, eos_token=[*end_ids] or None)
    return known[key]


class _Tokens:
    """The tokens of a vocabulary as `llguidance.TokenizerWrapper` reads them."""

    def __init__(self, tokens: list[bytes], end_ids: tuple[int, ...], size: int):
        padded = tokens + [b""] * (size - len(tokens))
        self.tokens = [token or f"<special {i}>".encode() for i, token in enumerate(padded)]
        self.special_token_ids = [i for i, token in enumerate(padded) if not token]
        self.eos_token_id = end_ids[0] if end_ids else self.special_token_ids[0]
        self.bos_token_id = None

        self._ids = {token: i for i, token in enumerate(padded) if token}
        self._longest = max(map(len, self._ids))

    def __call__(self, text: bytes) -> list[int]:
        """The ids of a text that may only go on in one way: the longest tokens that fit."""
        ids = []
        while text:
            lengths = range(min(self._longest, len(text)), 0, -1)
            length = next((n for n in lengths if text[:n] in self._ids), None)
            if length is None:
                raise ValueError(f"no token for the byte {text[0]}")
            ids.append(self._ids[text[:length]])
            text = text[length:]
        return ids


def _check(what: str, grammar: str) -> str:
    problem = _package().LLMatcher.validate_grammar(grammar)
    if problem:
        raise ValueError(f"{what} ({_first_line(problem)})")
    return grammar


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[0][:200].rstrip(": ")


def _package() -> Any:
    return optional_package(
        "llguidance", "constraints need llguidance", "llguidance", extra="constraints"
    )
