"""The loss of draft heads."""

import keras
from keras import ops

from keras_tfm.layers.types import DType, Tensor
from keras_tfm.training.losses.token_losses import (
    LabelSmoothedCrossEntropy,
    label_weights,
    labels_of,
)


@keras.saving.register_keras_serializable("keras_tfm")
class DraftLoss(LabelSmoothedCrossEntropy):
    """Cross-entropy of draft heads: head i predicts the label i places further.

    For the second output of `models.with_draft_heads`, on the labels of the first one. A head has
    no loss where its label would be after the end of the row or is ignored. The mean is over all
    labels of all heads.

    Args:
        label_smoothing: float, at least 0 and below 1.
        ignore_class: int, a label that is ignored, which must be the padding.
        reduction, name, dtype: as in `LabelSmoothedCrossEntropy`.

    Call arguments:
        y_true: (B, T) or (B, T, 1), integers, the labels of the model's own logits.
        y_pred: (B, T, n, V), float, logits of n heads.
        sample_weight: (B,), (B, 1), (B, T) or (B, T, 1), weight of each label. Default: 1.

    Raises:
        ValueError: `label_smoothing` is out of range; `ignore_class` is None; labels, logits or
            weights do not have these shapes.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.training import DraftLoss
    >>> labels = np.array([[4, 2, 3]])
    >>> drafts = np.zeros((1, 3, 1, 5), "float32")  # of one head: of labels 2, 3 and nothing
    >>> round(float(DraftLoss()(labels, drafts)), 4)  # log 5
    1.6094
    """

    def __init__(
        self,
        label_smoothing: float = 0.0,
        ignore_class: int = 0,
        reduction: str | None = "mean_with_sample_weight",
        name: str = "draft_loss",
        dtype: DType = None,
    ):
        if ignore_class is None:
            raise ValueError(
                f"{name}: ignore_class must be an integer, the label of the places behind the end "
                "that the heads predict, got None"
            )
        super().__init__(label_smoothing, ignore_class, reduction, name, dtype)

    def __call__(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> Tensor:
        """The loss, a scalar."""
        return super().__call__(*self._flat(y_true, y_pred, sample_weight))

    def count(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        """The divisor of the mean: the sum of the weights of all heads' labels."""
        return super().count(*self._flat(y_true, y_pred, sample_weight))

    def _flat(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Labels and weights (B, T * n) and logits (B, T * n, V) of all heads."""
        if len(y_pred.shape) != 4:
            raise ValueError(
                f"{self.name} needs the drafts (B, T, n, V) of models.with_draft_heads, "
                f"got {tuple(y_pred.shape)}"
            )
        batch, length, heads, size = ops.shape(y_pred)
        y_true = ops.cast(labels_of(self.name, y_true, y_pred[:, :, 0]), "int32")
        weights = None
        if sample_weight is not None:
            weights = self._shift(label_weights(y_true, None, sample_weight), heads, 0.0)
            weights = ops.reshape(weights, (batch, length * heads))
        labels = self._shift(y_true, heads, self.ignore_class)
        return (
            ops.reshape(labels, (batch, length * heads)),
            ops.reshape(y_pred, (batch, length * heads, size)),
            weights,
        )

    @staticmethod
    def _shift(x: Tensor, heads: int, fill: float | bool | None) -> Tensor:
        """(B, T) -> (B, T, n), x 1 to n places further, `fill` behind the end."""
        length = ops.shape(x)[1]
        longer = ops.pad(x, [(0, 0), (0, heads)], constant_values=fill)
        return ops.stack([longer[:, i : i + length] for i in range(1, heads + 1)], axis=-1)
