"""Text in, text out: runs the signatures of a file with its tokenizers.

The tokenizer itself adds its special tokens (post-processor, or SentencePiece's options). A text
for the stepped input is a prompt: the end token that the tokenizer appends is removed, and the
file's start token is put first unless the tokenizer did so. A single placeholder token in it stands
for all features that the model reads there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_tfm.runtime.checked_inputs import Values, prompt_input
from keras_tfm.runtime.decoding import host_loop
from keras_tfm.runtime.decoding.drafts import Draft
from keras_tfm.runtime.decoding.generate import generate
from keras_tfm.runtime.decoding.sampling import Choose, Sampler
from keras_tfm.runtime.decoding.special_ids import TokenRows, expand_placeholder
from keras_tfm.runtime.loaded_file import LoadedFile
from keras_tfm.runtime.manifest.manifest import (
    Decode,
    Encode,
    Generate,
    Input,
    Predict,
    Signature,
    Stepped,
    of_role,
)
from keras_tfm.runtime.tasks.text_rows import (
    ids_of,
    is_pairs,
    is_text,
    kind_of,
    rows_of,
    typed_rows,
)
from keras_tfm.runtime.tokenizers.tokenizer import (
    INCOMPLETE,
    Tokenizer,
    prompt_ids,
    until_end,
    without_start,
)

# Texts for the first input with a tokenizer, or by name, beside arrays for other inputs; for a full
# pass also pairs of texts.
Texts = str | Sequence[str | Sequence[str]] | Mapping[str, Values | Sequence[Sequence[str]]]


class Hypothesis(NamedTuple):
    """One text of a beam search.

    Attributes:
        text: str, without special tokens.
        score: float, as in `Generated.scores`; the best text has the largest.
    """

    text: str
    score: float


# What is written for one text: the best text, or from a beam search several.
Answer = str | list[Hypothesis]


def generate_text(file: LoadedFile, texts: Texts) -> Answer | list[Answer]:
    """See `Model.generate_text`."""
    request = _Generation(file, texts)
    result = _generate(file, request)
    return result[0] if request.single else result


def answers(file: LoadedFile, inputs: Mapping[str, Values]) -> list[str]:
    """The best text for each row, without its prompt; `inputs` as for `generate_text`."""
    found = _generate(file, _Generation(file, inputs, with_prompt=False))
    return [x if isinstance(x, str) else x[0].text for x in found]


def _generate(file: LoadedFile, request: _Generation) -> list[Answer]:
    generated = generate(file, request.inputs)
    result: list[Answer] = []
    for i, rows in enumerate(generated.tokens):
        if rows.ndim == 1:
            result.append(request.text(i, rows))
        else:
            assert generated.scores is not None
            pairs = zip(rows, generated.scores[i], strict=True)
            result.append([Hypothesis(request.text(i, row), float(score)) for row, score in pairs])
    return result


def predict_text(file: LoadedFile, texts: Texts) -> dict[str, np.ndarray]:
    """See `Model.predict_text`."""
    expected = _inputs(file, Predict)
    values = _by_name(file, texts, expected, pairs=True)
    inputs = dict(values)
    for name, x in values.items():
        if is_text(x) or is_pairs(x):
            typed = typed_rows(name, x, tokenizer_of(file, name), expected)
            inputs |= {key: rows for key, rows in typed.items() if key == name or key not in values}
    return file.predict(inputs)


def rows_of_texts(
    file: LoadedFile, texts: list[str], length: int | None = None
) -> dict[str, list[list[int]]]:
    """The rows of each text for a full pass, by input.

    Args:
        file, texts: the file and the texts.
        length: int, the most tokens of a text, of which more are left out, if the file was exported
            for as many; None: all are kept.
    """
    expected = _inputs(file, Predict)
    (name,) = _by_name(file, texts, expected)
    longest = expected[name].shape[1]
    if length is not None and longest is not None and length > longest:
        length = None  # a text of more tokens than the file takes is refused
    return typed_rows(name, texts, tokenizer_of(file, name), expected, length)


def stream_text(
    file: LoadedFile,
    text: Texts,
    choose: Choose | Sampler | None = None,
    draft: Draft | None = None,
) -> Iterator[str]:
    """See `Model.stream_text`."""
    request = _Generation(file, text, on_host=True)
    if request.rows != 1:
        raise ValueError(f"one text is streamed at a time, got {request.rows}")
    stream = host_loop.stream(file, request.inputs, choose, draft=draft)
    tokens = (int(token[0]) for token in stream)
    return pieces(tokens, request.tokenizer, request.prompt(0), request.end_ids)


def pieces(
    tokens: Iterable[int],
    tokenizer: Tokenizer,
    before: Sequence[int],
    end_ids: Sequence[int] = (),
    *,
    given: int | None = None,
    ended: Callable[[], bool] = lambda: True,
) -> Generator[str]:
    """Yields the text that each token adds after `before`, as soon as its characters are complete.

    A character may take several tokens, and a space may belong to the next token. So the new text
    is the text of all tokens minus the text that was given.

    Args:
        tokens: the new tokens.
        tokenizer: `Tokenizer`.
        before: the tokens before.
        end_ids: the new tokens end before one of these.
        given: int, the number of characters of `before` that were given; by default all. If new
            tokens complete a character whose bytes begin in `before`, the text has it.
        ended: whether no more tokens can follow, after the last one: then the text ends with what
            there is of an incomplete character, as the tokenizer decodes it.
    """
    ids, begin, end = list(before), 0, len(before)
    text = tokenizer.decode(ids)
    known = text[:given]
    for token in itertools.takewhile(lambda token: token not in end_ids, tokens):
        ids.append(token)
        text = tokenizer.decode(ids[begin:])
        if not text.startswith(known):  # bytes that were given as U+FFFD are a character now
            same = itertools.takewhile(
                lambda pair: pair[0] == pair[1], zip(known, text, strict=False)
            )
            known = known[: sum(1 for _ in same)]
        piece = complete(text)[len(known) :]
        if piece:
            yield piece
            known += piece
            own = tokenizer.decode(ids[end:])
            if known == text and own:  # the next characters need no tokens before these
                begin, end = end, len(ids)
                text = known = own
    if len(text) > len(known) and ended():
        yield text[len(known) :]


def complete(text: str) -> str:
    """A decoded text without bytes at its end that are not, or not yet, a character."""
    return text.rstrip(INCOMPLETE)


def before_stop(
    texts: Iterable[str], stops: Sequence[str], found: Callable[[int], None] = lambda count: None
) -> Generator[str]:
    """Yields the text before the first of some strings, as soon as it cannot belong to one.

    When it finds one, it calls `found` with the number of characters before it, and then yields
    the last text.

    >>> from keras_tfm.runtime.tasks.text import before_stop
    >>> list(before_stop(["a", "b#", "c#", "#d"], ["##"]))
    ['a', 'b', '#c']
    """
    held, count = "", 0
    for text in texts:
        held += text
        at = min((i for i in map(held.find, stops) if i >= 0), default=None)
        kept = held[: at if at is not None else len(held) - _stop_prefix(held, stops)]
        count += len(kept)
        if at is not None:
            found(count)
        if kept:
            yield kept
            held = held[len(kept) :]
        if at is not None:
            return
    if held:
        yield held


def _stop_prefix(text: str, stops: Sequence[str]) -> int:
    """The number of characters at the end of a text with which a stop string begins."""
    lengths = (n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n]))
    return max(lengths, default=0)


class _Generation:
    """Converts texts to ids for `generate` and `stream`, and tokens back to texts."""

    def __init__(
        self, file: LoadedFile, texts: Texts, on_host: bool = False, with_prompt: bool = True
    ):
        on_host = on_host or not of_role(file.signatures, Generate)
        role: type[Stepped] = Decode if on_host else Generate
        expected = _inputs(file, role)
        *_, signature = file.of_role(role).values()
        target = self._target = signature.target
        self._start_id, self.end_ids = signature.start_id, signature.end_ids
        default = signature.default_prompt if isinstance(signature, Generate) else None
        self._with_prompt = with_prompt
        known = expected.get(target)
        # One stands for those of the only picture, not of several.
        if known is not None and known.placeholder_group is not None:
            known = None
        self._placeholder = (known.placeholder_id, known.placeholders) if known else (None, None)
        self.tokenizer = tokenizer_of(file, target)
        values = _by_name(file, texts, expected, target)
        self.rows = len(next(iter(values.values()), ()))
        kinds = [isinstance(x, str) for x in values.values() if is_text(x)]
        self.single = bool(kinds) and all(kinds)
        self.inputs = dict(values)
        for name in [name for name, x in values.items() if is_text(x)]:
            if name == target:
                rows = rows_of(name, values[name], self._encode_prompt, expected.get(name))
                self.inputs[name] = TokenRows(rows)
            else:
                encode = tokenizer_of(file, name).encode
                self.inputs[name] = ids_of(name, values[name], encode, expected.get(name))
            for text in [values[name]] if isinstance(values[name], str) else values[name]:
                tokenizer_of(file, name).check_known(text)
            self.rows = len(self.inputs[name])
        if target in expected and target not in values:
            if default is None and self._start_id is None:
                raise ValueError(f"{file.path} was exported without a start_id: give {target!r}")
            self.inputs[target] = [default or [self._start_id]] * self.rows

    def _encode_prompt(self, text: str) -> list[int]:
        ids = prompt_ids(self.tokenizer, text, self._start_id, self.end_ids, self._target)
        return expand_placeholder(ids, *self._placeholder)

    def prompt(self, row: int) -> list[int]:
        """The prompt of a row, without the start token."""
        return without_start(self._first_tokens(row), self._start_id)

    def _first_tokens(self, row: int) -> list[int]:
        """The prompt of a row, or the start token."""
        if self._target not in self.inputs:
            assert self._start_id is not None
            return [self._start_id]
        prompts = self.inputs[self._target]
        return [int(i) for i in (prompts[row] if np.ndim(prompts[0]) else prompts)]

    def text(self, row: int, tokens: np.ndarray) -> str:
        """The text of a row's tokens (T,), prompt included, up to the end."""
        new = until_end(tokens[len(self._first_tokens(row)) :].tolist(), self.end_ids)
        return self.tokenizer.decode([*(self.prompt(row) if self._with_prompt else ()), *new])


