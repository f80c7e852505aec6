"""What replicas exchange: gradients before they are clipped or checked, moving statistics, rows."""

from collections.abc import Callable
from typing import Any

import keras

from keras_tfm import optimizer_internals
from keras_tfm.distributed.optimizer import innermost
from keras_tfm.keras_internals import sublayers

Tensor = Any


def sum_over_replicas(gradients: list[Tensor]) -> list[Tensor]:
    """The sums over all replicas; with one replica or none, the gradients themselves."""
    import tensorflow as tf

    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return gradients
    present = [g for g in gradients if g is not None]
    sums = iter(replica.all_reduce(tf.distribute.ReduceOp.SUM, present))
    return [None if g is None else next(sums) for g in gradients]


def leave_sums_to_the_model(optimizer: keras.Optimizer) -> None:
    """Makes an optimizer expect gradients that are already summed over the replicas.

    Keras's optimizer would sum them only after `clipnorm` and `global_clipnorm` have clipped each
    replica's gradients by that replica's norm, and after a `LossScaleOptimizer` has checked on each
    replica separately whether they are finite.
    """
    optimizer_internals.set_gradient_sum(innermost(optimizer), _leave_unchanged)


def sum_unless_the_model_does(
    optimizer: keras.Optimizer, summed: Callable[[], bool], average: Callable[[], None]
) -> None:
    """`leave_sums_to_the_model` in steps of `keras_tfm.Model`; a `train_step` of a subclass that
    applies gradients itself gets their sums from the optimizer.

    Args:
        summed: function that returns whether the model has summed the gradients.
        average: function to call if it has not, which averages what layers have updated.
    """

    def sums(pairs: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
        if summed():
            return pairs
        average()
        gradients = sum_over_replicas([gradient for gradient, _ in pairs])
        return [(x, variable) for x, (_, variable) in zip(gradients, pairs, strict=True)]

    optimizer_internals.set_gradient_sum(innermost(optimizer), sums)


def _leave_unchanged(pairs: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    return pairs


def average_moving_statistics(model: keras.Model, share: Tensor | None) -> None:
    """Averages the moving statistics of batch normalisation, which each replica has updated.

    Keras 3.15 leaves each replica its own values: the model that is saved is the first replica's,
    and other replicas evaluate another one.

    Args:
        share: float32, the replica's rows over the replicas' mean. None, in a step that does not
            count them: all replicas count alike.
    """
    import tensorflow as tf

    replica = tf.distribute.get_replica_context()
    layers = [x for x in sublayers(model) if isinstance(x, keras.layers.BatchNormalization)]
    # Frozen ones are not updated, and synchronized ones are equal.
    updated = [x for x in layers if x.built and x.trainable and not is_synchronized(x)]
    # Of renormalisation, too; a subclass may count steps.
    variables = [
        v
        for layer in updated
        for v in layer.non_trainable_variables
        if keras.backend.is_float_dtype(v.dtype)
    ]
    if not variables:
        return
    values = [tf.convert_to_tensor(v) for v in variables]
    if share is not None:
        values = [tf.math.multiply_no_nan(x, tf.cast(share, x.dtype)) for x in values]
    means = replica.all_reduce(tf.distribute.ReduceOp.MEAN, values)
    for variable, mean in zip(variables, means, strict=True):
        variable.assign(mean)


def is_synchronized(layer: keras.Layer) -> bool:
    """Whether a layer is a batch normalisation that computes its moments over all replicas."""
    return isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized


def gather_rows(rows: Tensor) -> tuple[Tensor, Tensor | int]:
    """The rows of all replicas in their order, and the number of rows before this replica's.

    For losses that compare the rows of a batch with each other. Gradients flow back to the replica
    that each row came from. With one replica, on JAX and on PyTorch, the rows themselves and 0: an
    array of JAX that is sharded over devices has all rows.

    Args:
        rows: tensor (B, ...). Replicas may have different numbers of rows.

    >>> import numpy as np
    >>> from keras_tfm.distributed.replicas import gather_rows
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
