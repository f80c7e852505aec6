"""The base of losses that see all outputs of a model at once."""

import keras
from keras import ops

from keras_tfm.layers.types import Config, DType, Tensor
from keras_tfm.training.losses.token_losses import Tensors


class LossOfAllOutputs(keras.losses.Loss):
    """A loss that `keras_tfm.Model` gives all outputs: the sum of parts with divisors of their own.

    A subclass has `sums_and_counts`.

    >>> from keras_tfm.training.losses.all_outputs import LossOfAllOutputs
    >>> class Squares(LossOfAllOutputs):
    ...     def sums_and_counts(self, y_true, y_pred, sample_weight=None):
    ...         return [(ops.sum((y_true - y_pred) ** 2), 2.0)]
    >>> float(Squares("squares", None)(ops.array([1.0, 2.0]), ops.array([3.0, 2.0])))
    2.0
    """

    joint = True

    def __init__(self, name: str, dtype: DType):
        super().__init__(name=name, reduction="sum", dtype=dtype)

    def sums_and_counts(
        self, y_true: Tensors, y_pred: Tensors, sample_weight: Tensor | None = None
    ) -> list[tuple[Tensor, Tensor]]:
        """The weighted sum and the divisor of each part."""
        raise NotImplementedError(f"{type(self).__name__} does not define sums_and_counts")

    def __call__(
        self, y_true: Tensors, y_pred: Tensors, sample_weight: Tensor | None = None
    ) -> Tensor:
        """The loss, a scalar."""
        parts = self.sums_and_counts(y_true, y_pred, sample_weight)
        return sum(ops.divide_no_nan(total, count) for total, count in parts)

    def call(self, y_true: Tensors, y_pred: Tensors) -> Tensor:
        """The loss, a scalar."""
        return self(y_true, y_pred)

    def get_config(self) -> Config:
        """The name: constructors have no `reduction`, and Keras keeps no dtype of a loss."""
        config = super().get_config()
        return {key: x for key, x in config.items() if key != "reduction"}
