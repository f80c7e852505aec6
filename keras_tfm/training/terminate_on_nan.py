"""Stops training at the first loss that is not finite, and names its origin."""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import keras
import numpy as np

from keras_tfm.distributed.optimizer import innermost
from keras_tfm.optimizer_internals import batches_seen
from keras_tfm.training.first_not_finite import Batch, first_not_finite, of_weights
from keras_tfm.training.gradients import GradientWatch

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
