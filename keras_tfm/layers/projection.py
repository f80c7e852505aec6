"""The dense layer used by all layers of this package.

Example:

>>> import numpy as np
>>> from keras_tfm.layers.projection import Projection
>>> layer, x = Projection(4), np.ones((1, 2, 3), "float32")
>>> bool(np.allclose(layer(x)[..., 1:3], layer.columns(x, 1, 3)))
True
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import keras
from keras import ops

from keras_tfm.layers.multi_head_attention.heads import leading
from keras_tfm.layers.recomputation import Recomputation
from keras_tfm.layers.types import Config, Tensor

_separate: ContextVar[bool] = ContextVar("separate", default=False)


@contextmanager
def separate_adapters() -> Iterator[None]:
    """Projections with a LoRA adapter compute y = x W + (x A) B + b inside, for an export.

    B must have the scale alpha / rank in it. Outside, y = x (W + (alpha / rank) A B) + b.

    >>> import numpy as np
    >>> from keras_tfm.layers.projection import Projection, separate_adapters
    >>> layer, x = Projection(4), np.ones((1, 3), "float32")
    >>> y = layer(x)
    >>> layer.enable_lora(2)
    >>> layer.lora_kernel_b.assign(np.ones((2, 4))) is not None
    True
    >>> with separate_adapters():
    ...     z = layer(x)
    >>> bool(np.allclose(z, y + x @ layer.lora_kernel_a @ layer.lora_kernel_b, atol=1e-6))
    True
    """
    token = _separate.set(True)
    try:
        yield
    finally:
        _separate.reset(token)


@keras.saving.register_keras_serializable("keras_tfm")
class Projection(Recomputation, keras.layers.Dense):
    """`keras.layers.Dense`, faster on TensorFlow: y = x W + b.

    LoRA, `quantize` and everything else are Keras's. On TensorFlow the input (..., D) is reshaped
    to a matrix (N, D): oneDNN then fuses the bias with the product, where Keras's product of a
    tensor and a matrix takes 18 graph operations. The activation is applied separately, because
    oneDNN's fused ReLU turns NaN into 0. The gradient equals TensorFlow's, in a faster form.
    """

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """(..., D) -> (..., F)."""
        if self.lora_enabled and _separate.get():
            return self.activation(self._with_adapter(inputs, 0, None))
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
        if self.lora_enabled and _separate.get():
            return self._with_adapter(inputs, start, stop)
        kernel = self.kernel[:, start:stop]
        bias = None if self.bias is None else self.bias[start:stop]
        if _is_matrix_product(inputs, kernel):
            return _project(inputs, kernel, bias, False)
        y = ops.matmul(inputs, kernel)
        return y if bias is None else y + bias

    def _with_adapter(self, inputs: Tensor, start: int, stop: int | None) -> Tensor:
        """Columns of x W + (x A) B + b. B stays whole: an export finds it by its values."""
        kernel = next(x for x in self.variables if x.name == "kernel")  # `self.kernel` has A B
        bias = None if self.bias is None else self.bias[start:stop]
        y = _project(inputs, kernel[:, start:stop], bias, False)
        low = _project(inputs, self.lora_kernel_a, None, False)
        return y + _project(low, self.lora_kernel_b, None, False)[..., start:stop]

    def quantize(
        self, mode: str | None = None, type_check: bool = True, config: Config | None = None
    ) -> None:
        """As `keras.layers.Dense.quantize`, which would reject a subclass."""
        super().quantize(mode, type_check=False, config=config)


def _is_matrix_product(inputs: Tensor, kernel: Tensor) -> bool:
    if keras.backend.backend() != "tensorflow":
        return False
    return keras.backend.standardize_dtype(inputs.dtype) == keras.backend.standardize_dtype(
        ops.convert_to_tensor(kernel).dtype
    )


def _project(inputs: Tensor, kernel: Tensor, bias: Tensor | None, training: bool | None) -> Tensor:
    x = ops.reshape(inputs, (-1, inputs.shape[-1]))
    if training:
        from keras_tfm.layers.tensorflow.explicit_gradients import affine

        y = affine(x, *(w for w in (kernel, bias) if w is not None))
    else:
        y = ops.matmul(x, kernel)
        y = y if bias is None else ops.add(y, bias)  # becomes BiasAdd, which oneDNN fuses
    return ops.reshape(y, (*leading(inputs, len(inputs.shape) - 1), kernel.shape[-1]))
