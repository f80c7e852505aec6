"""Products of matrices with a bias, on TensorFlow, in the forms that oneDNN is fastest at."""

from typing import Any

import tensorflow as tf

Tensor = Any


def affine(x: Tensor, *weights: Tensor) -> Tensor:
    """x W + b of (N, D), (D, F) and perhaps (F,), with its gradient in the fastest form."""

    @tf.custom_gradient
    def function(x: Tensor, kernel: Tensor, *bias: Tensor) -> tuple[Tensor, Any]:
        def gradient(upstream: Tensor) -> tuple[Tensor, ...]:
            dim, units = kernel.shape
            if units > dim:
                # oneDNN reads a wide kernel's rows slowly as columns. TensorFlow would join a plain
                # transposition with the product again.
                columns = tf.transpose(tf.reshape(kernel, (dim, 1, units)), (2, 1, 0))
                of_x = upstream @ tf.reshape(columns, (units, dim))
            else:
                of_x = tf.matmul(upstream, kernel, transpose_b=True)
            gradients = of_x, tf.matmul(x, upstream, transpose_a=True)
            if not bias:
                return gradients
            if upstream.dtype.size < 4:  # sums of half precision's numbers
                return *gradients, tf.raw_ops.BiasAddGrad(out_backprop=upstream)
            ones = tf.ones((1, tf.shape(upstream)[0]), upstream.dtype)
            return *gradients, tf.reshape(ones @ upstream, (units,))

        y = x @ kernel
        return (tf.nn.bias_add(y, *bias) if bias else y), gradient

    # Of a variable TensorFlow wants the gradient apart from the arguments'.
    return function(x, *(tf.convert_to_tensor(weight) for weight in weights))
