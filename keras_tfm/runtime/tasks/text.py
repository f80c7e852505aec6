"""Text in, text out: runs the signatures of a file with its tokenizers.

The tokenizer itself adds its special tokens (post-processor, or SentencePiece's options). A text
for the stepped input is a prompt: the end token that the tokenizer appends is removed, and the
file's start token is put first unless the tokenizer did so.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from keras_tfm.runtime.checked_inputs import prompt_spec
from keras_tfm.runtime.decoding.drafts import Draft
from keras_tfm.runtime.decoding.host_loop import end_ids_of
from keras_tfm.runtime.decoding.sampling import Choose, Sampler
from keras_tfm.runtime.decoding.trailing_padding import TokenRows
from keras_tfm.runtime.manifest import storage as manifests
from keras_tfm.runtime.manifest.fields import by_length
from keras_tfm.runtime.signature_runner import check_one
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
    read,
    until_end,
    without_start,
)

if TYPE_CHECKING:
    from keras_tfm.runtime.model import Model


class Hypothesis(NamedTuple):
    """One text of a beam search.

    Attributes:
        text: str, without special tokens.
        score: float, as in `Generated.scores`; the best text has the largest.
    """

    text: str
    score: float


def tokenizers_of(model: Model) -> dict[str, Tokenizer]:
    """The tokenizers in a file, by input."""
    entries: dict[str, str] = model.manifest.get("tokenizers", {})
    options: dict[str, Any] = model.manifest.get("tokenizer_options", {})
    contents = manifests.read_entries(model._runner.file, model._runner.stored, entries.values())
    made: dict[str, Tokenizer] = {}
    for entry in contents:
        made[entry] = read(entry, contents[entry], options.get(entry))
    return {name: made[entry] for name, entry in entries.items()}


def generate_text(model: Model, texts: Any) -> Any:
    """See `Model.generate_text`."""
    request = _Generation(model, texts)
    result = _generated(model, request)
    return result[0] if request.single else result


def generated_texts(model: Model, inputs: dict[str, Any], with_prompt: bool = True) -> list[Any]:
    """The text of each row, or its hypotheses; `inputs` as for `generate_text`."""
    return _generated(model, _Generation(model, inputs, with_prompt=with_prompt))


def _generated(model: Model, request: _Generation) -> list[Any]:
    generated = model.generate(request.inputs)
    result: list[Any] = []
    for i, rows in enumerate(generated.tokens):
        if rows.ndim == 1:
            result.append(request.text(i, rows))
        else:
            assert generated.scores is not None
            pairs = zip(rows, generated.scores[i], strict=True)
            result.append([Hypothesis(request.text(i, row), float(score)) for row, score in pairs])
    return result


def predict_text(model: Model, texts: Any) -> dict[str, np.ndarray]:
    """See `Model.predict_text`."""
    specs = _specs(model, "predict")
    given = _by_name(model, texts, specs, pairs=True)
    inputs = dict(given)
    for name, x in given.items():
        if is_text(x) or is_pairs(x):
            made = typed_rows(name, x, tokenizer_of(model, name), specs)
            inputs |= {key: rows for key, rows in made.items() if key == name or key not in given}
    return model.predict(inputs)


def rows_of_texts(model: Model, role: str, texts: list[str]) -> dict[str, list[Any]]:
    """The rows of each text for a role that takes text, by input."""
    specs = _specs(model, role)
    (name,) = _by_name(model, texts, specs)
    return typed_rows(name, texts, tokenizer_of(model, name), specs)


def stream_text(
    model: Model,
    text: Any,
    choose: Choose | Sampler | None = None,
    draft: Draft | None = None,
) -> Iterator[str]:
    """See `Model.stream_text`."""
    request = _Generation(model, text, stepped=True)
    if request.rows != 1:
        raise ValueError(f"one text is streamed at a time, got {request.rows}")
    stream = model.stream(request.inputs, choose, draft)
    tokens = (int(token[0]) for token in stream)
    return pieces(tokens, request.tokenizer, request.written(0), request.end_ids)


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
        kept = held[: at if at is not None else len(held) - _begun(held, stops)]
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


def _begun(text: str, stops: Sequence[str]) -> int:
    """The number of characters at the end of a text with which a stop string begins."""
    lengths = (n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n]))
    return max(lengths, default=0)


class _Generation:
    """Converts texts to ids for `Model.generate` and `Model.stream`, and tokens back to texts."""

    def __init__(self, model: Model, texts: Any, stepped: bool = False, with_prompt: bool = True):
        role = "decode" if stepped or not by_length(model.signatures, "generate") else "generate"
        specs = _specs(model, role)
        signature = model.signatures[by_length(model.signatures, role)[-1]]
        target, start_id = signature["target"], signature["start_id"]
        self.target: str = target
        self.start_id: int | None = start_id
        self.default = signature.get("default_prompt") or [start_id]
        self.with_prompt = with_prompt
        self.end_ids = end_ids_of(signature)
        self.tokenizer = tokenizer_of(model, target)
        given = _by_name(model, texts, specs, target)
        self.rows = len(next(iter(given.values()), ()))
        kinds = [isinstance(x, str) for x in given.values() if is_text(x)]
        self.single = bool(kinds) and all(kinds)
        self.inputs = dict(given)
        for name in [name for name, x in given.items() if is_text(x)]:
            if name == target:
                rows = rows_of(name, given[name], self._prompt, specs.get(name))
                self.inputs[name] = TokenRows(rows)
            else:
                encode = tokenizer_of(model, name).encode
                self.inputs[name] = ids_of(name, given[name], encode, specs.get(name))
            self.rows = len(self.inputs[name])
        if target in specs and target not in given:
            if self.default == [None]:
                raise ValueError(f"{model.path} was exported without a start_id: give {target!r}")
            self.inputs[target] = [self.default] * self.rows

    def _prompt(self, text: str) -> list[int]:
        return prompt_ids(self.tokenizer, text, self.start_id, self.end_ids, self.target)

    def written(self, row: int) -> list[int]:
        """The prompt of a row, without the start token."""
        return without_start(self._given(row), self.start_id)

    def _given(self, row: int) -> list[int]:
        if self.target not in self.inputs:
            assert self.start_id is not None
            return [self.start_id]
        given = self.inputs[self.target]
        return [int(i) for i in (given[row] if np.ndim(given[0]) else given)]

    def text(self, row: int, tokens: np.ndarray) -> str:
        """The text of a row's tokens (T,), prompt included, up to the end."""
        new = until_end(tokens[len(self._given(row)) :].tolist(), self.end_ids)
        return self.tokenizer.decode([*(self.written(row) if self.with_prompt else ()), *new])


