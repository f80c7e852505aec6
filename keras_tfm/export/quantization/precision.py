"""Exports compute in float32, even if the model was trained in half precision.

Example:

>>> from keras_tfm.export.quantization.precision import in_float32
>>> from keras_tfm.models import gpt
>>> size = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 16, "max_length": 4}
>>> in_float32(gpt(11, **size, dtype="mixed_bfloat16")).output.dtype
'float32'
"""

import logging
from collections.abc import Mapping

import keras

from keras_tfm.export.quantization.trained_weights import rounded_copy, with_rounded_parts
from keras_tfm.keras_internals import functional_of, sublayers
from keras_tfm.models import with_dtype
from keras_tfm.models.quantization.state import is_quantized, quantization_of
from keras_tfm.models.with_dtype import copy_adapters, dequantize, float32_view
from keras_tfm.models.without_storage import has_many_weights

_log = logging.getLogger(__name__)

HALVES = ("float16", "bfloat16")


def quantized_models(models: Mapping[str, keras.Model]) -> list[str]:
    """The names of models that Keras's `quantize` rounded, and of which `in_float32` is a copy."""
    return [name for name, model in models.items() if is_quantized(model)]


def in_float32(model: keras.Model, merge_adapters: bool = True) -> keras.Model:
    """The model, or a copy in float32: with merged adapters, or of half precision or quantized.

    Of a model of `models.enable_quantization`, or with one inside, a copy with rounded weights.

    Args:
        model: functional `keras.Model`; of a `keras.Sequential` the one inside is taken.
        merge_adapters: bool, whether LoRA adapters are merged into the kernels of a copy, as
            `with_dtype` does; otherwise a copy has adapters of its own.

    Raises:
        ValueError: a layer computes in float64, or in half precision regardless of its policy;
            or its adapters must stay apart from kernels that Keras quantized, or be merged into
            rounded ones.
    """
    model = functional_of(model)
    if quantization_of(model) is not None:
        return rounded_copy(model, merge_adapters)
    if any(quantization_of(x) is not None for x in sublayers(model)):
        model = with_rounded_parts(model, merge_adapters)
    if is_quantized(model):
        if not merge_adapters:
            raise ValueError(
                f"adapters of their own need kernels in float, and {model.name} is quantized by "
                "Keras: export it with separate_adapters=False, which merges them"
            )
        _log.warning(
            "%s is quantized by Keras, which a file cannot run: taking its rounded weights as "
            "floats",
            model.name,
        )
        model = dequantize(model)
    # A kernel with an adapter is a sum in the graph, which the converter does not fold if a layer
    # takes columns of it: it would stay float32 in every preset.
    adapted = merge_adapters and any(getattr(x, "lora_enabled", False) for x in sublayers(model))
    if adapted or _first(model, HALVES) is not None:
        _log.info("copying %s in float32", model.name)
        if not merge_adapters:
            copy = with_dtype(model, "float32")
            copy_adapters(model, copy)
            model = copy
        elif has_many_weights(model):
            model = float32_view(model)
        else:
            model = with_dtype(model, "float32")
    other = _first(model, (*HALVES, "float64"))
    if other is not None:
        raise ValueError(
            f"export needs layers that compute in float32, got {other.name} in "
            f"{other.compute_dtype}: build the model with dtype='float32' and call set_weights"
        )
    return model


def _first(model: keras.Model, dtypes: tuple[str, ...]) -> keras.layers.Layer | None:
    return next((layer for layer in sublayers(model) if layer.compute_dtype in dtypes), None)
