"""Learned position embeddings of a grid, interpolated to grids of other sizes."""

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers.arguments import as_initializer, check_sequence
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.dropout import Dropout
from keras_tfm.layers.images.patch_embedding import as_pair, height_and_width
from keras_tfm.layers.types import Initializer, Shape, Size, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class PositionEmbedding2D(RematerializedLayer):
    """Adds a learned vector for each cell of a grid, such as the patches of an image.

    y_t = x_t + P_t, with the cells row by row: ViT (arXiv:2010.11929). For a grid of another size
    the table is resampled along both axes, P' = A_h P A_w^T, by bicubic or bilinear interpolation
    as in PyTorch (half-pixel centres): two products with constant matrices, so that one model takes
    images of several sizes, as DINO does (arXiv:2104.14294). Both products are computed in float32
    and cast last.

    Args:
        grid: int or (height, width), number of cells of the table.
        prefix: int, number of tokens before the grid, such as class tokens, which have a row of the
            table each and are not resampled.
        initializer: initializer of the table (prefix + height width, D). Default: normal with
            standard deviation 0.02.
        dropout: float, dropout rate of the sum.
        antialias: bool, whether resampling to fewer cells averages over more than four: PyTorch's
            `antialias=True`, as in DINOv2 with registers.
        interpolation: str, "bicubic", or "bilinear" as in SigLIP 2's NaFlex.

    Call arguments:
        x: float tensor (B, prefix + H' W', D).
        patches: float tensor (B, H', W', ...), usually the output of `PatchEmbedding`. Only its
            height and width are read. Default: the grid has the size of the table.

    Returns:
        Float tensor (B, prefix + H' W', D).

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or a sequence whose length does not match the grid.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import PositionEmbedding2D
    >>> layer = PositionEmbedding2D(grid=(2, 3), prefix=1)
    >>> tuple(layer(np.zeros((1, 7, 8), "float32")).shape)
    (1, 7, 8)
    >>> patches = np.zeros((1, 4, 5, 8), "float32")
    >>> tuple(layer(np.zeros((1, 21, 8), "float32"), patches).shape)
    (1, 21, 8)
    """

    def __init__(
        self,
        grid: int | Sequence[int],
        prefix: int = 0,
        initializer: Initializer | None = None,
        dropout: float = 0.0,
        antialias: bool = False,
        interpolation: str = "bicubic",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_integer("prefix", prefix, minimum=0)
        self.grid = as_pair("grid", grid)
        self.prefix = prefix
        if initializer is None:
            initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.initializer = as_initializer("initializer", initializer)
        self.dropout = dropout
        self.antialias = antialias
        if interpolation not in _KERNELS:
            raise ValueError(
                f"interpolation must be one of {list(_KERNELS)}, got {interpolation!r}"
            )
        self.interpolation = interpolation
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy)

    def build(self, x_shape: Shape, patches_shape: Shape | None = None) -> None:
        """Creates the table for inputs of width D."""
        check_sequence(self, "x", x_shape)
        self.positions = self.add_weight(
            name="positions",
            shape=(self.prefix + math.prod(self.grid), x_shape[-1]),
            initializer=self.initializer,
        )
        self.built = True

    def call(
        self, x: Tensor, patches: Tensor | None = None, training: bool | None = None
    ) -> Tensor:
        """(B, prefix + H' W', D) -> the same shape."""
        height, width = self.grid if patches is None else height_and_width(patches)
        length = x.shape[1]
        if isinstance(length, int) and isinstance(height, int) and isinstance(width, int):
            expected = self.prefix + height * width
            if length != expected:
                raise ValueError(
                    f"{self.name}: expected {self.prefix} tokens and {height} * {width} cells, "
                    f"{expected} in all, got {length}"
                )
        rows = ops.cast(self._resample(height, width), x.dtype)
        return self.dropout_layer(x + rows, training=training)

    def _resample(self, height: Size, width: Size) -> Tensor:
        """The table for a grid of another size: (prefix + H' W', D)."""
        is_known = isinstance(height, int) and isinstance(width, int)
        if is_known and (height, width) == self.grid:
            return self.positions
        table = ops.cast(self.positions, "float32")
        dim = table.shape[-1]
        resample = _KERNELS[self.interpolation]
        rows = ops.cast(resample(self.grid[0], height, self.antialias), "float32")
        columns = ops.cast(resample(self.grid[1], width, self.antialias), "float32")
        # (H', H) (H, W D), then (W', W) (H', W, D).
        cells = ops.reshape(table[self.prefix :], (self.grid[0], self.grid[1] * dim))
        cells = ops.reshape(ops.matmul(rows, cells), (-1, self.grid[1], dim))
        cells = ops.reshape(ops.matmul(columns, cells), (-1, dim))
        return ops.concatenate([table[: self.prefix], cells], axis=0)


