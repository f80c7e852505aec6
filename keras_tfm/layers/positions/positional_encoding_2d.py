"""Sinusoidal positional encoding of a grid."""

import math
from types import ModuleType
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.arguments import check_integer, check_positive
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.positions.sinusoids import angular_frequencies
from keras_tfm.layers.types import Shape, Tensor

# As in DETR: where an image has no pixels at all, the fraction is 0.
_EPSILON = 1e-6


@keras.saving.register_keras_serializable("keras_tfm")
class PositionalEncoding2D(RematerializedLayer):
    """The sinusoidal positional encoding of a feature map, which DETR adds to queries and keys.

    PE(r, c) = concat(e(s (r + 1) / H'), e(s (c + 1) / W')), where e_2i(a) = sin(a w^(-4i/D)) and
    e_2i+1(a) = cos(a w^(-4i/D)) for i < D/4: rows and columns are fractions of the image, so that
    the encoding does not depend on its size. "End-to-End Object Detection with Transformers"
    (arXiv:2005.12872), appendix A.4. The encoding is returned, not added: pass it to the blocks as
    `position_encoding`.

    If the grid's size is known when the graph is made, and no pixels are masked, the encoding is a
    constant, computed in float64. Otherwise it is computed in float32. Under mixed precision it is
    cast last.

    Args:
        dim: int, width of the encoding (D), a multiple of 4. Default: the number of channels.
        max_wavelength: float, w.
        scale: float, s, the angle at the last row and column.

    Call arguments:
        x: float tensor (B, H', W', C), of which only the shape is used.
        mask: (B, H', W'), boolean, True = image, False = padding at the right and at the bottom.
            The image without its padding is then the whole to which fractions refer.

    Returns:
        Float tensor (1, H', W', D), or (B, H', W', D) with a mask.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, `x` has another number of axes, or D is not a multiple
            of 4.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import PositionalEncoding2D
    >>> encoding = PositionalEncoding2D()(np.zeros((2, 3, 5, 8), "float32"))
    >>> tuple(encoding.shape)
    (1, 3, 5, 8)
    """

    def __init__(
        self,
        dim: int | None = None,
        max_wavelength: float = 10000.0,
        scale: float = 2 * math.pi,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_integer("dim", dim, optional=True)
        check_positive("max_wavelength", max_wavelength)
        check_positive("scale", scale)
        self.dim = dim
        self.max_wavelength = max_wavelength
        self.scale = scale

    def build(self, x_shape: Shape, mask_shape: Shape | None = None) -> None:
        """Checks the input's shape; there are no weights."""
        self._width(x_shape)
        self.built = True

    def call(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, H', W', C) -> (1 or B, H', W', D)."""
        frequencies = angular_frequencies(self._width(x.shape) // 2, self.max_wavelength)
        height, width = x.shape[1:3]
        if mask is None and height is not None and width is not None:
            ends = np.arange(1.0, height + 1)[:, np.newaxis], np.arange(1.0, width + 1)
            shape = (1, height, width, 1)
            axes = [np.broadcast_to(a[np.newaxis, ..., np.newaxis], shape) for a in ends]
            encoding = self._encode(axes, frequencies, np)
            return ops.convert_to_tensor(encoding.astype(self.compute_dtype))
        if mask is None:
            mask = ops.ones((1, *ops.shape(x)[1:3]), "bool")
        seen = ops.cast(mask, "float32")
        axes = [ops.expand_dims(ops.cumsum(seen, axis=i), -1) for i in (1, 2)]
        encoding = self._encode(axes, ops.convert_to_tensor(frequencies, "float32"), ops)
        return ops.cast(encoding, self.compute_dtype)

    def _encode(self, axes: list[Tensor], frequencies: Tensor, backend: ModuleType) -> Tensor:
        """Counts of rows and columns, both (B, H', W', 1) -> (B, H', W', D)."""
        halves = []
        for axis, count in enumerate(axes, start=1):
            last = count[:, -1:] if axis == 1 else count[:, :, -1:]
            angles = count / (last + _EPSILON) * self.scale * frequencies
            pairs = backend.stack([backend.sin(angles), backend.cos(angles)], axis=-1)
            halves.append(backend.reshape(pairs, (*backend.shape(angles)[:3], -1)))
        return backend.concatenate(halves, axis=-1)

    def _width(self, shape: Shape) -> int:
        """D."""
        if len(shape) != 4:
            raise ValueError(f"{self.name}: x must have shape (B, H, W, C), got {tuple(shape)}")
        dim = shape[-1] if self.dim is None else self.dim
        if dim is None or dim % 4:
            raise ValueError(f"{self.name}: dim must be a multiple of 4, got {dim}")
        return int(dim)

    def compute_mask(self, x: Tensor, previous_mask: Tensor | None = None) -> None:
        """None: the encoding of padding is harmless."""

    def compute_output_shape(self, x_shape: Shape, mask_shape: Shape | None = None) -> Shape:
        """(1 or B, H', W', D)."""
        batch = 1 if mask_shape is None else mask_shape[0]
        return (batch, *x_shape[1:3], self._width(x_shape))
