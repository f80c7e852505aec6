"""Rows of ids made of texts and of pairs of texts, with the inputs that belong to each token.

The manifest says which inputs these are: `segments_of`, the token types, and `mask_of`, 1 for each
token.

Example:

>>> from keras_tfm.runtime.tasks.text_rows import is_pairs, is_text
>>> is_text(["a", "b"]), is_pairs([("a", "b")])
(True, True)
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_tfm.runtime.decoding.special_ids import with_real_pads
from keras_tfm.runtime.manifest.manifest import Input
from keras_tfm.runtime.tokenizers.tokenizer import Tokenizer, excerpt

# A text, or a pair of texts.
Pair = str | Sequence[str]


def is_text(x: object) -> bool:
    """Whether `x` is a text or a sequence of texts."""
    if isinstance(x, np.ndarray) and x.ndim == 0:
        return False
    if isinstance(x, (list, tuple, np.ndarray)):
        return all(isinstance(text, str) for text in x)
    return isinstance(x, str)


def is_pairs(x: object) -> bool:
    """Whether `x` is a sequence of texts and pairs of texts, with at least one pair."""
    if not isinstance(x, (list, tuple)):
        return False
    pairs = [isinstance(row, (list, tuple)) and len(row) == 2 and is_text(row) for row in x]
    return any(pairs) and all(
        is_pair or isinstance(row, str) for row, is_pair in zip(x, pairs, strict=True)
    )


def kind_of(x: object) -> str:
    """The type of a value, for an error."""
    name = type(x).__name__
    if isinstance(x, np.ndarray):
        name += f" of shape {x.shape} and dtype {x.dtype}"
    if isinstance(x, (list, tuple)):
        name += f" of {', '.join(sorted({type(one).__name__ for one in x}))}"
    return name


def typed_rows(
    name: str,
    texts: str | Sequence[Pair],
    tokenizer: Tokenizer,
    expected: dict[str, Input],
    length: int | None = None,
) -> dict[str, list[list[int]]]:
    """The ids of texts or pairs, their segments, and 1 for each id, for the inputs that take them.

    Args:
        name: str, the input of ids.
        texts: str, or a sequence of texts and of pairs of texts.
        tokenizer: that of the input.
        expected: the inputs of the signature, by name.
        length: int, the most tokens of a text, of which more are left out; None: all are kept.
    """
    segments: list[list[int]] = []

    def encode(text: Pair) -> list[int]:
        if length is not None and isinstance(text, str):
            ids, types = tokenizer.encode_start(text, length)
        else:
            ids, types = tokenizer.encode_typed(text)
        segments.append(types)
        return ids

    rows = ids_of(name, texts, encode, expected.get(name))
    result = {name: rows}
    for other, x in expected.items():
        if x.segments_of == name:
            result[other] = segments
        elif x.mask_of == name:
            result[other] = [[1] * len(row) for row in rows]
    return result


def ids_of(
    name: str,
    texts: str | Sequence[Pair],
    encode: Callable[[Any], list[int]],
    expected: Input | None,
) -> list[list[int]]:
    """The ids of each text, in which the padding id is a token, too."""
    rows = rows_of(name, texts, encode, expected)
    if expected is None or expected.pad_id is None or expected.padding is None:
        return rows
    rule = expected.pad_id, expected.padding
    return [with_real_pads(np.array(row), *rule, is_text=True).tolist() for row in rows]


def rows_of(
    name: str,
    texts: str | Sequence[Pair],
    encode: Callable[[Any], list[int]],
    expected: Input | None,
) -> list[list[int]]:
    """The ids of each text, never truncated."""
    texts = [texts] if isinstance(texts, str) else texts
    if not len(texts):
        raise ValueError(f"got no texts for {name!r}")
    rows, length = [], expected.shape[1] if expected is not None and expected.is_ids else None
    for text in texts:
        ids = encode(text)
        if length is not None and len(ids) > length:
            both = [text] if isinstance(text, str) else text
            raise ValueError(
                f"{name}: {' and '.join(map(excerpt, both))} has {len(ids)} tokens, "
                f"but the file was exported for at most {length}"
            )
        rows.append(ids)
    return rows
