"""What is exported computes in float32, whatever the model was trained in."""

import logging

import keras

from keras_tfm.keras_internals import sublayers
from keras_tfm.models import with_dtype

_log = logging.getLogger(__name__)

HALVES = ("float16", "bfloat16")


def in_float32(model: keras.Model) -> keras.Model:
    """The model itself, or where a layer computes in half precision a copy in float32.

    Raises:
        ValueError: a layer computes in float64, or in half precision whatever its policy.
    """
    if _first(model, HALVES) is not None:
        _log.info("making %s again in float32", model.name)
        model = with_dtype(model, "float32")
    other = _first(model, (*HALVES, "float64"))
    if other is not None:
        raise ValueError(
            f"export needs layers that compute in float32, got {other.name} in "
            f"{other.compute_dtype}: make the model again with dtype='float32' and set_weights"
        )
    return model


def _first(model: keras.Model, dtypes: tuple[str, ...]) -> keras.layers.Layer | None:
    return next((layer for layer in sublayers(model) if layer.compute_dtype in dtypes), None)
