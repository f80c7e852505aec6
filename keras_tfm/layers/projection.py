"""The dense layer that the layers here are made of."""

from typing import Any

import keras
from keras import ops

from keras_tfm.layers.decoding_scope import for_device

Tensor = Any


@keras.saving.register_keras_serializable("keras_tfm")
class Projection(keras.layers.Dense):
    """`keras.layers.Dense`, on TensorFlow faster: y = x W + b.

    LoRA, `quantize` and the rest are Keras's. oneDNN adds a bias within a product of two matrices,
    and not of a tensor (B, T, D) with one, so it gets (B T, D). It would join ReLU as well, and
    that makes 0 of NaN: an activation comes after. The gradient is TensorFlow's but for its form.
    """

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """(..., D) -> (..., F)."""
        if keras.backend.backend() != "tensorflow" or for_device():
            return super().call(inputs)
        import tensorflow as tf

        weights = [tf.convert_to_tensor(w) for w in (self.kernel, self.bias) if w is not None]
        if inputs.dtype != weights[0].dtype:
            return super().call(inputs)
        shape = ops.shape(inputs)
        x = ops.reshape(inputs, (-1, shape[-1]))
        y = _affine(x, *weights) if training else _product(x, *weights)
        return self.activation(ops.reshape(y, (*shape[:-1], self.units)))

    def quantize(self, mode: Any = None, type_check: bool = True, config: Any = None) -> None:
        """As `keras.layers.Dense.quantize`, which by itself refuses subclasses."""
        super().quantize(mode, type_check=False, config=config)


def _product(x: Tensor, kernel: Tensor, bias: Tensor | None = None) -> Tensor:
    import tensorflow as tf

    y = x @ kernel
    return y if bias is None else tf.nn.bias_add(y, bias)


def _affine(x: Tensor, *weights: Tensor) -> Tensor:
    """`_product` of (N, D), (D, F) and perhaps (F,) with its gradient in the fastest form."""
    import tensorflow as tf

    @tf.custom_gradient
    def affine(x: Tensor, kernel: Tensor, *bias: Tensor) -> tuple[Tensor, Any]:
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

        return _product(x, kernel, *bias), gradient

    return affine(x, *weights)
