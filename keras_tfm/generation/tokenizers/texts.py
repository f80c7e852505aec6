"""Text in, text out: converts texts to the inputs of a generator, and its tokens to texts."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_tfm.generation.interface import Input, interface_of
from keras_tfm.generation.tokenizers.tokenizer_forms import by_input, check_tokenizer, form_of
from keras_tfm.runtime.decoding.special_ids import TokenRows, expand_placeholder, with_real_pads
from keras_tfm.runtime.tokenizers.tokenizer import (
    Tokenizer,
    excerpt,
    prompt_ids,
    until_end,
    without_start,
)


class TextInputs(NamedTuple):
    """The inputs of a generator, made of texts.

    Attributes:
        inputs: dict of arrays, and of a list of prompts, by name.
        prompts: the ids of each row's prompt.
        single: whether one text was given, and not a list.
    """

    inputs: dict[str, Any]
    prompts: list[list[int]]
    single: bool


class Texts:
    """Converts texts with the tokenizers of a model.

    The tokenizer itself adds its special tokens. A text for the stepped input is a prompt: the end
    token that the tokenizer appends is removed, and the start token is put first unless the
    tokenizer did so. A single placeholder token stands for all features of a
    `ReplacePlaceholders`. `runtime.Model.generate_text` does the same.

    Args:
        model: functional model.
        target: str, name of the stepped input.
        tokenizer: see `Generator`.
        start_id: int, the first token of every row; optional.
        end_ids: tuple of the tokens that end a row.

    Raises:
        TypeError: a tokenizer of an unknown kind.
        ValueError: a tokenizer does not fit the model.
    """

    def __init__(
        self,
        model: keras.Model,
        target: str,
        tokenizer: Any,
        start_id: int | None,
        end_ids: tuple[int, ...],
    ):
        self._model, self._target = model, target
        self._start_id, self._end_ids = start_id, end_ids
        self._tokenizers: dict[str, Tokenizer] = {}
        made: dict[int, Tokenizer] = {}
        for name, given in by_input(model, tokenizer).items():
            if id(given) not in made:
                form = form_of(name, given)
                made[id(given)] = form.read(f"tokenizer{form.ending}")
            ids = (start_id, end_ids) if name == target else (None, ())
            check_tokenizer(model, name, made[id(given)], *ids)
            self._tokenizers[name] = made[id(given)]
        if target not in self._tokenizers:
            raise ValueError(
                f"a tokenizer of the stepped input {target!r} is needed for the generated text, "
                f"got only {list(self._tokenizers)}"
            )

    @property
    def target(self) -> Tokenizer:
        """The tokenizer of the generated text."""
        return self._tokenizers[self._target]

    def inputs_of(self, texts: Any) -> TextInputs:
        """The inputs of a generator for a text, a list of texts, or a dictionary of them."""
        given = self._by_name(texts)
        kinds = [isinstance(x, str) for x in given.values() if _is_text(x)]
        inputs = dict(given)
        prompts: list[list[int]] | None = None
        for name, x in given.items():
            if not _is_text(x):
                continue
            if name not in self._tokenizers:
                raise ValueError(f"no tokenizer for {name!r}, only for {list(self._tokenizers)}")
            rows = [x] if isinstance(x, str) else list(x)
            if name == self._target:
                inputs[name] = prompts = TokenRows([self._prompt(text) for text in rows])
            else:
                inputs[name] = self._pad(name, rows)
        if prompts is None:
            count = len(next(iter(inputs.values())))
            start = [[] if self._start_id is None else [self._start_id]] * count
            rows_of_ids = inputs.get(self._target, start)
            prompts = [[int(i) for i in row] for row in rows_of_ids]
        return TextInputs(inputs, prompts, bool(kinds) and all(kinds))

    def text_of(self, prompt: Sequence[int], tokens: Sequence[int]) -> str:
        """The text of a row (T,), prompt included, up to the end."""
        new = until_end(tokens[len(prompt) :], self._end_ids)
        return self.target.decode([*self.before(prompt), *new])

    def before(self, prompt: Sequence[int]) -> list[int]:
        """The prompt without the start token."""
        return without_start(prompt, self._start_id)

    def _by_name(self, texts: Any) -> dict[str, Any]:
        if isinstance(texts, dict):
            return texts
        if not _is_text(texts):
            raise TypeError(
                f"expected a text (str), a list of texts or a dictionary, got {_kind(texts)}"
            )
        others = [name for name in interface_of(self._model).inputs if name != self._target]
        return {next((x for x in others if x in self._tokenizers), self._target): texts}

    def _prompt(self, text: str) -> list[int]:
        ids = prompt_ids(self.target, text, self._start_id, self._end_ids, self._target)
        known = interface_of(self._model).inputs[self._target]
        if known.placeholder is None or known.placeholder.group is not None:
            return ids
        return expand_placeholder(ids, known.placeholder.token_id, known.placeholder.features)

    def _pad(self, name: str, texts: list[str]) -> np.ndarray:
        """The ids of texts, padded on the right: (B, S), int32."""
        rows = [self._tokenizers[name].encode(text) for text in texts]
        return padded_rows(interface_of(self._model).inputs[name], texts, rows)


def padded_rows(
    known: Input, texts: Sequence[str], rows: Sequence[Sequence[int]], length: int = 0
) -> np.ndarray:
    """The ids of texts, padded on the right: (B, S), int32.

    A padding id is padding only after a text: its tokens are all tokens.

    Args:
        known: the input of the model.
        texts: the texts, for errors.
        rows: the ids of each.
        length: int, S is at least this.

    Raises:
        ValueError: a text has no tokens, or the model masks no padding that the rows need.
    """
    lengths = {len(row) for row in rows}
    if 0 in lengths:
        text = texts[[len(row) for row in rows].index(0)]
        raise ValueError(f"{known.name!r}: {excerpt(text)} has no tokens")
    if known.masked_id is None and len({*lengths, length} - {0}) > 1:
        raise ValueError(
            f"{known.name!r}: texts of {min(lengths)} to {max(lengths)} tokens need padding, which "
            "the model does not mask: use mask_zero=True or mask_id, or one text at a time"
        )
    pad_id, padding = known.pad_id or 0, known.padding
    result = np.full((len(rows), max(length, *lengths, 0)), pad_id, "int32")
    for i, row in enumerate(rows):
        result[i, : len(row)] = (
            row if padding is None else with_real_pads(np.array(row), pad_id, padding, True)
        )
    return result


def _is_text(x: object) -> bool:
    """Whether `x` is a text or a sequence of texts."""
    return isinstance(x, str) or (
        isinstance(x, list | tuple) and all(isinstance(text, str) for text in x)
    )


def _kind(x: object) -> str:
    if isinstance(x, list | tuple) and x:
        return f"a {type(x).__name__} of {type(x[0]).__name__}"
    return type(x).__name__
