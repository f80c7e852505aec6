"""The scope of a piece of a source: a layer with right context gives its outputs late.

A model reads its source in pieces of n positions. A layer that reads r later positions cannot give
the outputs of the last r positions of a piece: it gives n outputs all the same, which begin r
positions earlier. The outputs of a piece are therefore late by a number of positions that is known
when the graph is made, its delay; those before the first position and after the last one are not
used.

Example, attention to one position before and one after:

>>> import numpy as np
>>> from keras_tfm.layers import MultiHeadSelfAttention
>>> from keras_tfm.layers.decoding.source_scope import SourceScope
>>> layer = MultiHeadSelfAttention(num_heads=2, window=2)
>>> x = np.random.default_rng(0).normal(size=(1, 6, 8)).astype("float32")
>>> whole, cache, pieces = layer(x), None, []
>>> for position in range(0, 6, 2):
...     with SourceScope(cache, position=position, length=2, end=6) as scope:
...         pieces.append(layer(x[:, position : position + 2]))
...     cache = scope.cache
>>> scope.place.delay
1
>>> bool(np.allclose(np.concatenate(pieces, axis=1)[:, 1:], whole[:, :5], atol=1e-6))
True
"""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from keras import ops

from keras_tfm.layers.decoding.cache import Cache, Entry
from keras_tfm.layers.decoding.scope import DecodingScope, StateStep
from keras_tfm.layers.decoding.state import Recurrent
from keras_tfm.layers.decoding.visibility import Extended
from keras_tfm.layers.multi_head_attention import masks
from keras_tfm.layers.positions.attention_position import Span
from keras_tfm.layers.types import Size, Tensor, Window


class Place(NamedTuple):
    """Which positions of a sequence a piece has.

    Attributes:
        stride: int, the number of positions of the source for one of this sequence.
        delay: int, the number of positions by which the piece is late.
        offset: int; of a source of L positions, the whole sequence has (L + offset) // stride.
    """

    stride: int
    delay: int
    offset: int

    def end(self, length: Size) -> Size:
        """The length of the whole sequence, of a source of `length` positions."""
        length = length + self.offset if self.offset else length
        return length if self.stride == 1 else length // self.stride


