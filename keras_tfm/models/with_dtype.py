"""Copies a model in another precision, or with the floats that quantized weights stand for."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.keras_internals import (
    float_kernel,
    functional_of,
    lambda_output_shape,
    object_sharing_scope,
    read_value,
    read_when_used,
    sublayers,
)
from keras_tfm.layers.types import Config, DType, Tensor
from keras_tfm.models.identity import Marker
from keras_tfm.models.model import Model
from keras_tfm.models.quantization.state import (
    rounded_beside_adapters,
    saved_quantization,
    set_quantization,
)
from keras_tfm.models.without_storage import allocate, is_large, without_storage

# Keras's attributes of a layer with LoRA.
ADAPTERS = ("lora_kernel_a", "lora_kernel_b", "lora_embeddings_a", "lora_embeddings_b")
# The names that Keras gives to weights without one.
_UNNAMED = re.compile(r"^(\w*variable)_\d+$")
FLOATS = ("float16", "bfloat16", "float32", "mixed_float16", "mixed_bfloat16")


def with_dtype(model: keras.Model, dtype: DType = "float32") -> keras.Model:
    """Copies a functional model with the same weights and another dtype policy.

    A model trained in mixed precision has float32 weights, so a float32 copy loses nothing. It is
    useful on processors without half precision and for comparisons. `export_tflite` makes such a
    copy itself.

    Args:
        model: functional model, possibly with nested models. It is not changed.
        dtype: dtype or dtype policy for all layers with a float32 or half-precision policy. Layers
            in float64, integers or strings and quantized layers keep their policy. A dtype that is
            fixed in code, such as `ops.cast(x, "float16")`, stays too.

    Returns:
        A model with the same layer names and weights, not compiled. LoRA adapters (`enable_lora`)
        are merged into the weights that they adapt; beside rounded weights
        (`enable_quantization`), into these, and the copy is not rounded further.

    Raises:
        TypeError: the model is not functional.
        ValueError: a layer cannot be recreated from its `get_config()`, or its weights differ then.

    Example:

    >>> from keras_tfm.models import transformer, with_dtype
    >>> model = transformer(11, dim=8, num_layers=1, num_heads=2, dtype="mixed_bfloat16")
    >>> model.output.dtype, with_dtype(model, "float32").output.dtype
    ('bfloat16', 'float32')
    """
    model = functional_of(model)
    copy, values = _copy(model, dtype)
    with rounded_beside_adapters(model):
        for variable, value in values:
            # On JAX, a model gives its arrays away when it predicts: no two may share one.
            variable.assign(ops.copy(ops.cast(value(), variable.dtype)))
    read_statistics(copy)
    state = saved_quantization(model)
    if state is not None:
        set_quantization(copy, state.copy(copy))
    return copy


def float32_view(model: keras.Model) -> keras.Model:
    """A copy in float32 that reads large weights from the model each time they are used.

    These weights need no further memory, and nothing can be assigned to them. In all else the copy
    equals that of `with_dtype`.

    Args:
        model: functional model without rounded weights (`enable_quantization`).

    Raises:
        TypeError, ValueError: as in `with_dtype`.

    Example:

    >>> from keras_tfm.models import gpt
    >>> from keras_tfm.models.with_dtype import float32_view
    >>> size = {"dim": 256, "num_layers": 1, "num_heads": 2, "max_length": 4}
    >>> model = gpt(500, **size, dtype="bfloat16")
    >>> view = float32_view(model)
    >>> model.layers[1].embeddings.assign(0 * model.layers[1].embeddings)  # doctest: +ELLIPSIS
    <...>
    >>> float(abs(view.layers[1].embeddings.numpy()).max())
    0.0
    """
    with without_storage():
        copy, values = _copy(functional_of(model), "float32")
    allocate(copy, [variable for variable, _ in values if is_large(variable)])
    for variable, value in values:
        if is_large(variable):
            read_when_used(variable, partial(_float32, value))
        else:
            variable.assign(_float32(value))
    read_statistics(copy)
    return copy


def _float32(value: Callable[[], Tensor]) -> np.ndarray:
    """A weight as an array, a view of its memory if it can be."""
    found = value()
    if isinstance(found, keras.Variable):
        result: np.ndarray = read_value(found)
    else:
        result = ops.convert_to_numpy(found)
    return result.astype("float32", copy=False)


def _copy(
    model: keras.Model, dtype: DType
) -> tuple[keras.Model, list[tuple[keras.Variable, Callable[[], Tensor]]]]:
    """The model of other policies, and each of its weights with what returns its value."""
    if not hasattr(model, "inputs") or not hasattr(model, "operations"):
        raise TypeError(
            "expected a functional keras.Model (made of keras.Input and layers), "
            f"got {type(model).__name__}"
        )
    wanted_policy = keras.dtype_policies.get(dtype)
    policy = keras.dtype_policies.serialize(wanted_policy)

    def change(layer: keras.Layer, config: Config) -> Config:
        config = _replace_policies(config, policy)
        if isinstance(layer, Marker):
            config = _with_dtype_argument(config, policy)
        return config

    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(wanted_policy)  # for models, and layers created inside layers
    try:
        plain, copy = recreate(model, change, f"in {_name(policy)}")
    finally:
        keras.config.set_dtype_policy(before)
    adapted = [
        (x, y)
        for x, y in zip(sublayers(plain), sublayers(copy), strict=True)
        if getattr(x, "lora_enabled", False) and x.quantization_mode is None
    ]
    adapters = {id(getattr(x, y)) for x, _ in adapted for y in ADAPTERS if hasattr(x, y)}
    weights = [x for x in model.weights if id(x) not in adapters]
    found, wanted = (list(map(_name_and_shape, x)) for x in (copy.weights, weights))
    if found != wanted:
        raise ValueError(
            f"{model.name} cannot be recreated in {_name(policy)} from its layers' get_config(): "
            f"expected the weights {wanted}, got {found}"
        )
    values = {
        id(new): (new, partial(_itself, old))
        for new, old in zip(copy.weights, weights, strict=True)
    }
    for layer, new in adapted:
        name = "kernel" if hasattr(layer, "kernel") else "embeddings"
        variable = getattr(new, name)
        values[id(variable)] = variable, partial(_merge, layer, name)
    return copy, [*values.values()]


def _itself(weight: keras.Variable) -> keras.Variable:
    return weight


def _name_and_shape(weight: keras.Variable) -> str:
    """Without the number that Keras gives to a weight without a name: it counts the process's."""
    name = _UNNAMED.sub(r"\1", weight.name)
    return f"{name} {tuple(weight.shape)}"


