"""Dropout on TensorFlow by hashing each value's index; XLA compiles it into one pass."""

import functools
from collections.abc import Callable

import tensorflow as tf

from keras_tfm.layers.types import Tensor


@functools.cache
def has_xla() -> bool:
    """Whether this build of TensorFlow can compile with XLA for the available devices."""
    try:
        with tf.init_scope():
            tf.function(lambda x: x + 1.0, jit_compile=True)(tf.zeros(2))
    except tf.errors.OpError:
        return False
    return True


def hashed_dropout(x: Tensor, rate: float, seed: Tensor) -> Tensor:
    """Dropout in which a hash of each value's index and the seed decides what is dropped.

    XLA compiles it into one pass over `x`, and one over its gradient.

    Args:
        x: float tensor with fewer than 2^32 values.
        rate: float, dropout rate, 0 < rate < 1.
        seed: two integers.
    """

    @tf.custom_gradient
    def drop(x: Tensor) -> tuple[Tensor, Callable[..., Tensor]]:
        return _compile(rate)(x, seed), lambda gradient: _compile(rate)(gradient, seed)

    return drop(x)


@functools.cache
def _compile(rate: float) -> Callable[..., Tensor]:
    def as_unsigned(value: int) -> Tensor:
        return tf.constant(value, tf.uint32)

    def mix(x: Tensor) -> Tensor:
        """A permutation of 32 bits in which each bit depends on all: C. Wellons's lowbias32."""
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, as_unsigned(shift)))
            x = x * as_unsigned(factor)
        return tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, as_unsigned(16)))

    def drop(x: Tensor, seed: Tensor) -> Tensor:
        words = tf.cast(seed, tf.uint32)
        first = mix(mix(words[0]) + words[1])
        second = mix(first + as_unsigned(0x9E3779B9))
        index = tf.bitcast(tf.range(tf.size(x), dtype=tf.int32), tf.uint32)
        bits = mix(mix(index + first) ^ second)
        # Compared as 31 bits: there is no vector instruction for an unsigned comparison.
        bits = tf.bitcast(tf.bitwise.right_shift(bits, as_unsigned(1)), tf.int32)
        keep = tf.reshape(bits >= round(rate * 2**31), tf.shape(x))
        return tf.where(keep, x * tf.cast(1 / (1 - rate), x.dtype), tf.zeros((), x.dtype))

    return tf.function(drop, jit_compile=True, autograph=False)


@functools.cache
def _softmax_gradient(rate: float) -> Callable[..., Tensor]:
    def gradient(upstream: Tensor, weights: Tensor, total: Tensor, seed: Tensor) -> Tensor:
        """The scores' gradient from that of the dropped-out weights; see `dropped_softmax_sum`."""
        return weights * (tf.cast(_compile(rate)(upstream, seed), weights.dtype) - total)

    return tf.function(gradient, jit_compile=True, autograph=False)


def dropped_softmax_sum(
    scores: Tensor, values: Tensor, rate: float, seed: Tensor, drop: Callable[[Tensor], Tensor]
) -> Tensor:
    """dropout(softmax(scores)) values, for scores (..., T, S), values (..., S, V): (..., T, V).

    XLA compiles the scores' gradient into one pass. With P = softmax(scores), D P the weights after
    dropout and O = (D P) values, it is P * (D dO values^T - r), where r is the sum over S of
    D P * dO values^T. This equals the sum over V of O * dO (FlashAttention, arXiv:2205.14135,
    appendix B.2).

    Args:
        scores: float32 tensor (..., T, S).
        values: float tensor (..., S, V).
        rate: float, dropout rate of `drop`.
        seed: two integers, seed of `drop`.
        drop: dropout function of the weights; must drop the same values at each call.
    """

    @tf.custom_gradient
    def weigh(scores: Tensor, values: Tensor) -> tuple[Tensor, Callable[..., Tensor]]:
        weights = tf.nn.softmax(scores)
        dropped = drop(tf.cast(weights, values.dtype))
        output = dropped @ values

        def gradient(upstream: Tensor) -> tuple[Tensor, Tensor]:
            product = tf.cast(upstream, scores.dtype) * tf.cast(output, scores.dtype)
            of_scores = _softmax_gradient(rate)(
                tf.matmul(upstream, values, transpose_b=True),
                weights,
                tf.reduce_sum(product, axis=-1, keepdims=True),
                seed,
            )
            return of_scores, tf.matmul(dropped, upstream, transpose_a=True)

        return output, gradient

    return weigh(scores, values)
