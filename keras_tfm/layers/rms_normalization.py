"""RMS normalisation."""

from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_not_negative
from keras_tfm.layers.arguments import single_axis
from keras_tfm.layers.base_layer import Recomputation
from keras_tfm.layers.target import current_target
from keras_tfm.layers.types import Config, Shape, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class RMSNormalization(Recomputation, keras.layers.RMSNormalization):
    """`keras.layers.RMSNormalization` that passes on the mask of its input.

    y = gamma x / sqrt(mean(x^2) + epsilon) over the last axis: "Root Mean Square Layer
    Normalization" (arXiv:1910.07467). Arguments and weight are those of
    `keras.layers.RMSNormalization`, which would drop the mask with a warning.

    Args:
        scale: bool, whether there is a weight gamma. False: y = x / sqrt(mean(x^2) + epsilon), as
            of the values in Gemma 4.
        **kwargs: arguments of `keras.layers.RMSNormalization`: `axis`, `epsilon`.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import RMSNormalization
    >>> y = RMSNormalization()(np.array([[3.0, -4.0]], "float32"))
    >>> [round(float(v), 3) for v in y[0]]
    [0.849, -1.131]
    """

    def __init__(self, scale: bool = True, **kwargs: Any):
        super().__init__(**kwargs)
        check_not_negative("epsilon", self.epsilon)
        self.has_scale = scale
        self.supports_masking = True

    def build(self, input_shape: Shape) -> None:
        """Creates the weight gamma."""
        if self.has_scale:
            super().build(input_shape)
        else:
            self.scale = None
            self.built = True

    def call(self, x: Tensor) -> Tensor:
        """Normalized `x`, of the same shape and dtype."""
        if not current_target.get().is_edge:
            return super().call(x)
        # LiteRT's converter would multiply a last factor gamma into the kernel of the projection
        # that follows: a tied table is then stored twice, and 8-bit activations have the outliers
        # that gamma removes. The last factor here is no constant.
        wide = ops.cast(x, keras.backend.result_type(x.dtype, "float32"))
        mean_square = ops.mean(ops.square(wide), axis=self.axis, keepdims=True)
        scaled = wide
        if self.scale is not None:
            scaled = ops.multiply(wide, ops.cast(self.scale, wide.dtype))
        return ops.cast(
            ops.multiply(scaled, ops.rsqrt(ops.add(mean_square, self.epsilon))), x.dtype
        )

    def get_config(self) -> Config:
        """The constructor's arguments, the same before and after `build`."""
        config = super().get_config()
        return {**config, "axis": single_axis(config["axis"]), "scale": self.has_scale}
