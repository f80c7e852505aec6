"""Returns to a position in the data of `fit` when training resumes."""

import warnings
import zlib
from typing import Any, TypeAlias

import numpy as np
from keras import tree

from keras_tfm.trainer_internals import first_batch, replace_next_epoch, restarts_each_epoch

# The private iterator of Keras's `fit` on TensorFlow.
EpochIterator: TypeAlias = Any


def pass_epoch(data: EpochIterator, steps: int) -> None:
    """Skips an epoch of `steps` steps: draws its data as `fit` did, without training.

    Each epoch starts a new iterator over arrays and `tf.data`, and their shuffling depends on how
    many iterators came before: drawing the first batch is enough. Other data continue where the
    epoch before stopped, so all batches are drawn.

    Args:
        data: the `EpochIterator` of `fit`.
        steps: int, number of steps of the epoch.
    """
    whole = not restarts_each_epoch(data)
    with warnings.catch_warnings(), data.catch_stop_iteration():
        warnings.simplefilter("ignore")  # a warning that the data ended, which `fit` has given
        for step, (_, _, batches) in enumerate(data):
            if step == steps:
                raise StopIteration  # like data of unknown length at their end
            if whole or step == 0:
                next(batches)


def begin_epoch_at(data: EpochIterator, steps: int) -> None:
    """Makes the next epoch of an `EpochIterator` skip its first `steps` steps."""

    def rest(epoch: EpochIterator) -> EpochIterator:
        for _ in range(steps):
            _, _, batches = next(epoch)
            next(batches)
        yield from epoch

    if steps:
        replace_next_epoch(data, rest)


def first_checksum(data: EpochIterator) -> str | None:
    """A checksum of the first batch; None if no batch can be drawn in advance.

    For a generator or a `PyDataset`, which may draw its rows at random, only the shapes count.
    """
    batch, is_fixed = first_batch(data)
    if batch is None:
        return None
    checksum = 0
    for x in tree.flatten(batch):
        array = np.asarray(x)
        checksum = zlib.crc32(repr((array.shape, array.dtype)).encode(), checksum)
        if is_fixed:
            # Of strings, and of None, the bytes are addresses.
            content = repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
            checksum = zlib.crc32(content, checksum)
    return f"{checksum:08x}"
