"""Attention over long sequences, in blocks of queries that the backward pass recomputes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

Tensor = Any

# Fewer scores (T, S) than this are computed at once.
FEW = 2048 * 1024
BLOCK = 512


@dataclass(frozen=True)
class Block:
    """Queries `rows` attend to keys `columns`; both are slices of their sequence.

    Attributes:
        number: of the block, from 0 on: a block draws its own dropout.
    """

    rows: slice
    columns: slice
    number: int = 0

    @property
    def offset(self) -> int:
        """The index of the first query minus that of the first key."""
        return (self.rows.start or 0) - (self.columns.start or 0)


WHOLE = Block(slice(None), slice(None))


def blocks(query_length: Any, key_length: Any, causal: bool, window: int | None) -> list[Block]:
    """How to cut attention of T queries to S keys.

    One block covers everything where the lengths are known only at run time, or are short.
    Otherwise each block of queries comes with the keys that causality and the window leave it:
    memory grows with S, and time with what is really attended to ("Self-attention Does Not Need
    O(n^2) Memory", arXiv:2112.05682).
    """
    if not all(isinstance(x, int) for x in (query_length, key_length)):
        return [WHOLE]
    if query_length <= BLOCK or query_length * key_length < FEW:
        return [WHOLE]
    result = []
    for first in range(0, query_length, BLOCK):
        last = min(first + BLOCK, query_length)
        begin, end = 0, key_length
        if causal:
            end = min(end, last)
        if window is not None:
            begin = min(max(0, first - window + 1), key_length - 1)
            end = max(min(end, last + window - 1), begin + 1)
        result.append(Block(slice(first, last), slice(begin, end), len(result)))
    return result


def attend_in_blocks(
    attend: Callable[..., Tensor],
    cuts: list[Block],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    """The results of the blocks, side by side.

    Args:
        attend: from queries, keys, values and a bias or None of one block, and the keyword `block`,
            to (..., H, T, V).
        cuts: of `blocks`.
        query: (..., H, T, K).
        key: (..., G, S, K).
        value: (..., G, S, V).
        bias: (..., T, S), or None.

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

        # `remat` differentiates only its arguments, and keeps them: slices. Scores and weights are
        # computed again.
        biases = () if bias is None else (bias[..., rows, columns],)
        results.append(
            keras.remat(one)(
                query[..., rows, :], key[..., columns, :], value[..., columns, :], *biases
            )
        )
    return ops.concatenate(results, axis=-2)
