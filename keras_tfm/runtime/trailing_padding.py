"""Padding ids at the end of prompts: removed if the model masks them, otherwise refused."""

from collections.abc import Sequence

import numpy as np


def unpadded_length(row: Sequence[int] | np.ndarray, pad_id: int) -> int:
    """The number of ids in a row without trailing padding.

    >>> import numpy as np
    >>> from keras_tfm.runtime.trailing_padding import unpadded_length
    >>> unpadded_length(np.array([0, 3, 0, 4, 0, 0]), pad_id=0)
    4
    """
    kept = np.flatnonzero(np.asarray(row) != pad_id)
    return int(kept[-1]) + 1 if len(kept) else 0


def unpadded_prompts(
    name: str,
    rows: Sequence[np.ndarray],
    pad_id: int,
    start_id: int | None,
    is_masked: bool,
    is_array: bool,
) -> list[np.ndarray]:
    """The prompts without trailing padding ids.

    Args:
        name: str, the stepped input.
        rows: the prompts, each (P,), integers.
        pad_id: int, the padding id of the input.
        start_id: int, or None. A first token that is both start token and padding id is kept.
        is_masked: bool, whether the model masks `pad_id`. If not, the id may be a token of the
            vocabulary, as 0 is in GPT-2 ("!").
        is_array: bool, whether the caller gave an array, whose rows have equal lengths. A row of a
            list may end in one unmasked padding id: it is taken as a token.

    Raises:
        ValueError: a row ends in padding that the model would read as tokens.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.runtime.trailing_padding import unpadded_prompts
    >>> rows = np.array([[5, 7, 0, 0], [5, 0, 7, 6]])
    >>> [row.tolist() for row in unpadded_prompts("target", rows, 0, 1, True, True)]
    [[5, 7], [5, 0, 7, 6]]
    """
    lengths = [unpadded_length(row, pad_id) for row in rows]
    if is_masked:
        starts = [int(len(row) > 0 and row[0] == start_id) for row in rows]
        kept = zip(rows, map(max, lengths, starts), strict=True)
        return [row[:length] for row, length in kept]
    trailing = [len(row) - max(1, n) for row, n in zip(rows, lengths, strict=True)]
    is_even = len(rows) > 1 and len({len(row) for row in rows}) == 1
    if max(trailing, default=0) > (0 if is_array else 1 if is_even else np.inf):
        row = int(np.argmax(trailing))
        raise ValueError(
            f"row {row} of {name!r} must not end in padding, because the model masks no "
            f"padding id, got {trailing[row]} times {pad_id} at its end; give a list of rows of "
            "different lengths, without padding"
        )
    return list(rows)
