"""A learned bias of the logits."""

from typing import Any

import keras
from keras import ops

from keras_tfm.layers.arguments import as_initializer
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.types import Initializer, Shape, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class OutputBias(RematerializedLayer):
    """Adds a learned bias to the last axis of its input.

    y = x + b. For the logits of `TokenEmbedding(reverse=True)` in models whose tied output has a
    bias, such as BERT (arXiv:1810.04805).

    Args:
        initializer: initializer of b. Default: zeros.

    Call arguments:
        inputs: float tensor (..., V).

    Returns:
        Float tensor (..., V).

    Raises:
        ValueError: V is unknown when the layer is built.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import OutputBias
    >>> tuple(OutputBias()(np.ones((2, 5, 11), "float32")).shape)
    (2, 5, 11)
    """

    def __init__(self, initializer: Initializer = "zeros", **kwargs: Any):
        super().__init__(**kwargs)
        self.initializer = as_initializer("initializer", initializer)

    def build(self, inputs_shape: Shape) -> None:
        """Creates b for inputs of width V."""
        if inputs_shape[-1] is None:
            raise ValueError(f"OutputBias expects a known last axis, got shape {inputs_shape}")
        self.bias = self.add_weight(
            name="bias", shape=(inputs_shape[-1],), initializer=self.initializer
        )
        self.built = True

    def call(self, inputs: Tensor) -> Tensor:
        """(..., V) -> (..., V)."""
        return inputs + ops.cast(self.bias, inputs.dtype)