def _merge(layer: keras.Layer, name: str) -> Any:
    """W + alpha / r A B, which Keras's getter rounds to the dtype that the layer computes in."""
    weight = next(x for x in layer.variables if x.name == name)
    wide = keras.backend.result_type(weight.dtype, "float32")
    weight, a, b = (
        ops.cast(x, wide)
        for x in (weight, getattr(layer, f"lora_{name}_a"), getattr(layer, f"lora_{name}_b"))
    )
    return weight + layer.lora_alpha / layer.lora_rank * ops.matmul(a, b)


def recreate(
    model: keras.Model, change: Callable[[Any, Config], Config], form: str
) -> tuple[keras.Model, keras.Model]:
    """Creates the layers of a functional model again, with other configurations.

    Args:
        model: functional model.
        change: function of a layer and its configuration that returns the new configuration.
        form: str, what is different, for errors, such as "in float32".

    Returns:
        The same graph as the model's without its compile state, and the new model.
    """
    configs: dict[int, Config] = {}

    def recreate_layer(layer: keras.Layer) -> keras.Layer:
        if not isinstance(layer, keras.layers.Layer):
            return layer  # an operation, without weights
        with _naming(layer, form):
            config = change(layer, configs[id(layer)])
            if isinstance(layer, keras.layers.Lambda):
                new = type(layer)(**config, **_functions(layer))
            else:
                new = type(layer).from_config(config)
            _copy_vocabulary(layer, new)
            return new

    # The same graph without the compile state, which would be copied too.
    kind = Model if isinstance(model, Model) else keras.Model
    plain = kind(model.input, model.output, name=model.name)
    # A part that several layers share, such as T5's position bias, is created only once. All
    # configurations are read first: the second one of a shared part updates the first.
    with object_sharing_scope():
        for layer in _leaf_layers(plain):
            with _naming(layer, form):
                config = layer.get_config()
                unused = _functions(layer) if isinstance(layer, keras.layers.Lambda) else ()
                configs[id(layer)] = {key: config[key] for key in config if key not in unused}
        copy = keras.models.clone_model(plain, clone_function=recreate_layer, recursive=True)
    return plain, copy


def _functions(layer: keras.layers.Lambda) -> Config:
    """The arguments of a `Lambda` that are functions, or tensors: Keras refuses to load lambdas."""
    arguments = {"function": layer.function, "mask": layer.mask, "arguments": layer.arguments}
    return arguments | {"output_shape": lambda_output_shape(layer)}


def _copy_vocabulary(layer: keras.Layer, new: keras.Layer) -> None:
    """Gives a lookup the vocabulary that `adapt` found, which is in no configuration."""
    if not isinstance(layer, keras.layers.IntegerLookup | keras.layers.StringLookup):
        return
    if layer.get_config()["vocabulary"] is not None:
        return
    tokens = layer.get_vocabulary(include_special_tokens=False)
    weights = None
    if layer.output_mode == "tf_idf":
        special = layer.vocabulary_size() - len(tokens)
        weights = ops.convert_to_numpy(layer.idf_weights)[special:][: len(tokens)]
    new.set_vocabulary(tokens, weights)


def read_statistics(model: keras.Model) -> None:
    """Lets layers that keep tensors made of their weights, as `Normalization`, read these again."""
    for layer in sublayers(model):
        if isinstance(layer, keras.layers.Normalization):
            layer.finalize_state()


