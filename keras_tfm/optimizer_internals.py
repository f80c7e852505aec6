"""Every private name of Keras's optimizers that this package uses, as `keras_internals` has others.

Each function has a test in `tests/test_optimizer_internals.py`.

Example:

>>> import keras
>>> from keras_tfm.optimizer_internals import updates_are_scaled
>>> updates_are_scaled(keras.optimizers.SGD(0.1))
False
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import keras


def set_gradient_sum(optimizer: "keras.Optimizer", function: Callable[[Any], Any]) -> None:
    """Replaces the function with which a TensorFlow optimizer sums gradients over replicas.

    Args:
        optimizer: an optimizer; of a `LossScaleOptimizer`, the inner one.
        function: takes and returns a list of pairs (gradient, variable).
    """
    optimizer._all_reduce_sum_gradients = function


def gradient_sum(optimizer: "keras.Optimizer") -> Callable[[Any], Any]:
    """The function that sums an optimizer's gradients over replicas."""
    return optimizer._all_reduce_sum_gradients


def restore_gradient_sum(optimizer: "keras.Optimizer") -> None:
    """Undoes `set_gradient_sum`."""
    del optimizer._all_reduce_sum_gradients


def batches_seen(optimizer: "keras.Optimizer") -> Any:
    """The variable that counts calls of `apply`; `optimizer.iterations` counts updates."""
    return optimizer._iterations


def scale_updates(
    optimizer: "keras.Optimizer", groups: Sequence[tuple[float, Sequence[Any]]]
) -> None:
    """Multiplies the learning rate of each group of variables, in updates and in weight decay.

    Args:
        optimizer: an optimizer; of a `LossScaleOptimizer`, the inner one.
        groups: pairs (factor, variables) that together hold every variable once.
    """
    factors = {id(v): factor for factor, variables in groups for v in variables}
    update, decay = optimizer._backend_update_step, optimizer._apply_weight_decay

    def scaled_update(gradients: Any, variables: Any, learning_rate: Any) -> None:
        pairs = list(zip(gradients, variables, strict=True))
        for factor in dict.fromkeys(factors.values()):
            chosen = [pair for pair in pairs if factors[id(pair[1])] == factor]
            if chosen:
                update(*map(list, zip(*chosen, strict=True)), learning_rate * factor)

    def scaled_decay(variables: Any) -> None:
        rate = optimizer.weight_decay
        for factor in dict.fromkeys(factors.values()):
            optimizer.weight_decay = None if rate is None else rate * factor
            decay([v for v in variables if factors[id(v)] == factor])
        optimizer.weight_decay = rate

    optimizer._backend_update_step, optimizer._apply_weight_decay = scaled_update, scaled_decay


def updates_are_scaled(optimizer: "keras.Optimizer") -> bool:
    """Whether `scale_updates` was called for the optimizer."""
    return "_backend_update_step" in vars(optimizer)
