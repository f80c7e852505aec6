"""Ids in rows that stand for something else than a piece of text: padding, and placeholders.

Padding ids at the end of prompts are removed if the model masks them, and otherwise refused. In
other rows the padding id is a token between others, and in rows of a tokenizer everywhere: it is
passed to the file as `REAL_PAD`.

A placeholder such as `<image>` stands for the features of a picture. A model reads features where a
prompt has placeholder tokens (`layers.ReplacePlaceholders`), so it has one for each feature. In a
text one stands for all of them.
"""

from collections.abc import Iterable, Sequence

import numpy as np

# The padding id as a token, in a row of ids for a model whose manifest has "padding".
REAL_PAD = -2


class TokenRows(list[list[int]]):
    """Prompts that a tokenizer made: no id in them is padding."""


def with_real_pads(row: np.ndarray, pad_id: int, padding: str, is_text: bool = False) -> np.ndarray:
    """A row of ids (S,) in which `REAL_PAD` stands for each `pad_id` that is a token.

    Args:
        row: (S,), integers.
        pad_id: int, the padding id.
        padding: str, "padding" of the input in the manifest, see `layers.TokenEmbedding`: "ends" or
            "after_end"; or "by_id", as "ends", but in rows of a tokenizer, too, the ids after the
            last other id are padding, since the model returns the last other id's features.
        is_text: bool, whether a tokenizer made the row.

    >>> import numpy as np
    >>> from keras_tfm.runtime.decoding.special_ids import with_real_pads
    >>> row = np.array([0, 3, 0, 4, 0, 0])
    >>> {x: with_real_pads(row, 0, x).tolist() for x in ("ends", "after_end")}
    {'ends': [0, 3, -2, 4, 0, 0], 'after_end': [0, 3, -2, 4, -2, 0]}
    >>> {x: with_real_pads(row, 0, x, True).tolist() for x in ("ends", "by_id")}
    {'ends': [-2, 3, -2, 4, -2, -2], 'by_id': [-2, 3, -2, 4, 0, 0]}
    """
    others = np.flatnonzero(row != pad_id)
    start = 0 if is_text or not len(others) else int(others[0])
    end = int(others[-1]) + 1 if len(others) else 0
    if is_text and padding != "by_id":
        end = len(row)
    elif padding == "after_end" and not (end and row[end - 1] == REAL_PAD):
        end += 1
    is_token = (row == pad_id) & (np.arange(len(row)) >= start) & (np.arange(len(row)) < end)
    return np.where(is_token, REAL_PAD, row)


def unpadded_length(row: Sequence[int] | np.ndarray, pad_id: int) -> int:
    """The number of ids in a row without trailing padding.

    >>> import numpy as np
    >>> from keras_tfm.runtime.decoding.special_ids import unpadded_length
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
    is_text: bool = False,
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
        is_text: bool, whether a tokenizer made the rows: they have no padding.

    Raises:
        ValueError: a row ends in padding that the model would read as tokens.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.runtime.decoding.special_ids import unpadded_prompts
    >>> rows = np.array([[5, 7, 0, 0], [5, 0, 7, 6]])
    >>> [row.tolist() for row in unpadded_prompts("target", rows, 0, 1, True, True)]
    [[5, 7], [5, 0, 7, 6]]
    """
    if is_text:
        return list(rows)
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


def expand_placeholder(ids: Sequence[int], token_id: int | None, count: int | None) -> list[int]:
    """The ids of a text, in which a single placeholder becomes one for each feature.

    Args:
        ids: the tokens of a text.
        token_id: int, the placeholder; None: the model has none.
        count: int, the number of features; None: it is not known.

    >>> from keras_tfm.runtime.decoding.special_ids import expand_placeholder
    >>> expand_placeholder([5, 9, 6], token_id=9, count=3)
    [5, 9, 9, 9, 6]
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


def check_last_tokens(
    name: str, rows: Iterable[Sequence[int] | np.ndarray], token_id: int | None
) -> None:
    """Raises a ValueError if a row ends with a picture whose tokens see each other.

    A loop reads the last token of a prompt in a step of its own, which would divide the picture.

    >>> from keras_tfm.runtime.decoding.special_ids import check_last_tokens
    >>> check_last_tokens("target", [[1, 9, 9]], token_id=9)
    Traceback (most recent call last):
    ValueError: target: a picture must be before a token of text, since its tokens see each other, \
but row 0 ends with the placeholder 9
    """
    for i, row in enumerate(rows):
        if len(row) and row[-1] == token_id:
            raise ValueError(
                f"{name}: a picture must be before a token of text, since its tokens see each "
                f"other, but row {i} ends with the placeholder {token_id}"
            )


def check_count(
    name: str, row: str, found: int, token_id: int, count: int | None, group: int | None
) -> None:
    """Raises a ValueError if a row with placeholders has not as many as there are features.

    Args:
        name, row: str, the input and the row, for the message.
        found: int, the number of placeholders in the row.
        token_id, count, group: as for `check_placeholders`.

    >>> from keras_tfm.runtime.decoding.special_ids import check_count
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
