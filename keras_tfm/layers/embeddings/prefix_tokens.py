"""Learned tokens before a sequence: class, distillation and register tokens."""

import math
from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers.arguments import as_initializer, check_sequence
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.types import Initializer, Shape, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class PrefixTokens(RematerializedLayer):
    """Inserts learned tokens into a sequence, the same ones for every row.

    y = [x_1, ..., x_i, c_1, ..., c_P, x_i+1, ..., x_T]. The class token of ViT (arXiv:2010.11929),
    with the distillation token of DeiT (arXiv:2012.12877), or the registers of DINOv2
    (arXiv:2309.16588).

    Args:
        count: int, number of tokens (P).
        index: int (i), number of tokens of the sequence that stay before them.
        initializer: initializer of the tokens (P, D). Default: normal with standard deviation 0.02.

    Call arguments:
        x: float tensor (B, T, D), or (B, H', W', D) from a `PatchEmbedding`, whose rows of patches
            are then concatenated.

    Returns:
        Float tensor (B, P + T, D). A mask of `x` is extended: the inserted tokens are not masked.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or a sequence shorter than `index`.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import PrefixTokens
    >>> tuple(PrefixTokens(count=1)(np.zeros((2, 3, 5, 8), "float32")).shape)
    (2, 16, 8)
    """

    def __init__(
        self, count: int = 1, index: int = 0, initializer: Initializer | None = None, **kwargs: Any
    ):
        super().__init__(**kwargs)
        check_integer("count", count)
        check_integer("index", index, minimum=0)
        self.count = count
        self.index = index
        if initializer is None:
            initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.initializer = as_initializer("initializer", initializer)

    def build(self, x_shape: Shape) -> None:
        """Creates the tokens for a sequence of width D."""
        check_sequence(self, "x", x_shape)
        self.tokens = self.add_weight(
            name="tokens", shape=(self.count, x_shape[-1]), initializer=self.initializer
        )
        self.built = True

    def call(self, x: Tensor) -> Tensor:
        """(B, T, D) or (B, H', W', D) -> (B, P + T, D)."""
        x = as_sequence(x)
        length = x.shape[1]
        if length is not None and length < self.index:
            raise ValueError(f"{self.name}: index={self.index} is beyond a sequence of {length}")
        tokens = ops.cast(ops.expand_dims(self.tokens, 0), x.dtype)
        tokens = ops.broadcast_to(tokens, (ops.shape(x)[0], self.count, x.shape[-1]))
        if self.index == 0:
            return ops.concatenate([tokens, x], axis=1)
        return ops.concatenate([x[:, : self.index], tokens, x[:, self.index :]], axis=1)

    def compute_mask(self, x: Tensor, previous_mask: Tensor | None = None) -> Tensor | None:
        """The mask of the output, (B, P + T), if `x` has a mask."""
        if previous_mask is None:
            return None
        new = ops.ones_like(previous_mask[:, :1])
        new = ops.repeat(new, self.count, axis=1)
        before, after = previous_mask[:, : self.index], previous_mask[:, self.index :]
        return ops.concatenate([before, new, after], axis=1)

    def compute_output_shape(self, x_shape: Shape) -> Shape:
        """(B, P + T, D)."""
        axes = x_shape[1:-1]
        length = None if None in axes else self.count + math.prod(axes)
        return (x_shape[0], length, x_shape[-1])


def as_sequence(x: Tensor) -> Tensor:
    """(B, H', W', D) -> (B, H' W', D), row by row; a sequence is returned unchanged."""
    if len(x.shape) == 3:
        return x
    axes = x.shape[1:-1]
    length = -1 if None in axes else math.prod(axes)
    batch = x.shape[0]
    if batch is None:
        batch = ops.shape(x)[0] if length == -1 else -1
    return ops.reshape(x, (batch, length, x.shape[-1]))
