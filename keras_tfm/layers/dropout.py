"""Dropout: Keras's layer, with a fast form of its random numbers on each backend."""

from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_rate
from keras_tfm.keras_internals import set_initial_seed
from keras_tfm.layers.base_layer import Recomputation
from keras_tfm.layers.types import Size, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class Dropout(Recomputation, keras.layers.Dropout):
    """`keras.layers.Dropout`, faster.

    In training it sets values to 0 at `rate` and scales the others by 1 / (1 - rate). "Dropout: A
    Simple Way to Prevent Neural Networks from Overfitting" (JMLR 15, 2014). On JAX, and on
    TensorFlow in a graph in which only the batch size is unknown, the random numbers are hashes of
    each value's index and the seed (`hashed_dropout`): on a CPU ten times as fast as TensorFlow's
    Philox generator, and nothing is stored for the backward pass. On PyTorch its own dropout is
    seeded. With a `noise_shape` the layer calls Keras's operation.

    Args:
        rate: float, fraction of the values that is dropped, within 0 and 1.
        **kwargs: the other arguments of `keras.layers.Dropout`.

    Raises:
        TypeError: `rate` is not a number.
        ValueError: `rate` is not within 0 and 1.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import Dropout
    >>> y = Dropout(0.5, seed=1)(np.ones((100, 100), "float32"), training=True)
    >>> sorted(set(np.ravel(y).tolist()))
    [0.0, 2.0]
    """

    def __init__(self, rate: float, **kwargs: Any):
        check_rate("dropout", rate)
        super().__init__(rate, **kwargs)

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """Any shape -> the same."""
        if training and 0 < self.rate < 1 and self.noise_shape is None and _is_hashed(inputs):
            return _apply_hashed_dropout(inputs, self.rate, self.draw())
        is_seeded = self.seed is not None and self.noise_shape is None
        if training and self.rate and is_seeded and _is_torch():
            return _apply_seeded_dropout(inputs, self.rate, self.draw())
        if training and self.rate and not _is_first(replica()):
            # Keras's generators have one state: all replicas would drop the same values.
            seed = DrawnSeed(self.draw())
            return keras.random.dropout(inputs, self.rate, self.noise_shape, seed)
        return super().call(inputs, training=training)

    def draw(self) -> Tensor:
        """Draws a seed, integers (2,), different for each call and each replica."""
        return draw_seed(self.seed_generator)

    def with_seed(self, inputs: Tensor, seed: Tensor) -> Tensor:
        """Dropout with a given seed, integers (2,): drops the same values each time."""
        if 0 < self.rate < 1 and _is_hashed(inputs):
            return _apply_hashed_dropout(inputs, self.rate, seed)
        if _is_torch():
            return _apply_seeded_dropout(inputs, self.rate, seed)
        return keras.random.dropout(inputs, self.rate, seed=DrawnSeed(seed))


@dataclass(frozen=True)
class DrawnDropout:
    """A `Dropout` in training with a fixed seed: drops the same values at each call."""

    layer: Dropout
    seed: Tensor

    def __call__(self, inputs: Tensor) -> Tensor:
        """Any shape -> the same."""
        return self.layer.with_seed(inputs, self.seed)

    @property
    def own_seed(self) -> Tensor | None:
        """The seed, if the layer was made with one; otherwise None: PyTorch's generator continues.

        `keras.layers.Dropout` does the same. Reading a seed waits for the device.
        """
        return None if self.layer.seed is None else self.seed

    def is_joined(self, scores: Tensor) -> bool:
        """Whether `weighted_sum` can be used for these scores."""
        is_here = keras.backend.backend() == "tensorflow"
        return is_here and 0 < self.layer.rate < 1 and _is_hashed(scores)

    def weighted_sum(self, scores: Tensor, values: Tensor) -> Tensor:
        """The softmax of scores (..., T, S), dropped out, times values (..., S, V): (..., T, V)."""
        from keras_tfm.layers.tensorflow.hashed_dropout import dropped_softmax_sum

        return dropped_softmax_sum(scores, values, self.layer.rate, self.seed, self)


def _is_first(number: Size) -> bool:
    return isinstance(number, int) and number == 0


def _is_hashed(x: Tensor) -> bool:
    """Whether to use `hashed_dropout`: not with unknown shapes, as XLA compiles it per shape."""
    if keras.backend.backend() == "jax":
        return True
    if keras.backend.backend() != "tensorflow" or None in tuple(x.shape)[1:]:
        return False
    import tensorflow as tf

    from keras_tfm.layers.tensorflow.hashed_dropout import has_xla

    return tf.inside_function() and has_xla()


def _apply_hashed_dropout(x: Tensor, rate: float, seed: Tensor) -> Tensor:
    if keras.backend.backend() == "jax":
        from keras_tfm.layers.jax import hashed_dropout as on_jax

        return on_jax.hashed_dropout(x, rate, seed)
    from keras_tfm.layers.tensorflow.hashed_dropout import hashed_dropout

    return hashed_dropout(x, rate, seed)


def _is_torch() -> bool:
    return bool(keras.backend.backend() == "torch")


def _apply_seeded_dropout(x: Tensor, rate: float, seed: Tensor) -> Tensor:
    from keras_tfm.layers.torch.random_state import seeded_dropout

    return seeded_dropout(x, rate, seed)


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


def replica() -> Size:
    """The number of the `tf.distribute` replica that is being traced; 0 without replicas."""
    if keras.backend.backend() != "tensorflow":
        return 0
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return 0
    return context.replica_id_in_sync_group


def draw_seed(generator: keras.random.SeedGenerator) -> Tensor:
    """Draws a seed, integers (2,), different for each call and each replica."""
    seed, number = generator.next(), replica()
    if isinstance(number, int) and number == 0:
        return seed
    # Keras's generators have one state: all replicas would draw the same numbers.
    step = ops.convert_to_tensor([1_000_000_007, 0], seed.dtype)
    return seed + step * ops.cast(number, seed.dtype)
