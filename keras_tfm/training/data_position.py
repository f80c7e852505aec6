"""Where `fit` stands in its data, and how it is brought there again."""

import warnings
import zlib
from collections.abc import Iterator
from typing import Any

from keras import tree
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter
from keras.src.trainers.epoch_iterator import EpochIterator


def pass_epoch(data: EpochIterator, steps: int) -> None:
    """Passes an epoch of `steps` steps as `fit` did, without training.

    A new epoch starts a new iterator of arrays and of `tf.data`, and what it shuffles depends on
    how many there were before: the first batch of each is enough. Other data go on where they were.
    """
    whole = not _restarts(data)
    with warnings.catch_warnings(), data.catch_stop_iteration():
        warnings.simplefilter("ignore")  # that the data ended; fit has said so
        for step, (_, _, batches) in enumerate(data):
            if step == steps:
                raise StopIteration  # where the length was not known, as the data did
            if whole or step == 0:
                next(batches)


def begin_epoch_at(data: EpochIterator, steps: int) -> None:
    """Makes the next epoch begin after `steps` of its steps."""
    if not steps:
        return
    enumerate_whole = data._enumerate_iterator

    def enumerate_rest() -> Iterator[Any]:
        data._enumerate_iterator = enumerate_whole
        epoch = enumerate_whole()
        for _ in range(steps):
            _, _, batches = next(epoch)
            next(batches)
        yield from epoch

    data._enumerate_iterator = enumerate_rest


def first_batch(data: EpochIterator) -> str | None:
    """A checksum of the first batch of arrays or of `tf.data`, or None for other data."""
    if not _restarts(data):
        return None
    checksum = 0
    for batch in data.data_adapter.get_tf_dataset().take(1).as_numpy_iterator():
        for array in tree.flatten(batch):
            checksum = zlib.crc32(repr((array.shape, array.dtype)).encode(), checksum)
            checksum = zlib.crc32(array.tobytes(), checksum)
    return f"{checksum:08x}"


def _restarts(data: EpochIterator) -> bool:
    known = isinstance(data.data_adapter, (ArrayDataAdapter, TFDatasetAdapter))
    return known and data.steps_per_epoch is None
