"""The dense layer used by all layers of this package.

Example:

>>> import numpy as np
>>> from keras_tfm.layers.projection import Projection
>>> layer, x = Projection(4), np.ones((1, 2, 3), "float32")
>>> bool(np.allclose(layer(x)[..., 1:3], layer.columns(x, 1, 3)))
True
"""

from typing import Any

import keras
from keras import ops

from keras_tfm.layers.heads import leading

Tensor = Any


@keras.saving.register_keras_serializable("keras_tfm")
class Projection(keras.layers.Dense):
    """`keras.layers.Dense`, faster on TensorFlow: y = x W + b.

    LoRA, `quantize` and everything else are Keras's. On TensorFlow the input (..., D) is reshaped
    to a matrix (N, D): oneDNN then fuses the bias with the product, where Keras's product of a
    tensor and a matrix takes 18 graph operations. The activation is applied separately, because
    oneDNN's fused ReLU turns NaN into 0. The gradient equals TensorFlow's, in a faster form.
    """

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """(..., D) -> (..., F)."""
        if not _is_matrix_product(inputs, self.kernel):
            return super().call(inputs)
        return self.activation(_project(inputs, self.kernel, self.bias, training))

    def columns(self, inputs: Tensor, start: int, stop: int | None) -> Tensor:
        """Columns `start` to `stop` of x W + b: (..., D) -> (..., stop - start).

        For queries, keys and values that share a kernel but have different inputs.
        """
        if getattr(self, "quantization_mode", None) is not None:
            return self(inputs)[..., start:stop]
        if inputs.shape[-1] != self.kernel.shape[0]:
            raise ValueError(
                f"{self.name}: expected inputs of width {self.kernel.shape[0]}, "
                f"got shape {tuple(inputs.shape)}"
            )
        kernel = self.kernel[:, start:stop]
        bias = None if self.bias is None else self.bias[start:stop]
        if _is_matrix_product(inputs, kernel):
            return _project(inputs, kernel, bias, False)
        y = ops.matmul(inputs, kernel)
        return y if bias is None else y + bias

    def quantize(self, mode: Any = None, type_check: bool = True, config: Any = None) -> None:
        """As `keras.layers.Dense.quantize`, which would reject a subclass."""
        super().quantize(mode, type_check=False, config=config)


def _is_matrix_product(inputs: Tensor, kernel: Any) -> bool:
    if keras.backend.backend() != "tensorflow":
        return False
    return keras.backend.standardize_dtype(inputs.dtype) == keras.backend.standardize_dtype(
        ops.convert_to_tensor(kernel).dtype
    )


def _project(inputs: Tensor, kernel: Any, bias: Any, training: bool | None) -> Tensor:
    x = ops.reshape(inputs, (-1, inputs.shape[-1]))
    if training:
        from keras_tfm.layers.tensorflow.affine import affine

        y = affine(x, *(w for w in (kernel, bias) if w is not None))
    else:
        y = ops.matmul(x, kernel)
        y = y if bias is None else ops.add(y, bias)  # becomes BiasAdd, which oneDNN fuses
    return ops.reshape(y, (*leading(inputs, len(inputs.shape) - 1), kernel.shape[-1]))
