"""Metrics over token ids."""

from typing import Any

import keras
from keras import ops

from keras_tfm.training.losses import label_weights

Tensor = Any


@keras.saving.register_keras_serializable("keras_tfm")
class MaskedAccuracy(keras.metrics.Mean):
    """The share of labels that are the argmax of their logits, padding left out.

    Args:
        ignore_class: a label that does not count, or None.
        name, dtype: as in `keras.metrics.Mean`.

    Call arguments:
        y_true: labels (B, T), integers.
        y_pred: logits (B, T, V).

    Example:

    >>> import numpy as np
    >>> from keras_tfm.training import MaskedAccuracy
    >>> accuracy = MaskedAccuracy()
    >>> accuracy.update_state(np.array([[1, 2, 0]]), np.eye(3)[np.array([[1, 1, 1]])])
    >>> float(accuracy.result())
    0.5
    """

    def __init__(
        self, ignore_class: int | None = 0, name: str = "masked_accuracy", dtype: Any = None
    ):
        super().__init__(name=name, dtype=dtype)
        self.ignore_class = ignore_class

    def update_state(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> None:
        """Counts a batch."""
        labels = ops.cast(y_true, "int32")
        hits = ops.equal(labels, ops.cast(ops.argmax(y_pred, axis=-1), "int32"))
        super().update_state(
            ops.cast(hits, "float32"), label_weights(labels, self.ignore_class, sample_weight)
        )

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {"name": self.name, "dtype": self.dtype, "ignore_class": self.ignore_class}
