"""The kinds of state that a cache has: what a search, a draft and a file do with an entry.

A layer that is called in a `DecodingScope` records an entry of a kind:

- `State`, the base: computed in the first step and constant afterwards, such as the keys and values
  of a context;
- `Columns` (in `cache.py`): keys and values with a column for each position. A step appends its
  own;
- `Recurrent`: tensors (B, ...) that each step replaces, such as the state of an LSTM, or the last
  inputs of a convolution.

Entries are plain dictionaries of tensors; a kind is what is known of them in Python.

Example:

>>> import numpy as np
>>> from keras_tfm.layers.decoding.cache import Columns
>>> from keras_tfm.layers.decoding.state import Recurrent
>>> entry = {"value": np.zeros((1, 1, 2, 3), "float32")}
>>> tuple(Columns().longer(entry, 4)["value"].shape)
(1, 1, 6, 3)
>>> Recurrent().longer(entry, 4) is entry  # its size does not depend on the number of tokens
True
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import keras
from keras import ops

from keras_tfm.layers.types import Size, Tensor

# What a cache holds of one call of a layer: tensors by the names of their parts.
Entry = dict[str, Tensor]


@dataclass(frozen=True)
class State:
    """An entry that the first step computes and later steps only read.

    Attributes:
        grows: bool, whether an entry has a column for each position.
        is_replaced: bool, whether each step replaces an entry.
    """

    grows: ClassVar[bool] = False
    is_replaced: ClassVar[bool] = False

    def initial(self, before: Entry, new: Entry) -> Entry:
        """The entry before the first token: `before`, with what does not depend on tokens."""
        return before

    def after(self, before: Entry, new: Entry, column: Size, kept: Size | None) -> Entry:
        """The entry after a step.

        Args:
            before: the entry before the step.
            new: what the step adds; {} for nothing.
            column: int or () int32, the first column of the step's tokens, without a prefix.
            kept: int or () int32, the number of the step's tokens that count; None: all. Only for a
                scope with `drafts`.
        """
        return before

    def longer(self, entry: Entry, more: int) -> Entry:
        """The entry with `more` additional columns."""
        return entry

    def map_columns(self, entry: Entry, change: Callable[[str, Tensor], Tensor]) -> Entry:
        """The entry after `change(part, x)` of each part with a column for each position."""
        return entry

    def map_rows(self, entry: Entry, change: Callable[[Tensor], Tensor]) -> Entry:
        """The entry after `change(x)` of each part with a row for each hypothesis of a search."""
        return entry


@dataclass(frozen=True)
class Recurrent(State):
    """A state (B, ...) that each step replaces; with n hypotheses of each row, (B n, ...).

    It cannot be rewound. In a scope with `drafts` a step therefore records the state after each of
    its T tokens, (B, T, ...).
    """

    is_replaced: ClassVar[bool] = True

    def after(self, before: Entry, new: Entry, column: Size, kept: Size | None) -> Entry:
        """The state after the step, or after `kept` of its tokens."""
        if kept is None:
            return new
        return {part: _choose(before[part], x, kept) for part, x in new.items()}

    def map_rows(self, entry: Entry, change: Callable[[Tensor], Tensor]) -> Entry:
        """The entry after `change(x)` of each part."""
        return {part: change(x) for part, x in entry.items()}


def _choose(before: Tensor, after: Tensor, kept: Size) -> Tensor:
    """The state after `kept` tokens: `before` (B, ...) or one of `after` (B, T, ...)."""
    states = ops.concatenate([ops.expand_dims(before, 1), after], axis=1)
    batch, _, *sizes = ops.shape(states)
    chosen = ops.slice(states, (0, kept, *(0 for _ in sizes)), (batch, 1, *sizes))
    return ops.squeeze(chosen, 1)


def make_recurrent_entry(state: Tensor) -> Entry:
    """A cache entry of a state, nested tensors.

    >>> from keras_tfm.layers.decoding.state import make_recurrent_entry
    >>> make_recurrent_entry(["h", "c"])
    {'state_0': 'h', 'state_1': 'c'}
    """
    return {f"state_{i}": x for i, x in enumerate(keras.tree.flatten(state))}


def check_state(name: str, before: Tensor, after: Tensor) -> None:
    """Raises ValueError unless a state has the structure, shapes and dtypes that it had before.

    >>> import numpy as np
    >>> from keras_tfm.layers.decoding.state import check_state
    >>> check_state("count", np.zeros((1, 3)), [np.zeros((1, 3))])
    Traceback (most recent call last):
    ValueError: count: a step must return a state like the one it got, float64 (1, 3), got \
[float64 (1, 3)]
    """
    described = [
        keras.tree.map_structure(
            lambda x: f"{keras.backend.standardize_dtype(x.dtype)} {tuple(x.shape)}", state
        )
        for state in (before, after)
    ]
    if not _are_alike(before, after):
        expected, found = (str(x).replace("'", "") for x in described)
        raise ValueError(
            f"{name}: a step must return a state like the one it got, {expected}, got {found}"
        )


def _are_alike(before: Tensor, after: Tensor) -> bool:
    try:
        keras.tree.assert_same_structure(before, after)
    except (TypeError, ValueError):
        return False
    dtype = keras.backend.standardize_dtype
    return all(
        dtype(x.dtype) == dtype(y.dtype)
        and len(x.shape) == len(y.shape)
        and all(a == b for a, b in zip(x.shape, y.shape, strict=True) if None not in (a, b))
        for x, y in zip(keras.tree.flatten(before), keras.tree.flatten(after), strict=True)
    )
