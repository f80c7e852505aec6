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
    name: str, rows: Iterable[Sequence[int] | np.ndarray], token_id: int | None, count: int | None
) -> None:
    """Raises a ValueError unless each row has the placeholder once for each feature, or never.

    Args:
        name: str, the input.
        rows: the tokens of each prompt.
        token_id, count: as for `expand_placeholder`.
    """
    if token_id is None or count is None:
        return
    for i, row in enumerate(rows):
        found = int(np.count_nonzero(np.asarray(row) == token_id))
        if found not in (0, count):
            raise ValueError(
                f"{name}: a prompt must have the placeholder token {token_id} as often as there "
                f"are features ({count}), or never; row {i} has it {found} times"
            )
