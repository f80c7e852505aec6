"""A variable that follows a schedule during training."""

from collections.abc import Callable

import keras
from keras import ops


class Annealing(keras.callbacks.Callback):
    """Sets a variable by the number of steps so far, such as a temperature that falls.

    The value is assigned before each batch, and before the first batch of each execution with
    `steps_per_execution` above 1. It depends only on the optimizer's step, so that a resumed
    training continues where it was.

    Args:
        variable: `keras.Variable`, such as the `temperature` of a `layers.GumbelSoftmax`.
        schedule: `keras.optimizers.schedules.LearningRateSchedule`, or a function of the step (int)
            that returns the value.

    Raises:
        TypeError: an argument of the wrong type.

    Example, from 1 to 1/16, as in DALL-E (arXiv:2102.12092), section A.2:

    >>> import numpy as np
    >>> from keras_tfm.layers import GumbelSoftmax
    >>> from keras_tfm.training import Annealing
    >>> sample = GumbelSoftmax(temperature=1.0)
    >>> sample.build((None, 5))
    >>> annealing = Annealing(sample.temperature, lambda step: max(1 / 16, np.exp(-1e-3 * step)))
    >>> annealing.set(2000)
    >>> round(float(sample.temperature), 3)
    0.135
    """

    def __init__(self, variable: keras.Variable, schedule: Callable[[int], float]):
        super().__init__()
        if not isinstance(variable, keras.Variable):
            raise TypeError(f"variable must be a keras.Variable, got {variable!r}")
        if not callable(schedule):
            raise TypeError(f"schedule must be a function of the step, got {schedule!r}")
        self.variable = variable
        self.schedule = schedule

    def set(self, step: int) -> None:
        """Assigns the value of a step."""
        value = float(ops.convert_to_numpy(self.schedule(step)))
        self.variable.assign(ops.convert_to_tensor(value, dtype=self.variable.dtype))

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Assigns the value of the step that begins."""
        self.set(int(ops.convert_to_numpy(self.model.optimizer.iterations)))
