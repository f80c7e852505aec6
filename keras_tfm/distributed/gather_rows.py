"""The rows of all replicas, for losses that compare the rows of a batch with each other."""

from typing import Any

import keras

Tensor = Any


def gather_rows(rows: Tensor) -> tuple[Tensor, Tensor | int]:
    """The rows of all replicas in their order, and the number of rows before this replica's.

    Gradients flow back to the replica that each row came from. With one replica, on JAX and on
    PyTorch, the rows themselves and 0: an array of JAX that is sharded over devices has all rows.

    Args:
        rows: tensor (B, ...). Replicas may have different numbers of rows.

    >>> import numpy as np
    >>> from keras_tfm.distributed.gather_rows import gather_rows
    >>> rows, before = gather_rows(np.zeros((3, 2), "float32"))
    >>> rows.shape, before
    ((3, 2), 0)
    """
    if keras.backend.backend() != "tensorflow":
        return rows, 0
    import tensorflow as tf

    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return rows, 0
    counts = replica.all_gather(tf.reshape(tf.shape(rows)[0], (1,)), axis=0)
    before = tf.reduce_sum(counts[: replica.replica_id_in_sync_group])
    return replica.all_gather(rows, axis=0), before
