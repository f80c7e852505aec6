"""x W + b on TensorFlow, in the form that is fastest in oneDNN."""

from typing import Any

import tensorflow as tf

Tensor = Any


def affine(x: Tensor, *weights: Tensor) -> Tensor:
    """x W + b with the fastest form of its gradient; x (N, D), W (D, F), b (F,) optional."""

    @tf.custom_gradient
    def function(x: Tensor, kernel: Tensor, *bias: Tensor) -> tuple[Tensor, Any]:
        def gradient(upstream: Tensor) -> tuple[Tensor, ...]:
            dim, units = kernel.shape
            if units > dim:
                # oneDNN is slow with a wide transposed kernel, so transpose it first. The reshape
                # keeps TensorFlow from fusing the transpose with the product again.
                columns = tf.transpose(tf.reshape(kernel, (dim, 1, units)), (2, 1, 0))
                of_x = upstream @ tf.reshape(columns, (units, dim))
            else:
                of_x = tf.matmul(upstream, kernel, transpose_b=True)
            gradients = of_x, tf.matmul(x, upstream, transpose_a=True)
            if not bias:
                return gradients
            if upstream.dtype.size < 4:  # a product would sum in half precision
                return *gradients, tf.raw_ops.BiasAddGrad(out_backprop=upstream)
            ones = tf.ones((1, tf.shape(upstream)[0]), upstream.dtype)
            return *gradients, tf.reshape(ones @ upstream, (units,))

        y = x @ kernel
        return (tf.nn.bias_add(y, *bias) if bias else y), gradient

    # Tensors: `custom_gradient` treats variables differently from its other arguments.
    return function(x, *(tf.convert_to_tensor(weight) for weight in weights))
