"""Several short examples in one row of a fixed length."""

from bisect import bisect_left, insort
from collections.abc import Mapping
from typing import Any

import numpy as np
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.text.batches import Batches, Padding, checked_parts

Tensor = Any


class PackedBatches(Batches):
    """Rows of a fixed length, each filled with whole examples: one shape, hardly any padding.

    Examples are packed once, the longest first, each into the fullest row that has room for it
    (best fit decreasing); what an epoch shuffles is rows. No example is cut. With `segment_mask` no
    token sees another example, so that each gets the result that it has alone, if positions are
    relative (`RotaryEmbedding`, `RelativePositionBias`, `ALiBi`: they depend on distances, which
    packing leaves as they are) or taken from the input `positions`, which counts from 0 in each
    example (`keras.layers.Embedding(length, D)(positions)`). `PositionalEncoding` and
    `PositionEmbedding` count from the beginning of the row and would see an example further on.

    Args:
        inputs: the rows of each input by name, sequences of integers or `Rows`. The parts of an
            example are of one length.
        labels: the rows of labels, as long as the inputs, or None.
        length: T, of the packed rows.
        batch_size: B, packed rows a batch; the last of an epoch may have fewer.
        seed: of the order.
        shuffle: whether packed rows are in another order in every epoch.
        padding_id: what the end of a row is filled with.

    Attributes:
        steps: batches in an epoch, the same in every epoch.
        rows: how many packed rows there are.

    Raises:
        ValueError: the parts of an example differ in length, one is empty or longer than `length`,
            or an argument is out of range.
        TypeError: a row holds something else than integers.

    A batch has the inputs and two more, (B, T) int32 each: `segments`, the number of the example
    within the row, from 1, and 0 at padding; and `positions`.

    >>> from keras_tfm.text import PackedBatches
    >>> rows = [[3, 4, 5], [6], [7, 8], [9, 9, 9]]
    >>> batches = PackedBatches({"ids": rows}, length=5, batch_size=2, shuffle=False)
    >>> batch = batches.batch(0)
    >>> batch["ids"].tolist()
    [[3, 4, 5, 7, 8], [9, 9, 9, 6, 0]]
    >>> batch["segments"].tolist()
    [[1, 1, 1, 2, 2], [1, 1, 1, 2, 0]]
    >>> batch["positions"].tolist()
    [[0, 1, 2, 0, 1], [0, 1, 2, 0, 0]]
    """

    def __init__(
        self,
        inputs: Mapping[str, Any],
        labels: Any = None,
        length: int = 512,
        batch_size: int = 32,
        seed: int = 0,
        shuffle: bool = True,
        padding_id: int = 0,
    ):
        check_integer("length", length)
        check_integer("batch_size", batch_size)
        self.inputs, self.labels = checked_parts(inputs, labels)
        taken = {"segments", "positions"} & set(self.inputs)
        if taken:
            raise ValueError(f"the inputs {sorted(taken)} are made here: call yours otherwise")
        self.length, self.batch_size = length, batch_size
        self.seed, self.shuffle, self.padding_id = seed, shuffle, padding_id
        lengths = self._lengths()
        self._packed = _packed(lengths, length)
        self._tokens = int(lengths.sum())
        self.rows = len(self._packed)
        self.steps = -(-self.rows // batch_size)

    def batch(self, step: int) -> Any:
        """The batch of a step, counted from 0 over all epochs.

        Returns:
            The inputs by name, `segments` and `positions`, (B, T) int32 each; with labels, a tuple
            of inputs and labels (B, T).
        """
        check_integer("step", step, minimum=0)
        epoch, number = divmod(step, self.steps)
        order = np.arange(self.rows)
        if self.shuffle:
            order = np.random.default_rng([self.seed, epoch]).permutation(self.rows)
        chosen = [self._packed[i] for i in order[number * self.batch_size :][: self.batch_size]]
        shape = (len(chosen), self.length)
        parts = self.inputs if self.labels is None else {**self.inputs, "": self.labels}
        result = {name: np.full(shape, self.padding_id, "int32") for name in parts}
        segments, positions = np.zeros(shape, "int32"), np.zeros(shape, "int32")
        for row, examples in enumerate(chosen):
            start = 0
            for segment, example in enumerate(examples, 1):
                for name, part in parts.items():
                    tokens = part[example]
                    result[name][row, start : start + len(tokens)] = tokens
                stop = start + len(tokens)
                segments[row, start:stop] = segment
                positions[row, start:stop] = np.arange(stop - start)
                start = stop
        answers = result.pop("", None)
        inputs = {**result, "segments": segments, "positions": positions}
        return inputs if answers is None else (inputs, answers)

    def padding(self) -> Padding:
        """How much of an epoch is padding."""
        count = len(self.inputs) + (self.labels is not None)
        return Padding(count * self._tokens, count * self.rows * self.length, self.steps)

    def _lengths(self) -> np.ndarray:
        """Of each example."""
        parts = [*self.inputs.items(), *([] if self.labels is None else [("labels", self.labels)])]
        first, lengths = parts[0][0], parts[0][1].lengths
        for name, part in parts[1:]:
            differing = np.flatnonzero(part.lengths != lengths)
            if len(differing):
                i = differing[0]
                raise ValueError(
                    f"the parts of an example must be of one length, got {lengths[i]} of {first!r} "
                    f"and {part.lengths[i]} of {name!r} in row {i}"
                )
        if lengths.min() < 1 or lengths.max() > self.length:
            raise ValueError(
                f"rows must have 1 to {self.length} tokens to be packed, "
                f"got {lengths.min()} to {lengths.max()}"
            )
        return lengths


def segment_mask(segments: Tensor) -> Tensor:
    """The block-diagonal `attention_mask` of packed rows: a token sees those of its own example.

    Args:
        segments: (B, T), integers, from `PackedBatches`; 0 is padding.

    Returns:
        (B, T, T), boolean, True = the query sees the key. Padding sees and is seen by nothing.
        Causal layers apply causality on top.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.text import segment_mask
    >>> np.array(segment_mask(np.array([[1, 1, 2, 0]]))).astype(int).tolist()
    [[[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]]
    """
    queries, keys = ops.expand_dims(segments, 2), ops.expand_dims(segments, 1)
    return ops.logical_and(ops.equal(queries, keys), ops.greater(queries, 0))


def _packed(lengths: np.ndarray, length: int) -> list[list[int]]:
    """The examples of each row: best fit decreasing, rows in the order in which they were begun."""
    rows: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # (room, row), ascending
    for i in np.argsort(-lengths, kind="stable").tolist():
        size = int(lengths[i])
        place = bisect_left(rooms, (size, -1))
        if place == len(rooms):
            room, row = length, len(rows)
            rows.append([])
        else:
            room, row = rooms.pop(place)
        rows[row].append(i)
        if room > size:
            insort(rooms, (room - size, row))
    return rows
