"""Batches of examples of similar lengths."""

from collections.abc import Mapping, Sequence
from numbers import Integral

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
from keras_tfm.text.rows import Ids, Rows


class BucketedBatches(Batches):
    """Batches of examples of similar lengths, padded to a few fixed lengths, with a token budget.

    An example belongs to the first boundary that is at least as long as its longest part; a batch
    holds examples of one boundary. Each part of a batch is padded to the first boundary that fits
    its longest row, but not beyond the longest row of that part in all data. So a compiler sees few
    shapes: at most (boundaries + 1) lengths of each part.

    Args:
        inputs: dict from an input's name to its rows: sequences of integers of any lengths, or
            `Rows`.
        labels: list or `Rows`, the labels. Default: no labels. Inputs and labels have the same
            number of rows; row i of each belongs to example i.
        boundaries: list of int, the lengths, ascending; no row may be longer than the last.
        tokens: int, token budget: the number of rows of a batch times its boundary is up to this,
            so batches of short rows have more rows, and all batches cost about the same.
        batch_size: int, number of rows of every batch, instead of `tokens`.
        seed: int, seed of the order.
        shuffle: bool, whether every epoch has a new order of examples, and then of batches. If
            False, a batch is emitted with its last example, and incomplete batches come at the end,
            as in `tf.data.Dataset.bucket_by_sequence_length`.
        drop_remainder: bool, whether to drop incomplete batches, up to one per boundary.
        pad_id: int, the padding id: the `mask_id` of the embedding, for labels the `ignore_class`
            of the loss. One id for all parts, or a dict by input, with "labels" for the labels and
            0 for missing parts.

    Attributes:
        steps: int, number of batches in an epoch, the same in every epoch.

    Raises:
        ValueError: the numbers of rows differ, a row is longer than the last boundary, the budget
            is smaller than a boundary, or an argument is out of range.
        TypeError: a row holds other values than integers.

    `dataset()` returns the batches for `model.fit`, and `batch(step)` returns one of them:

    >>> from keras_tfm.text import BucketedBatches
    >>> rows = [[5], [6, 7, 8], [9], [3, 4]]
    >>> batches = BucketedBatches({"ids": rows}, boundaries=[1, 4], tokens=4, shuffle=False)
    >>> [batches.batch(step)["ids"].tolist() for step in range(batches.steps)]
    [[[6, 7, 8]], [[3, 4, 0]], [[5], [9]]]
    >>> print(batches.padding())
    3 batches, 8 positions, 12.5 % padding
    """

    def __init__(
        self,
        inputs: Mapping[str, Ids],
        labels: Ids | None = None,
        boundaries: Sequence[int] = (8, 16, 32, 64, 128),
        tokens: int | None = None,
        batch_size: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        drop_remainder: bool = False,
        pad_id: PadIds = 0,
    ):
        check_integer("seed", seed, minimum=0)
        if np.ndim(boundaries) != 1 or not all(isinstance(x, Integral) for x in boundaries):
            raise TypeError(f"boundaries must be integers, such as (8, 16), got {boundaries!r}")
        self.inputs, self.labels = checked_parts(inputs, labels)
        self._parts = [*self.inputs.values(), *([] if self.labels is None else [self.labels])]
        self.boundaries = tuple(boundaries)
        self.tokens, self.batch_size = tokens, batch_size
        self.seed, self.shuffle = seed, shuffle
        self.drop_remainder = drop_remainder
        self.pad_ids = pad_ids_by_part(pad_id, list(self.inputs), self.labels is not None)
        self._check()
        self._sizes = [batch_size or (tokens or 0) // boundary for boundary in self.boundaries]
        longest = np.max([part.lengths for part in self._parts], axis=0)
        self._bucket = np.searchsorted(self.boundaries, longest)
        counts = np.bincount(self._bucket, minlength=len(self.boundaries)).tolist()
        self.steps = sum(
            count // size if drop_remainder else -(-count // size)
            for count, size in zip(counts, self._sizes, strict=True)
        )
        if not self.steps:
            raise ValueError(
                f"drop_remainder=True leaves no batch: {sum(counts)} examples fill none of "
                f"{self._sizes} rows"
            )
        self._planned: tuple[int, list[np.ndarray]] = (-1, [])

    def batch(self, step: int) -> Batch:
        """The batch of a step, counted from 0 over all epochs.

        Returns:
            The inputs by name, (B, T) int32 each; with labels, a tuple of inputs and labels (B, T).
        """
        check_integer("step", step, minimum=0)
        indices = self._plan(step // self.steps)[step % self.steps]

        def pad(name: str, part: Rows) -> np.ndarray:
            return part.to_padded(indices, self._length(part, indices), self.pad_ids[name])

        inputs = {name: pad(name, part) for name, part in self.inputs.items()}
        return inputs if self.labels is None else (inputs, pad(LABELS, self.labels))

    def padding(self) -> Padding:
        """The share of padding in the first epoch; other epochs differ slightly."""
        tokens = positions = 0
        for indices in self._plan(0):
            for part in self._parts:
                tokens += int(part.lengths[indices].sum())
                positions += len(indices) * self._length(part, indices)
        return Padding(tokens, positions, self.steps)

    def _check(self) -> None:
        if list(self.boundaries) != sorted(set(self.boundaries)) or self.boundaries[:1] < (1,):
            raise ValueError(f"boundaries must ascend from 1 or more, got {self.boundaries}")
        longest = max(int(part.lengths.max()) for part in self._parts)
        if longest > self.boundaries[-1]:
            raise ValueError(
                f"no row may be longer than the last boundary ({self.boundaries[-1]}), "
                f"got one of {longest}"
            )
        if (self.tokens is None) == (self.batch_size is None):
            raise ValueError(
                "give either tokens or batch_size, "
                f"got tokens={self.tokens} and batch_size={self.batch_size}"
            )
        check_integer("batch_size", self.batch_size, optional=True)
        check_integer("tokens", self.tokens, optional=True)
        if self.tokens is not None and self.tokens < self.boundaries[-1]:
            raise ValueError(
                f"tokens must be at least the last boundary ({self.boundaries[-1]}), "
                f"got {self.tokens}"
            )

    def _plan(self, epoch: int) -> list[np.ndarray]:
        """The examples of each batch of an epoch; cached for the last epoch."""
        planned, plan = self._planned
        if planned != epoch:
            plan = self._plan_of(epoch)
            self._planned = (epoch, plan)
        return plan

    def _plan_of(self, epoch: int) -> list[np.ndarray]:
        rng = np.random.default_rng([self.seed, epoch])
        count = len(self._bucket)
        order = rng.permutation(count) if self.shuffle else np.arange(count)
        full, rest = [], []
        buckets = self._bucket[order]
        for bucket, size in enumerate(self._sizes):
            places = np.flatnonzero(buckets == bucket)
            for first in range(0, len(places), size):
                chosen = places[first : first + size]
                if len(chosen) == size:
                    full.append((int(chosen[-1]), order[chosen]))
                elif not self.drop_remainder:
                    rest.append(order[chosen])
        batches = [indices for _, indices in sorted(full, key=lambda item: item[0])] + rest
        if self.shuffle:
            batches = [batches[i] for i in rng.permutation(len(batches))]
        return batches

    def _length(self, part: Rows, indices: np.ndarray) -> int:
        """The padded length of a part; at least 1, since some layers reject empty rows."""
        longest = part.lengths[indices].max()
        boundary = self.boundaries[int(np.searchsorted(self.boundaries, longest))]
        return min(boundary, max(1, int(part.lengths.max())))
