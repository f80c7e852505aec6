"""Dropout: Keras's layer, with a fast twin of its random numbers on TensorFlow."""

from dataclasses import dataclass
from typing import Any

import keras

from keras_tfm.arguments import check_rate
from keras_tfm.layers.drawn_seed import DrawnSeed, replica

Tensor = Any


@keras.saving.register_keras_serializable("keras_tfm")
class Dropout(keras.layers.Dropout):
    """Sets values to 0 at `rate` in training, and scales the others by 1 / (1 - rate).

    "Dropout: A Simple Way to Prevent Neural Networks from Overfitting" (JMLR 15, 2014). The layer
    is `keras.layers.Dropout`. On TensorFlow, in a graph whose shapes are known but for the batch,
    it draws by hashing the index of each value with the seed (`hashed_dropout`): ten times as fast
    as a Philox generator on a CPU, and nothing is kept for the backward pass. Elsewhere it draws
    as Keras does.

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
            return _hashed(inputs, self.rate, self.draw())
        if training and self.rate and not _is_first(replica()):
            # Keras's generators have one state, and the replicas would drop alike.
            seed = DrawnSeed(self.draw())
            return keras.random.dropout(inputs, self.rate, self.noise_shape, seed)
        return super().call(inputs, training=training)

    def draw(self) -> Tensor:
        """The seed of a call, integers (2,): another at each, and on each replica."""
        seed = self.seed_generator.next()
        number = replica()
        if _is_first(number):
            return seed
        step = keras.ops.convert_to_tensor([1_000_000_007, 0], seed.dtype)
        return seed + step * keras.ops.cast(number, seed.dtype)

    def with_seed(self, inputs: Tensor, seed: Tensor) -> Tensor:
        """Drops what `seed`, integers (2,), decides: the same values each time."""
        if 0 < self.rate < 1 and _is_hashed(inputs):
            return _hashed(inputs, self.rate, seed)
        return keras.random.dropout(inputs, self.rate, seed=DrawnSeed(seed))


@dataclass(frozen=True)
class DrawnDropout:
    """A `Dropout` in training whose seed is drawn: drops the same values at each call."""

    layer: Dropout
    seed: Tensor

    def __call__(self, inputs: Tensor) -> Tensor:
        """Any shape -> the same."""
        return self.layer.with_seed(inputs, self.seed)

    def is_joined(self, scores: Tensor) -> bool:
        """Whether `weighted_sum` may be called."""
        return 0 < self.layer.rate < 1 and _is_hashed(scores)

    def weighted_sum(self, scores: Tensor, values: Tensor) -> Tensor:
        """The softmax of scores (..., T, S), dropped out, times values (..., S, V): (..., T, V)."""
        from keras_tfm.layers.tensorflow.hashed_dropout import dropped_softmax_sum

        return dropped_softmax_sum(scores, values, self.layer.rate, self.seed, self)


def _is_first(number: Any) -> bool:
    return isinstance(number, int) and number == 0


def _is_hashed(x: Tensor) -> bool:
    """Whether `hashed_dropout` is faster: XLA would compile it again for every new shape."""
    if keras.backend.backend() != "tensorflow" or None in tuple(x.shape)[1:]:
        return False
    import tensorflow as tf

    from keras_tfm.layers.tensorflow.hashed_dropout import has_xla

    return tf.inside_function() and has_xla()


def _hashed(x: Tensor, rate: float, seed: Tensor) -> Tensor:
    from keras_tfm.layers.tensorflow.hashed_dropout import hashed_dropout

    return hashed_dropout(x, rate, seed)
