"""What an optimizer is given, seen before it is applied."""

from typing import Any

import keras
from keras import ops

from keras_tfm.distributed.global_gradients import (
    innermost,
    leave_sums_to_the_model,
    sum_over_replicas,
    sums_are_left_to_the_model,
)
from keras_tfm.keras_internals import restore_gradient_sum

Tensor = Any


class GradientWatch:
    """The global norm of the gradients of a step, whatever `train_step` made them.

    norm = sqrt(sum over weights of |g|^2), before clipping and without the loss scale, in float32;
    "On the difficulty of training Recurrent Neural Networks" (arXiv:1211.5063) clips by it. It
    stands in front of the optimizer's `apply`, so it costs one pass over the gradients that are
    there and needs nothing of the model.

    Under several replicas the gradients are summed here, once, and not again behind it: the norm is
    that of the whole batch, and a `global_clipnorm` clips by the whole batch's, as on one device.

    Attributes:
        norm: a variable: the norm at the last step. Steps that a `LossScaleOptimizer` leaves out
            are not seen.
        guard: whether gradients that are not finite are replaced by zeros, all of them, so that
            a bad step does not reach the weights (beyond what momentum and decay do by themselves).
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
        """The one that watches the model's optimizer; a new one where none does."""
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                "gradients can be watched on Keras's TensorFlow backend, "
                f"got {keras.backend.backend()!r}"
            )
        return getattr(innermost(model.optimizer), "_gradient_watch", None) or cls(model)

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Stands in for the optimizer's `apply`."""
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
        """Has the model trace its step again, which has another optimizer in it now."""
        if self._model.train_function is not None:
            self._model.make_train_function(force=True)

    def remove(self) -> None:
        """Gives the optimizer back as it was."""
        if getattr(self._optimizer, "_gradient_watch", None) is self:
            for name in ("apply", "_gradient_watch"):
                delattr(self._optimizer, name)
            if self._sums:
                restore_gradient_sum(self._optimizer)
            self._model.train_function = None


def _square(gradient: Tensor) -> Tensor:
    """|g|^2. Of rows that were looked up, those of one place are added up first."""
    import tensorflow as tf

    return tf.reduce_sum(tf.square(tf.cast(tf.convert_to_tensor(gradient), tf.float32)))


def _where(finite: Tensor, gradient: Tensor) -> Tensor:
    """The gradient, or zeros."""
    if hasattr(gradient, "indices"):  # tf.IndexedSlices, which stay slices
        return type(gradient)(
            _where(finite, gradient.values), gradient.indices, gradient.dense_shape
        )
    return ops.where(finite, gradient, ops.zeros_like(gradient))
