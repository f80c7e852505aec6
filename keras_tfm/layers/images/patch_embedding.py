"""Embedding of image patches."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers.arguments import as_initializer
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.types import Initializer, Shape, Size, Tensor

PADDINGS = ("valid", "same")


def as_pair(name: str, value: int | Sequence[int]) -> tuple[int, int]:
    """A height and a width of at least 1, from one integer for both or from two.

    Raises:
        TypeError: `value` is neither.
        ValueError: a value below 1.
    """
    pair = tuple(value) if isinstance(value, Sequence) and len(value) == 2 else (value, value)
    for x in pair:
        check_integer(name, x)
    return int(pair[0]), int(pair[1])  # type: ignore[arg-type]


def height_and_width(pixels: Tensor) -> tuple[Size, Size]:
    """The sizes of (B, H, W, ...): integers where they are known when the graph is made."""
    known, found = pixels.shape[1:3], ops.shape(pixels)[1:3]
    height, width = (a if isinstance(a, int) else b for a, b in zip(known, found, strict=True))
    return height, width


@keras.saving.register_keras_serializable("keras_tfm")
class PatchEmbedding(RematerializedLayer):
    """Splits an image into patches and projects each one to a vector.

    y_ij = W x_ij + b, where x_ij are the p p C pixel values of the patch in row i and column j: a
    convolution whose stride is the patch size. ViT (arXiv:2010.11929), section 3.1. With a stride
    below the patch size, patches overlap (arXiv:2106.14881).

    Args:
        dim: int, width of the vectors (D).
        patch_size: int or (height, width), in pixels.
        stride: int or (height, width), distance of neighbouring patches. Default: `patch_size`.
        padding: str, "valid": pixels that do not fill a patch at the right and at the bottom are
            left out; "same": they are completed with zeros, divided between both sides, so that
            there are ceil(H / stride) rows.
        use_bias: bool, whether a bias is added.
        kernel_initializer: initializer of the kernel (h, w, C, D).
        bias_initializer: initializer of the bias.

    Call arguments:
        pixels: float tensor (B, H, W, C).

    Returns:
        Float tensor (B, H', W', D), one vector per patch. Flatten it to a sequence with
        `PrefixTokens` or `keras.layers.Reshape`.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or an image smaller than one patch.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import PatchEmbedding
    >>> layer = PatchEmbedding(dim=8, patch_size=16)
    >>> tuple(layer(np.zeros((2, 64, 32, 3), "float32")).shape)
    (2, 4, 2, 8)
    """

    def __init__(
        self,
        dim: int,
        patch_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        padding: str = "valid",
        use_bias: bool = True,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.supports_masking = False  # the output has another shape
        check_integer("dim", dim)
        if padding not in PADDINGS:
            raise ValueError(f"padding must be one of {list(PADDINGS)}, got {padding!r}")
        self.dim = dim
        self.patch_size = as_pair("patch_size", patch_size)
        self.stride = self.patch_size if stride is None else as_pair("stride", stride)
        self.padding = padding
        self.use_bias = use_bias
        self.kernel_initializer = as_initializer("kernel_initializer", kernel_initializer)
        self.bias_initializer = as_initializer("bias_initializer", bias_initializer)
        self.projection = keras.layers.Conv2D(
            dim,
            self.patch_size,
            strides=self.stride,
            padding=padding,
            data_format="channels_last",
            use_bias=use_bias,
            kernel_initializer=self.kernel_initializer,
            bias_initializer=self.bias_initializer,
            dtype=self.dtype_policy,
            name="projection",
        )

    def build(self, pixels_shape: Shape) -> None:
        """Creates the projection for images of C channels."""
        self._check(pixels_shape)
        self.projection.build(pixels_shape)
        self.built = True

    def call(self, pixels: Tensor) -> Tensor:
        """(B, H, W, C) -> (B, H', W', D)."""
        self._check(pixels.shape)
        return self.projection(pixels)

    def compute_output_shape(self, pixels_shape: Shape) -> Shape:
        """(B, H', W', D)."""
        self._check(pixels_shape)
        return self.projection.compute_output_shape(pixels_shape)

    def _check(self, shape: Shape) -> None:
        if len(shape) != 4 or shape[-1] is None:
            raise ValueError(
                f"{self.name}: pixels must have shape (B, H, W, C) with C known, got {tuple(shape)}"
            )
        sizes = zip(shape[1:3], self.patch_size, strict=True)
        if self.padding == "valid" and any(x is not None and x < size for x, size in sizes):
            raise ValueError(
                f"{self.name}: images must be at least as large as a patch, {self.patch_size}, "
                f"got height and width {tuple(shape[1:3])}"
            )
