"""Every private name of Keras's trainer that this package uses, as `keras_internals` has others.

Each function has a test in `tests/test_trainer_internals.py`.

Example:

>>> import keras
>>> from keras_tfm.trainer_internals import compiled_loss
>>> model = keras.Sequential([keras.layers.Dense(2)])
>>> model.compile(loss="mse")
>>> type(compiled_loss(model)).__name__
'CompileLoss'
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import keras

Tensor = Any


# Training: the model and its compiled loss.


def strategy_of(model: "keras.Model") -> Any:
    """The `tf.distribute` strategy of a model, if it has one. TensorFlow backend only."""
    return model._distribute_strategy


def takes_training(model: "keras.Model") -> bool:
    """Whether the model's `call` has an argument `training`."""
    return model._call_has_training_arg


def compute_loss(
    model: "keras.Model",
    x: Tensor,
    y: Tensor,
    y_pred: Tensor,
    sample_weight: Tensor,
    training: bool,
) -> Tensor:
    """`model.compute_loss`, even if a subclass overrides it without the argument `training`."""
    return model._compute_loss(x, y, y_pred, sample_weight, training=training)


def scale_loss(loss: Tensor) -> Tensor:
    """A loss divided by the number of replicas, whose gradients are added."""
    from keras.src.losses.loss import scale_loss_for_distribution

    return scale_loss_for_distribution(loss)


def unscale_loss(loss: Tensor) -> Tensor:
    """A loss before Keras divided it by the number of replicas."""
    from keras.src.losses.loss import unscale_loss_for_distribution

    return unscale_loss_for_distribution(loss)


def weigh_additional_losses(model_class: Any) -> type:
    """Class decorator: `model.weigh_mean(loss)` follows Keras's sum of each additional loss.

    These are the losses of `add_loss` and the regularizers. Keras divides them by the number of
    replicas.
    """

    def aggregate(self: "keras.Model", loss: Tensor) -> Tensor:
        return self.weigh_mean(super(model_class, self)._aggregate_additional_loss(loss))

    model_class._aggregate_additional_loss = aggregate
    return model_class


def loss_tracker(model: "keras.Model") -> "keras.metrics.Metric":
    """The metric in which a compiled model averages its loss over an epoch."""
    return model._loss_tracker


def compile_loss_class() -> Any:
    """The class of a model's compiled loss, for subclasses."""
    from keras.src.trainers.compile_utils import CompileLoss

    return CompileLoss


def compiled_loss(model: "keras.Model") -> Any:
    """The `CompileLoss` of a compiled model; None if it has no loss."""
    return model._compile_loss


def set_compiled_loss(model: "keras.Model", loss: Any) -> None:
    """Replaces the `CompileLoss` of a compiled model."""
    model._compile_loss = loss


class LossArguments(NamedTuple):
    """The arguments of `CompileLoss`'s constructor."""

    loss: Any
    loss_weights: Any
    output_names: Any


def loss_arguments(loss: Any) -> LossArguments:
    """The arguments that a `CompileLoss` was created with."""
    return LossArguments(loss._user_loss, loss._user_loss_weights, loss.output_names)


def wrap_losses(loss: Any, wrap: Callable[[Any], Any]) -> None:
    """Replaces the loss function of each output of a `CompileLoss` that is built.

    Args:
        loss: a `CompileLoss`.
        wrap: function from a loss function to its replacement.
    """
    loss._flat_losses = [entry._replace(loss=wrap(entry.loss)) for entry in loss._flat_losses]


def portable_config(config: Any) -> Any:
    """A compile configuration with Keras's optimizers in place of those of the PyTorch backend.

    Keras 3.15 on PyTorch saves the name of its own class, which cannot train on other backends.
    """
    if isinstance(config, dict):
        parts = {key: portable_config(value) for key, value in config.items()}
        if str(parts.get("module")).startswith("keras.src.backend.torch.optimizers."):
            parts["module"] = "keras.optimizers"
        return parts
    return [portable_config(x) for x in config] if isinstance(config, list) else config


