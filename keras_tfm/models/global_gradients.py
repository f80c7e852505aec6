"""The gradients of the whole batch, before anything clips, checks or watches them."""

from typing import Any

Tensor = Any


def sum_over_replicas(gradients: list[Tensor]) -> list[Tensor]:
    """The sums over all replicas; within one, and without any, the gradients themselves."""
    import tensorflow as tf

    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return gradients
    present = [g for g in gradients if g is not None]
    sums = iter(replica.all_reduce(tf.distribute.ReduceOp.SUM, present))
    return [None if g is None else next(sums) for g in gradients]


def leave_sums_to_the_model(optimizer: Any) -> None:
    """Has an optimizer take gradients as sums over the replicas.

    Keras's sums them itself, after `clipnorm` and `global_clipnorm` have cut each replica's by
    its own norm, and a `LossScaleOptimizer` asks one replica alone whether they are finite. Not
    public: no other place between a gradient and its update knows of replicas.
    """
    innermost(optimizer)._all_reduce_sum_gradients = _as_they_are


def sums_are_left_to_the_model(optimizer: Any) -> bool:
    """Whether `leave_sums_to_the_model` was called."""
    return innermost(optimizer)._all_reduce_sum_gradients is _as_they_are


def innermost(optimizer: Any) -> Any:
    """The optimizer itself, without what scales its loss."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def _as_they_are(pairs: Any) -> Any:
    return pairs
