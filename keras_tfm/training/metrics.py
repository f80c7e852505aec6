"""Metrics over token ids: accuracy and perplexity."""

from abc import abstractmethod

import keras
from keras import ops

from keras_tfm.keras_internals import get_mask
from keras_tfm.layers.types import Config, DType, Tensor
from keras_tfm.training.losses.token_losses import (
    LabelSmoothedCrossEntropy,
    label_weights,
    labels_of,
)


class TokenMean(keras.metrics.Mean):
    """A mean over all labels that are not ignored: sum(weight value) / sum(weight).

    Both sums run over all batches since the last reset. They are float64, except on JAX: a float32
    count is rounded above 2^24 (17 million tokens). Under `tf.distribute` each replica has its own
    sums, which are added when the result is read, so the mean equals that of one device.

    Attributes:
        count: variable, the sum of the weights; without `sample_weight`, the number of labels.
    """

    def __init__(self, ignore_class: int | None, name: str, dtype: DType = None):
        given_dtype = dtype
        if dtype is None and keras.backend.backend() in ("tensorflow", "torch"):
            dtype = "float64"
        super().__init__(name=name, dtype=dtype)
        self._given_dtype = given_dtype
        self.ignore_class = ignore_class

    @abstractmethod
    def of_each(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """The value of each label, (B, T): labels (B, T), logits (B, T, V)."""

    def update_state(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> None:
        """Adds a batch."""
        labels = ops.cast(labels_of(self.name, y_true, y_pred), "int32")
        weights = label_weights(labels, self.ignore_class, sample_weight)
        mask = get_mask(y_pred)
        if mask is not None:
            weights = weights * ops.cast(mask, "float32")
        values = self.of_each(labels, y_pred)
        values = ops.where(ops.not_equal(weights, 0.0), values, 0.0)  # 0 * NaN is NaN
        # Flattened: with two axes Keras averages each row first, which would give labels in short
        # rows more weight.
        super().update_state(ops.reshape(values, (-1,)), ops.reshape(weights, (-1,)))

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {"name": self.name, "dtype": self._given_dtype, "ignore_class": self.ignore_class}


@keras.saving.register_keras_serializable("keras_tfm")
class MaskedAccuracy(TokenMean):
    """The fraction of labels that equal the argmax of their logits, without padding.

    Args:
        ignore_class: int, a label that is ignored. None: no label is.
        name, dtype: as in `keras.metrics.Mean`. By default the sums are float64 (except on JAX), so
            that large numbers of tokens are counted exactly.

    Call arguments:
        y_true: (B, T) or (B, T, 1), integers, labels; or (B,) or (B, 1), one for each row.
        y_pred: (B, T, V), float, logits; or (B, V). Masked positions are ignored, as in the loss.
        sample_weight: (B,), (B, 1), (B, T) or (B, T, 1), weight of each label. Default: 1.

    Raises:
        ValueError: labels or weights do not have these shapes.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.training import MaskedAccuracy
    >>> accuracy = MaskedAccuracy()
    >>> accuracy.update_state(np.array([[1, 2, 0]]), np.eye(3)[np.array([[1, 1, 1]])])
    >>> float(accuracy.result())
    0.5
    """

    def __init__(
        self, ignore_class: int | None = 0, name: str = "masked_accuracy", dtype: DType = None
    ):
        super().__init__(ignore_class, name=name, dtype=dtype)

    def of_each(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """1.0 where the label is the argmax: (B, T)."""
        best = ops.cast(ops.argmax(y_pred, axis=-1), "int32")
        return ops.cast(ops.equal(y_true, best), "float32")


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