class Around(NamedTuple):
    """Queries of a piece, and the keys and values around them.

    Attributes:
        query: (B, H, N, K).
        key: (B, G, S, K).
        value: (B, G, S, V).
        mask: (N, S), boolean, True = the query sees the key.
        query_span, key_span: the positions of queries and keys.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor
    query_span: Span
    key_span: Span


class SourceScope(DecodingScope):
    """Turns a model call into one over the next piece of its source.

    Attention with a window keeps the keys and values that it reaches back to, a convolution its
    last inputs, a recurrent layer its state: every state has a constant size, so a source may be of
    any length.

    Args:
        cache: dict, `scope.cache` of the piece before. Default: this is the first piece.
        position: int or () int32, the position of the first of the piece in the source, a multiple
            of `length`.
        length: int, number of positions of a piece.
        end: int or () int32, the length of the whole source; any larger number while it is unknown.

    Attributes:
        place: `Place` of the tensors at the present place of the model. Who calls layers in another
            order sets it before a call.
        reach: int, the most positions of the source that a layer has kept.
    """

    def __init__(self, cache: Cache | None = None, *, position: Size = 0, length: int, end: Size):
        super().__init__(cache, position=position, length=length, restarts=True)
        self.place = Place(1, 0, 0)
        self._length = end
        self.reach = 0
        self._spans_of: dict[tuple[int, int, int], Span] = {}

    @property
    def start(self) -> Size:
        """The first position of the piece, negative before the first one of the sequence."""
        return self._start(self.place)

    def _start(self, place: Place) -> Size:
        start = self.position if place.stride == 1 else self.position // place.stride
        return start - place.delay if place.delay else start

    def columns(self, length: Size) -> Span:
        """The positions of the piece."""
        return self._span_from(0, length)

    positions = columns

    def _span_from(self, before: int, length: int) -> Span:
        """`length` positions, the first one `before` that of the piece; shared by layers."""
        first = self.place.delay + before
        key = (self.place.stride, first, length)
        if key not in self._spans_of:
            start = self._start(self.place._replace(delay=first))
            self._spans_of[key] = Span(start, length, least=-first)
        return self._spans_of[key]

    def final(self, length: int) -> tuple[Size, Size]:
        """The first of the piece's positions that is in the sequence, and the first behind it."""
        start = self.start
        return tuple(
            ops.clip(ops.cast(x, "int32"), 0, length)
            for x in (-start, self.place.end(self._length) - start)
        )

    def _inside(self, before: int, length: int) -> Tensor:
        """Which positions are in the sequence, (length,), boolean."""
        positions = self._span_from(before, length).tensor()
        return ops.logical_and(positions >= 0, positions < self.place.end(self._length))

    def _carry(self, name: str, tensors: dict[str, tuple[Tensor, int, int]]) -> list[Tensor]:
        """Tensors behind what was kept of the pieces before.

        Args:
            name: str, the layer's name.
            tensors: a tensor, the number of positions to keep, and their axis, by name.
        """
        kept = {part: x for part, x in tensors.items() if x[1]}
        entry = self._take(name) if kept else None
        before: Entry = {}
        after: Entry = {}
        results = []
        for part, (x, count, axis) in tensors.items():
            if not count:
                results.append(x)
                continue
            shape = list(ops.shape(x))
            length, shape[axis] = shape[axis], count
            before[part] = ops.zeros(shape, x.dtype) if entry is None else entry[part]
            both = ops.concatenate([before[part], x], axis=axis)
            start = [0] * len(shape)
            start[axis] = length
            after[part] = ops.slice(both, start, shape)
            results.append(both)
            self.reach = max(self.reach, count * self.place.stride)
        if kept:
            self._store(name, Recurrent(), before, after)
        return results

    def late(self, name: str, x: Tensor, delay: int) -> Tensor:
        """A piece of a sequence, `delay` positions later; the place of the model does not change.

        Args:
            name: str, the name of the layer that asks.
            x: (B, N, ...).
            delay: int, at least 0.
        """
        if not delay:
            return x
        (both,) = self._carry(f"{name}_late", {"kept": (x, delay, 1)})
        return both[:, : x.shape[1]]

    def slide(
        self,
        name: str,
        function: Callable[[Tensor], Tensor],
        x: Tensor,
        size: int,
        stride: int = 1,
        padding: tuple[int, int] = (0, 0),
    ) -> Tensor:
        """What a window that slides over a sequence gives: a convolution, pooling, frames.

        Output j is of the inputs from j * stride - padding[0] on. In the whole sequence there are
        padding[0] zeros before the inputs, and padding[1] behind them.

        Args:
            name: str, the layer's name.
            function: function of (B, S, ...) that returns (B, N, ...), without padding.
            x: (B, T, ...).
            size: int, the number of inputs of a window.
            stride: int, by how many inputs the window moves; a divisor of T.
            padding: pair of int.
        """
        length, (stretch, delay, offset) = x.shape[1], self.place
        if length % stride:
            raise ValueError(
                f"{name}: a piece has {length} positions here, which its strides of {stride} must "
                f"divide: give pieces of a multiple of {stride * stretch} positions of the source"
            )
        before, after = padding
        if delay or after:
            inside = ops.reshape(self._inside(0, length), (-1, *(1 for _ in x.shape[2:])))
            x = ops.where(inside, x, ops.zeros_like(x))
        late = math.ceil((delay + size - before - stride) / stride)
        kept = late * stride + before - delay
        (both,) = self._carry(name, {"inputs": (x, max(kept, 0), 1)})
        first, count = max(-kept, 0), length // stride
        both = both[:, first : first + (count - 1) * stride + size]
        offset += stretch * (before + after - size + stride)
        self.place = Place(stretch * stride, late, offset)
        return function(both)

    def convolve(
        self, name: str, convolution: Callable[[Tensor], Tensor], x: Tensor, count: int
    ) -> Tensor:
        """The outputs of a causal convolution; see `DecodingScope.convolve`."""
        return self.slide(name, convolution, x, count + 1, padding=(count, 0))

    def recur(
        self,
        name: str,
        step: StateStep,
        inputs: Tensor,
        begin: Callable[[Size], Tensor],
        mask: Tensor | None = None,
    ) -> Tensor:
        """Steps a layer whose state is replaced; see `DecodingScope.recur`."""
        refuse_mask(name, mask)
        return super().recur(name, step, inputs, begin)

    def _real_tokens(self, mask: Tensor | None, length: Size) -> Tensor | None:
        """A mask (1, N) of the positions from the first one on; None: all are."""
        if not self.place.delay:
            return None
        return ops.expand_dims(self._span_from(0, length).tensor() >= 0, 0)

    def extend(self, name: str, *_: object, **__: object) -> Extended:
        """Raises ValueError: the columns of a source of any length have no limit."""
        raise ValueError(f"{name}: attention to a source that is read in pieces needs a window")

    def look_around(
        self, name: str, query: Tensor, key: Tensor, value: Tensor, causal: bool, window: Window
    ) -> Around:
        """The queries whose window is complete, and all that they see.

        Args:
            name: str, the layer's name.
            query: (B, H, N, K), those of this piece, as `key` and `value`.
            key: (B, G, N, K).
            value: (B, G, N, V).
            causal, window: as of `MultiHeadSelfAttention`.
        """
        length, sides = query.shape[-2], masks.sides(window)
        left, right = sides[0] - 1, 0 if causal else sides[1] - 1
        query, key, value = self._carry(
            name,
            {
                "query": (query, right, 2),
                "key": (key, left + right, 2),
                "value": (value, left + right, 2),
            },
        )
        count = length + left + right
        mask = masks.in_sight(masks.distances(length, count, left), causal, window)
        mask = masks.combine(mask, ops.expand_dims(self._inside(left + right, count), 0))
        spans = self._span_from(right, length), self._span_from(left + right, count)
        self.place = self.place._replace(delay=self.place.delay + right)
        return Around(query[:, :, :length], key, value, mask, *spans)

    def align(self, name: str, tensors: Iterable[tuple[Tensor, Place]]) -> list[Tensor]:
        """Pieces of sequences, all as late as the latest, which becomes the place of the model.

        Args:
            name: str, the name of the layer that reads them.
            tensors: pieces (B, N, ...), with their places.
        """
        pairs = list(tensors)
        strides = sorted({place.stride for _, place in pairs})
        if len(strides) > 1:
            raise ValueError(f"{name}: its inputs have a position for each {strides} of the source")
        ends = sorted({place.offset for _, place in pairs})
        if len(ends) > 1:
            raise ValueError(
                f"{name}: its inputs must end together, got ends that differ by "
                f"{ends[-1] - ends[0]} in positions of the source: convolve with padding 'causal'"
            )
        latest = max((place for _, place in pairs), key=lambda place: place.delay)
        self.place = latest
        return [
            self.late(f"{name}_{i}", x, latest.delay - place.delay)
            for i, (x, place) in enumerate(pairs)
        ]


def refuse_mask(name: str, mask: Tensor | None) -> None:
    """Raises ValueError if a layer that reads other positions of a piece has a mask.

    >>> import numpy as np
    >>> from keras_tfm.layers.decoding.source_scope import refuse_mask
    >>> refuse_mask("lstm", np.ones((1, 3), "bool"))
    Traceback (most recent call last):
    ValueError: lstm: a source that is read in pieces has no padding, got a mask
    """
    if mask is not None:
        raise ValueError(f"{name}: a source that is read in pieces has no padding, got a mask")
