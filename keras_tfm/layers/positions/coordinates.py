"""Positions of queries and keys, the input of position parts.

Example:

>>> from keras_tfm.layers.positions.coordinates import Span
>>> Span(start=3, length=2).array().tolist()
[3, 4]
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from keras import ops

from keras_tfm.layers.embeddings.lookup import as_integers
from keras_tfm.layers.types import Size, Tensor


@dataclass(frozen=True, eq=False)
class Span:
    """Consecutive positions: start, start + 1, ...

    Attributes:
        start: int or int32 scalar tensor, the first position.
        length: int or int32 scalar tensor, number of tokens (T).
        limit: int, an upper bound (exclusive) of the positions of tokens. Default: unknown. A
            table of `limit` rows covers them. Padding at the end of a step may exceed it.
        together: bool, all T tokens share the position `start`, like the hypotheses of one beam
            search.
        padding: (B,), int32, number of padding positions before each row's first token. A row's
            positions are smaller by this number; padding itself gets position 0.
        shared: dict, results that the layers of one step share.
        least: int, a lower bound of `start` if that may be negative, before the first token.
    """

    start: Size
    length: Size
    limit: int | None = None
    together: bool = False
    padding: Tensor | None = None
    shared: dict[object, Tensor] = field(default_factory=dict, repr=False)
    least: int = 0

    @property
    def is_static(self) -> bool:
        """Whether the positions are known when the graph is made."""
        known = isinstance(self.start, int) and isinstance(self.length, int)
        return known and self.padding is None

    @property
    def count(self) -> Size:
        """The number of different positions."""
        return 1 if self.together else self.length

    @property
    def end(self) -> int | None:
        """An upper bound (exclusive) of the positions; None: unknown."""
        if self.limit is None and isinstance(self.start, int) and isinstance(self.length, int):
            return self.start + self.length
        return self.limit

    def array(self) -> np.ndarray:
        """(T,), int32. Requires `is_static`."""
        if self.together:
            return np.full(self.length, self.start, "int32")
        return np.arange(self.start, self.start + self.length, dtype="int32")

    def tensor(self) -> Tensor:
        """(T,), int32, or (B, T) with `padding`."""
        if self.is_static:
            return ops.convert_to_tensor(self.array())
        offsets = ops.arange(self.length, dtype="int32")
        positions = (offsets * 0 if self.together else offsets) + self.start
        if self.padding is None:
            return positions
        return ops.maximum(positions - ops.expand_dims(self.padding, 1), 0)

    def shift(self, offset: int) -> "Span":
        """The positions that are larger by `offset`."""
        limit = None if self.limit is None else self.limit + offset
        return Span(self.start + offset, self.length, limit, self.together, self.padding)

    def part(self, rows: slice) -> "Span":
        """The positions `rows` of a span with a known length."""
        first, last, _ = rows.indices(self.length)
        return Span(self.start + first, last - first, self.limit, self.together, self.padding)


class Positions(NamedTuple):
    """The positions of the queries and the keys of attention.

    Attributes:
        query: a `Span`, or int32 (..., T), or (..., T, C) for C coordinates.
        key: a `Span`, or int32 (..., S), or (..., S, C).
    """

    query: Tensor
    key: Tensor

    def part(self, rows: slice, columns: slice) -> "Positions":
        """The positions of some queries and some keys."""
        return Positions(_part(self.query, rows), _part(self.key, columns))

    def distances(self) -> Tensor:
        """The key's position minus the query's: (..., T, S), int32. Requires one coordinate."""
        query, key = self.query, self.key
        if all(isinstance(x, Span) and x.is_static for x in (query, key)):
            return ops.convert_to_tensor(key.array() - query.array()[:, np.newaxis])
        query, key = as_tensor(query), as_tensor(key)
        return ops.expand_dims(key, -2) - ops.expand_dims(query, -1)


def _part(positions: Span | Tensor, chosen: slice) -> Span | Tensor:
    if chosen == slice(None):
        return positions
    if isinstance(positions, Span):
        return positions.part(chosen)
    return positions[..., chosen]  # of several coordinates never in blocks: see `Positions.part`


def as_tensor(positions: Span | Tensor) -> Tensor:
    """A `Span` or positions as a tensor, int32."""
    return positions.tensor() if isinstance(positions, Span) else positions


def check_positions(
    name: str, positions: Span | Tensor, length: Size, leading: tuple[Size, ...], coordinates: bool
) -> Tensor:
    """Checks the positions that a caller passed and casts them to int32.

    Args:
        name: str, the argument's name, for errors.
        positions: integers (T,) or (*leading, T); with `coordinates` also (*leading, T, C).
        length: int or scalar tensor, number of tokens (T).
        leading: the input's axes before T.
        coordinates: bool, whether several coordinates per token are allowed.

    Raises:
        TypeError: the positions are not integers.
        ValueError: a shape that does not match the input.
    """
    positions = as_integers(ops.convert_to_tensor(positions), name)
    shape, rank = tuple(positions.shape), len(leading) + 1
    fits = len(shape) in ((1, rank, rank + 1) if coordinates else (1, rank))
    if fits:
        axis = 0 if len(shape) == 1 else rank - 1
        sizes = [(length, shape[axis]), *zip(leading, shape[:axis], strict=False)]
        fits = all(a == b or b == 1 for a, b in sizes if isinstance(a, int) and isinstance(b, int))
    if not fits:
        shapes = "(T,), (B, T) or (B, T, C)" if coordinates else "(T,) or (B, T)"
        raise ValueError(f"{name} must have shape {shapes} for T = {length}, got {shape}")
    return ops.cast(positions, "int32")
