"""Stops training at the first loss that is not finite, and names its origin."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import keras
import numpy as np
from keras import ops

from keras_tfm import keras_internals
from keras_tfm.distributed.optimizer import innermost
from keras_tfm.layers.types import Tensor
from keras_tfm.optimizer_internals import batches_seen
from keras_tfm.training.gradients import GradientWatch

# A batch of `fit`: tensors, or tuples and dictionaries of tensors.
Batch: TypeAlias = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
Call: TypeAlias = Callable[..., Tensor]
Logs: TypeAlias = dict[str, float]
# Keras's function of one step of training.
Step: TypeAlias = Callable[[Iterator[Batch]], Logs]


class TerminateOnNaN(keras.callbacks.Callback):
    """Stops training at a loss that is NaN or infinite, and names the step and the layer.

    On the TensorFlow backend:

    - a step with a gradient that is not finite changes neither weights nor optimizer, nor what
      layers keep beside weights, such as the moving means of `BatchNormalization`. Callbacks that
      save models save what was before it. With several replicas its gradients are zeros, and
      momentum and weight decay still change the weights;
    - the batch is processed again, layer by layer: the error names the first of the inputs,
      labels, weights, layer outputs (innermost layers first) and gradients that is not finite.

    With `steps_per_execution` above 1 the steps are started one by one, so that it names the right
    one; the batch is run again with the weights after the last of them.

    On other backends the batch is not kept: it names the first weight that is not finite.

    Args:
        raise_error: bool, whether to raise. If False, it prints the message and sets
            `model.stop_training`, so that `fit` calls `on_epoch_end` and `on_train_end` and
            returns.

    Attributes:
        message: str, what was found, or None if the loss was always finite.

    Raises:
        FloatingPointError: in `fit`, the loss is NaN or infinite.

    Example:

    >>> import keras
    >>> import numpy as np
    >>> from keras_tfm.training import TerminateOnNaN
    >>> x = keras.Input((2,), name="x")
    >>> model = keras.Model(x, keras.layers.Dense(1, name="dense")(x))
    >>> model.compile("sgd", "mse")
    >>> rows = np.array([[1.0, 2.0], [1.0, np.inf]])
    >>> try:
    ...     history = model.fit(rows, np.ones(2), shuffle=False, verbose=0, batch_size=1,
    ...                         callbacks=[TerminateOnNaN()])
    ... except FloatingPointError as error:
    ...     print(error)
    the loss is inf at step 2 (epoch 1, batch 2): input x has 1 inf of 2 numbers, row 0 first
    """

    def __init__(self, raise_error: bool = True):
        super().__init__()
        self.raise_error = raise_error
        self.message: str | None = None
        self._watch: GradientWatch | None = None
        # Of the steps of one execution.
        self._batches: list[Batch] = []
        self._losses: list[Batch] = []

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Installs the guard in the optimizer."""
        self.message, self._batches, self._losses = None, [], []
        self._epoch, self._before = 0, self._batches_seen()
        if keras.backend.backend() == "tensorflow":
            self._watch = GradientWatch.of(self.model)
            self._watch.guard = True
            self._watch.retrace()
            self.model.train_function = self._keeping(self.model.train_function)

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Starts counting the batches of the epoch."""
        self._epoch, self._in_epoch = epoch, 0

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Checks the loss."""
        first = batch + 1 - self.model.steps_per_execution
        self._in_epoch = first + len(self._batches) if self._batches else batch + 1
        loss = (logs or {}).get("loss")
        if loss is None or np.isfinite(loss):
            return
        finite = [bool(np.isfinite(keras.ops.convert_to_numpy(x)).all()) for x in self._losses]
        index = finite.index(False) if False in finite else len(finite) - 1
        number = first + index + 1 if finite else self._in_epoch
        self.message = (
            f"the loss is {float(loss)} at step {self._before + number} "
            f"(epoch {self._epoch + 1}, batch {number}): {self._reason(index)}"
        )
        self._remove()
        if self.raise_error:
            raise FloatingPointError(self.message)
        print(self.message)
        self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Adds the batches of the epoch to the total."""
        self._before += self._in_epoch

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        """Removes the guard."""
        self._remove()

    def _batches_seen(self) -> int:
        """The number of batches that the optimizer saw in earlier calls of `fit`."""
        return int(keras.ops.convert_to_numpy(batches_seen(innermost(self.model.optimizer))))

    def _keeping(self, function: Step) -> Step:
        """The training function, which keeps its batches and losses until the next call."""

        def run(iterator: Iterator[Batch]) -> Logs:
            self._batches, self._losses = [], []
            logs: Logs = {}
            for _ in range(self.model.steps_per_execution):
                try:
                    batch = next(iterator)
                except StopIteration:
                    if not self._batches:
                        raise
                    break
                self._batches.append(batch)
                logs = function(iter([batch]))
                self._losses.append(logs["loss"])
            return logs

        return run

    def _reason(self, index: int) -> str:
        if not self._batches:
            backend = keras.backend.backend()
            unknown = f"all weights are finite, and the batch is not kept on the {backend} backend"
            return of_weights(self.model) or unknown
        return first_not_finite(self.model, self._batches[index])

    def _remove(self) -> None:
        self._batches, self._losses = [], []
        if self._watch is not None:
            self._watch.remove()
            self._watch = None


def first_not_finite(model: keras.Model, data: Batch) -> str:
    """Describes the first value of a training step on `data` that is NaN or infinite.

    It repeats the step eagerly with the current weights and checks in this order: inputs,
    labels, weights, the outputs of layers as they are computed (sublayers before the layer that
    contains them), the loss, and the gradients from the last weight to the first, as
    backpropagation computes them. Non-trainable variables are restored afterwards.

    Args:
        model: compiled model, on Keras's TensorFlow backend.
        data: the argument of `train_step`; under a strategy, a distributed batch.
    """
    values = model.distribute_strategy.experimental_local_results
    parts = len(values(keras.tree.flatten(data)[0]))
    reasons = [
        _of_batch(model, keras.tree.map_structure(lambda x, i=i: values(x)[i], data))
        for i in range(parts)
    ]
    return next((x for x in reasons if x), "all values are finite when the step is repeated")


def of_weights(model: keras.Model) -> str | None:
    """Describes the first weight that is not finite, or returns None.

    >>> import keras
    >>> from keras_tfm.training.terminate_on_nan import of_weights
    >>> x = keras.Input((1,))
    >>> model = keras.Model(x, keras.layers.Dense(1, name="answer")(x))
    >>> _ = model.weights[0].assign([[float("nan")]])
    >>> of_weights(model)
    'the weight answer/kernel has 1 nan of 1 numbers'
    """
    for weight in model.weights:
        found = _describe(weight)
        if found:
            return f"the weight {weight.path} has {found}"
    return None


def _of_batch(model: keras.Model, data: Batch) -> str | None:
    import tensorflow as tf

    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    for kind, given in (("input", x), ("label", y), ("sample weight", sample_weight)):
        for path, value in keras.tree.flatten_with_path(given):
            found = _describe(value, rows=True)
            if found:
                name = "/".join(map(str, path)) or _only_name(model, kind)
                return f"{kind} {name} has {found}".replace("  ", " ")
    found = of_weights(model)
    if found:
        return found
    kept = [(v, ops.convert_to_numpy(v)) for v in model.non_trainable_variables]
    try:
        with _outputs(model) as bad, tf.GradientTape() as tape:
            y_pred = model(x, training=True)
            loss = model.compute_loss(
                x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True
            )
        if bad:
            return bad[0]
        found = _describe(y_pred)
        if found:
            return f"the model's output has {found}, computed by an operation outside any layer"
        found = _describe(loss)
        if found:
            return f"the outputs of all layers are finite, but their loss is {float(loss)}"
        weights = model.trainable_variables
        for weight, gradient in reversed(
            list(zip(weights, tape.gradient(loss, [w.value for w in weights]), strict=True))
        ):
            found = None if gradient is None else _describe(gradient)
            if found:
                return f"all outputs are finite, but the gradient of {weight.path} has {found}"
    finally:
        for variable, value in kept:
            variable.assign(value)
    return None


@contextmanager
def _outputs(model: keras.Model) -> Iterator[list[str]]:
    """Inside this context, a list that describes the first layer output that is not finite."""
    bad: list[str] = []

    def watch_outputs(layer: keras.layers.Layer, call: Call) -> Call:
        def run(*args: Tensor, **kwargs: Tensor) -> Tensor:
            outputs = call(*args, **kwargs)
            if not bad:
                found = _describe(outputs)
                if found:
                    bad.append(f"the output of {layer.path or layer.name} has {found}")
            return outputs

        return run

    layers = keras_internals.sublayers(model)
    for layer in layers:
        # Not setattr: Keras would track the function.
        object.__setattr__(layer, "call", watch_outputs(layer, layer.call))
    try:
        yield bad
    finally:
        for layer in layers:
            object.__delattr__(layer, "call")


def _describe(values: Batch, rows: bool = False) -> str | None:
    """How many values are NaN or infinite, as text; with `rows`, also the first such row.

    None if all values are finite.
    """
    for value in keras.tree.flatten(values):
        if value is None or not hasattr(value, "dtype"):
            continue
        if "float" not in keras.backend.standardize_dtype(value.dtype):
            continue
        # The product is always a tensor, even if `value` is a variable with several replicas.
        x = ops.convert_to_numpy(ops.cast(ops.multiply(value, 1), "float32"))
        nan, infinite = int(np.isnan(x).sum()), int(np.isinf(x).sum())
        if nan or infinite:
            counts = [f"{n} {name}" for n, name in ((nan, "nan"), (infinite, "inf")) if n]
            row = ""
            if rows and x.ndim:
                first = np.nonzero(~np.isfinite(x).reshape(len(x), -1).all(axis=1))[0][0]
                row = f", row {first} first"
            return f"{' and '.join(counts)} of {x.size} numbers{row}"
    return None


def _only_name(model: keras.Model, kind: str) -> str:
    names = getattr(model, "inputs", None) or []
    return names[0].name if kind == "input" and len(names) == 1 else ""
