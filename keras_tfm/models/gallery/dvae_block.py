"""The residual block of DALL-E's discrete VAE."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer, check_number
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.types import DType, Shape, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class DVAEBlock(RematerializedLayer):
    """Convolutions in a scaled residual connection: y = g(x) + gain f(x).

    f is a ReLU and a convolution for each window; all convolutions but the last have dim // 4
    channels. g is the identity, or a 1 x 1 convolution where the number of channels changes.
    "Zero-Shot Text-to-Image Generation" (arXiv:2102.12092), appendix A.1.

    Args:
        dim: int, channels of the output, at least 4.
        windows: list of int, size of each convolution's window: (3, 3, 3, 1) in the encoder, (1, 3,
            3, 3) in the decoder.
        gain: float, the factor.

    Call arguments:
        x: float tensor (B, H, W, C).

    Returns:
        Float tensor (B, H, W, dim).

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.models.gallery.dvae_block import DVAEBlock
    >>> tuple(DVAEBlock(8)(np.zeros((1, 5, 7, 3), "float32")).shape)
    (1, 5, 7, 8)
    """

    def __init__(
        self,
        dim: int,
        windows: Sequence[int] = (3, 3, 3, 1),
        gain: float = 1.0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_integer("dim", dim, minimum=4)
        for window in windows:
            check_integer("windows", window)
        check_number("gain", gain)
        self.dim = dim
        self.windows = list(windows)
        self.gain = gain
        widths = [dim // 4] * (len(self.windows) - 1) + [dim]
        self.convolutions = [
            convolution(f"convolution_{i}", width, window, self.dtype_policy)
            for i, (width, window) in enumerate(zip(widths, self.windows, strict=True))
        ]
        self.shortcut: Any = None

    def build(self, x_shape: Shape) -> None:
        """Creates the weights for C channels."""
        x_shape = (None, None, None, x_shape[-1])
        if x_shape[-1] != self.dim:
            self.shortcut = convolution("shortcut", self.dim, 1, self.dtype_policy)
            self.shortcut.build(x_shape)
        for layer in self.convolutions:
            layer.build(x_shape)
            x_shape = (*x_shape[:-1], layer.filters)
        self.built = True

    def call(self, x: Tensor) -> Tensor:
        """(B, H, W, C) -> (B, H, W, dim)."""
        y = x
        for layer in self.convolutions:
            y = layer(ops.relu(y))
        return (x if self.shortcut is None else self.shortcut(x)) + self.gain * y

    def compute_output_shape(self, x_shape: Shape) -> Shape:
        """(B, H, W, dim)."""
        return (*x_shape[:-1], self.dim)


def convolution(name: str, dim: int, window: int, dtype: DType) -> keras.layers.Conv2D:
    """A convolution with a bias that keeps the size, initialised for the ReLU before it."""
    return keras.layers.Conv2D(
        dim,
        window,
        padding="same",
        data_format="channels_last",
        kernel_initializer=keras.initializers.HeNormal(),
        dtype=dtype,
        name=name,
    )
