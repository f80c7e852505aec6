"""A model of the layers of another one: with a head, or a part of it."""

from typing import Any

import keras

from keras_tfm.models.model import Model
from keras_tfm.models.quantization.state import quantization_of, set_quantization


def derived_model(model: keras.Model, inputs: Any, outputs: Any, name: str | None = None) -> Model:
    """A model of layers of `model`, and new ones, that rounds its weights as `model` does.

    Args:
        model: functional model. Rounded by `models.enable_quantization`, or of a quantized
            checkpoint, it shares its grids; the weights of new layers are rounded, too, as in its
            file.
        inputs, outputs: see `keras_tfm.Model`.
        name: str, default: that of `model`.

    Example:

    >>> import numpy as np
    >>> from keras_tfm import models
    >>> from keras_tfm.models.derived_model import derived_model
    >>> gpt = models.gpt(50, dim=32, num_layers=1, num_heads=2, max_length=8)
    >>> models.enable_quantization(gpt, "int4")
    5
    >>> same = derived_model(gpt, gpt.input, gpt.output)
    >>> tokens = np.array([[3, 4, 5]])
    >>> bool(np.array_equal(same(tokens), gpt(tokens)))
    True
    """
    result = Model(inputs, outputs, name=model.name if name is None else name)
    state = quantization_of(model)
    if state is not None:
        set_quantization(result, state.of_derived(result))
    return result