def keep_weights_after_errors(model_class: Any) -> type:
    """Class decorator for JAX: an error in `fit`, `evaluate` or `predict` leaves the weights.

    Keras 3.15 takes the values out of the variables before the first step. It puts them back at the
    end, in `fit` also after an error, but not those of before the first step: labels of a wrong
    shape, a failing dataset or an interruption would lose the weights.
    """

    def read_state(self: "keras.Model", purge_model_variables: bool = False, **parts: bool) -> Any:
        parent: Any = super(model_class, self)
        state = parent._get_jax_state(purge_model_variables=purge_model_variables, **parts)
        # `train_on_batch` and its like leave the values in the variables until their step is over.
        names = [x for x in parts if parts[x]]
        self._jax_state = dict(zip(names, state, strict=True)) if purge_model_variables else None
        return state

    def make_steps(self: "keras.Model", step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def step_and_keep(state: Any, data: Any) -> Any:
            outputs, state = step(state, data)
            if getattr(self, "_jax_state", None):  # of several steps that are executed in one call
                self._jax_state = dict(zip(self._jax_state, state, strict=True))
            return outputs, state

        return super(model_class, self)._make_function(step_and_keep, *args, **kwargs)

    def restoring(name: str) -> Callable[..., Any]:
        def method(self: "keras.Model", *args: Any, **kwargs: Any) -> Any:
            try:
                return getattr(super(model_class, self), name)(*args, **kwargs)
            except BaseException:
                self.jax_state_sync()
                self._jax_state = None
                raise

        return functools.wraps(getattr(model_class, name))(method)

    model_class._get_jax_state = read_state
    model_class._make_function = make_steps
    model_class.evaluate, model_class.predict = restoring("evaluate"), restoring("predict")
    return model_class


# Training: building and the data of `fit`.


def build_with(model_class: Any) -> type:
    """Class decorator: before `fit`, Keras calls `model.build_before(iterator, data_batch)`.

    `fit` and `evaluate` pass an `EpochIterator`, other methods a batch; the other argument is None.
    Keras 3.15's own build fails on distributed batches.
    """

    def build(self: "keras.Model", iterator: Any = None, data_batch: Any = None) -> None:
        self.build_before(iterator, data_batch)

    model_class._maybe_symbolic_build = build
    return model_class


def default_build(model: "keras.Model", data_batch: Any) -> None:
    """Builds a model from a batch as Keras does without `build_with`."""
    import keras

    keras.Model._maybe_symbolic_build(model, data_batch=data_batch)


def symbolic_build(model: "keras.Model", data_batch: Any) -> None:
    """Creates the variables of a model, its metrics, loss and optimizer from specs of a batch."""
    model._symbolic_build(data_batch=data_batch)


def element_spec(iterator: Any) -> Any:
    """The `tf.data` specs of the (distributed) batches of an `EpochIterator`."""
    return iterator._distributed_dataset.element_spec


def restarts_each_epoch(iterator: Any) -> bool:
    """Whether an `EpochIterator` restarts its arrays or its `tf.data.Dataset` in each epoch."""
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
    from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

    known = isinstance(iterator.data_adapter, (ArrayDataAdapter, TFDatasetAdapter))
    return known and iterator.steps_per_epoch is None


def first_batch(iterator: Any) -> tuple[Any, bool]:
    """The first batch of an `EpochIterator`'s data; None if drawing it would consume it.

    Keras itself has drawn the first batches of a generator, and item 0 of a `PyDataset`.

    Returns:
        The batch, and whether its rows are the same in each run: the user's Python code may draw
        them at random.
    """
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
    from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter
    from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
    from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

    adapter = iterator.data_adapter
    if isinstance(adapter, GeneratorDataAdapter):
        return adapter._first_batches[0], False
    if isinstance(adapter, PyDatasetAdapter):
        return adapter._standardize_batch(adapter.py_dataset[0]), False
    if isinstance(adapter, (ArrayDataAdapter, TFDatasetAdapter)):
        return next(adapter.get_tf_dataset().take(1).as_numpy_iterator()), True
    return None, False


def runs_fit(frame: Any, callback: "keras.callbacks.Callback") -> bool:
    """Whether a frame of the stack is that of Keras's `fit` with this callback."""
    callbacks = getattr(frame.f_locals.get("callbacks"), "callbacks", ())
    return frame.f_code.co_name == "fit" and callback in callbacks


def replace_next_epoch(iterator: Any, epoch: Callable[[Iterator[Any]], Iterable[Any]]) -> None:
    """Replaces the steps of the next epoch of an `EpochIterator`; later epochs are unchanged.

    Args:
        iterator: an `EpochIterator`.
        epoch: function from the steps of that epoch, each `(begin, end, batches)`, to the steps
            that `fit` runs.
    """
    whole = iterator._enumerate_iterator

    def enumerate_once() -> Iterator[Any]:
        iterator._enumerate_iterator = whole
        yield from epoch(whole())

    iterator._enumerate_iterator = enumerate_once


def set_initial_epoch(model: "keras.Model", epoch: int | None) -> None:
    """Makes `fit` start at an epoch; call it in `on_train_begin`. None undoes it."""
    model._initial_epoch = epoch


def callback_list() -> Any:
    """The `CallbackList` that is calling a callback, found on the stack of this thread."""
    import inspect

    import keras

    frame = inspect.currentframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, keras.callbacks.CallbackList):
            return caller
        frame = frame.f_back
    raise RuntimeError("expected a call by a keras.callbacks.CallbackList, got one without it")
