"""Removes a padding mask."""

from typing import Any

import keras
from keras import ops

from keras_tfm.layers.rematerialized import RematerializedLayer

Tensor = Any


@keras.saving.register_keras_serializable("keras_tfm")
class Unmasked(RematerializedLayer):
    """Returns its input without the padding mask.

    For a decoder whose start token is the padding id, as in Marian and Pegasus: with the mask
    of `TokenEmbedding(mask_id=...)`, attention would ignore the start token. Padding after a text
    needs no mask there, since causal attention does not see it.

    Call arguments:
        inputs: tensor of any shape.

    Returns:
        The input.

    Example:

    >>> import keras
    >>> from keras_tfm.layers import TokenEmbedding, Unmasked
    >>> x = TokenEmbedding(11, 4, mask_id=7)(keras.Input((None,), dtype="int32"))
    >>> Unmasked()(x).shape
    (None, None, 4)
    """

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.supports_masking = True

    def compute_mask(self, inputs: Tensor, mask: Tensor | None = None) -> None:
        """None."""
        return

    def call(self, inputs: Tensor) -> Tensor:
        """(...) -> (...)."""
        return ops.copy(inputs)  # the same tensor would still carry its mask

    def compute_output_shape(self, inputs_shape: Any) -> Any:
        """The shape of the input."""
        return inputs_shape
