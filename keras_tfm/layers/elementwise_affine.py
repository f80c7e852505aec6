"""A learned scale and offset of each channel."""

from typing import Any

import keras
from keras import ops

from keras_tfm.layers.arguments import as_initializer
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.types import Initializer, Shape, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class ElementwiseAffine(RematerializedLayer):
    """Scales and shifts each channel: what is left of layer normalisation without statistics.

    y = gamma x + beta over the last axis: "NoNorm" of MobileBERT (arXiv:2004.02984), section
    "Operational Optimizations", and "Aff" of ResMLP (arXiv:2105.03404). It takes the place of a
    norm wherever a layer is accepted, such as `Residual(sum_norm=ElementwiseAffine())`. It has
    fewer operators than a norm, and does not bound its output.

    Args:
        gamma_initializer: initializer of the scale gamma (D,).
        beta_initializer: initializer of the offset beta (D,).

    Call arguments:
        x: float tensor (..., D).

    Returns:
        Float tensor (..., D).

    Raises:
        ValueError: D is unknown when the layer is built.

    Example:

    >>> import keras, numpy as np
    >>> from keras_tfm.layers import ElementwiseAffine
    >>> layer = ElementwiseAffine(gamma_initializer=keras.initializers.Constant(2.0))
    >>> layer(np.array([[1.0, -3.0]], "float32")).numpy().tolist()
    [[2.0, -6.0]]
    """

    def __init__(
        self,
        gamma_initializer: Initializer = "ones",
        beta_initializer: Initializer = "zeros",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.gamma_initializer = as_initializer("gamma_initializer", gamma_initializer)
        self.beta_initializer = as_initializer("beta_initializer", beta_initializer)

    def build(self, x_shape: Shape) -> None:
        """Creates gamma and beta for inputs of width D."""
        if x_shape[-1] is None:
            raise ValueError(f"{self.name} expects a known last axis, got shape {tuple(x_shape)}")
        shape = (x_shape[-1],)
        self.gamma = self.add_weight(
            name="gamma", shape=shape, initializer=self.gamma_initializer, autocast=False
        )
        self.beta = self.add_weight(
            name="beta", shape=shape, initializer=self.beta_initializer, autocast=False
        )
        self.built = True

    def call(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        # As the norms: in float32, and rounded once.
        wide = ops.cast(x, keras.backend.result_type(x.dtype, "float32"))
        gamma, beta = (ops.cast(weight, wide.dtype) for weight in (self.gamma, self.beta))
        return ops.cast(wide * gamma + beta, x.dtype)
