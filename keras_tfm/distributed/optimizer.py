"""The optimizer of a model: its loss scale, and the weights that it trains.

`trainable` and adapters change these after `compile`.
"""

from typing import Any

import keras

from keras_tfm import optimizer_internals
from keras_tfm.keras_internals import sublayers

Config = dict[str, Any]

# Of a compile configuration: the weights for which the optimizer was built, by their number.
_KEY = "optimizer_weights"


def scale_loss_of_half_precision(model: keras.Model) -> None:
    """Gives a compiled model a `LossScaleOptimizer` if one of its layers computes in float16.

    Keras checks only the model's own policy, not that of layers with a `dtype` of their own.

    >>> import keras
    >>> from keras_tfm.distributed.optimizer import scale_loss_of_half_precision
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, dtype="mixed_float16")])
    >>> model.compile("sgd", "mse")
    >>> scale_loss_of_half_precision(model)
    >>> type(model.optimizer).__name__
    'LossScaleOptimizer'
    """
    optimizer = model.optimizer
    if optimizer is None or isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return
    layers = [model, *sublayers(model)]
    if any(layer.dtype_policy.name == "mixed_float16" for layer in layers):
        model.optimizer = keras.optimizers.LossScaleOptimizer(optimizer)


def innermost(optimizer: keras.Optimizer) -> keras.Optimizer:
    """The optimizer inside a `LossScaleOptimizer`, or else the optimizer itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def ids_of_trained_weights(model: keras.Model) -> tuple[int, ...]:
    """The identities of the weights that are trainable now, in their order."""
    return tuple(id(v) for v in model.trainable_variables)


def check_trained_weights(model: keras.Model) -> None:
    """Raises if the model's optimizer cannot train the weights that are trainable now.

    Raises:
        ValueError: weights are new to a built optimizer, or some are frozen of which it keeps
            moving averages.
    """
    optimizer = innermost(model.optimizer)
    if optimizer is None or not optimizer.built:
        return
    weights, known = model.trainable_variables, optimizer_internals.trained_variables(optimizer)
    ids = {id(v) for v in known}
    new = [v.path for v in weights if id(v) not in ids]
    if new or (optimizer.use_ema and len(weights) != len(known)):
        what = f"{len(new)} are new, the first is {new[0]}" if new else "some are frozen"
        raise ValueError(
            f"the trainable weights of {model.name} are not those of its optimizer: {what}; "
            "call compile again, with a new optimizer"
        )


def with_optimizer_weights(model: keras.Model, config: Config) -> Config:
    """A compile configuration that knows for which weights the optimizer was built.

    Those that were frozen since are among them, and a file has their moments. Not beside adapters,
    which a file has merged into other weights.
    """
    optimizer = innermost(model.optimizer) if config else None
    if optimizer is None or not optimizer.built:
        return config
    if any(getattr(x, "lora_enabled", False) for x in sublayers(model)):
        return config
    known = [id(v) for v in optimizer_internals.trained_variables(optimizer)]
    numbers = {id(v): i for i, v in enumerate(model.weights)}
    if tuple(known) == ids_of_trained_weights(model) or not numbers.keys() >= set(known):
        return config
    return {**config, _KEY: [numbers[i] for i in known]}


def compile_with_optimizer_weights(model: keras.Model, config: Config) -> None:
    """Compiles a model with what `with_optimizer_weights` returned, and builds the optimizer."""
    rest = {key: x for key, x in config.items() if key != _KEY}
    model.compile(**keras.saving.deserialize_keras_object(rest))
    if model.built and model.optimizer is not None:
        weights, numbers = model.weights, config.get(_KEY)
        trained = model.trainable_variables if numbers is None else [weights[i] for i in numbers]
        model.optimizer.build(trained)
