"""Gradients summed over all replicas before they are clipped, checked or logged."""

from collections.abc import Callable
from typing import Any

import keras

from keras_tfm import optimizer_internals

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


def innermost(optimizer: keras.Optimizer) -> keras.Optimizer:
    """The optimizer inside a `LossScaleOptimizer`, or else the optimizer itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def _leave_unchanged(pairs: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    return pairs
