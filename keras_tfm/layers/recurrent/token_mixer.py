"""The base of layers that take the place of self-attention in a decoder block."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.layers.arguments import as_initializer, check_sequence
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.finite_padding import finite_padding
from keras_tfm.layers.multi_head_attention import masks
from keras_tfm.layers.target import current_target
from keras_tfm.layers.types import Config, Initializer, Shape, Tensor


class TokenMixer(RematerializedLayer):
    """A causal layer (B, T, D) -> (B, T, D) whose state does not grow with the tokens.

    A base class: use `ShortConvolution`, `GatedDeltaNet` or `Mamba2`, as `self_attention`
    of a `TransformerDecoderBlock` or alone.

    Args:
        kernel_initializer: initializer of every kernel.
        bias_initializer: initializer of every bias.

    Attributes:
        causal, merged, key_value: as of `MultiHeadSelfAttention`, for the block.
    """

    causal = True
    merged = False
    key_value = "own"

    def __init__(
        self,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.kernel_initializer = as_initializer("kernel_initializer", kernel_initializer)
        self.bias_initializer = as_initializer("bias_initializer", bias_initializer)
        self.supports_masking = True

    def _check_input(self, x_shape: Shape) -> None:
        check_sequence(self, "x", x_shape)
        if len(x_shape) != 3:
            raise ValueError(f"{self.name}: x must have shape (B, T, D), got {tuple(x_shape)}")

    @staticmethod
    def _finite(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The input without what is not finite in padding, and its mask, checked."""
        mask = masks.key_mask("mask", mask, x)
        return finite_padding(x, mask, causal=True), mask

    @staticmethod
    def _project(dense: Any, x: Tensor, *widths: int) -> tuple[Tensor, ...]:
        """The outputs of a `Projection`, split: (..., width) for each of the widths."""
        ends = np.cumsum(widths).tolist()
        if current_target.get().is_edge and getattr(dense, "quantization_mode", None) is None:
            # Products with constant kernels: XNNPACK would copy the parts of one product.
            return tuple(
                dense.columns(x, end - width, end) for width, end in zip(widths, ends, strict=True)
            )
        return tuple(ops.split(dense(x), ends[:-1], axis=-1))

    def compute_output_shape(self, x_shape: Shape) -> Shape:
        """The shape of the input."""
        return x_shape

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
        }
