"""Several short examples in one row of a fixed length."""

from bisect import bisect_left, insort
from collections.abc import Mapping

import numpy as np

from keras_tfm.arguments import check_integer
from keras_tfm.text.batches import (
    LABELS,
    Batch,
    Batches,
    Padding,
    PadIds,
    checked_parts,
    pad_ids_by_part,
)
from keras_tfm.text.rows import Ids


class PackedBatches(Batches):
    """Packs several whole examples into each row of a fixed length: one shape, little padding.

    Examples are packed once, the longest first, each into the fullest row that still fits it (best
    fit decreasing); every epoch shuffles the rows. No example is cut. With `segment_mask` tokens
    attend only within their own example, so an example gives the same result as in a row of its
    own, if positions are relative (`RotaryEmbedding`, `RelativePositionBias`, `ALiBi`) or come from
    the input `positions`, which restarts at 0 in each example:
    `PositionalEncoding()(x, positions=positions)`, and likewise `PositionEmbedding`. Without
    `positions` these two layers count from the start of the row.

    Args:
        inputs: dict from an input's name to its rows, sequences of integers or `Rows`. All parts of
            an example have the same length.
        labels: list or `Rows`, as long as the inputs. Default: no labels.
        length: int, length of packed rows (T).
        batch_size: int, packed rows per batch (B). The last batch of an epoch may have fewer.
        seed: int, seed of the order.
        shuffle: bool, whether every epoch has a new order of packed rows.
        pad_id: int, the padding id: the `mask_id` of the embedding, for labels the `ignore_class`
            of the loss. One id for all parts, or a dict by input, with "labels" for the labels and
            0 for missing parts.

    Attributes:
        steps: int, number of batches in an epoch, the same in every epoch.
        rows: int, number of packed rows.

    Raises:
        ValueError: the parts of an example differ in length, one is empty or longer than `length`,
            or an argument is out of range.
        TypeError: a row holds other values than integers.

    A batch has two more inputs, both (B, T) int32: `segments`, the number of the example within the
    row, from 1, and 0 for padding; and `positions`, the position within the example.

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
        inputs: Mapping[str, Ids],
        labels: Ids | None = None,
        length: int = 512,
        batch_size: int = 32,
        seed: int = 0,
        shuffle: bool = True,
        pad_id: PadIds = 0,
    ):
        check_integer("length", length)
        check_integer("batch_size", batch_size)
        self.inputs, self.labels = checked_parts(inputs, labels)
        taken = {"segments", "positions"} & set(self.inputs)
        if taken:
            raise ValueError(f"inputs must not be named segments or positions, got {sorted(taken)}")
        self.length, self.batch_size = length, batch_size
        check_integer("seed", seed, minimum=0)
        self.seed, self.shuffle = seed, shuffle
        self.pad_ids = pad_ids_by_part(pad_id, list(self.inputs), self.labels is not None)
        lengths = self._lengths()
        self._packed = _pack_rows(lengths, length)
        self._tokens = int(lengths.sum())
        self.rows = len(self._packed)
        self.steps = -(-self.rows // batch_size)

    def batch(self, step: int) -> Batch:
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
        result = {name: np.full(shape, self.pad_ids[name or LABELS], "int32") for name in parts}
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
        """The share of padding in an epoch."""
        count = len(self.inputs) + (self.labels is not None)
        return Padding(count * self._tokens, count * self.rows * self.length, self.steps)

    def _lengths(self) -> np.ndarray:
        """The length of each example."""
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


def segment_mask(segments: np.ndarray) -> np.ndarray:
    """The block-diagonal `attention_mask` of packed rows: tokens attend within their own example.

    For NumPy arrays. Inside a model use `layers.segment_mask`, which takes tensors.

    Args:
        segments: (B, T), integers, the example's number of each token, from `PackedBatches`; 0 =
            padding.

    Returns:
        (B, T, T), boolean, True = the query sees the key. Padding sees nothing and is not seen.
        Causal layers apply causality in addition.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.text import segment_mask
    >>> segment_mask(np.array([[1, 1, 2, 0]])).astype(int).tolist()
    [[[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]]
    """
    segments = np.asarray(segments)
    queries, keys = segments[:, :, np.newaxis], segments[:, np.newaxis, :]
    result: np.ndarray = (queries == keys) & (queries > 0)
    return result


def _pack_rows(lengths: np.ndarray, length: int) -> list[list[int]]:
    """The examples of each row by best fit decreasing, in the order of the first examples."""
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # (free positions, row), ascending
    for i in np.argsort(-lengths, kind="stable").tolist():
        size = int(lengths[i])
        place = bisect_left(free, (size, -1))
        if place == len(free):
            left, row = length, len(rows)
            rows.append([])
        else:
            left, row = free.pop(place)
        rows[row].append(i)
        if left > size:
            insort(free, (left - size, row))
    return rows
