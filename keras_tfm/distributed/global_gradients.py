"""Gradients summed over all replicas before they are clipped, checked or logged."""

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


def sums_are_left_to_the_model(optimizer: keras.Optimizer) -> bool:
    """Whether `leave_sums_to_the_model` was called for the optimizer."""
    return optimizer_internals.gradient_sum(innermost(optimizer)) is _leave_unchanged


def innermost(optimizer: keras.Optimizer) -> keras.Optimizer:
    """The optimizer inside a `LossScaleOptimizer`, or else the optimizer itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def _leave_unchanged(pairs: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    return pairs
