"""The same model in another precision."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

from keras_tfm.keras_internals import object_sharing_scope
from keras_tfm.models.identity import FeaturesMarker
from keras_tfm.models.model import Model

FLOATS = ("float16", "bfloat16", "float32", "mixed_float16", "mixed_bfloat16")


def with_dtype(model: keras.Model, dtype: Any = "float32") -> keras.Model:
    """A copy of a functional model that computes in another dtype, with the same weights.

    What was trained in mixed precision has float32 weights, so nothing is lost by going on in
    float32: on a processor without half precision, or for a comparison. `export_tflite` does it by
    itself.

    Args:
        model: functional, with nested models if need be; it stays as it is.
        dtype: a dtype or dtype policy, for every layer whose policy is of float32 or of half
            precision. Layers of float64, of integers and of strings keep theirs, quantized ones
            too, and what computes in a dtype by its code (`ops.cast(x, "float16")`).

    Returns:
        A model of the same layers' names and weights' values, not compiled.

    Raises:
        TypeError: the model is not functional.
        ValueError: a layer cannot be made again from its `get_config()`, or has other weights then.

    Example:

    >>> from keras_tfm.models import transformer, with_dtype
    >>> model = transformer(11, dim=8, num_layers=1, num_heads=2, dtype="mixed_bfloat16")
    >>> model.output.dtype, with_dtype(model, "float32").output.dtype
    ('bfloat16', 'float32')
    """
    if not hasattr(model, "inputs") or not hasattr(model, "operations"):
        raise TypeError(
            "expected a functional keras.Model (made of keras.Input and layers), "
            f"got {type(model).__name__}"
        )
    wanted_policy = keras.dtype_policies.get(dtype)
    policy = keras.dtype_policies.serialize(wanted_policy)

    configs: dict[int, dict[str, Any]] = {}

    def again(layer: Any) -> Any:
        if not isinstance(layer, keras.layers.Layer):
            return layer  # an operation, without weights
        with _naming(layer, policy):
            config = _replaced(configs[id(layer)], policy)
            if isinstance(layer, FeaturesMarker):
                config = _with_dtype_argument(config, policy)
            return type(layer).from_config(config)

    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(wanted_policy)  # of models, and of layers that layers make
    try:
        # Of the same graph without what was compiled, which would be copied, too.
        kind = Model if isinstance(model, Model) else keras.Model
        plain = kind(model.input, model.output, name=model.name)
        # A part that several layers share, as the position bias of T5's blocks, is made once. All
        # configurations come first: the second of a part marks that of the first.
        with object_sharing_scope():
            for layer in _leaf_layers(plain):
                with _naming(layer, policy):
                    configs[id(layer)] = layer.get_config()
            copy = keras.models.clone_model(plain, clone_function=again, recursive=True)
    finally:
        keras.config.set_dtype_policy(before)
    found, wanted = ([f"{x.name} {tuple(x.shape)}" for x in m.weights] for m in (copy, model))
    if found != wanted:
        raise ValueError(
            f"{model.name} cannot be made again in {_name(policy)} from its layers' get_config(): "
            f"expected the weights {wanted}, got {found}"
        )
    for new, old in zip(copy.weights, model.weights, strict=True):
        new.assign(keras.ops.cast(old, new.dtype))
    return copy


def _leaf_layers(model: keras.Model) -> Iterator[keras.layers.Layer]:
    """The layers of a functional model and of the functional models in it."""
    for layer in model.layers:
        if hasattr(layer, "operations") or isinstance(layer, keras.Sequential):
            yield from _leaf_layers(layer)
        else:
            yield layer


@contextmanager
def _naming(layer: keras.layers.Layer, policy: dict[str, Any]) -> Iterator[None]:
    """Names the layer in every error."""
    try:
        yield
    except Exception as error:
        raise ValueError(
            f"{layer.name} cannot be made again in {_name(policy)} from its get_config(): {error}"
        ) from error


def _replaced(config: Any, policy: dict[str, Any]) -> Any:
    """A layer's configuration with another policy wherever one of floats stands."""
    if isinstance(config, dict):
        if config.get("class_name") == "DTypePolicy" and _name(config) in FLOATS:
            return policy
        return {key: _replaced(value, policy) for key, value in config.items()}
    if isinstance(config, list | tuple):
        return type(config)(_replaced(value, policy) for value in config)
    return config


def _with_dtype_argument(config: dict[str, Any], policy: dict[str, Any]) -> dict[str, Any]:
    """A marker's configuration whose model's argument `dtype` is the new policy, too."""
    arguments = config["arguments"]
    if "dtype" not in arguments or arguments["dtype"] not in (None, *FLOATS):
        return config
    return {**config, "arguments": {**arguments, "dtype": _name(policy)}}


def _name(policy: dict[str, Any]) -> str:
    return str(policy["config"]["name"])
