"""The base of layers that take the place of self-attention in a decoder block."""

from typing import Any

import numpy as np
from keras import ops

from keras_tfm.layers.arguments import as_initializer, check_sequence
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.decoding.scope import current_scope
from keras_tfm.layers.finite_padding import finite_padding
from keras_tfm.layers.multi_head_attention import masks
from keras_tfm.layers.target import current_target
from keras_tfm.layers.types import Initializer, Shape, Size, Tensor


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

    def _check_input(self, x_shape: Shape) -> None:
        check_sequence(self, "x", x_shape)
        if len(x_shape) != 3:
            raise ValueError(f"{self.name}: x must have shape (B, T, D), got {tuple(x_shape)}")

    def call(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        mask = masks.key_mask("mask", mask, x)
        x = finite_padding(x, mask, causal=True)
        more = _missing(x)
        if more is None:
            return self._mix(x, mask)
        rows, length = (x.shape[i] if x.shape[i] is not None else ops.shape(x)[i] for i in (0, 1))
        x = ops.pad(x, [(0, more[0]), (0, more[1]), (0, 0)])
        mask = None if mask is None else ops.pad(mask, [(0, more[0]), (0, more[1])])
        return self._mix(x, mask)[:rows, :length]

    def _mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """(B, T, D) -> (B, T, D), neither B nor T being 0; padding is finite."""
        raise NotImplementedError(f"{type(self).__name__} does not define _mix()")

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


def _missing(x: Tensor) -> tuple[Size, Size] | None:
    """For x (B, T, D), 1 row if B is 0 and 1 token if T is 0, else 0; None if neither can be 0.

    TensorFlow's depthwise convolution returns the shape of an empty input, and chunks need a token.
    The last batch of an epoch may leave a replica without rows.
    """
    if current_scope.get() is not None or current_target.get().is_edge:
        return None
    more: list[Size] = [0, 0]
    for i in (0, 1):
        if x.shape[i] is None:  # in a graph of TensorFlow
            more[i] = ops.cast(ops.equal(ops.shape(x)[i], 0), "int32")
        elif isinstance(x.shape[i], int) and x.shape[i] == 0:
            more[i] = 1
    return None if all(isinstance(n, int) and n == 0 for n in more) else (more[0], more[1])
