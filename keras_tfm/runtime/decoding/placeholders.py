"""Placeholder tokens in prompts: `<image>`, which stands for the features of a picture.

A model reads features where a prompt has placeholder tokens (`layers.ReplacePlaceholders`), so it
has one for each feature. In a text one stands for all of them.

Example:

>>> from keras_tfm.runtime.decoding.placeholders import expand_placeholder
>>> expand_placeholder([5, 9, 6], token_id=9, count=3)
[5, 9, 9, 9, 6]
"""

from collections.abc import Iterable, Sequence

import numpy as np


def expand_placeholder(ids: Sequence[int], token_id: int | None, count: int | None) -> list[int]:
    """The ids of a text, in which a single placeholder becomes one for each feature.

    Args:
        ids: the tokens of a text.
        token_id: int, the placeholder; None: the model has none.
        count: int, the number of features; None: it is not known.
    """
    if token_id is None or count is None or list(ids).count(token_id) != 1:
        return list(ids)
    return [y for x in ids for y in ([x] * count if x == token_id else [x])]


def check_placeholders(
    name: str,
    rows: Iterable[Sequence[int] | np.ndarray],
    token_id: int | None,
    count: int | None,
    group: int | None = None,
) -> None:
    """Raises a ValueError unless each row has the placeholder once for each feature, or never.

    Args:
        name: str, the input.
        rows: the tokens of each prompt.
        token_id, count: as for `expand_placeholder`.
        group: int, number of features of a picture: a row may have the first pictures alone.
    """
    if token_id is None or (count is None and group is None):
        return
    for i, row in enumerate(rows):
        found = int(np.count_nonzero(np.asarray(row) == token_id))
        check_count(name, f"row {i}", found, token_id, count, group)


def check_count(
    name: str, row: str, found: int, token_id: int, count: int | None, group: int | None
) -> None:
    """Raises a ValueError if a row with placeholders has not as many as there are features.

    Args:
        name, row: str, the input and the row, for the message.
        found: int, the number of placeholders in the row.
        token_id, count, group: as for `check_placeholders`.

    >>> from keras_tfm.runtime.decoding.placeholders import check_count
    >>> check_count("target", "row 0", found=3, token_id=9, count=4, group=2)
    Traceback (most recent call last):
    ValueError: target: a row must have the placeholder token 9 as often as it has features \
(2 for each picture, at most 4), or never; row 0 has it 3 times
    """
    if group is None:
        fits, expected = found in (0, count), f"{count}"
    else:
        fits = found % group == 0 and (count is None or found <= count)
        most = "" if count is None else f", at most {count}"
        expected = f"{group} for each picture{most}"
    if not fits:
        raise ValueError(
            f"{name}: a row must have the placeholder token {token_id} as often as it has features "
            f"({expected}), or never; {row} has it {found} times"
        )
