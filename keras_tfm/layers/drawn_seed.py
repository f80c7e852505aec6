"""A seed that was drawn already."""

from typing import Any

import keras
from keras import ops

Tensor = Any


class DrawnSeed(keras.random.SeedGenerator):
    """Two integers, in the form in which `keras.random` takes a seed: always the same draw."""

    def __init__(self, seed: Tensor):  # no state: the base class would make a variable
        if keras.backend.backend() == "jax":
            seed = ops.cast(seed, "uint32")  # the only keys that JAX takes
        self._seed = seed
        self._initial_seed = seed  # which PyTorch's dropout looks at: None would mean unseeded

    def next(self, ordered: bool = True) -> Tensor:
        """The seed."""
        return self._seed
