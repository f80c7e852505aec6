"""Tells models of KerasHub, whose attention keeps its cache another way and cannot be stepped.

KerasHub is not imported.

Example:

>>> from keras_tfm import models
>>> from keras_tfm.generation.tokenizers.keras_hub_models import is_of_keras_hub, keras_hub_hint
>>> model = models.gpt(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
>>> is_of_keras_hub(model), keras_hub_hint(model)
(False, '')
"""

import keras

from keras_tfm.keras_internals import sublayers

WAY = "docs/from-kerashub.md shows how to get a model of keras_tfm with the same weights"


def is_of_keras_hub(layer: keras.Layer) -> bool:
    """Whether a layer's class, or one that it inherits from, is KerasHub's."""
    return any(cls.__module__.split(".")[0] == "keras_hub" for cls in type(layer).__mro__)


def refuse_keras_hub(model: keras.Model) -> None:
    """Raises for a task or backbone of KerasHub, in which no input can be stepped."""
    if is_of_keras_hub(model):
        raise ValueError(
            f"{model.name!r} is a {type(model).__name__} of KerasHub: it can be exported for "
            f"'predict', but not stepped a token at a time; {WAY}"
        )


def keras_hub_hint(model: keras.Model) -> str:
    """The end of an error about a model with layers of KerasHub; "" for other models."""
    found = next((x for x in [model, *sublayers(model)] if is_of_keras_hub(x)), None)
    return "" if found is None else f"; it has a {type(found).__name__} of KerasHub: {WAY}"
