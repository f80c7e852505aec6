"""`keras.Model` on TensorFlow with fixes for `tf.distribute`; see `keras_tfm.Model`."""

from collections.abc import Callable, Iterable
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from keras_tfm import keras_internals, optimizer_internals, trainer_internals
from keras_tfm.distributed.global_loss import Batch, GlobalLoss, over_replicas
from keras_tfm.distributed.joint_loss import Rows, Tensor, Tensors
from keras_tfm.distributed.optimizer import (
    check_trained_weights,
    compile_with_optimizer_weights,
    ids_of_trained_weights,
    innermost,
    scale_loss_of_half_precision,
    with_optimizer_weights,
)
from keras_tfm.distributed.replicas import (
    average_moving_statistics,
    is_synchronized,
    leave_sums_to_the_model,
    sum_over_replicas,
    sum_unless_the_model_does,
)
from keras_tfm.distributed.row_of_zeros import add_row_of_zeros, remove_row_of_zeros, zero_gradients


@trainer_internals.build_with
@trainer_internals.weigh_additional_losses
class DistributedModel(keras.Model):
    """What `keras_tfm.Model` adds to Keras 3.15 on TensorFlow.

    It replaces two parts of Keras's trainer that fail under a strategy: building a model from a
    distributed batch (`build_before`) and the rank of the logs (`get_metrics_result`).
    `tests/distributed` has a test that fails when Keras fixes them, so that they can be removed. A
    replica without rows computes a row of zeros (`_predictions`), since layers of Keras fail on no
    rows.
    """

    optimizer: keras.Optimizer
    epoch_iterator: Any = None
    gradient_accumulation_steps = 1
    _batch: Batch = None  # type: ignore[assignment]  # set by `compile`
    _data_ranks: tuple[int | None, ...] = ()
    _sums_gradients = False
    _functions: "_Functions"

    def compile(self, *args: Any, gradient_accumulation_steps: int = 1, **kwargs: Any) -> None:
        """`keras.Model.compile` with `gradient_accumulation_steps`, the number of batch parts."""
        if gradient_accumulation_steps < 1:
            raise ValueError(
                f"gradient_accumulation_steps must be at least 1, got {gradient_accumulation_steps}"
            )
        given: Any = args[1] if len(args) > 1 else kwargs.get("loss")
        if gradient_accumulation_steps > 1 and getattr(given, "compares_rows", False):
            raise ValueError(
                "gradient_accumulation_steps must be 1 with "
                f"{getattr(given, 'name', given)}, which compares each row with all rows of the "
                f"batch: a part of it has fewer negatives, got {gradient_accumulation_steps}"
            )
        if not getattr(given, "supports_jit", True):
            if kwargs.get("jit_compile") is True:
                name = getattr(given, "name", given)
                raise ValueError(
                    f"jit_compile must be False or 'auto' with {name}, which calls Python: XLA "
                    "cannot compile it"
                )
            kwargs["jit_compile"] = False
        super().compile(*args, **kwargs)
        if kwargs.get("auto_scale_loss", True):
            scale_loss_of_half_precision(self)
        steps_itself = type(self).train_step is not DistributedModel.train_step
        if self.distribute_strategy.num_replicas_in_sync > 1 and self.optimizer is not None:
            self._sums_gradients = False
            if steps_itself:  # it may call `super().train_step`
                sum_unless_the_model_does(
                    self.optimizer,
                    lambda: self._sums_gradients,
                    lambda: average_moving_statistics(self, share=None),
                )
            else:
                leave_sums_to_the_model(self.optimizer)
        self.gradient_accumulation_steps = gradient_accumulation_steps
        self._batch = Batch()
        self._functions = _Functions()
        loss = trainer_internals.compiled_loss(self)
        if loss is not None:
            arguments = trainer_internals.loss_arguments(loss)
            trainer_internals.set_compiled_loss(
                self, GlobalLoss(**arguments._asdict(), batch=self._batch)
            )
        own_steps = getattr(innermost(self.optimizer), "gradient_accumulation_steps", None)
        if own_steps:
            raise ValueError(
                f"the optimizer's gradient_accumulation_steps must be None, got {own_steps}: it "
                "divides each batch by its own tokens; use model.compile(..., "
                f"gradient_accumulation_steps={own_steps}) and batches {own_steps} times as large"
            )
        self._check_strategy()

    def get_compile_config(self) -> dict[str, Any]:
        """The arguments of `compile`."""
        config = super().get_compile_config()
        if config:
            config["gradient_accumulation_steps"] = self.gradient_accumulation_steps
        return with_optimizer_weights(self, config)

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles with the arguments that `get_compile_config` returned."""
        compile_with_optimizer_weights(self, trainer_internals.portable_config(config))

    def make_train_function(self, force: bool = False) -> None:
        """Makes the function of a training step, which is then traced once.

        TensorFlow traces a function twice if it makes variables, as a step does with an optimizer
        that is not built.
        """
        optimizer, built = self.optimizer, [x.built for x in keras_internals.sublayers(self)]
        if optimizer is not None and not optimizer.built and self.built and all(built):
            with self.distribute_strategy.scope():
                optimizer.build(self.trainable_variables)
        self._choose_function("train", super().make_train_function, force)

    def make_test_function(self, force: bool = False) -> None:
        """Makes the function of an evaluation step."""
        self._choose_function("test", super().make_test_function, force)

    def _choose_function(self, step: str, make: Callable[..., object], force: bool) -> None:
        """Chooses the function of a step, or makes it, for the ranks of the data and the weights.

        For sample weights (B,) in one `fit` and (B, T) in the next, TensorFlow would trace a
        function again with tensors of unknown rank, which losses cannot take. After `trainable` has
        changed, or `models.enable_lora`, it would train the weights of before.
        """
        name, functions = f"{step}_function", self._functions
        key = (step, self._data_ranks, self._weights_to_train() if step == "train" else ())
        if getattr(self, name) is None or force:
            functions.forget(step)
        elif functions.current.get(step) == (*key[:2], None) and self._is_trained_by_optimizer():
            functions.current[step] = key  # its first step has built the model
            functions.of[key] = getattr(self, name)
        if step == "train" and key not in functions.of:
            check_trained_weights(self)
        if functions.current.get(step) != key:
            setattr(self, name, functions.of.get(key))
        make()
        functions.of.setdefault(key, getattr(self, name))
        functions.current[step] = key

    def _weights_to_train(self) -> tuple[int, ...] | None:
        """The identities of the weights that a step trains; None before the optimizer is built."""
        built = getattr(innermost(self.optimizer), "built", True)
        return ids_of_trained_weights(self) if built else None

    def _is_trained_by_optimizer(self) -> bool:
        """Whether the optimizer was built for the weights that are trainable now."""
        known = optimizer_internals.trained_variables(innermost(self.optimizer))
        return tuple(map(id, known)) == self._weights_to_train()

    def _forget_other_weights(self) -> None:
        """Lets the next `fit` make a new function if the one that is traced trains other weights.

        A callback may have changed `trainable` since it was made for the weights in its key.
        """
        key = self._functions.current.get("train", (None,) * 3)
        if not tf.executing_eagerly() and key[2] not in (None, self._weights_to_train()):
            self._functions.forget("train")

    def train_step(self, data: Tensors) -> dict[str, Tensors]:
        """One optimizer step on one batch."""
        if not self.trainable_variables:  # Keras warns
            return super().train_step(data)
        self._forget_other_weights()
        batch = keras.utils.unpack_x_y_sample_weight(data)
        rows = self._begin(batch)
        if self.gradient_accumulation_steps == 1:
            loss, gradients = self._gradients(batch)
        else:
            loss, gradients = self._accumulate(batch)
        if self._batch.replica_share is not None:
            average_moving_statistics(self, self._batch.replica_share)
        self._end(loss, rows)
        self._sums_gradients = True
        gradients = sum_over_replicas(gradients)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return self.get_metrics_result()

    def test_step(self, data: Tensors) -> dict[str, Tensors]:
        """The loss and metrics of one batch."""
        batch = x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        rows = self._begin(batch)
        y_pred = self._forward(x, training=False)
        loss = self._loss(batch, y_pred, training=False)
        self._end(loss, rows)
        self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        return self.get_metrics_result()

    @property
    def losses(self) -> list[Tensor]:
        """The losses of `add_loss` and the regularizers; in a step, those of this replica."""
        captured = None if self._batch is None else self._batch.losses
        return super().losses if captured is None else captured

    def weigh_mean(self, value: Tensor) -> Tensor:
        """A mean over rows times the share of this replica: its rows over the replicas' mean.

        The mean of the results of all replicas is that over all rows. No rows count as 0, even if
        their mean is NaN.
        """
        share = None if self._batch is None else self._batch.replica_share
        return (
            value if share is None else tf.math.multiply_no_nan(value, tf.cast(share, value.dtype))
        )

    def compute_loss(self, *args: Any, **kwargs: Any) -> Tensor:
        """The compiled and additional losses, for a `compute_loss` of a subclass to add its own.

        In a step on several replicas, the result is a mean over the rows of this replica, as what a
        subclass adds to it; `_loss` multiplies the whole by the replica's share of all rows.
        Elsewhere, it is that of Keras: divided by the number of replicas.
        """
        loss = super().compute_loss(*args, **kwargs)
        share = None if self._batch is None else self._batch.replica_share
        if share is None:
            return loss
        # `GlobalLoss` and `weigh_mean` have multiplied by the share.
        mean = trainer_internals.unscale_loss(loss)
        return tf.math.divide_no_nan(mean, tf.cast(share, loss.dtype))

    def _loss(self, batch: Rows, y_pred: Tensors, training: bool) -> Tensor:
        """The loss of this replica's batch or part; the sum over the replicas is that of all."""
        x, y, sample_weight = batch
        loss = trainer_internals.compute_loss(self, x, y, y_pred, sample_weight, training=training)
        if self._batch.replica_share is None:
            return loss
        return trainer_internals.scale_loss(self.weigh_mean(loss))

    def _begin(self, batch: Rows) -> Tensor:
        """Begins a step; returns the mean number of rows of a replica, float32."""
        state = self._batch
        # Also what a step left that failed.
        state.losses = state.replica_share = state.share = state.tracker_weight = None
        rows = tf.cast(tf.shape(_first(batch[0]))[0], "float32")
        replicas = self.distribute_strategy.num_replicas_in_sync
        if replicas == 1:
            return rows
        mean = over_replicas(rows) / replicas
        state.replica_share = rows / mean
        return mean

    def _end(self, loss: Tensor, rows: Tensor) -> None:
        """Ends a step: the mean of the replicas' losses, which have equal weights, is logged."""
        trainer_internals.loss_tracker(self).update_state(
            trainer_internals.unscale_loss(loss), sample_weight=rows
        )
        self._batch.losses = self._batch.replica_share = None

    def _forward(self, x: Tensors, training: bool) -> Tensors:
        """The predictions; keeps the losses of the layers before another replica's pass."""
        self._batch.losses = None
        y_pred = self._predictions(x, training)
        self._batch.losses = self.losses
        return y_pred

    def _predictions(self, x: Tensors, training: bool) -> Tensors:
        """The outputs of the model, of which a replica without rows computes a row of zeros."""
        options = {"training": training} if trainer_internals.takes_training(self) else {}
        if self.distribute_strategy.num_replicas_in_sync == 1 or _first(x).shape[0] is not None:
            return self(x, **options)
        rows = tf.shape(_first(x))[0]
        return remove_row_of_zeros(self(add_row_of_zeros(x, rows), **options), rows)

    def predict_step(self, data: Tensors) -> Tensors:
        """The outputs for one batch."""
        return self._predictions(keras.utils.unpack_x_y_sample_weight(data)[0], training=False)

    def _gradients(self, batch: Rows) -> tuple[Tensor, list[Tensor]]:
        """The loss of a batch or a part, and its gradients; updates the metrics."""
        x, y, sample_weight = batch
        with tf.GradientTape() as tape:
            y_pred = self._forward(x, training=True)
            loss = self._loss(batch, y_pred, training=True)
            if self._batch.share is not None:
                loss *= tf.cast(self._batch.share, loss.dtype)
            scaled = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, self.trainable_variables)
        if self._batch.replica_share is not None:
            gradients = zero_gradients(gradients, tf.shape(_first(x))[0])
        self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        return loss, gradients

    def _accumulate(self, batch: Rows) -> tuple[Tensor, list[Tensor]]:
        """The loss and the gradients of a batch, which is processed in parts, one by one.

        They are sums over the parts, each weighted by its share of the rows: a mean over rows is
        that of the batch. `GlobalLoss` divides its own means, over labels, by the same share.
        """
        state = self._batch
        x = batch[0]
        rows = tf.shape(_first(x))[0]
        parts = tf.minimum(rows, self.gradient_accumulation_steps)  # each has a row at least
        self._count(batch)

        def step(
            part: Tensor, loss: Tensor, sums: list[Tensor]
        ) -> tuple[Tensor, Tensor, list[Tensor]]:
            begin, end = rows * part // parts, rows * (part + 1) // parts
            piece = tree.map_structure(lambda t: None if t is None else t[begin:end], batch)
            state.share = tf.cast(end - begin, "float32") / tf.cast(rows, "float32")
            # Keras weighs a whole batch by its rows, where they are known before it runs.
            state.tracker_weight = state.share * (_first(x).shape[0] or 1.0)
            part_loss, gradients = self._gradients(piece)
            state.share = state.tracker_weight = None
            return (
                part + 1,
                loss + tf.cast(part_loss, "float32"),
                [
                    total if gradient is None else total + tf.convert_to_tensor(gradient)
                    for total, gradient in zip(sums, gradients, strict=True)
                ],
            )

        _, loss, sums = tf.while_loop(
            lambda part, *_: part < parts,
            step,
            (0, tf.zeros(()), [tf.zeros(v.shape, v.dtype) for v in self.trainable_variables]),
            parallel_iterations=1,
            maximum_iterations=self.gradient_accumulation_steps,
        )
        return loss, sums

    def _count(self, batch: Rows) -> None:
        """Counts the labels of the whole batch, by which the losses of its parts are divided.

        The graph prunes all but the counts. Of metrics that an overridden `compute_loss` updates,
        a stateless scope drops the changes.
        """
        if trainer_internals.compiled_loss(self) is None:
            return
        with keras.StatelessScope():
            y_pred = self._predictions(batch[0], training=False)
            self._batch.losses = []
            self._loss(batch, y_pred, training=False)

    def get_metrics_result(self) -> dict[str, Tensors]:
        """The metrics; in a step of several workers, of shape (1,): Keras reduces them over axis 0.

        A `train_step` of a subclass returns them, too.
        """
        logs = super().get_metrics_result()
        # Outside the strategy TensorFlow is in a replica, too: that of the default strategy.
        in_step = tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()
        if in_step and isinstance(
            self.distribute_strategy, tf.distribute.MultiWorkerMirroredStrategy
        ):
            logs = tree.map_structure(lambda value: tf.reshape(value, (1,)), logs)
        return logs

    def build_for(self, data: Tensors) -> None:
        """Creates the variables of metrics, losses and optimizer from the specs of the data.

        Args:
            data: the `EpochIterator` of `fit`; no batch is drawn.
        """
        spec = tree.map_structure(_tensor_spec, trainer_internals.element_spec(data))
        with self.distribute_strategy.scope():
            trainer_internals.symbolic_build(self, spec)

    def build_before(self, iterator: Any, data_batch: Tensors) -> None:
        """Builds the model under a strategy: for `fit` and `evaluate`, or for a single batch.

        Args:
            iterator: the `EpochIterator` of `fit` or `evaluate`; None for a single batch.
            data_batch: the batch, if there is no iterator.
        """
        self.epoch_iterator = iterator
        data = data_batch if iterator is None else trainer_internals.element_spec(iterator)
        self._data_ranks = tuple(_rank(_tensor_spec(x)) for x in tree.flatten(data))
        strategy = trainer_internals.strategy_of(self)
        if strategy is None:
            return
        if iterator is None:
            trainer_internals.default_build(self, data_batch)
        else:
            replicas = strategy.num_replicas_in_sync
            _check_batch_size(iterator.data_adapter.batch_size, replicas)
            self.build_for(iterator)

    def _check_strategy(self) -> None:
        """Raises for settings with which Keras 3.15 starts `fit` under a strategy, then fails."""
        current = tf.distribute.get_strategy() if tf.distribute.has_strategy() else None
        own = trainer_internals.strategy_of(self)
        strategy = own or current
        if strategy is None:
            return
        name = type(strategy).__name__
        outside = [v.path for v in self.variables if not _lives_in(strategy, v)]
        if own is None or outside:
            what = f"its variable {outside[0]} was" if outside else "it was"
            raise ValueError(
                f"the model and all its layers must be created inside the scope of {name}, but "
                f"{what} created outside: use `with strategy.scope(): model = ...`"
            )
        if strategy.num_replicas_in_sync == 1 and name == "OneDeviceStrategy":
            return
        if self.steps_per_execution > 1:
            raise ValueError(
                f"steps_per_execution must be 1 under {name}, got {self.steps_per_execution}: "
                "Keras 3.15 cannot loop over distributed batches"
            )
        synchronized = [x for x in keras_internals.sublayers(self) if is_synchronized(x)]
        if self.gradient_accumulation_steps > 1 and synchronized:
            raise ValueError(
                f"gradient_accumulation_steps must be 1 under {name} with {synchronized[0].name}, "
                "whose synchronized statistics are not exchanged in a loop over parts of a batch, "
                f"got {self.gradient_accumulation_steps}"
            )
        if self.jit_compile:
            raise ValueError(
                f"jit_compile must be False or 'auto' under {name}: XLA cannot compile the "
                "exchange of gradients and counts between replicas"
            )


