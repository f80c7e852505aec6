"""Matrix products, each in the form that is fastest where it runs; the numbers are the same."""

import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_tfm.layers.decoding_scope import for_device

Tensor = Any


def positionwise(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """What `function` makes of each position alone, (B, T, D) -> (B, T, F).

    TensorFlow joins a product with its bias and ReLU in matrices only, so it gets (B T, D).
    """
    if keras.backend.backend() != "tensorflow" or for_device():
        return function(x)
    shape = ops.shape(x)
    y = function(ops.reshape(x, (-1, shape[-1])))
    return ops.reshape(y, (*shape[:-1], y.shape[-1]))


def query_key_product(query: Tensor, key: Tensor) -> Tensor:
    """Q K^T: (B, H, T, K) and (B, H, S, K) -> (B, H, T, S)."""
    if keras.backend.backend() != "tensorflow" or for_device():
        return ops.matmul(query, _transposed(key))
    import tensorflow as tf

    if not is_compiled_for_cpu():
        return tf.matmul(query, key, transpose_b=True)

    @tf.custom_gradient
    def product(query: Tensor, key: Tensor) -> tuple[Tensor, Any]:
        def gradient(upstream: Tensor) -> tuple[Tensor, Tensor]:
            return upstream @ _written(key), left_transposed_product(upstream, query)

        return query @ _transposed(key), gradient

    return product(query, key)


def weight_value_product(weights: Tensor, value: Tensor) -> Tensor:
    """W V: (B, H, T, S) and (B, H, S, V) -> (B, H, T, V)."""
    if not is_compiled_for_cpu():
        return ops.matmul(weights, value)
    import tensorflow as tf

    @tf.custom_gradient
    def product(weights: Tensor, value: Tensor) -> tuple[Tensor, Any]:
        def gradient(upstream: Tensor) -> tuple[Tensor, Tensor]:
            of_weights = tf.matmul(upstream, value, transpose_b=True)
            return of_weights, left_transposed_product(weights, upstream)

        return weights @ value, gradient

    return product(weights, value)


def left_transposed_product(wide: Tensor, narrow: Tensor) -> Tensor:
    """wide^T narrow, on TensorFlow: (B, H, T, S) and (B, H, T, K) -> (B, H, S, K).

    On a CPU XLA reads a transposed left side column by column, five times as slowly at S=512; here
    it gets (narrow^T wide)^T, and both transposed matrices, the narrow ones, written.
    """
    import tensorflow as tf

    if not is_compiled_for_cpu():
        return tf.matmul(wide, narrow, transpose_a=True)
    return _transposed(_written(_written(_transposed(narrow)) @ wide))


def is_compiled_for_cpu() -> bool:
    """Whether the TensorFlow function that is being traced is XLA's, and no accelerator is here."""
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf
    from tensorflow.python.ops import control_flow_util  # nothing public tells

    graph = tf.compat.v1.get_default_graph()
    compiled = tf.inside_function() and control_flow_util.GraphOrParentsInXlaContext(graph)
    return compiled and _has_only_cpus()


@functools.cache
def _has_only_cpus() -> bool:
    import tensorflow as tf

    return {device.device_type for device in tf.config.list_logical_devices()} == {"CPU"}


def _transposed(x: Tensor) -> Tensor:
    return ops.transpose(x, (0, 1, 3, 2))


def _written(x: Tensor) -> Tensor:
    """x, which XLA has to write to memory as it is: it joins no transposition before with what
    comes after."""
    import tensorflow as tf
    from tensorflow.compiler.tf2xla.python import xla

    @tf.custom_gradient
    def write(x: Tensor) -> tuple[Tensor, Any]:
        return xla.optimization_barrier(x)[0], lambda upstream: upstream

    return write(x)
