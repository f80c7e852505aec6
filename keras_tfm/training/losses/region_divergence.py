"""The loss of masked regions."""

import keras
from keras import ops

from keras_tfm.keras_internals import get_mask
from keras_tfm.layers.types import DType, Tensor
from keras_tfm.training.losses.token_losses import counted_logits, fits, times_weights


@keras.saving.register_keras_serializable("keras_tfm")
class RegionKLDivergence(keras.losses.Loss):
    """The divergence of predicted classes of masked regions from those of an object detector.

    loss = sum_k p_k (log p_k - log softmax(logits)_k), ViLBERT (arXiv:1908.02265), section 2.2.
    Computed in float32 from logits; `keras.losses.KLDivergence` takes probabilities, and divides by
    the number of all regions. Here the mean is over the regions with weights: pass 1 for masked
    regions and 0 for the others as `sample_weight`, as `text.MaskRegions` does.

    Args:
        reduction: str, as in `keras.losses.Loss`. Default: the weighted mean,
            sum(weight loss) / sum(weight); 0 if no region has a weight.
        name, dtype: as in `keras.losses.Loss`.

    Call arguments:
        y_true: (B, N, K), float, the detector's probabilities (p).
        y_pred: (B, N, K), float, logits.
        sample_weight: (B,), (B, 1), (B, N) or (B, N, 1), weight of each region. Default: 1.

    Raises:
        ValueError: `y_true` or the weights do not have these shapes.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.training import RegionKLDivergence
    >>> certain = np.array([[[1.0, 0.0], [0.5, 0.5]]], "float32")
    >>> logits = np.zeros((1, 2, 2), "float32")
    >>> loss = RegionKLDivergence()
    >>> round(float(loss(certain, logits, sample_weight=np.array([[1.0, 0.0]]))), 4)  # log 2
    0.6931
    """

    def __init__(
        self,
        reduction: str | None = "mean_with_sample_weight",
        name: str = "region_kl_divergence",
        dtype: DType = None,
    ):
        dtype = keras.backend.result_type(dtype or keras.config.floatx(), "float32")
        super().__init__(name=name, reduction=reduction, dtype=dtype)

    def __call__(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> Tensor:
        """The loss, weighted by `sample_weight`."""
        weights = _weights(y_pred, sample_weight)
        if sample_weight is not None or get_mask(y_pred) is not None:
            y_pred = counted_logits(y_pred, weights)
        return super().__call__(y_true, y_pred, weights)

    def count(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        """The divisor of the mean: the sum of the weights."""
        given = sample_weight if self.reduction == "mean_with_sample_weight" else None
        weights, mask = _weights(y_pred, given), get_mask(y_pred)
        return ops.sum(weights if mask is None else weights * ops.cast(mask, weights.dtype))

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """The loss of each region: (B, N)."""
        if not fits(tuple(y_true.shape), tuple(y_pred.shape)):
            raise ValueError(
                f"{self.name}: probabilities and logits must have the same shape (B, N, K), got "
                f"{tuple(y_true.shape)} and {tuple(y_pred.shape)}"
            )
        p = ops.cast(y_true, "float32")
        log_q = ops.log_softmax(ops.cast(y_pred, "float32"), axis=-1)
        # p log p is 0 where p is 0.
        log_p = ops.log(ops.where(ops.greater(p, 0.0), p, 1.0))
        return ops.sum(p * (log_p - log_q), axis=-1)


def _weights(y_pred: Tensor, sample_weight: Tensor | None) -> Tensor:
    """The weight of each region (B, N), float32."""
    ones = ops.ones_like(y_pred[..., 0], dtype="float32")
    return times_weights(ones, sample_weight)