def bicubic(size: int, new_size: Size, antialias: bool = False) -> Tensor:
    """The matrix (new_size, size) that resamples `size` values.

    As `torch.nn.functional.interpolate(mode="bicubic", align_corners=False, antialias=...)`: value
    i of the result stands at (i + 1/2) size / new_size - 1/2. Without `antialias` the kernel of
    Keys (1981) has a = -0.75, spans four values, and values beyond the borders repeat the border.
    With it, a = -0.5 as in Pillow, the kernel is widened when the axis is reduced, and weights
    beyond the borders are left out. For equal sizes the matrix is the identity.

    Args:
        size: int, number of values.
        new_size: int, or int32 scalar tensor if it is known only at run time.
        antialias: bool, see above.

    Returns:
        A NumPy array in float64 for an int; a float32 tensor for a tensor.
    """
    backend, at, scale = _places(size, new_size)
    if antialias:
        width = backend.maximum(scale, 1.0)
        weights = _kernel(backend, at - np.arange(size, dtype="float32"), width, -0.5)
        return weights / backend.sum(weights, axis=1, keepdims=True)
    # Two columns beyond each border, whose weights are added to those of the border.
    around = np.arange(-2, size + 2)
    inside = np.eye(size)[np.clip(around, 0, size - 1)]
    weights = _kernel(backend, at - around.astype("float32"), 1.0, -0.75)
    return backend.matmul(weights, inside if backend is np else inside.astype("float32"))


def bilinear(size: int, new_size: Size, antialias: bool = False) -> Tensor:
    """The matrix (new_size, size) that resamples `size` values, by straight lines between them.

    As `torch.nn.functional.interpolate(mode="bilinear", align_corners=False, antialias=...)`: with
    `antialias` the triangle is widened when the axis is reduced.

    Args, Returns:
        as of `bicubic`.
    """
    backend, at, scale = _places(size, new_size)
    width = backend.maximum(scale, 1.0) if antialias else 1.0
    # Values beyond the borders repeat the border, or are left out of the widened triangle.
    at = at if antialias else backend.clip(at, 0.0, size - 1.0)
    weights = backend.maximum(1.0 - backend.abs(at - np.arange(size, dtype="float32")) / width, 0.0)
    return weights / backend.sum(weights, axis=1, keepdims=True)


_KERNELS = {"bicubic": bicubic, "bilinear": bilinear}


def _places(size: int, new_size: Size) -> tuple[ModuleType, Tensor, Tensor]:
    """NumPy or `keras.ops`; where the new values stand among the old, (new_size, 1); the scale."""
    if isinstance(new_size, int):
        backend, numbers = np, np.arange(new_size, dtype="float64")
    else:
        backend, numbers = ops, ops.cast(ops.arange(new_size), "float32")
        new_size = ops.cast(new_size, "float32")
    return backend, (numbers[:, None] + 0.5) * (size / new_size) - 0.5, size / new_size


def _kernel(backend: ModuleType, distances: Tensor, width: Size, a: float) -> Tensor:
    """The cubic convolution kernel, `width` times as wide as for the same scale."""
    x = backend.abs(distances) / width
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return backend.where(x <= 1, near, backend.where(x < 2, far, 0.0))
