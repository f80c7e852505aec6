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

from keras_tfm.runtime import manifest as manifests
from keras_tfm.runtime.checked_inputs import is_ids
from keras_tfm.runtime.drafts import Draft
from keras_tfm.runtime.host_loop import end_ids_of
from keras_tfm.runtime.manifest_fields import by_length
from keras_tfm.runtime.sampling import Choose, Sampler
from keras_tfm.runtime.signature_runner import check_one
from keras_tfm.runtime.tokenizer import (
    INCOMPLETE,
    Tokenizer,
    prompt_ids,
    read,
    shown,
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
    # The manifest of the file, of which a model in a file of several has a part.
    whole = model._runner.manifest
    contents = manifests.read_entries(model.path, whole, entries.values())
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
    lengths = _lengths(model, "predict")
    given = _by_name(model, texts, lengths)
    return model.predict(
        {
            name: _rows(name, x, tokenizer_of(model, name).encode, lengths) if _is_text(x) else x
            for name, x in given.items()
        }
    )


def rows_of_texts(model: Model, role: str, texts: list[str]) -> tuple[str, list[list[int]]]:
    """The input of a role that takes text, and the ids of each text."""
    lengths = _lengths(model, role)
    (name,) = _by_name(model, texts, lengths)
    return name, _rows(name, texts, tokenizer_of(model, name).encode, lengths)


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

    >>> from keras_tfm.runtime.text import before_stop
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
        lengths = _lengths(model, role)
        signature = model.signatures[by_length(model.signatures, role)[-1]]
        target, start_id = signature["target"], signature["start_id"]
        self.target: str = target
        self.start_id: int | None = start_id
        self.default = signature.get("default_prompt") or [start_id]
        self.with_prompt = with_prompt
        self.end_ids = end_ids_of(signature)
        self.tokenizer = tokenizer_of(model, target)
        given = _by_name(model, texts, lengths, target)
        self.rows = len(next(iter(given.values()), ()))
        kinds = [isinstance(x, str) for x in given.values() if _is_text(x)]
        self.single = bool(kinds) and all(kinds)
        self.inputs = dict(given)
        for name in [name for name, x in given.items() if _is_text(x)]:
            encode = self._prompt if name == target else tokenizer_of(model, name).encode
            self.inputs[name] = _rows(name, given[name], encode, lengths)
            self.rows = len(self.inputs[name])
        if target in lengths and target not in given:
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


def _lengths(model: Model, role: str) -> dict[str, int | None]:
    """The maximum number of ids of each input of a role; None for an input of another kind."""
    check_one(model.path, model.signatures)
    names = by_length(model.signatures, role)
    if not names:
        raise ValueError(f"{model.path} has no signature {role!r}, it has {list(model.signatures)}")
    longest = model.signatures[names[-1]]
    inputs = dict(longest["inputs"])
    if role == "decode":
        for name in by_length(model.signatures, "encode"):
            inputs.update(model.signatures[name]["inputs"])
    lengths = {
        key: spec["shape"][1] if is_ids(spec) else None
        for key, spec in inputs.items()
        if spec["kind"] == "input"
    }
    if role == "decode":
        lengths[longest["target"]] = longest["max_length"] - 1
    return lengths


def _by_name(
    model: Model, texts: Any, lengths: dict[str, int | None], target: str | None = None
) -> dict[str, Any]:
    """`texts` by input; bare texts are for the first input that has a tokenizer.

    The stepped input comes last, since a text for it is a prompt.
    """
    if not isinstance(texts, dict):
        if not _is_text(texts):
            raise TypeError(f"expected a text (str) or a list of texts, got {_kind(texts)}")
        names = [name for name in lengths if name in model.tokenizers and name != target]
        texts = {next(iter(names), target or next(iter(lengths))): texts}
    return texts


def _is_text(x: Any) -> bool:
    """Whether `x` is a text or a sequence of texts."""
    if isinstance(x, np.ndarray) and x.ndim == 0:
        return False
    if isinstance(x, (list, tuple, np.ndarray)):
        return all(isinstance(text, str) for text in x)
    return isinstance(x, str)


def _kind(x: Any) -> str:
    name = type(x).__name__
    if isinstance(x, np.ndarray):
        name += f" of shape {x.shape} and dtype {x.dtype}"
    if isinstance(x, (list, tuple)):
        name += f" of {', '.join(sorted({type(one).__name__ for one in x}))}"
    return name


def _rows(
    name: str, texts: Any, encode: Callable[[str], list[int]], lengths: dict[str, int | None]
) -> list[list[int]]:
    """The ids of each text, never truncated."""
    texts = [texts] if isinstance(texts, str) else texts
    if not len(texts):
        raise ValueError(f"got no texts for {name!r}")
    rows, length = [], lengths.get(name)
    for text in texts:
        ids = encode(text)
        if length is not None and len(ids) > length:
            raise ValueError(
                f"{name}: {shown(text)} has {len(ids)} tokens, "
                f"but the file was exported for at most {length}"
            )
        rows.append(ids)
    return rows


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
