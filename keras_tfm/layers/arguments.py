"""Conversion and checks of layer arguments: initializers, activations, norms, shapes.

Example:

>>> from keras_tfm.layers.arguments import as_activation
>>> as_activation("activation", "gelu").__name__
'gelu'
"""

from collections.abc import Callable, Collection
from typing import Any

import keras

from keras_tfm.layers.types import Activation, Config, Initializer, Shape, Tensor


def as_initializer(name: str, value: Initializer) -> keras.initializers.Initializer:
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


def as_activation(name: str, value: Activation) -> Callable[[Tensor], Tensor]:
    """Returns the activation for a function, a layer, a name or a configuration."""
    try:
        return keras.activations.get(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from error


def as_norm(name: str, value: keras.Layer | Config | None) -> keras.Layer | None:
    """Returns the normalisation for a layer or its configuration; None stays None."""
    if isinstance(value, dict):
        value = keras.saving.deserialize_keras_object(value)
    if value is not None and not isinstance(value, keras.layers.Layer):
        raise TypeError(f"{name} must be a layer such as RMSNormalization(), got {value!r}")
    return value


def biased_parts(use_bias: bool | Collection[str], names: Collection[str]) -> frozenset[str]:
    """The parts of a layer that add a bias, by name.

    Args:
        use_bias: bool, all or none; or a list of names.
        names: those of all parts.

    >>> from keras_tfm.layers.arguments import biased_parts
    >>> sorted(biased_parts(True, ["inner", "outer"])), sorted(biased_parts(["outer"], ["outer"]))
    (['inner', 'outer'], ['outer'])
    """
    if isinstance(use_bias, bool):
        return frozenset(names if use_bias else ())
    is_list = isinstance(use_bias, Collection) and not isinstance(use_bias, str)
    if not is_list or not set(use_bias) <= set(names):
        raise ValueError(
            f"use_bias must be True, False or a list of {list(names)}, got {use_bias!r}"
        )
    return frozenset(use_bias)


def single_axis(axis: Any) -> Any:
    """The axis of a normalisation as it was given: `build` makes a list of an integer.

    >>> from keras_tfm.layers.arguments import single_axis
    >>> single_axis([-1]), single_axis([-2, -1])
    (-1, [-2, -1])
    """
    return axis[0] if isinstance(axis, list | tuple) and len(axis) == 1 else axis


def serialize_part(part: keras.Layer | None) -> Config | None:
    """The configuration of a layer that belongs to one other layer, which builds it.

    Without `build_config`, so that the weights' paths start with the name of the other layer, and
    without the mark of a shared object: copies of a template have weights of their own.
    """
    if part is None:
        return None
    config: Config = keras.saving.serialize_keras_object(part)
    return {x: y for x, y in config.items() if x not in ("build_config", "shared_object_id")}


def check_sequence(layer: keras.Layer, name: str, shape: Shape) -> None:
    """Raises unless `shape` is (B, T, D) with a known D; more leading axes are allowed."""
    if len(shape) < 3 or shape[-1] is None:
        raise ValueError(
            f"{layer.name}: {name} must have shape (B, T, D) with D known, got {tuple(shape)}"
        )