def _specs(model: Model, role: str) -> dict[str, dict[str, Any]]:
    """The inputs of a role's longest signature in the manifest; of "decode", whole prompts."""
    check_one(model.path, model.signatures)
    names = by_length(model.signatures, role)
    if not names:
        raise ValueError(f"{model.path} has no signature {role!r}, it has {list(model.signatures)}")
    longest = model.signatures[names[-1]]
    inputs = dict(longest["inputs"])
    if role == "decode":
        for name in by_length(model.signatures, "encode"):
            inputs.update(model.signatures[name]["inputs"])
        inputs[longest["target"]] = prompt_spec(longest)
    return {key: spec for key, spec in inputs.items() if spec["kind"] == "input"}


def _by_name(
    model: Model,
    texts: Any,
    specs: dict[str, dict[str, Any]],
    target: str | None = None,
    pairs: bool = False,
) -> dict[str, Any]:
    """`texts` by input; bare texts are for the first input that has a tokenizer.

    The stepped input comes last, since a text for it is a prompt.
    """
    if not isinstance(texts, dict):
        if not (is_text(texts) or (pairs and is_pairs(texts))):
            also = " or of pairs of texts" if pairs else ""
            raise TypeError(f"expected a text (str) or a list of texts{also}, got {kind_of(texts)}")
        names = [name for name in specs if name in model.tokenizers and name != target]
        texts = {next(iter(names), target or next(iter(specs))): texts}
    return texts


def target_of(model: Model) -> str:
    """The name of the stepped input; raises a ValueError if no signature writes text."""
    for signature in model.signatures.values():
        if "target" in signature:
            return str(signature["target"])
    raise ValueError(
        f"{model.path} writes no text: export it with the signature 'generate', "
        f"it has {list(model.signatures)}"
    )


def tokenizer_of(model: Model, name: str) -> Tokenizer:
    """The tokenizer of an input; raises a ValueError if the file has none."""
    if name not in model.tokenizers:
        raise ValueError(
            f"{model.path} has no tokenizer for {name!r}, it has {list(model.tokenizers)}: "
            "export it with tokenizer="
        )
    return model.tokenizers[name]
