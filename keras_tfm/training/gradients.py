"""Reads and checks gradients before the optimizer applies them."""

import keras
from keras import ops

from keras_tfm.distributed.global_gradients import (
    innermost,
    leave_sums_to_the_model,
    sum_over_replicas,
    sums_are_left_to_the_model,
)
from keras_tfm.layers.types import Tensor
from keras_tfm.optimizer_internals import restore_gradient_sum


class GradientWatch:
    """The global norm of each step's gradients, with any `train_step`.

    norm = sqrt(sum over weights of |g|^2), before clipping and without the loss scale, in float32,
    as in "On the difficulty of training Recurrent Neural Networks" (arXiv:1211.5063). It replaces
    the optimizer's `apply`, so it costs one pass over the gradients and works with any model.

    With several replicas the gradients are summed here, and the optimizer does not sum them again:
    the norm is that of the whole batch, and `global_clipnorm` clips by it, as on one device.

    Attributes:
        norm: variable, the norm of the last step. Steps that a `LossScaleOptimizer` skips do not
            change it.
        guard: bool, whether to replace all gradients by zeros if any of them is not finite. Such a
            step then changes the weights only by momentum and weight decay.
    """

    def __init__(self, model: keras.Model):
        self._optimizer = innermost(model.optimizer)
        self._model = model
        self.guard = False
        with model.distribute_strategy.scope():
            self.norm = keras.Variable(
                0.0, trainable=False, dtype="float32", aggregation="only_first_replica", name="norm"
            )
        self._apply = self._optimizer.apply
        self._optimizer.apply = self.apply
        self._sums = not sums_are_left_to_the_model(self._optimizer)
        if self._sums:
            leave_sums_to_the_model(self._optimizer)
        self._optimizer._gradient_watch = self
        self.retrace()

    @classmethod
    def of(cls, model: keras.Model) -> "GradientWatch":
        """The watch of the model's optimizer; a new one if it has none."""
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                f"GradientWatch needs Keras's TensorFlow backend, got {keras.backend.backend()!r}"
            )
        return getattr(innermost(model.optimizer), "_gradient_watch", None) or cls(model)

    def apply(
        self, grads: list[Tensor], trainable_variables: list[keras.Variable] | None = None
    ) -> None:
        """Replaces the optimizer's `apply`."""
        grads = sum_over_replicas(list(grads)) if self._sums else list(grads)
        squares = [_square(g) for g in grads if g is not None]
        if squares:
            norm = ops.sqrt(sum(squares))
            self.norm.assign(norm)
            if self.guard:
                finite = ops.isfinite(norm)
                grads = [None if g is None else _where(finite, g) for g in grads]
        self._apply(grads, trainable_variables)

    def retrace(self) -> None:
        """Makes the model trace its training step again, with the changed optimizer."""
        if self._model.train_function is not None:
            self._model.make_train_function(force=True)

    def remove(self) -> None:
        """Restores the optimizer."""
        if getattr(self._optimizer, "_gradient_watch", None) is self:
            for name in ("apply", "_gradient_watch"):
                delattr(self._optimizer, name)
            if self._sums:
                restore_gradient_sum(self._optimizer)
            self._model.train_function = None


def _square(gradient: Tensor) -> Tensor:
    """|g|^2. Slices of a sparse gradient with equal indices are summed first."""
    import tensorflow as tf

    return tf.reduce_sum(tf.square(tf.cast(tf.convert_to_tensor(gradient), tf.float32)))


def _where(finite: Tensor, gradient: Tensor) -> Tensor:
    """The gradient if `finite`, else zeros."""
    if hasattr(gradient, "indices"):  # tf.IndexedSlices stay sparse
        return type(gradient)(
            _where(finite, gradient.values), gradient.indices, gradient.dense_shape
        )
    return ops.where(finite, gradient, ops.zeros_like(gradient))
