"""Where queries and keys stand: what a position part is given."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_tfm.layers.lookup import as_integers

Tensor = Any


@dataclass(frozen=True, eq=False)
class Span:
    """Consecutive positions: start, start + 1, ...

    Attributes:
        start: the first, an integer or an int32 scalar tensor.
        length: T, how many; a number or an int32 scalar tensor.
        limit: no position is as large, where that is known: a table of `limit` rows has them all.
        together: all T tokens stand at `start`, as the hypotheses of one beam search do.
        padding: (B,), int32, how many of the positions before a row's first token hold none: the
            row's own positions are that much smaller, and 0 where there is no token.
        shared: results that the layers of one step share, by what made them.
    """

    start: Any
    length: Any
    limit: int | None = None
    together: bool = False
    padding: Tensor | None = None
    shared: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def is_static(self) -> bool:
        """Whether the positions are known while the graph is made."""
        known = isinstance(self.start, int) and isinstance(self.length, int)
        return known and self.padding is None

    @property
    def count(self) -> Any:
        """How many different positions there are."""
        return 1 if self.together else self.length

    def array(self) -> np.ndarray:
        """(T,), int32, where `is_static`."""
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

    def part(self, rows: slice) -> "Span":
        """Some of them, of a span with a known length."""
        first, last, _ = rows.indices(self.length)
        return Span(self.start + first, last - first, self.limit, self.together, self.padding)


class Positions(NamedTuple):
    """Where the queries and the keys of an attention stand.

    Attributes:
        query: a `Span`, or int32 (..., T), or of several coordinates (..., T, C).
        key: a `Span`, or int32 (..., S), or (..., S, C).
    """

    query: Any
    key: Any

    def part(self, rows: slice, columns: slice) -> "Positions":
        """Of some queries and some keys."""
        return Positions(_part(self.query, rows), _part(self.key, columns))

    def distances(self) -> Tensor:
        """The key's position minus the query's: (..., T, S), int32; of one coordinate."""
        query, key = self.query, self.key
        if all(isinstance(x, Span) and x.is_static for x in (query, key)):
            return ops.convert_to_tensor(key.array() - query.array()[:, np.newaxis])
        query, key = as_tensor(query), as_tensor(key)
        return ops.expand_dims(key, -2) - ops.expand_dims(query, -1)


def _part(positions: Any, chosen: slice) -> Any:
    if chosen == slice(None):
        return positions
    if isinstance(positions, Span):
        return positions.part(chosen)
    return positions[..., chosen]  # of several coordinates never in blocks: see `Positions.part`


def as_tensor(positions: Any) -> Tensor:
    """A `Span` or positions as a tensor, int32."""
    return positions.tensor() if isinstance(positions, Span) else positions


def check_positions(
    name: str, positions: Any, length: Any, leading: tuple[Any, ...], coordinates: bool
) -> Tensor:
    """Positions that a caller gave, int32: (T,), or the input's leading axes and T.

    With `coordinates` also those and C, of several coordinates.

    Raises:
        TypeError: they are not integers.
        ValueError: another rank, or another number of positions than the input has.
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
