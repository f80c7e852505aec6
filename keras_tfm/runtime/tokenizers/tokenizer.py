"""The tokenizers in a file: text to ids and back.

They run in the packages that trained them: `tokenizers` for Hugging Face's JSON, `sentencepiece`
for a SentencePiece model. A package is imported when it is first needed.
"""

import abc
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from keras_tfm.optional_package import optional_package
from keras_tfm.runtime.tokenizers.tokenizer_limits import check_sentence_piece, read_tokenizer_json

# A tokenizer decodes bytes that are not, or not yet, a character to this.
INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
_BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")


class Tokenizer(abc.ABC):
    """Text to ids and back; returned by `read`.

    Attributes:
        size: the number of ids, one more than the largest.
    """

    size: int

    def encode(self, text: str) -> list[int]:
        """The ids of a text, with the special tokens that the tokenizer adds."""
        return self._encode(_check_text(text), ())

    def encode_typed(self, text: str | Sequence[str]) -> tuple[list[int], list[int]]:
        """The ids of a text or of a pair of texts, and the segment (token type) of each id.

        Raises:
            ValueError: the tokenizer cannot join two texts.
        """
        both = [text] if isinstance(text, str) else list(text)
        return self._encode_typed([_check_text(one) for one in both])

    def encode_start(self, text: str, length: int) -> tuple[list[int], list[int]]:
        """As `encode_typed`, of the start of a text that has more tokens than `length`.

        The last tokens of the text itself are left out, and none of those that the tokenizer adds:
        the truncation of transformers.

        Raises:
            ValueError: the tokenizer adds `length` tokens or more.
        """
        ids, types = self.encode_typed(text)
        return (ids, types) if len(ids) <= length else self._encode_start(text, length)

    def encode_prompt(self, text: str, end_ids: Collection[int]) -> list[int]:
        """The ids of a prompt: the tokenizer appends none of `end_ids`.

        An end token that is written in the text stays.
        """
        return self._encode(_check_text(text), end_ids)

    def check_known(self, text: str) -> None:
        """Raises if a text has no token that the model has learned, beside spaces and added tokens.

        Raises:
            ValueError: all tokens are unknown, or the tokenizer leaves out all characters.
        """
        ids, unknown = set(self.encode_more(text)), self._unknown_id
        if ids and unknown not in ids:
            return
        added = set(self.control_tokens())
        tokens = {self.token(i) for i in ids - {unknown}} - added
        if not any(x.strip(" \u2581\u0120") for x in tokens) and (ids or text.strip()):
            raise ValueError(f"the model has never seen the characters of {excerpt(text)}")

    @property
    @abc.abstractmethod
    def _unknown_id(self) -> int | None:
        """The id of unknown characters or words; None if each has tokens, or is left out."""

    @abc.abstractmethod
    def encode_more(self, text: str) -> list[int]:
        """The ids of a text that continues another one: without added special tokens.

        Special tokens that are written in the text stay.
        """

    @abc.abstractmethod
    def for_grammar(self) -> str | list[bytes]:
        """The text of a tokenizer.json, or the bytes of each token; none for special tokens."""

    @abc.abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without special tokens; unknown ids are skipped."""

    @abc.abstractmethod
    def token(self, number: int) -> str:
        """The token of an id as the vocabulary has it, a special one too, as "<s>"."""

    @abc.abstractmethod
    def control_tokens(self) -> list[str]:
        """The texts that are one token wherever a text has them, such as "<|im_end|>".

        The tokens that were added to a Hugging Face tokenizer. SentencePiece reads its control
        tokens in no text, so it has none; its user-defined symbols are not listed.
        """

    @abc.abstractmethod
    def _encode(self, text: str, end_ids: Collection[int]) -> list[int]: ...

    @abc.abstractmethod
    def _encode_typed(self, texts: list[str]) -> tuple[list[int], list[int]]: ...

    @abc.abstractmethod
    def _encode_start(self, text: str, length: int) -> tuple[list[int], list[int]]: ...


class _HuggingFace(Tokenizer):
    """`tokenizer.json`; its truncation and padding settings are ignored."""

    def __init__(self, content: bytes, options: Mapping[str, Any]):
        package = _import("tokenizers")
        settings = read_tokenizer_json(content)["model"]
        with refusing("not a tokenizer.json"):
            if options:
                raise ValueError(f"unknown options {list(options)}")
            self._tokenizer = package.Tokenizer.from_str(content.decode("utf-8"))
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
            self.size = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values())
            decoder = self._tokenizer.decoder
            self._has_bytes = decoder is not None and b"ByteFallback" in decoder.__getstate__()
            # A Unigram model has a number, which the package tells only with the whole model.
            self._unknown = getattr(self._tokenizer.model, "unk_token", settings.get("unk_id"))

    @property
    def _unknown_id(self) -> int | None:
        name = self._unknown
        return self._tokenizer.token_to_id(name) if isinstance(name, str) else name

    def _encode(self, text: str, end_ids: Collection[int]) -> list[int]:
        with refusing(f"the tokenizer cannot read {excerpt(text)}"):
            encoding = self._tokenizer.encode(text)
            ids: list[int] = encoding.ids
            if end_ids and ids and ids[-1] in end_ids:
                added = encoding.special_tokens_mask
                while ids and ids[-1] in end_ids and added[len(ids) - 1]:
                    ids = ids[:-1]
            return ids

    def _encode_typed(self, texts: list[str]) -> tuple[list[int], list[int]]:
        with refusing(f"the tokenizer cannot read {' and '.join(map(excerpt, texts))}"):
            encoding = self._tokenizer.encode(*texts)
            return encoding.ids, encoding.type_ids

    def _encode_start(self, text: str, length: int) -> tuple[list[int], list[int]]:
        space = _space(length, self._tokenizer.num_special_tokens_to_add(False))
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        encoding.truncate(space)
        encoding = self._tokenizer.post_process(encoding)
        return encoding.ids, encoding.type_ids

    def encode_more(self, text: str) -> list[int]:
        with refusing(f"the tokenizer cannot read {excerpt(_check_text(text))}"):
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
            return ids

    def for_grammar(self) -> str:
        text: str = self._tokenizer.to_str()
        return text

    def decode(self, ids: Iterable[int]) -> str:
        numbers = [int(i) for i in ids]
        text: str = self._tokenizer.decode(numbers, skip_special_tokens=True)
        if self._has_bytes and INCOMPLETE in text:
            # One byte that is no character, or not yet, makes the package replace all bytes of its
            # run, so that text disappears as tokens are added. SentencePiece keeps the characters.
            special = {
                i for i, x in self._tokenizer.get_added_tokens_decoder().items() if x.special
            }
            tokens = (self._tokenizer.id_to_token(i) for i in numbers if i not in special)
            text = self._tokenizer.decoder.decode(_characters(token for token in tokens if token))
        return text

    def token(self, number: int) -> str:
        return self._tokenizer.id_to_token(number) or ""

    def control_tokens(self) -> list[str]:
        added = self._tokenizer.get_added_tokens_decoder()
        return [added[number].content for number in sorted(added)]


def _characters(tokens: Iterable[str]) -> list[str]:
    """Tokens, with each run of bytes such as "<0xC3>" as its text; U+FFFD for other bytes."""
    result = []
    for is_bytes, run in itertools.groupby(tokens, lambda x: bool(_BYTE.fullmatch(x))):
        if is_bytes:
            content = bytes(int(token[3:5], 16) for token in run)
            text = content.decode("utf-8", "surrogateescape")
            result.append(re.sub("[\udc80-\udcff]", INCOMPLETE, text))
        else:
            result += run
    return result


class _SentencePiece(Tokenizer):
    """`tokenizer.model`; its options of start and end tokens are stored separately."""

    def __init__(self, content: bytes, options: Mapping[str, Any]):
        package = _import("sentencepiece")
        with refusing("not a SentencePiece model"):
            if not set(options) <= {"add_bos", "add_eos"}:
                raise ValueError(f"unknown options {list(options)}")
            self._options = {"add_bos": False, "add_eos": False, **options}
            check_sentence_piece(content)
            self._processor = package.SentencePieceProcessor(model_proto=content)
            self.size = self._processor.get_piece_size()
            if self.size == 0:
                raise ValueError("it has no pieces")

    @property
    def _unknown_id(self) -> int:
        number: int = self._processor.unk_id()
        return number

    def _encode(self, text: str, end_ids: Collection[int]) -> list[int]:
        options = dict(self._options)
        if self._processor.eos_id() in end_ids:
            options["add_eos"] = False
        with refusing(f"the tokenizer cannot read {excerpt(text)}"):
            ids: list[int] = self._processor.encode(text, **options)
            return ids

    def _encode_typed(self, texts: list[str]) -> tuple[list[int], list[int]]:
        if len(texts) > 1:
            raise ValueError(
                "a SentencePiece model does not say how two texts are joined: export the file with "
                "a tokenizer.json, such as that of checkpoints.load_tokenizer"
            )
        ids = self._encode(texts[0], ())
        return ids, [0] * len(ids)

    def _encode_start(self, text: str, length: int) -> tuple[list[int], list[int]]:
        start = [self._processor.bos_id()] * self._options["add_bos"]
        end = [self._processor.eos_id()] * self._options["add_eos"]
        ids = [*start, *self.encode_more(text)[: _space(length, len(start) + len(end))], *end]
        return ids, [0] * len(ids)

    def encode_more(self, text: str) -> list[int]:
        with refusing(f"the tokenizer cannot read {excerpt(_check_text(text))}"):
            ids: list[int] = self._processor.encode(text, add_bos=False, add_eos=False)
            return ids

    def for_grammar(self) -> list[bytes]:
        return [self._bytes(i) for i in range(self.size)]

    def _bytes(self, token: int) -> bytes:
        processor = self._processor
        if processor.is_control(token) or processor.is_unknown(token) or processor.is_unused(token):
            return b""
        piece: str = processor.id_to_piece(token)
        if processor.is_byte(token):  # "<0x41>"
            return bytes([int(piece[3:-1], 16)])
        return piece.replace("\u2581", " ").encode()

    def decode(self, ids: Iterable[int]) -> str:
        text: str = self._processor.decode([int(i) for i in ids if 0 <= i < self.size])
        return text

    def token(self, number: int) -> str:
        token: str = self._processor.id_to_piece(number) if number < self.size else ""
        return token

    def control_tokens(self) -> list[str]:
        return []


def read(name: str, content: bytes, options: Mapping[str, Any] | None = None) -> Tokenizer:
    """A tokenizer from the bytes of its file.

    Args:
        name: ends in ".json" (Hugging Face `tokenizers`) or ".model" (SentencePiece).
        content: the bytes.
        options: for SentencePiece, "add_bos" and "add_eos": whether to add a start and an end.

    Raises:
        ValueError: the name has another ending, or the bytes are not such a tokenizer.
        ModuleNotFoundError: the package that reads it is missing; the message names the extra.
    """
    kinds = {".json": _HuggingFace, ".model": _SentencePiece}
    for ending, kind in kinds.items():
        if name.endswith(ending):
            with _naming(name):
                return kind(content, options or {})
    raise ValueError(f"a tokenizer's name must end in {' or '.join(kinds)}, got {name!r}")


def _space(length: int, added: int) -> int:
    """The number of tokens of a text among `length`, of which a tokenizer adds some."""
    if added >= length:
        raise ValueError(
            f"the tokenizer adds {added} tokens to a text, so its length must be larger, got "
            f"{length}"
        )
    return length - added


def prompt_ids(
    tokenizer: Tokenizer, text: str, start_id: int | None, end_ids: Collection[int], name: str
) -> list[int]:
    """The ids of a prompt: the start token first, and no end token that the tokenizer appends.

    A start token that the text begins with, as that of many chat templates, is there once.

    Args:
        tokenizer: that of the stepped input.
        text: str.
        start_id: int or None, added at the start unless the tokenizer has added it.
        end_ids: the end tokens.
        name: str, the input, for errors.

    Raises:
        ValueError: there are no ids.
    """
    ids = tokenizer.encode_prompt(text, end_ids)
    start = ids[0] if start_id is None and ids else start_id
    token = "" if start is None else tokenizer.token(start)
    if token and text.startswith(token):
        written = tokenizer.encode_more(text)
        if written[:1] == [start]:
            ids = ids[max(0, _leading(ids, start) - _leading(written, start)) :]
        else:  # as SentencePiece, which reads control tokens as text
            ids = tokenizer.encode_prompt(text.removeprefix(token), end_ids)
    if start_id is not None and ids[:1] != [start_id]:
        ids = [start_id, *ids]
    if not ids:
        raise ValueError(f"{name!r} is an empty text, and there is no start_id")
    return ids


def _leading(ids: Sequence[int], token: int | None) -> int:
    """How often a token is at the start."""
    return sum(1 for _ in itertools.takewhile(lambda one: one == token, ids))


def without_start(ids: Sequence[int], start_id: int | None) -> list[int]:
    """A prompt without the start token."""
    return list(ids[1:] if ids[:1] == [start_id] else ids)


def until_end(ids: Sequence[int], end_ids: Collection[int]) -> list[int]:
    """The ids before the first end token."""
    ends = (i for i, token in enumerate(ids) if token in end_ids)
    return [int(i) for i in ids[: next(ends, None)]]


def _check_text(text: str) -> str:
    if not isinstance(text, str):
        raise TypeError(f"expected a text (str), got {type(text).__name__}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{excerpt(text)} is not Unicode text: it has a lone surrogate, "
            f"{text[error.start]!a}, at position {error.start}"
        ) from None
    return text


def excerpt(text: str) -> str:
    """The start of a text, for an error."""
    return ascii(text) if len(text) <= 40 else f"{text[:40]!a}... ({len(text)} characters)"


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Turns every error of a package into a one-line ValueError."""
    try:
        yield
    except BaseException as error:
        # A panic in Rust, as in `tokenizers`, is not an Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        lines = str(error).splitlines() or [type(error).__name__]
        raise ValueError(f"{what} ({lines[0][:200]})") from None


@contextmanager
def _naming(name: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"the tokenizer {name!r} cannot be read: {error}") from None


def _import(package: str) -> Any:
    # Neither package imports what it depends on, which would only fill a device.
    need = f"the file's tokenizer needs {package}"
    return optional_package(package, need, package, extra="text", dependencies=False)