def copy_adapters(model: keras.Model, copy: keras.Model) -> None:
    """Gives a copy by `with_dtype`, which merged the adapters, the model's kernels and adapters.

    What is trainable in the model is trainable in the copy.
    """
    for old, new in zip(sublayers(model), sublayers(copy), strict=True):
        if getattr(old, "lora_enabled", False):
            new.enable_lora(old.lora_rank, lora_alpha=old.lora_alpha)
            for source, variable in zip(old.weights, new.weights, strict=True):
                variable.assign(ops.cast(source, variable.dtype))
    for source, variable in zip(model.variables, copy.variables, strict=True):
        variable.trainable = source.trainable


def _leaf_layers(model: keras.Model) -> Iterator[keras.layers.Layer]:
    """The layers of a functional model and of the functional models in it."""
    for layer in model.layers:
        if hasattr(layer, "operations") or isinstance(layer, keras.Sequential):
            yield from _leaf_layers(layer)
        else:
            yield layer


@contextmanager
def _naming(layer: keras.layers.Layer, form: str) -> Iterator[None]:
    """Adds the layer's name to every error."""
    try:
        yield
    except Exception as error:
        # Keras adds the code of a layer.
        cause = " ".join(str(error).split("Example:")[0].split()) or type(error).__name__
        raise ValueError(
            f"{layer.name} cannot be recreated {form} from its get_config(): {cause}"
        ) from error


def _replace_policies(config: Any, policy: Config) -> Any:
    """A layer's configuration with every floating-point policy replaced, and without adapters."""
    if isinstance(config, dict):
        if config.get("class_name") == "DTypePolicy" and _name(config) in FLOATS:
            return policy
        return {
            key: None if key in ("lora_rank", "lora_alpha") else _replace_policies(value, policy)
            for key, value in config.items()
        }
    if isinstance(config, list | tuple):
        return type(config)(_replace_policies(value, policy) for value in config)
    return config


def _with_dtype_argument(config: Config, policy: Config) -> Config:
    """A marker's configuration in which the model's argument `dtype` is the new policy too."""
    arguments = config["arguments"]
    if "dtype" not in arguments or arguments["dtype"] not in (None, *FLOATS):
        return config
    return {**config, "arguments": {**arguments, "dtype": _name(policy)}}


def _name(policy: Config) -> str:
    return str(policy["config"]["name"])


def dequantize(model: keras.Model) -> keras.Model:
    """Copies a functional model with float weights: the rounded ones, and LoRA adapters merged.

    Of models that Keras's `quantize` rounded. The outputs differ a little: Keras rounds the inputs
    of quantized layers in every call, too.

    Raises:
        ValueError: a quantized layer is no `keras.layers.Dense` in int8, int4 or float8.

    >>> from keras_tfm.models import gpt
    >>> from keras_tfm.models.quantization.state import is_quantized
    >>> from keras_tfm.models.with_dtype import dequantize
    >>> model = gpt(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, max_length=4)
    >>> model.quantize("int8", filters="dense|projection|query|inner|outer")
    >>> is_quantized(model), is_quantized(dequantize(model))
    (True, False)
    """
    _, copy = recreate(model, lambda layer, config: _plain(config), "without quantization")
    for old, new in zip(_leaves(model), _leaves(copy), strict=True):
        weights = [ops.convert_to_tensor(x) for x in old.weights]
        has_adapter = getattr(old, "lora_enabled", False)
        if getattr(old, "quantization_mode", None) is not None or has_adapter:
            if not isinstance(old, keras.layers.Dense):
                raise ValueError(
                    f"{old.path} ({type(old).__name__}) is quantized by Keras, which has no way "
                    "back for it: use the model as it was before quantize()"
                )
            weights = [float_kernel(old), *([] if old.bias is None else [old.bias])]
        for variable, value in zip(new.weights, weights, strict=True):
            variable.assign(ops.copy(ops.cast(value, variable.dtype)))  # see `with_dtype`
    read_statistics(copy)
    return copy


def _leaves(model: keras.Model) -> list[Any]:
    """The layers with weights of their own, in order."""
    return [x for x in [model, *sublayers(model)] if not sublayers(x)] + [
        _Own(x) for x in sublayers(model) if sublayers(x)
    ]


class _Own:
    """The weights that a layer made itself, without those of its sublayers."""

    def __init__(self, layer: keras.Layer):
        inner = {id(x) for y in sublayers(layer) for x in y.weights}
        self.weights = [x for x in layer.weights if id(x) not in inner]


def _plain(config: Any) -> Any:
    """A configuration without what `quantize` and `enable_lora` wrote into it."""
    if isinstance(config, dict):
        if config.get("class_name") in ("QuantizedDTypePolicy", "QuantizedFloat8DTypePolicy"):
            name = config["config"].get("source_name") or "float32"
            return keras.dtype_policies.serialize(keras.dtype_policies.get(name))
        dropped = ("lora_rank", "lora_alpha", "quantization_config")
        return {
            key: None if key in dropped else _plain(value)
            for key, value in config.items()
            if key != "quantized"
        }
    if isinstance(config, list | tuple):
        return type(config)(_plain(value) for value in config)
    return config
