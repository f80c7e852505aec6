"""Dropout: Keras's layer, with a fast twin of its random numbers on TensorFlow."""

import functools
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
            return hashed_dropout(inputs, self.rate, self.draw())
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
            return hashed_dropout(inputs, self.rate, seed)
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
        """The softmax of scores (..., T, S), dropped out, times values (..., S, V): (..., T, V).

        TensorFlow only. The scores' gradient is one pass over them, compiled by XLA. With
        P = softmax(scores), D P what dropout leaves of it and O = (D P) values, it is
        P * (D dO values^T - r), where r is the sum over S of D P * dO values^T; and that is the sum
        over V of O * dO, which FlashAttention found (arXiv:2205.14135, appendix B.2).
        """
        import tensorflow as tf

        @tf.custom_gradient
        def weigh(scores: Tensor, values: Tensor) -> tuple[Tensor, Any]:
            weights = tf.nn.softmax(scores)
            dropped = self(tf.cast(weights, values.dtype))
            output = dropped @ values

            def gradient(upstream: Tensor) -> tuple[Tensor, Tensor]:
                product = tf.cast(upstream, scores.dtype) * tf.cast(output, scores.dtype)
                of_scores = _softmax_gradient(self.layer.rate)(
                    tf.matmul(upstream, values, transpose_b=True),
                    weights,
                    tf.reduce_sum(product, axis=-1, keepdims=True),
                    self.seed,
                )
                return of_scores, tf.matmul(dropped, upstream, transpose_a=True)

            return output, gradient

        return weigh(scores, values)


def _is_first(number: Any) -> bool:
    return isinstance(number, int) and number == 0


def _is_hashed(x: Tensor) -> bool:
    """Whether `hashed_dropout` is faster: XLA would compile it again for every new shape."""
    if keras.backend.backend() != "tensorflow" or None in tuple(x.shape)[1:]:
        return False
    import tensorflow as tf

    return tf.inside_function() and _has_xla()


@functools.cache
def _has_xla() -> bool:
    """Whether this build of TensorFlow compiles for the devices at hand."""
    import tensorflow as tf

    try:
        with tf.init_scope():
            tf.function(lambda x: x + 1.0, jit_compile=True)(tf.zeros(2))
    except tf.errors.OpError:
        return False
    return True


def hashed_dropout(x: Tensor, rate: float, seed: Tensor) -> Tensor:
    """Dropout of which a hash of each value's index and of the seed decides; TensorFlow only.

    Compiled by XLA into one pass over `x`, and one over its gradient.

    Args:
        x: a float tensor of fewer than 2^32 values.
        rate: within 0 and 1, both excluded.
        seed: two integers.
    """
    import tensorflow as tf

    @tf.custom_gradient
    def drop(x: Tensor) -> tuple[Tensor, Any]:
        return _compiled(rate)(x, seed), lambda gradient: _compiled(rate)(gradient, seed)

    return drop(x)


@functools.cache
def _compiled(rate: float) -> Any:
    import tensorflow as tf

    def unsigned(value: int) -> Tensor:
        return tf.constant(value, tf.uint32)

    def mix(x: Tensor) -> Tensor:
        """A permutation of 32 bits in which each bit depends on all: C. Wellons's lowbias32."""
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, unsigned(shift)))
            x = x * unsigned(factor)
        return tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, unsigned(16)))

    def drop(x: Tensor, seed: Tensor) -> Tensor:
        words = tf.cast(seed, tf.uint32)
        first = mix(mix(words[0]) + words[1])
        second = mix(first + unsigned(0x9E3779B9))
        index = tf.bitcast(tf.range(tf.size(x), dtype=tf.int32), tf.uint32)
        bits = mix(mix(index + first) ^ second)
        # Compared as 31 bits: unsigned comparison is no vector instruction.
        bits = tf.bitcast(tf.bitwise.right_shift(bits, unsigned(1)), tf.int32)
        keep = tf.reshape(bits >= round(rate * 2**31), tf.shape(x))
        return tf.where(keep, x * tf.cast(1 / (1 - rate), x.dtype), tf.zeros((), x.dtype))

    return tf.function(drop, jit_compile=True, autograph=False)


@functools.cache
def _softmax_gradient(rate: float) -> Any:
    import tensorflow as tf

    def gradient(upstream: Tensor, weights: Tensor, total: Tensor, seed: Tensor) -> Tensor:
        """Of scores, from that of their softmax after dropout: `DrawnDropout.weighted_sum`."""
        return weights * (tf.cast(_compiled(rate)(upstream, seed), weights.dtype) - total)

    return tf.function(gradient, jit_compile=True, autograph=False)
