"""Layer normalisation."""

from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_not_negative
from keras_tfm.layers.arguments import single_axis
from keras_tfm.layers.base_layer import Recomputation
from keras_tfm.layers.types import Config, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class LayerNormalization(Recomputation, keras.layers.LayerNormalization):
    """`keras.layers.LayerNormalization` with fewer operators.

    y = gamma (x - mean) / sqrt(variance + epsilon) + beta over the last axis: "Layer Normalization"
    (arXiv:1607.06450). Arguments and weights are those of `keras.layers.LayerNormalization`. On
    PyTorch, and for any `axis` other than the last, Keras's own computation is used.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import LayerNormalization
    >>> y = LayerNormalization()(np.array([[1.0, 2.0, 3.0]], "float32"))
    >>> [round(float(v), 2) for v in y[0]]
    [-1.22, 0.0, 1.22]
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        check_not_negative("epsilon", self.epsilon)

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """(..., D) -> (..., D)."""
        backend = keras.backend.backend()
        other = self.axis not in ([-1], [len(inputs.shape) - 1]) or self.rms_scaling
        if other or backend == "torch":  # PyTorch has one operator for it
            return super().call(inputs)
        # Nine operators; Keras's formula takes eleven.
        x = ops.cast(inputs, keras.backend.result_type(inputs.dtype, "float32"))
        if training and backend == "tensorflow":
            from keras_tfm.layers.tensorflow.explicit_gradients import standardize

            y = standardize(x, self.epsilon)
        else:
            x = x - ops.mean(x, axis=-1, keepdims=True)
            y = x * ops.rsqrt(ops.mean(x * x, axis=-1, keepdims=True) + self.epsilon)
        if self.gamma is not None:
            y = y * ops.cast(self.gamma, x.dtype)
        if self.beta is not None:
            y = y + ops.cast(self.beta, x.dtype)
        return ops.cast(y, self.compute_dtype)

    def get_config(self) -> Config:
        """The constructor's arguments, the same before and after `build`."""
        config = super().get_config()
        return {**config, "axis": single_axis(config["axis"])}
