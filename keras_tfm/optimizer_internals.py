"""Every private name of Keras's optimizers that this package uses, as `keras_internals` has others.

Each function has a test in `tests/test_optimizer_internals.py`.

Example:

>>> import keras
>>> from keras_tfm.optimizer_internals import updates_are_scaled
>>> updates_are_scaled(keras.optimizers.SGD(0.1))
False
"""

import warnings
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


def trained_variables(optimizer: "keras.Optimizer") -> list[Any]:
    """The variables for which an optimizer was built."""
    return optimizer._trainable_variables


def update_only(optimizer: "keras.Optimizer", variables: Sequence[object]) -> None:
    """Makes `stateless_apply` take and return the values of `variables`, and leave all others.

    Keras 3.15 takes only the values of all variables for which the optimizer was built, so that a
    layer that was frozen since is an error. On JAX, a gradient of None leaves a variable and its
    moments.

    Args:
        optimizer: a built optimizer; of a `LossScaleOptimizer`, the outer one.
        variables: all or some of the variables for which the optimizer was built.
    """
    known = trained_variables(optimizer)
    vars(optimizer).pop("stateless_apply", None)
    if list(map(id, variables)) == list(map(id, known)):
        return
    apply = optimizer.stateless_apply
    index = {id(v): i for i, v in enumerate(variables)}
    places = [index.get(id(v)) for v in known]

    def apply_to_some(
        state: list[object], gradients: list[object], values: list[object]
    ) -> tuple[list[object], list[object]]:
        from keras import ops

        if not gradients:
            return values, state
        all_values = [
            ops.zeros(v.shape, v.dtype) if i is None else values[i]
            for v, i in zip(known, places, strict=True)
        ]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Gradients do not exist for variables")
            updated, state = apply(
                state, [None if i is None else gradients[i] for i in places], all_values
            )
        return [updated[places.index(i)] for i in range(len(variables))], state

    optimizer.stateless_apply = apply_to_some


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

    Raises:
        ValueError: from the functions of the optimizer, if a variable is in no group.
    """
    factors = {id(v): factor for factor, variables in groups for v in variables}
    update = optimizer._backend_update_step

    def factor_of(variable: Any) -> float:
        if id(variable) not in factors:
            raise ValueError(
                f"the optimizer has no learning rate for {variable.path}, which was made or became "
                "trainable after layer_decay was called: change the model first, then call "
                "layer_decay with a new optimizer"
            )
        return factors[id(variable)]

    def scaled_update(gradients: Any, variables: Any, learning_rate: Any) -> None:
        chosen: dict[float, list[Any]] = {}
        for pair in zip(gradients, variables, strict=True):
            chosen.setdefault(factor_of(pair[1]), []).append(pair)
        for factor, pairs in chosen.items():
            update(*map(list, zip(*pairs, strict=True)), learning_rate * factor)

    def scaled_decay(variables: Any) -> None:
        chosen: dict[float, list[Any]] = {}
        for variable in variables:
            chosen.setdefault(factor_of(variable), []).append(variable)
        for factor, group in chosen.items():
            type(optimizer)._apply_weight_decay(_OwnDecay(optimizer, factor), group)

    optimizer._backend_update_step, optimizer._apply_weight_decay = scaled_update, scaled_decay


class _OwnDecay:
    """An optimizer whose weight decay is multiplied by a factor.

    The attribute of the optimizer itself stays: replicas are traced in threads that take turns,
    and each would read what another has set.
    """

    def __init__(self, optimizer: "keras.Optimizer", factor: float):
        rate = optimizer.weight_decay
        self.optimizer = optimizer
        self.weight_decay = None if rate is None else rate * factor

    def __getattr__(self, name: str) -> Any:
        return getattr(self.optimizer, name)


def updates_are_scaled(optimizer: "keras.Optimizer") -> bool:
    """Whether `scale_updates` was called for the optimizer."""
    return "_backend_update_step" in vars(optimizer)
