"""A seed that was drawn already, and the replica that draws."""

from typing import Any

import keras
from keras import ops

from keras_tfm.keras_internals import set_initial_seed

Tensor = Any


class DrawnSeed(keras.random.SeedGenerator):
    """Two integers, in the form in which `keras.random` takes a seed: always the same draw."""

    def __init__(self, seed: Tensor):  # no state: the base class would make a variable
        if keras.backend.backend() == "jax":
            seed = ops.cast(seed, "uint32")  # the only keys that JAX takes
        self._seed = seed
        set_initial_seed(self, seed)  # which PyTorch's dropout reads: None would mean unseeded

    def next(self, ordered: bool = True) -> Tensor:
        """The seed."""
        return self._seed


def replica() -> Any:
    """The number of the replica of `tf.distribute` that is being traced; 0 where there is one."""
    if keras.backend.backend() != "tensorflow":
        return 0
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return 0
    return context.replica_id_in_sync_group
