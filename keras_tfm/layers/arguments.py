"""What layers make of their arguments: initializers, activations, checked shapes."""

from typing import Any

import keras


def as_initializer(name: str, value: Any) -> keras.initializers.Initializer:
    """The initializer that `value` names or is."""
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
    """The activation that `value` names or is."""
    try:
        return keras.activations.get(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from error


def check_sequence(layer: keras.layers.Layer, name: str, shape: Any) -> None:
    """Raises unless `shape` is (B, T, D), or has more leading axes, with a known width."""
    if len(shape) < 3 or shape[-1] is None:
        raise ValueError(
            f"{layer.name}: {name} must have shape (B, T, D) with D known, got {tuple(shape)}"
        )
