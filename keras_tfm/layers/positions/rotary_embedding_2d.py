"""Rotary position embedding of a grid."""

from types import ModuleType
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers.positions.attention_position import Span
from keras_tfm.layers.positions.rotary_embedding import RotaryEmbedding
from keras_tfm.layers.positions.sinusoids import angular_frequencies, exact_sinusoids, sinusoids
from keras_tfm.layers.types import Config, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class RotaryEmbedding2D(RotaryEmbedding):
    """Rotary positions of a grid: one half of each head turns by the row, the other by the column.

    The angles of the K/2 pairs (x_i, x_{i+K/2}) are r w^(-4i/K) for i < K/4, at row r, and
    c w^(-4(i-K/4)/K) for the others, at column c, as in the image encoder of Qwen2-VL
    (arXiv:2409.12191). Scores then depend on the distances in rows and in columns only. Pass it to
    attention: `MultiHeadSelfAttention(position=RotaryEmbedding2D(width=14))`.

    With `height`, r and c are the centres of the cells, from -1 to 1 along each side, times 2 pi:
    r = 2 pi ((2 row + 1) / height - 1), as in DINOv3 (arXiv:2508.10104), so that images of all
    sizes have the same range of angles.

    Args:
        width: int, number of columns of the grid, whose cells are numbered row by row.
        prefix: int, number of tokens before the grid, such as class tokens. They are not rotated.
        max_wavelength: float, w.
        height: int, number of rows of the grid, for positions relative to its size. Default: rows
            and columns are numbers 0, 1, ...

    Positions with two coordinates, (B, T, 2) rows and columns, may be passed to the attention layer
    as `positions=` instead; `prefix` is then not used, nor `width` without a `height`.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range; when the layer is built, a head size that is not a
            multiple of 4; with `height`, more tokens than the prefix and the grid have.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import MultiHeadSelfAttention, RotaryEmbedding2D
    >>> layer = MultiHeadSelfAttention(num_heads=2, position=RotaryEmbedding2D(width=3, prefix=1))
    >>> tuple(layer(np.ones((1, 1 + 2 * 3, 8), "float32")).shape)
    (1, 7, 8)
    """

    def __init__(
        self,
        width: int,
        prefix: int = 0,
        max_wavelength: float = 10000.0,
        height: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(max_wavelength, **kwargs)
        check_integer("width", width)
        check_integer("prefix", prefix, minimum=0)
        check_integer("height", height, optional=True)
        self.width = width
        self.prefix = prefix
        self.height = height

    def build_for(self, num_heads: int, head_dim: int, value_dim: int) -> None:
        """Checks the head size; there are no weights."""
        if head_dim % 4:
            raise ValueError(f"{self.name}: head_dim must be a multiple of 4, got {head_dim}")
        self.built = True

    def _settings(self) -> tuple[object, ...]:
        return "2d", self.width, self.prefix, self.max_wavelength, self.height

    def _pairs(self, positions: Span | Tensor, dim: int) -> Tensor:
        frequencies = angular_frequencies(dim // 2, self.max_wavelength)
        if isinstance(positions, Span) and positions.is_static:
            numbers = positions.array() - self.prefix
            self._check_cells(int(numbers.max(initial=0)) + 1)
            axes = [exact_sinusoids(x, frequencies) for x in self._exact_cells(numbers)]
            return ops.convert_to_tensor(np.concatenate(axes, axis=-2).astype("float32"))
        if isinstance(positions, Span):
            positions = positions.tensor()
        one = len(positions.shape) < 3 or positions.shape[-1] != 2
        if self.height is None:
            numbers = positions - self.prefix
            cells = self._cells(numbers, ops) if one else ops.unstack(positions, 2, -1)
            return ops.concatenate([sinusoids(x, frequencies) for x in cells], axis=-2)
        # Angles of cells are no products of whole numbers: one is looked up.
        table = self._exact_cells(np.arange(-1, self.height * self.width))
        if not one:
            rows, columns = ops.unstack(positions, 2, -1)
            positions = rows * self.width + columns + self.prefix
        angles = np.concatenate([exact_sinusoids(x, frequencies) for x in table], axis=-2)
        cell = ops.maximum(positions - self.prefix + 1, 0)
        return ops.take(ops.convert_to_tensor(angles.astype("float32")), cell, axis=0)

    def _cells(self, numbers: Tensor, backend: ModuleType) -> tuple[Tensor, Tensor]:
        """Rows and columns of cells; 0 for the tokens before the grid."""
        numbers = backend.maximum(numbers, 0)
        return numbers // self.width, numbers % self.width

    def _exact_cells(self, numbers: np.ndarray) -> tuple[np.ndarray, ...]:
        """Rows and columns of cells in float64, relative to a grid of known height."""
        cells = self._cells(numbers, np)
        if self.height is None:
            return cells
        sizes = (self.height, self.width)
        centres = ((2 * x + 1) / size - 1 for x, size in zip(cells, sizes, strict=True))
        return tuple(np.where(numbers < 0, 0.0, 2 * np.pi * x) for x in centres)

    def _check_cells(self, count: int) -> None:
        """Raises if there are more cells than in a grid of known height."""
        if self.height is not None and count > self.height * self.width:
            raise ValueError(
                f"{self.name}: expected at most {self.prefix} tokens and {self.height} * "
                f"{self.width} cells, got {self.prefix + count} tokens"
            )

    def get_config(self) -> Config:
        """The constructor's arguments."""
        config = super().get_config()
        for name in ("rotary_dim", "interleaved", "scaling", "query_beta"):
            del config[name]
        return {**config, "width": self.width, "prefix": self.prefix, "height": self.height}