class _Functions:
    """The functions of the steps of a model; Keras would wrap a dictionary and save it.

    A key is (name of the step, ranks of the data, identities of the trained weights).

    Attributes:
        of: dict, the function of each key.
        current: dict, from the name of each step to the key of the model's function.
    """

    def __init__(self) -> None:
        self.of: dict[tuple[Any, ...], Any] = {}
        self.current: dict[str, tuple[Any, ...]] = {}

    def forget(self, step: str) -> None:
        """Forgets the functions of a step."""
        self.of = {key: x for key, x in self.of.items() if key[0] != step}
        self.current.pop(step, None)


def _first(x: Tensors) -> Tensor:
    return next(t for t in tree.flatten(x) if t is not None)


def _rank(x: Any) -> int | None:
    """The number of axes of an array or a spec; None for None, and if it is unknown."""
    shape = getattr(x, "shape", None)
    return None if shape is None else tf.TensorShape(shape).rank


def _tensor_spec(spec: tf.TypeSpec) -> tf.TensorSpec:
    """The spec of one replica's batch."""
    if isinstance(spec, tf.TensorSpec):
        return spec
    first: Iterable[Any] = getattr(spec, "_value_specs", (spec,))
    return next(iter(first))


def _lives_in(strategy: tf.distribute.Strategy, variable: tf.Variable) -> bool:
    return strategy.extended.variable_created_in_scope(variable.value)


def _check_batch_size(batch_size: int | None, replicas: int) -> None:
    if batch_size is not None and batch_size < replicas:
        raise ValueError(
            f"batch_size must be at least the number of replicas ({replicas}), got {batch_size}"
        )
