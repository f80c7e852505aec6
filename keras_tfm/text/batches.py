"""The base of the data pipelines of this package."""

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from keras_tfm.arguments import check_integer
from keras_tfm.text.rows import Ids, Rows

# Arrays, or tuples and dictionaries of arrays.
Batch: TypeAlias = Any
# `tf.data.Dataset`, which only `Batches.dataset` imports.
Dataset: TypeAlias = Any


# One id for all inputs and labels, or ids by name; the labels have the name LABELS.
PadIds: TypeAlias = int | Mapping[str, int]
LABELS = "labels"


class Padding(NamedTuple):
    """The share of padding in a number of batches.

    Attributes:
        tokens: int, number of tokens in all inputs and labels.
        positions: int, number of positions, tokens and padding.
        batches: int, number of batches.

    Example:

    >>> from keras_tfm.text import Padding
    >>> padding = Padding(tokens=75, positions=100, batches=2)
    >>> padding.share
    0.25
    >>> print(padding)
    2 batches, 100 positions, 25.0 % padding
    """

    tokens: int
    positions: int
    batches: int

    @property
    def share(self) -> float:
        """The share of positions that are padding."""
        return 1.0 - self.tokens / self.positions

    def __str__(self) -> str:
        return (
            f"{self.batches:,} batches, {self.positions:,} positions, {self.share:.1%} padding"
        ).replace("%", " %")


class Batches(abc.ABC):
    """The base class of `BucketedBatches` and `PackedBatches`: each step has a fixed batch.

    Steps are batches, counted from 0 over all epochs. A batch depends only on the seed and the
    step, so an interrupted run resumes with `dataset(start=step)`.

    Attributes:
        steps: int, number of batches in an epoch, the same in every epoch.

    A custom pipeline defines `steps` and `batch`:

    >>> import numpy as np
    >>> from keras_tfm.text import Batches
    >>> class Counting(Batches):
    ...     steps = 3
    ...     def batch(self, step):
    ...         return {"ids": np.full((1, 2), step, "int32")}
    >>> [x["ids"].numpy().tolist() for x in Counting().dataset(start=4, epochs=2)]
    [[[4, 4]], [[5, 5]]]
    """

    steps: int

    @abc.abstractmethod
    def batch(self, step: int) -> Batch:
        """The batch of a step: inputs by name, or a tuple of inputs, labels and weights."""

    def dataset(self, start: int = 0, epochs: int | None = None) -> Dataset:
        """The batches as a `tf.data.Dataset`, starting with step `start`.

        Args:
            start: int, the first step; to resume training, the number of batches so far. The
                optimizer's `iterations` are updates: as many, unless it accumulates gradients
                (`gradient_accumulation_steps`) or leaves out updates (float16's loss scale).
            epochs: int, number of epochs, including those before `start`. None: infinite;
                `model.fit` then needs `steps_per_epoch=batches.steps`.

        Returns:
            A dataset that must not be shuffled: `model.fit(dataset, shuffle=False, ...)`. Where
            TensorFlow is not installed (Keras on JAX or PyTorch), a generator of the same batches
            as NumPy arrays, for `fit(generator, steps_per_epoch=batches.steps)`.

        Raises:
            ValueError: `start` is negative or after the last step.
        """
        check_integer("start", start, minimum=0)
        check_integer("epochs", epochs, optional=True)
        stop = None if epochs is None else epochs * self.steps
        if stop is not None and start > stop:
            raise ValueError(
                f"start must be at most {stop}, {epochs} epochs of {self.steps} steps, got {start}"
            )

        def generate() -> Iterator[Batch]:
            step = start
            while stop is None or step < stop:
                yield self.batch(step)
                step += 1

        try:
            import tensorflow as tf
        except ImportError:
            return generate()

        def spec(array: np.ndarray) -> object:
            return tf.TensorSpec((None,) * array.ndim, array.dtype)

        dataset = tf.data.Dataset.from_generator(
            generate, output_signature=tf.nest.map_structure(spec, self.batch(start))
        )
        count = tf.data.INFINITE_CARDINALITY if stop is None else stop - start
        return dataset.apply(tf.data.experimental.assert_cardinality(count)).prefetch(4)

    def map(self, function: Callable[[Batch, int], Batch]) -> "Batches":
        """Applies `function(batch, step)` to every batch, such as `MaskTokens`.

        >>> from keras_tfm.text import BucketedBatches
        >>> batches = BucketedBatches({"ids": [[3, 4]]}, boundaries=[2], batch_size=1)
        >>> batches.map(lambda batch, step: {"ids": batch["ids"] + step}).batch(7)["ids"].tolist()
        [[10, 11]]
        """
        return _Mapped(self, function)


class _Mapped(Batches):
    def __init__(self, batches: Batches, function: Callable[[Batch, int], Batch]):
        self.steps = batches.steps
        self._batches, self._function = batches, function

    def batch(self, step: int) -> Batch:
        return self._function(self._batches.batch(step), step)


def checked_parts(
    inputs: Mapping[str, Ids], labels: Ids | None
) -> tuple[dict[str, Rows], Rows | None]:
    """Inputs and labels as `Rows`.

    Raises:
        TypeError: `inputs` is not a dictionary.
        ValueError: there are none, or the numbers of rows differ.
    """
    if not isinstance(inputs, Mapping):
        raise TypeError(
            "inputs must be a dictionary from an input's name to its rows, "
            f"got {type(inputs).__name__}"
        )
    parts = {name: Rows.of(rows) for name, rows in inputs.items()}
    answers = None if labels is None else Rows.of(labels)
    counts = {name: len(rows) for name, rows in parts.items()}
    if answers is not None:
        counts["labels"] = len(answers)
    if not parts or len(set(counts.values())) != 1 or not next(iter(counts.values())):
        raise ValueError(
            f"inputs and labels must have the same number of rows, at least one, got {counts}"
        )
    return parts, answers


def input_to_mask(batch: Batch, name: str) -> np.ndarray:
    """The entry `name` of a batch, or the batch itself if it is not a dictionary.

    Raises:
        ValueError: the dictionary has no such entry.
    """
    if not isinstance(batch, dict):
        return np.asarray(batch)
    if name not in batch:
        raise ValueError(f"a batch to mask must have {name!r}, got {sorted(batch)}")
    return np.asarray(batch[name])


def pad_ids_by_part(pad_id: PadIds, names: Sequence[str], has_labels: bool) -> dict[str, int]:
    """The padding id of each input, and of the labels under `LABELS`; 0 if not given.

    Raises:
        ValueError: an id for an unknown part, or labels and an input of that name.
        TypeError: an id is not an integer.
    """
    parts = [*names, *([LABELS] if has_labels else [])]
    given = dict(pad_id) if isinstance(pad_id, Mapping) else dict.fromkeys(parts, pad_id)
    unknown = [name for name in given if name not in parts]
    if unknown:
        raise ValueError(f"pad_id must be for the parts {parts}, got one for {unknown}")
    if isinstance(pad_id, Mapping) and parts.count(LABELS) > 1:
        raise ValueError(f"pad_id by name needs different names, got labels and inputs {names}")
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise TypeError(f"pad_id of {name!r} must be an integer, got {value!r}")
    return {name: int(given.get(name, 0)) for name in parts}
