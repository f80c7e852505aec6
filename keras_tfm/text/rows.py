"""Rows of integers of different lengths, in one array."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np


class Rows:
    """Rows of integers of different lengths, as one flat array and the start of each row.

    A list of lists would take ten times the memory.

    Args:
        values: (N,), int32, all rows one after another.
        starts: (R + 1,), int64, the index of each row's first value, and N.

    Attributes:
        lengths: (R,), the length of each row.

    Example:

    >>> from keras_tfm.text import Rows
    >>> rows = Rows.of([[5, 6, 7], [], [8]])
    >>> rows.lengths.tolist(), rows[0].tolist()
    ([3, 0, 1], [5, 6, 7])
    >>> rows.to_padded([0, 2], length=4).tolist()
    [[5, 6, 7, 0], [8, 0, 0, 0]]
    """

    def __init__(self, values: np.ndarray, starts: np.ndarray):
        self.values, self.starts = values, starts
        self.lengths = np.diff(starts)

    @classmethod
    def of(cls, rows: "Ids") -> "Rows":
        """Creates `Rows` from sequences of integers; `Rows` are returned unchanged.

        Raises:
            TypeError: a row holds other values than integers.
            ValueError: an integer does not fit into 32 bits.
        """
        if isinstance(rows, Rows):
            return rows
        arrays = [np.asarray(row) for row in rows]
        for i, array in enumerate(arrays):
            if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
                raise TypeError(
                    f"a row must hold integers in one dimension, got row {i} of shape "
                    f"{array.shape} and {array.dtype}"
                )
        starts = np.cumsum([0, *(len(array) for array in arrays)], dtype="int64")
        values = np.concatenate([np.empty(0, "int32"), *arrays])
        bounds = np.iinfo("int32")
        wrong = np.flatnonzero((values < bounds.min) | (values > bounds.max))
        if wrong.size:
            row = int(np.searchsorted(starts, wrong[0], side="right")) - 1
            raise ValueError(
                f"a row must hold integers of 32 bits, got {int(values[wrong[0]])} in row {row}"
            )
        values = values.astype("int32")
        return cls(values, starts)

    @classmethod
    def of_padded(cls, array: np.ndarray, pad_id: int = 0) -> "Rows":
        """Creates `Rows` from an array (R, T), without the `pad_id` at the end of each row.

        >>> Rows.of_padded(np.array([[3, 0, 4, 0], [5, 0, 0, 0]])).lengths.tolist()
        [3, 1]
        """
        array = np.asarray(array)
        if array.ndim != 2:
            raise ValueError(f"a padded array must have shape (R, T), got {array.shape}")
        if not array.shape[1]:  # without columns, which `argmax` rejects
            return cls.of(array.astype("int32"))
        kept = array != pad_id
        lengths = np.where(kept.any(axis=1), array.shape[1] - np.argmax(kept[:, ::-1], axis=1), 0)
        return cls.of([row[:n] for row, n in zip(array, lengths, strict=True)])

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, i: int) -> np.ndarray:
        if not -len(self) <= i < len(self):
            raise IndexError(f"row {i} is out of range for {len(self)} rows")
        i %= len(self)
        return self.values[self.starts[i] : self.starts[i + 1]]

    def to_padded(
        self, indices: Sequence[int] | np.ndarray, length: int, pad_id: int = 0
    ) -> np.ndarray:
        """The rows of `indices`, padded at the end with `pad_id`: (len(indices), length), int32.

        Raises:
            ValueError: a row is longer than `length`.
        """
        result = np.full((len(indices), length), pad_id, "int32")
        for row, i in zip(result, indices, strict=True):
            tokens = self[i]
            if len(tokens) > length:
                raise ValueError(f"row {i} has {len(tokens)} tokens, the length is {length}")
            row[: len(tokens)] = tokens
        return result


# Rows of integers, in any form that `Rows.of` takes.
Ids: TypeAlias = Rows | Iterable[Sequence[int] | np.ndarray]
