"""Float copies of models that Keras's `quantize` rounded.

Example:

>>> from keras_tfm.models import gpt
>>> from keras_tfm.models.dequantize import dequantize, is_quantized
>>> model = gpt(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, max_length=4)
>>> model.quantize("int8", filters="dense|projection|query|inner|outer")
>>> is_quantized(model), is_quantized(dequantize(model))
(True, False)
"""

from typing import Any

import keras
from keras import ops

from keras_tfm.keras_internals import float_kernel, sublayers
from keras_tfm.models.with_dtype import recreate


def is_quantized(model: keras.Model) -> bool:
    """Whether `quantize` changed a layer of the model."""
    return any(getattr(x, "quantization_mode", None) is not None for x in sublayers(model))


def dequantize(model: keras.Model) -> keras.Model:
    """Copies a functional model with float weights: the rounded ones, and LoRA adapters merged.

    Its outputs differ a little: Keras rounds the inputs of quantized layers in every call, too.

    Raises:
        ValueError: a quantized layer is no `keras.layers.Dense` in int8, int4 or float8.
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