def _inputs(file: LoadedFile, role: type[Signature]) -> dict[str, Input]:
    """The model's inputs of a role's longest signature; of `Decode`, whole prompts."""
    *_, longest = file.of_role(role).values()
    inputs = dict(longest.inputs)
    if isinstance(longest, Decode):
        for encode in of_role(file.signatures, Encode).values():
            inputs.update(encode.inputs)
        inputs[longest.target] = prompt_input(longest)
    return {key: x for key, x in inputs.items() if x.kind == "input"}


def _by_name(
    file: LoadedFile,
    texts: Texts,
    expected: dict[str, Input],
    target: str | None = None,
    pairs: bool = False,
) -> Mapping[str, Any]:
    """`texts` by input; bare texts are for the first input that has a tokenizer.

    The stepped input comes last, since a text for it is a prompt.
    """
    if isinstance(texts, Mapping):
        return texts
    if not (is_text(texts) or (pairs and is_pairs(texts))):
        also = " or of pairs of texts" if pairs else ""
        raise TypeError(f"expected a text (str) or a list of texts{also}, got {kind_of(texts)}")
    names = [name for name in expected if name in file.tokenizers and name != target]
    return {next(iter(names), target or next(iter(expected))): texts}


def prompt_of(file: LoadedFile) -> Input:
    """The stepped input, as it takes whole prompts."""
    return _inputs(file, Generate if of_role(file.signatures, Generate) else Decode)[
        target_of(file)
    ]


def target_of(file: LoadedFile) -> str:
    """The name of the stepped input; raises a ValueError if no signature writes text."""
    for signature in file.signatures.values():
        if isinstance(signature, Stepped):
            return signature.target
    raise ValueError(
        f"{file.path} writes no text: export it with the signature 'generate', "
        f"it has {list(file.signatures)}"
    )


def tokenizer_of(file: LoadedFile, name: str) -> Tokenizer:
    """The tokenizer of an input; raises a ValueError if the file has none."""
    if name not in file.tokenizers:
        raise ValueError(
            f"{file.path} has no tokenizer for {name!r}, it has {list(file.tokenizers)}: "
            "export it with tokenizer="
        )
    return file.tokenizers[name]
