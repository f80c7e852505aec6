"""Conversion and checks of layer arguments: initializers, activations, input shapes.

Example:

>>> from keras_tfm.layers.arguments import as_activation
>>> as_activation("activation", "gelu").__name__
'gelu'
"""

from typing import Any

import keras


def as_initializer(name: str, value: Any) -> keras.initializers.Initializer:
    """Returns the initializer for an object, a name or a configuration."""
    try:
        result = keras.initializers.get(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from error
    if not isinstance(result, keras.initializers.Initializer):
        raise TypeError(
            f"{name} must be a keras.initializers.Initializer or the name of one, got {value!r}"
        )
    return result


def as_activation(name: str, value: Any) -> Any:
    """Returns the activation for a function, a layer, a name or a configuration."""
    try:
        return keras.activations.get(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from error


def check_sequence(layer: keras.layers.Layer, name: str, shape: Any) -> None:
    """Raises unless `shape` is (B, T, D) with a known D; more leading axes are allowed."""
    if len(shape) < 3 or shape[-1] is None:
        raise ValueError(
            f"{layer.name}: {name} must have shape (B, T, D) with D known, got {tuple(shape)}"
        )
