"""Long sequences: which queries to attend for at a time, against which keys."""

from dataclasses import dataclass
from typing import Any

# Fewer scores (T, S) than this are computed at once.
FEW = 2048 * 1024
BLOCK = 512


@dataclass(frozen=True)
class Span:
    """Queries `rows` attend to keys `columns`; both are slices of their sequence."""

    rows: slice
    columns: slice


WHOLE = Span(slice(None), slice(None))


def spans(query_length: Any, key_length: Any, causal: bool, window: int | None) -> list[Span]:
    """How to cut attention of T queries to S keys.

    One span covers everything where the lengths are known only at run time, or are short. Otherwise
    blocks of queries, each with the keys that causality and the window leave it: memory grows with
    S, and time with what is really attended to ("Self-attention Does Not Need O(n^2) Memory",
    arXiv:2112.05682; each block is recomputed in the backward pass).
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
        result.append(Span(slice(first, last), slice(begin, end)))
    return result
