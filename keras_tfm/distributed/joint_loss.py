"""Losses that take all outputs of a model at once, such as `training.DetectionLoss`; any backend.

Example:

>>> import keras
>>> from keras_tfm.distributed.joint_loss import joint_loss
>>> from keras_tfm.trainer_internals import compile_loss_class
>>> print(joint_loss(compile_loss_class()("mse")))
None
"""

from typing import Any, TypeAlias

import keras

from keras_tfm.trainer_internals import compile_loss_class, loss_arguments

Tensor: TypeAlias = Any
# A tensor, or a list or dictionary of tensors.
Tensors: TypeAlias = Any
# Inputs, labels and sample weights of some rows.
Rows: TypeAlias = tuple[Tensors, Tensors, Tensors]

CompileLoss: type[keras.losses.Loss] = compile_loss_class()


def joint_loss(loss: object) -> Any:
    """Returns the loss given to `compile` if it takes all outputs at once; otherwise None."""
    given = loss_arguments(loss).loss
    return given if getattr(given, "joint", False) else None


class JointLoss(CompileLoss):
    """The compiled loss of a model whose loss takes all outputs at once."""

    def call(self, y_true: Tensors, y_pred: Tensors, sample_weight: Tensors = None) -> Tensors:
        """The loss."""
        self.built = True
        return joint_loss(self)(y_true, y_pred, sample_weight)
