"""A fixed seed for `keras.random`, and the number of the current replica.

Example:

>>> from keras import ops
>>> from keras_tfm.layers.drawn_seed import DrawnSeed
>>> seed = DrawnSeed(ops.array([1, 2]))
>>> seed.next().numpy().tolist(), seed.next().numpy().tolist()
([1, 2], [1, 2])
"""

from typing import Any

import keras
from keras import ops

from keras_tfm.keras_internals import set_initial_seed

Tensor = Any


class DrawnSeed(keras.random.SeedGenerator):
    """A seed of two integers as a `SeedGenerator` that always returns it, for `keras.random`."""

    def __init__(self, seed: Tensor):  # no super().__init__: it would create a variable
        if keras.backend.backend() == "jax":
            seed = ops.cast(seed, "uint32")  # the only dtype of JAX keys
        self._seed = seed
        set_initial_seed(self, seed)  # read by dropout on PyTorch, where None means unseeded

    def next(self, ordered: bool = True) -> Tensor:
        """The seed."""
        return self._seed


def replica() -> Any:
    """The number of the `tf.distribute` replica that is being traced; 0 without replicas."""
    if keras.backend.backend() != "tensorflow":
        return 0
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return 0
    return context.replica_id_in_sync_group


def drawn(generator: keras.random.SeedGenerator) -> Tensor:
    """Draws a seed, integers (2,), different for each call and each replica."""
    seed, number = generator.next(), replica()
    if isinstance(number, int) and number == 0:
        return seed
    # Keras's generators have one state: all replicas would draw the same numbers.
    step = ops.convert_to_tensor([1_000_000_007, 0], seed.dtype)
    return seed + step * ops.cast(number, seed.dtype)
