"""The weights that a model trains, which `trainable` and adapters change after `compile`."""

import keras

from keras_tfm import optimizer_internals
from keras_tfm.distributed.global_gradients import innermost


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
