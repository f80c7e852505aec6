"""Batches of examples of similar lengths, in an order that a seed and a step decide."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_tfm.layers.arguments import check_integer
from keras_tfm.text.rows import Rows


class Padding(NamedTuple):
    """How much of what a model computes is padding.

    Attributes:
        tokens: positions that hold a token.
        positions: all positions.
        batches: in how many batches.

    >>> from keras_tfm.text import Padding
    >>> Padding(tokens=75, positions=100, batches=2).share
    0.25
    """

    tokens: int
    positions: int
    batches: int

    @property
    def share(self) -> float:
        """The share of positions that are padding."""
        return 1.0 - self.tokens / self.positions


class BucketedBatches:
    """Batches of similar lengths, padded to a few fixed lengths, with a budget of tokens each.

    An example belongs to the first boundary that is at least as long as its longest part; a batch
    holds examples of one boundary. Each part is padded with `padding_id` to the first boundary that
    fits the longest row of the batch, and never further than the longest row of all data, so that
    shapes are few: a compiler sees at most (boundaries + 1) lengths of each part.

    Which batch a step has depends on `seed` and the step alone. A run that was interrupted goes on
    with `dataset(start=step)`, and reads the batches that it would have read.

    Args:
        inputs: the rows of each input by name: sequences of integers of any lengths, or a padded
            array with `Rows.of_padded`.
        labels: the rows of labels, or None. All have as many rows.
        boundaries: the lengths, ascending; no row may be longer than the last.
        tokens: the budget: rows times the boundary is at most this in each part.
        batch_size: instead of `tokens`, the rows of each batch.
        seed: of the order.
        shuffle: whether examples are in another order in every epoch, and then the batches too.
            Otherwise a batch comes when its last example does, as in
            `tf.data.Dataset.bucket_by_sequence_length`.
        drop_remainder: leaves out the last batches of each boundary, where they are not full.
        padding_id: what rows are padded with.

    Attributes:
        steps: batches in an epoch, the same in every epoch.

    Raises:
        ValueError: numbers of rows differ, a row is longer than the last boundary, the budget is
            smaller than a boundary, or an argument is out of range.

    Example:

    >>> from keras_tfm.text import BucketedBatches
    >>> rows = [[5], [6, 7, 8], [9], [3, 4]]
    >>> batches = BucketedBatches({"ids": rows}, boundaries=[1, 4], tokens=4, shuffle=False)
    >>> batches.steps
    3
    >>> [batches.batch(step)["ids"].tolist() for step in range(batches.steps)]
    [[[6, 7, 8]], [[3, 4, 0]], [[5], [9]]]
    """

    def __init__(
        self,
        inputs: Mapping[str, Any],
        labels: Any = None,
        boundaries: Sequence[int] = (8, 16, 32, 64, 128),
        tokens: int | None = None,
        batch_size: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        drop_remainder: bool = False,
        padding_id: int = 0,
    ):
        self.inputs = {name: Rows.of(rows) for name, rows in inputs.items()}
        self.labels = None if labels is None else Rows.of(labels)
        self.boundaries = tuple(boundaries)
        self.tokens, self.batch_size = tokens, batch_size
        self.seed, self.shuffle, self.padding_id = seed, shuffle, padding_id
        self._parts = [*self.inputs.values(), *([] if self.labels is None else [self.labels])]
        self._check()
        longest = np.max([part.lengths for part in self._parts], axis=0)
        self._bucket = np.searchsorted(self.boundaries, longest)
        self._sizes = [
            batch_size or tokens // length  # type: ignore[operator]
            for length in self.boundaries
        ]
        self._drop_remainder = drop_remainder
        counts = np.bincount(self._bucket, minlength=len(self.boundaries))
        self.steps = int(
            sum(
                count // size if drop_remainder else -(-count // size)
                for count, size in zip(counts, self._sizes, strict=True)
            )
        )
        self._planned: tuple[int, list[np.ndarray]] | None = None

    def batch(self, step: int) -> Any:
        """The batch of a step, counted from 0 over all epochs.

        Returns:
            The inputs by name, (B, T) int32 each; with labels, a tuple of inputs and labels.
        """
        return self._gather(self._plan(step // self.steps)[step % self.steps])

    def dataset(self, start: int = 0, epochs: int | None = None) -> Any:
        """The batches as a `tf.data.Dataset`, from a step on.

        Args:
            start: the first step, counted over all epochs: the optimizer's `iterations` of a run
                that goes on.
            epochs: how many epochs there are, those before `start` included; None: without end.

        Give `model.fit` the argument `shuffle=False`, and `steps_per_epoch` where `epochs` is None.
        """
        import tensorflow as tf

        check_integer("start", start, minimum=0)
        check_integer("epochs", epochs, optional=True)

        def generate() -> Any:
            step = start
            while epochs is None or step < epochs * self.steps:
                yield self.batch(step)
                step += 1

        spec = tf.TensorSpec((None, None), "int32")
        signature: Any = dict.fromkeys(self.inputs, spec)
        if self.labels is not None:
            signature = (signature, spec)
        return tf.data.Dataset.from_generator(generate, output_signature=signature).prefetch(4)

    def padding(self) -> Padding:
        """How much of an epoch is padding."""
        real = positions = 0
        for indices in self._plan(0):
            for part in self._parts:
                real += int(part.lengths[indices].sum())
                positions += len(indices) * self._length(part, indices)
        return Padding(real, positions, self.steps)

    def _check(self) -> None:
        counts = {name: len(rows) for name, rows in self.inputs.items()}
        if self.labels is not None:
            counts["labels"] = len(self.labels)
        if not self.inputs or len(set(counts.values())) != 1 or not next(iter(counts.values())):
            raise ValueError(f"all parts must have the same number of rows, got {counts}")
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
                f"give tokens or batch_size, one of the two, got {self.tokens} and {self.batch_size}"
            )
        check_integer("batch_size", self.batch_size, optional=True)
        check_integer("tokens", self.tokens, optional=True)
        if self.tokens is not None and self.tokens < self.boundaries[-1]:
            raise ValueError(
                f"tokens must be at least the last boundary ({self.boundaries[-1]}), "
                f"got {self.tokens}"
            )

    def _plan(self, epoch: int) -> list[np.ndarray]:
        """The rows of each batch of an epoch."""
        if self._planned is None or self._planned[0] != epoch:
            self._planned = (epoch, self._planned_epoch(epoch))
        return self._planned[1]

    def _planned_epoch(self, epoch: int) -> list[np.ndarray]:
        rng = np.random.default_rng([self.seed, epoch])
        count = len(self._bucket)
        order = rng.permutation(count) if self.shuffle else np.arange(count)
        full: list[tuple[int, np.ndarray]] = []
        rest = []
        buckets = self._bucket[order]
        for bucket, size in enumerate(self._sizes):
            times = np.flatnonzero(buckets == bucket)
            for first in range(0, len(times), size):
                chosen = times[first : first + size]
                if len(chosen) == size:
                    full.append((int(chosen[-1]), order[chosen]))
                elif not self._drop_remainder:
                    rest.append(order[chosen])
        batches = [indices for _, indices in sorted(full, key=lambda item: item[0])] + rest
        if self.shuffle:
            batches = [batches[i] for i in rng.permutation(len(batches))]
        return batches

    def _length(self, part: Rows, indices: np.ndarray) -> int:
        longest = part.lengths[indices].max()
        fitting = self.boundaries[int(np.searchsorted(self.boundaries, longest))]
        return min(fitting, max(1, int(part.lengths.max())))

    def _gather(self, indices: np.ndarray) -> Any:
        def padded(part: Rows) -> np.ndarray:
            return part.padded(indices, self._length(part, indices), self.padding_id)

        inputs = {name: padded(part) for name, part in self.inputs.items()}
        return inputs if self.labels is None else (inputs, padded(self.labels))
