"""Attention over long sequences, or within many rows, in blocks that are recomputed.

Example:

>>> from keras_tfm.layers.multi_head_attention.blockwise import blocks
>>> [(block.rows, block.columns.stop) for block in blocks(2048, 2048, causal=True, window=None)][:2]
[(slice(0, 512, None), 512), (slice(512, 1024, None), 1024)]
"""

from collections.abc import Callable
from dataclasses import dataclass

import keras
from keras import ops

from keras_tfm.layers.multi_head_attention import masks
from keras_tfm.layers.types import Size, Tensor, Window

# Attention with fewer scores (T x S) than this is computed in one block.
FEW = 2048 * 1024
# Queries per block.
BLOCK = 512
# Rows (the leading axes of an alignment or of pairs) are computed in blocks of at most this many
# values for each example: 128 MiB in float32.
LARGE = 2**25


@dataclass(frozen=True)
class Block:
    """One block of attention: some queries and the keys that they attend to.

    Attributes:
        rows: slice of the queries.
        columns: slice of the keys.
        number: int, index of the block, from 0. Each block draws its own dropout.
    """

    rows: slice
    columns: slice
    number: int = 0

    @property
    def offset(self) -> int:
        """The index of the first query minus that of the first key."""
        return (self.rows.start or 0) - (self.columns.start or 0)


WHOLE = Block(slice(None), slice(None))


def blocks(
    query_length: Size, key_length: Size, causal: bool, window: Window | None
) -> list[Block]:
    """Splits the attention of T queries to S keys into blocks.

    A single block is returned if the lengths are short or known only at run time. Otherwise each
    block of queries comes with only the keys that causality and the window let it see. Memory then
    grows with S instead of T x S, and time with the number of visible pairs ("Self-attention Does
    Not Need O(n^2) Memory", arXiv:2112.05682).
    """
    if not all(isinstance(x, int) for x in (query_length, key_length)):
        return [WHOLE]
    if query_length <= BLOCK or query_length * key_length < FEW:
        return [WHOLE]
    return spans(query_length, key_length, BLOCK, causal, window)


def spans(
    query_length: int, key_length: int, size: int, causal: bool, window: Window | None
) -> list[Block]:
    """Splits T queries into blocks of `size`, each with the keys that the block sees.

    >>> from keras_tfm.layers.multi_head_attention.blockwise import spans
    >>> [(block.rows, block.columns) for block in spans(5, 5, 3, causal=True, window=2)]
    [(slice(0, 3, None), slice(0, 3, None)), (slice(3, 5, None), slice(2, 5, None))]
    """
    result: list[Block] = []
    for first in range(0, query_length, size):
        last = min(first + size, query_length)
        begin, end = 0, key_length
        if causal:
            end = min(end, last)
        if window is not None:
            before, after = masks.sides(window)
            begin = min(max(0, first - before + 1), key_length - 1)
            end = max(min(end, last + after - 1), begin + 1)
        result.append(Block(slice(first, last), slice(begin, end), len(result)))
    return result


def cut(count: Size, each: Size) -> list[slice]:
    """Splits an axis of `count` entries with `each` values into equal blocks of at most `LARGE`.

    A single slice of everything is returned if they are few, or known only at run time.

    >>> from keras_tfm.layers.multi_head_attention.blockwise import LARGE, cut
    >>> cut(5, LARGE // 2)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    if not (isinstance(count, int) and isinstance(each, int)) or count * each <= LARGE:
        return [slice(None)]
    number = -(-count // max(1, LARGE // each))
    size = -(-count // number)
    return [slice(first, min(first + size, count)) for first in range(0, count, size)]


def attend_in_blocks(
    attend: Callable[..., Tensor],
    cuts: list[Block],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    """Computes attention block by block and concatenates the results.

    Args:
        attend: function of one block's queries, keys, values and bias, which is None without one,
            with the keyword `block`; returns (..., H, T, V).
        cuts: list of `Block`, from `blocks`.
        query: (..., H, T, K).
        key: (..., G, S, K).
        value: (..., G, S, V).
        bias: (..., T, S); optional.

    Returns:
        (..., H, T, V).
    """
    if cuts == [WHOLE]:
        return attend(query, key, value, bias, block=WHOLE)
    results = []
    for block in cuts:
        rows, columns = block.rows, block.columns

        def one(
            query: Tensor, key: Tensor, value: Tensor, *bias: Tensor, block: Block = block
        ) -> Tensor:
            return attend(query, key, value, *(bias or (None,)), block=block)

        # `remat` differentiates only its arguments and stores only these slices; scores and weights
        # are recomputed.
        biases = () if bias is None else (bias[..., rows, columns],)
        results.append(
            keras.remat(one)(
                query[..., rows, :], key[..., columns, :], value[..., columns, :], *biases
            )
        )
    return ops.concatenate(results, axis=-2)


def row_blocks(query: Tensor, key: Tensor) -> list[slice]:
    """Blocks of the last leading axis where there are several and the scores are many.

    A single slice of everything is returned if they are few, or known only at run time.
    """
    if len(query.shape) < 5:
        return [slice(None)]
    rows, heads, length, _ = query.shape[-4:]
    sizes = heads, length, key.shape[-2]
    known = all(isinstance(size, int) for size in sizes)
    return cut(rows, heads * length * key.shape[-2] if known else None)


def attend_to_rows(
    attend: Callable[..., Tensor],
    rows: list[slice],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_mask: Tensor | None,
    attention_mask: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """Computes attention block by block of rows and concatenates the results.

    Args:
        attend: function of one block's queries, keys, values, masks and bias.
        rows: list of slices, from `row_blocks`.
        query: (..., R, H, T, K).
        key: (..., R, G, S, K).
        value: (..., R, G, S, V).
        key_mask: (..., R, S), boolean, True = token, False = padding; optional.
        attention_mask: (..., R | 1, T, S), boolean, True = the query sees the key; optional.
        bias: float tensor (..., R | 1, H | 1, T, S), added to the scores; optional.

    Returns:
        (..., R, H, T, V).
    """
    results = []
    for part in rows:
        keys = None if key_mask is None else key_mask[..., part, :]
        pairs = attention_mask
        if pairs is not None and pairs.shape[-3] != 1:
            pairs = pairs[..., part, :, :]

        def one(
            query: Tensor,
            key: Tensor,
            value: Tensor,
            *biases: Tensor,
            keys: Tensor | None = keys,
            pairs: Tensor | None = pairs,
        ) -> Tensor:
            return attend(query, key, value, keys, pairs, *(biases or (None,)))

        given = [x[..., part, :, :, :] for x in (query, key, value)]
        if bias is not None:
            given.append(bias if bias.shape[-4] == 1 else bias[..., part, :, :, :])
        results.append(keras.remat(one)(*given))  # `remat` differentiates only its arguments
    return ops.concatenate(results, axis=-4)
