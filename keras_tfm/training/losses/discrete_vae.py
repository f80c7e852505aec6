"""The loss of a discrete VAE."""

import math
from collections.abc import Mapping

import keras
from keras import ops

from keras_tfm.arguments import check_number
from keras_tfm.layers.types import Config, DType, Tensor
from keras_tfm.training.losses.all_outputs import LossOfAllOutputs
from keras_tfm.training.losses.token_losses import Tensors, row_values, zero_uncounted

OUTPUTS = ("logits", "distribution", "normalized")
# Normalised pixels are kept this far from 0 and 1, whose logits are infinite.
_EDGE = 1e-6


@keras.saving.register_keras_serializable("keras_tfm")
class DiscreteVAELoss(LossOfAllOutputs):
    """The loss of DALL-E's discrete VAE: of the pixels, and of codes that are used unevenly.

    With a pixel's normalised value x, the location m and the scale b of its logit-Laplace
    distribution, and the probabilities q of the V codes in a cell,

        loss = (sum over pixels (log(2 b x (1 - x)) + |logit(x) - m| / b)
                + beta sum over cells, codes q (log q + log V)) / number of pixel values:

    "Zero-Shot Text-to-Image Generation" (arXiv:2102.12092), sections 2.1 and A.3, the negative
    evidence lower bound with a weight beta. The density of a pixel may exceed 1, so that the loss
    becomes negative. Computed in float32. It sees all outputs of a model at once: compile a
    `keras_tfm.Model` with it, such as one of `models.dvae`, and call `fit` on pixels alone.

    Args:
        kl_weight: float, beta. The paper reaches 6.6; the smaller the images, the less is needed.
        name, dtype: as in `keras.losses.Loss`.

    Call arguments:
        y_true: object, ignored: the pixels are among the outputs.
        y_pred: dict of "logits" (B, H', W', V), "distribution" (B, H, W, 2 C), locations, then
            logarithms of the scales, and "normalized" (B, H, W, C), within 0 and 1.
        sample_weight: (B,) or (B, 1), weight of each image. Default: 1.

    Raises:
        TypeError: a weight that is not a number.
        ValueError: a negative weight; `y_pred` lacks an entry, or has shapes that do not match.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.training import DiscreteVAELoss
    >>> outputs = {
    ...     "logits": np.zeros((1, 1, 1, 5), "float32"),  # uniform: no divergence
    ...     "distribution": np.zeros((1, 2, 2, 2), "float32"),
    ...     "normalized": np.full((1, 2, 2, 1), 0.5, "float32"),
    ... }
    >>> round(float(DiscreteVAELoss()(None, outputs)), 4)  # log(2 / 4)
    -0.6931
    """

    def __init__(
        self, kl_weight: float = 6.6, name: str = "discrete_vae_loss", dtype: DType = None
    ):
        super().__init__(name, dtype)
        check_number("kl_weight", kl_weight)
        if kl_weight < 0:
            raise ValueError(f"kl_weight must not be negative, got {kl_weight}")
        self.kl_weight = kl_weight

    def sums_and_counts(
        self,
        y_true: Tensors,
        y_pred: Tensors,
        sample_weight: Tensor | None = None,
    ) -> list[tuple[Tensor, Tensor]]:
        """The weighted sum of the loss over images, and the weighted number of pixel values."""
        logits, distribution, x = self._outputs(y_pred)
        weight = ops.ones_like(x[:, 0, 0, 0])
        if sample_weight is not None:
            weight = row_values("sample_weight", sample_weight, x.shape[0], "float32")
            logits, distribution, x = (zero_uncounted(y, weight) for y in (logits, distribution, x))
        channels = x.shape[-1]
        location, log_scale = distribution[..., :channels], distribution[..., channels:]
        x = ops.clip(x, _EDGE, 1.0 - _EDGE)
        logit = ops.log(x) - ops.log(1.0 - x)
        pixels = math.log(2) + log_scale + ops.log(x) + ops.log(1.0 - x)
        pixels = pixels + ops.abs(logit - location) * ops.exp(-log_scale)
        log_q = ops.log_softmax(logits, axis=-1)
        divergence = ops.exp(log_q) * (log_q + math.log(logits.shape[-1]))
        loss = ops.sum(pixels, axis=(1, 2, 3))
        loss = loss + self.kl_weight * ops.sum(divergence, axis=(1, 2, 3))
        values = ops.cast(ops.prod(ops.shape(x)[1:]), "float32")
        return [(ops.sum(weight * loss), ops.sum(weight) * values)]

    def _outputs(self, y_pred: Tensors) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, distribution and normalised pixels, float32."""
        if not isinstance(y_pred, Mapping) or not set(OUTPUTS) <= set(y_pred):
            found = list(y_pred) if isinstance(y_pred, Mapping) else type(y_pred).__name__
            raise ValueError(
                f"{self.name}: y_pred must be a dictionary with {list(OUTPUTS)}, got {found}: give "
                "it to a keras_tfm.Model with these outputs, such as models.dvae"
            )
        logits, distribution, x = (ops.cast(y_pred[name], "float32") for name in OUTPUTS)
        if len(logits.shape) != 4 or distribution.shape[-1] != 2 * x.shape[-1]:
            raise ValueError(
                f"{self.name}: distribution must have twice the channels of normalized, "
                f"{x.shape[-1]}, and logits four axes, got {tuple(distribution.shape)} and "
                f"{tuple(logits.shape)}"
            )
        return logits, distribution, x

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {**super().get_config(), "kl_weight": self.kl_weight}
