"""One vector for a text: the features of its first end token."""

from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers.arguments import check_sequence
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.finite_padding import finite_padding
from keras_tfm.layers.types import Shape, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class EndTokenPooling(RematerializedLayer):
    """Takes the features of the first end token of each row: (B, T, D) -> (B, D).

    With causal attention, the end token is the only one that sees the whole text, and padding after
    it has no effect. CLIP (arXiv:2103.00020), section 2.4.

    Args:
        end_id: int, id of the end token. Default: the largest id of each row, as in the original
            CLIP, whose end token has the last id of the vocabulary.

    Call arguments:
        inputs: float tensor (B, T, D), features.
        tokens: integer tensor (B, T), the ids.

    Returns:
        Float tensor (B, D). For a row without an end token, the features of the first token, as in
        transformers.

    Raises:
        ValueError: `end_id` is negative; inputs that are not (B, T, D), or tokens of another shape.
        TypeError: `end_id` is not an integer.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import EndTokenPooling
    >>> x = np.array([[[1.0], [2.0], [3.0], [4.0]]], "float32")
    >>> tokens = np.array([[5, 7, 2, 2]])
    >>> np.asarray(EndTokenPooling(end_id=2)(x, tokens)).tolist()
    [[3.0]]
    """

    def __init__(self, end_id: int | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        check_integer("end_id", end_id, minimum=0, optional=True)
        self.end_id = end_id

    def build(self, inputs_shape: Shape, tokens_shape: Shape) -> None:
        """Checks the shapes; there are no weights."""
        check_sequence(self, "inputs", inputs_shape)
        pairs = list(zip(inputs_shape[:2], tokens_shape, strict=False))
        if len(tokens_shape) != 2 or any(a != b for a, b in pairs if None not in (a, b)):
            raise ValueError(
                f"{self.name}: tokens must have the shape {tuple(inputs_shape[:2])} of the "
                f"inputs, got {tuple(tokens_shape)}"
            )
        self.built = True

    def compute_mask(self, inputs: Tensor, *_: object, **__: object) -> None:
        """None: the result has no time axis."""
        return

    def call(self, inputs: Tensor, tokens: Tensor) -> Tensor:
        """(B, T, D), (B, T) -> (B, D)."""
        end = ops.max(tokens, axis=1, keepdims=True) if self.end_id is None else self.end_id
        # Integers up to the weights: LiteRT's full int8 gives wrong results for argmax and one_hot.
        is_end = ops.cast(ops.equal(tokens, end), "int32")
        is_missing = ops.equal(ops.sum(is_end, axis=1, keepdims=True), 0)
        # A row without an end token: the first token counts as one.
        is_end = ops.concatenate(
            [ops.maximum(is_end[:, :1], ops.cast(is_missing, "int32")), is_end[:, 1:]], axis=1
        )
        first = is_end * ops.cast(ops.equal(ops.cumsum(is_end, axis=1), 1), "int32")
        weights = ops.expand_dims(ops.cast(first, inputs.dtype), 1)
        inputs = finite_padding(inputs, first)  # 0 * NaN is NaN
        return ops.squeeze(weights @ inputs, 1)

    def compute_output_shape(self, inputs_shape: Shape, *_: object, **__: object) -> Shape:
        """(B, D)."""
        return (inputs_shape[0], inputs_shape[-1])
