"""`keras.Model` on TensorFlow, mended for `tf.distribute`; see `keras_tfm.Model`."""

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf
from keras import tree
from keras.src.losses.loss import unscale_loss_for_distribution

from keras_tfm.models.global_gradients import (
    innermost,
    leave_sums_to_the_model,
    sum_over_replicas,
)
from keras_tfm.models.global_loss import GlobalLoss, over_replicas

Tensor = Any


class DistributedModel(keras.Model):
    """What `keras_tfm.Model` adds to Keras 3.15 on TensorFlow.

    Of Keras's own it replaces two things that fail: how a model is built from a distributed batch
    (`_maybe_symbolic_build`) and the rank of the logs (`_logs`). `tests/distributed`
    has a test that fails when Keras mends them, so that they can go.
    """

    optimizer: Any
    _compile_loss: Any
    gradient_accumulation_steps = 1

    def compile(self, *args: Any, gradient_accumulation_steps: int = 1, **kwargs: Any) -> None:
        """`keras.Model.compile`, and the number of parts in which a batch is taken."""
        if gradient_accumulation_steps < 1:
            raise ValueError(
                f"gradient_accumulation_steps must be at least 1, got {gradient_accumulation_steps}"
            )
        super().compile(*args, **kwargs)
        scaled = isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer)
        if kwargs.get("auto_scale_loss", True) and not scaled and self.optimizer is not None:
            # Keras looks at the model's own policy, which is not that of layers with a `dtype`.
            policies = {layer.dtype_policy.name for layer in self._flatten_layers()}
            if "mixed_float16" in policies:
                self.optimizer = keras.optimizers.LossScaleOptimizer(self.optimizer)
        if self.distribute_strategy.num_replicas_in_sync > 1 and self.optimizer is not None:
            leave_sums_to_the_model(self.optimizer)
        self.gradient_accumulation_steps = gradient_accumulation_steps
        loss = self._compile_loss
        if loss is not None:
            self._compile_loss = GlobalLoss(
                loss._user_loss, loss._user_loss_weights, output_names=loss.output_names
            )
        own_steps = getattr(innermost(self.optimizer), "gradient_accumulation_steps", None)
        if own_steps:
            raise ValueError(
                "the optimizer's gradient_accumulation_steps divides each batch by its own tokens; "
                "give it to compile, which takes one large batch in parts: "
                "model.compile(..., gradient_accumulation_steps="
                f"{own_steps}) and a batch as many times as large"
            )
        self._check_strategy()

    def get_compile_config(self) -> dict[str, Any]:
        """The arguments of `compile`."""
        config = super().get_compile_config()
        if config:
            config["gradient_accumulation_steps"] = self.gradient_accumulation_steps
        return config

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles with what `get_compile_config` gave."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built and self.optimizer is not None:
            self.optimizer.build(self.trainable_variables)

    def train_step(self, data: Any) -> dict[str, Any]:
        """One step of the optimizer, on one batch."""
        if not self.trainable_variables:  # Keras warns
            return super().train_step(data)
        batch = keras.utils.unpack_x_y_sample_weight(data)
        if self.gradient_accumulation_steps == 1:
            loss, gradients = self._gradients(batch)
        else:
            loss, gradients = self._accumulated(batch)
        self._track(loss, batch)
        gradients = sum_over_replicas(gradients)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return self._logs()

    def test_step(self, data: Any) -> dict[str, Any]:
        """The loss and metrics of one batch."""
        batch = x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        y_pred = self._forward(x, training=False)
        self._track(self._compute_loss(x, y, y_pred, sample_weight, training=False), batch)
        self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        return self._logs()

    def _forward(self, x: Any, training: bool) -> Any:
        return self(x, training=training) if self._call_has_training_arg else self(x)

    def _gradients(self, batch: tuple[Any, Any, Any]) -> tuple[Tensor, list[Tensor]]:
        """The loss of a batch, or of a part, and its gradients; updates the metrics."""
        x, y, sample_weight = batch
        with tf.GradientTape() as tape:
            y_pred = self._forward(x, training=True)
            loss = self._compute_loss(x, y, y_pred, sample_weight, training=True)
            scaled = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, self.trainable_variables)
        self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        return loss, gradients

    def _accumulated(self, batch: tuple[Any, Any, Any]) -> tuple[Tensor, list[Tensor]]:
        """The loss and the gradients of a batch that is taken in parts, one after the other."""
        parts = self.gradient_accumulation_steps
        x, y, sample_weight = batch
        rows = tf.shape(_first(x))[0]

        def step(part: Tensor, loss: Tensor, sums: list[Tensor]) -> tuple[Tensor, Tensor, Any]:
            begin, end = rows * part // parts, rows * (part + 1) // parts
            piece = tree.map_structure(lambda t: None if t is None else t[begin:end], batch)
            part_loss, gradients = self._gradients(piece)
            return (
                part + 1,
                loss + part_loss,
                [
                    total if gradient is None else total + tf.convert_to_tensor(gradient)
                    for total, gradient in zip(sums, gradients, strict=True)
                ],
            )

        def count() -> None:
            # The counts alone are used of this: a graph leaves out the rest.
            self._compute_loss(x, y, self._forward(x, False), sample_weight, training=False)

        with self._compile_loss.in_parts(parts, count):
            _, loss, sums = tf.while_loop(
                lambda part, *_: part < parts,
                step,
                (0, tf.zeros(()), [tf.zeros(v.shape, v.dtype) for v in self.trainable_variables]),
                parallel_iterations=1,
                maximum_iterations=parts,
            )
        return loss / parts, [total / parts for total in sums]

    def _track(self, loss: Tensor, batch: tuple[Any, Any, Any]) -> None:
        # Each replica's share of the loss is already weighted: all weigh the same in the mean.
        rows = tf.cast(tf.shape(_first(batch[0]))[0], "float32")
        replicas = self.distribute_strategy.num_replicas_in_sync
        self._loss_tracker.update_state(
            unscale_loss_for_distribution(loss),
            sample_weight=rows if replicas == 1 else over_replicas(rows) / replicas,
        )

    def _logs(self) -> dict[str, Any]:
        """The metrics; where Keras reduces them over an axis 0, with one."""
        logs = self.get_metrics_result()
        if isinstance(self.distribute_strategy, tf.distribute.MultiWorkerMirroredStrategy):
            logs = tree.map_structure(lambda value: tf.reshape(value, (1,)), logs)
        return logs

    def build_for(self, data: Any) -> None:
        """Makes the variables of metrics, losses and optimizer, from the form of the data alone.

        Args:
            data: the `EpochIterator` of `fit`; no batch is drawn.
        """
        spec = tree.map_structure(_tensor_spec, data._distributed_dataset.element_spec)
        with self.distribute_strategy.scope():
            self._symbolic_build(data_batch=spec)

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        self._epoch_iterator = iterator
        if self._distribute_strategy is None:
            return
        if iterator is None:
            super()._maybe_symbolic_build(data_batch=data_batch)
        else:
            replicas = self._distribute_strategy.num_replicas_in_sync
            _check_batch_size(iterator.data_adapter.batch_size, replicas)
            self.build_for(iterator)

    def _check_strategy(self) -> None:
        """Refuses what Keras 3.15 starts under a strategy and cannot finish."""
        current = tf.distribute.get_strategy() if tf.distribute.has_strategy() else None
        strategy = self._distribute_strategy or current
        if strategy is None:
            return
        name = type(strategy).__name__
        outside = [v.path for v in self.variables if not _lives_in(strategy, v)]
        if self._distribute_strategy is None or outside:
            what = f"its variable {outside[0]} was" if outside else "it was"
            raise ValueError(
                f"the model must be made inside the scope of {name}, all its layers too, but "
                f"{what} made outside: `with strategy.scope(): model = ...`"
            )
        if strategy.num_replicas_in_sync == 1 and name == "OneDeviceStrategy":
            return
        if self.steps_per_execution > 1:
            raise ValueError(
                f"steps_per_execution must be 1 under {name}, got {self.steps_per_execution}: "
                "Keras 3.15 cannot loop over distributed batches"
            )
        if self.jit_compile:
            raise ValueError(
                f"jit_compile must be False or 'auto' under {name}: XLA cannot compile the "
                "exchange of gradients and counts between replicas"
            )


def _first(x: Any) -> Tensor:
    return next(t for t in tree.flatten(x) if t is not None)


def _tensor_spec(spec: Any) -> tf.TensorSpec:
    """What one replica gets; of a batch that is split, any number of rows."""
    if isinstance(spec, tf.TensorSpec):
        return spec
    first: Iterable[Any] = getattr(spec, "_value_specs", (spec,))
    return next(iter(first))


def _lives_in(strategy: tf.distribute.Strategy, variable: Any) -> bool:
    return strategy.extended.variable_created_in_scope(variable.value)


def _check_batch_size(batch_size: int | None, replicas: int) -> None:
    if batch_size is not None and batch_size < replicas:
        raise ValueError(
            f"a batch is divided among {replicas} replicas and must have at least as many rows, "
            f"got batch_size {batch_size}"
        )
