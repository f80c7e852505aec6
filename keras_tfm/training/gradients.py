"""Reads and checks gradients before the optimizer applies them."""

import keras
from keras import ops

from keras_tfm import keras_internals
from keras_tfm.distributed.optimizer import innermost
from keras_tfm.distributed.replicas import leave_sums_to_the_model
from keras_tfm.layers.types import Tensor
from keras_tfm.optimizer_internals import gradient_sum, set_gradient_sum, trained_variables


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
        guard: bool, whether a step with a gradient that is not finite changes nothing: neither
            weights, nor the optimizer, nor what layers keep beside weights, such as moving means.
            With several replicas, all gradients of such a step are zeros, and momentum and weight
            decay still change the weights. Set it before the step is traced.
    """

    def __init__(self, model: keras.Model):
        self._optimizer = innermost(model.optimizer)
        self._model = model
        self._state: list[tuple[keras.Variable, keras.Variable]] = []
        with model.distribute_strategy.scope():
            self.norm = keras.Variable(
                0.0, trainable=False, dtype="float32", aggregation="only_first_replica", name="norm"
            )
        self._apply = self._optimizer.apply
        self._optimizer.apply = self.apply
        self._sum = gradient_sum(self._optimizer)
        leave_sums_to_the_model(self._optimizer)
        self._optimizer._gradient_watch = self
        self._guard = False
        self.retrace()

    @classmethod
    def of(cls, model: keras.Model) -> "GradientWatch":
        """The watch of the model's optimizer; a new one if it has none."""
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                f"GradientWatch needs Keras's TensorFlow backend, got {keras.backend.backend()!r}"
            )
        return getattr(innermost(model.optimizer), "_gradient_watch", None) or cls(model)

    @property
    def guard(self) -> bool:
        """See the class."""
        return self._guard

    @guard.setter
    def guard(self, guard: bool) -> None:
        self._guard, self._state = guard, []
        if not guard:
            return
        layers = [self._model, *keras_internals.sublayers(self._model)]
        kept = {
            id(v): v for x in layers for v in keras_internals.own_state(x) if "float" in v.dtype
        }
        with self._model.distribute_strategy.scope():
            for v in kept.values():
                before = keras.Variable(
                    v, trainable=False, dtype=v.dtype, aggregation=v.aggregation, name="before"
                )
                self._state.append((v, before))

    def apply(
        self, grads: list[Tensor], trainable_variables: list[keras.Variable] | None = None
    ) -> None:
        """Replaces the optimizer's `apply`."""
        if trainable_variables is None:
            trainable_variables = trained_variables(self._optimizer)
        grads = [x for x, _ in self._sum(list(zip(grads, trainable_variables, strict=True)))]
        squares = [_square(g) for g in grads if g is not None]
        if squares:
            norm = ops.sqrt(sum(squares))
            self.norm.assign(norm)
            if self.guard:
                self._apply_if(ops.isfinite(norm), grads, trainable_variables)
                return
        self._apply(grads, trainable_variables)

    def _apply_if(
        self, finite: Tensor, grads: list[Tensor], variables: list[keras.Variable]
    ) -> None:
        """One step if `finite`; otherwise none, and the layers' state from before."""
        for variable, before in self._state:
            variable.assign(ops.where(finite, variable, before))
            before.assign(variable)
        if self._model.distribute_strategy.num_replicas_in_sync > 1:
            # The optimizer leaves the replicas' functions, which it cannot do in a branch.
            self._apply([None if g is None else _where(finite, g) for g in grads], variables)
        else:
            ops.cond(finite, lambda: self._apply(grads, variables), lambda: None)

    def retrace(self) -> None:
        """Makes the model trace its training step again, with the changed optimizer."""
        if self._model.train_function is not None:
            self._model.make_train_function(force=True)

    def remove(self) -> None:
        """Restores the optimizer."""
        if getattr(self._optimizer, "_gradient_watch", None) is self:
            for name in ("apply", "_gradient_watch"):
                delattr(self._optimizer, name)
            set_gradient_sum(self._optimizer, self._sum)
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
