"""Perplexity as a metric."""

import keras
from keras import ops

from keras_tfm.layers.types import DType, Tensor
from keras_tfm.training.losses.token_losses import LabelSmoothedCrossEntropy
from keras_tfm.training.metrics import TokenMean


@keras.saving.register_keras_serializable("keras_tfm")
class Perplexity(TokenMean):
    """Perplexity: exp of the mean cross-entropy per token.

    perplexity = exp(-sum log p(label) / number of labels), over all labels since the last reset;
    it is not a mean over batches or replicas. It has no label smoothing, so that models can be
    compared. Computed in float32, summed in float64.

    Args:
        ignore_class: int, a label that is ignored. None: no label is.
        name, dtype: as in `keras.metrics.Mean`.

    Call arguments:
        y_true: (B, T) or (B, T, 1), integers, labels; or (B,) or (B, 1), one for each row.
        y_pred: (B, T, V), float, logits; or (B, V). Masked positions are ignored, as in the loss.
        sample_weight: (B,), (B, 1), (B, T) or (B, T, 1), weight of each label. Default: 1.

    Raises:
        ValueError: labels or weights do not have these shapes.

    Without labels the perplexity is 1.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.training import Perplexity
    >>> perplexity = Perplexity()
    >>> labels = np.array([[1, 2, 0]])  # the last is padding
    >>> perplexity.update_state(labels, np.log([[[1, 2, 1], [1, 2, 1], [8, 1, 1]]]))
    >>> round(float(perplexity.result()), 4)  # 1/2 and 1/4: the root of 8
    2.8284
    """

    def __init__(self, ignore_class: int | None = 0, name: str = "perplexity", dtype: DType = None):
        super().__init__(ignore_class, name=name, dtype=dtype)
        self._loss = LabelSmoothedCrossEntropy(0.0, ignore_class)

    def of_each(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """The cross-entropy of each label: (B, T)."""
        return self._loss.call(y_true, y_pred)

    def result(self) -> Tensor:
        """exp of the mean."""
        return ops.exp(super().result())
