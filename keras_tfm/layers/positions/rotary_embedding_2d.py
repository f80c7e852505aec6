"""Rotary position embedding of a grid."""

from types import ModuleType
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers.positions.coordinates import Span
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

    Args:
        width: int, number of columns of the grid, whose cells are numbered row by row.
        prefix: int, number of tokens before the grid, such as class tokens. They are not rotated.
        max_wavelength: float, w.

    Positions with two coordinates, (B, T, 2) rows and columns, may be passed to the attention layer
    as `positions=` instead; `width` and `prefix` are then not used.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range; when the layer is built, a head size that is not a
            multiple of 4.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import MultiHeadSelfAttention, RotaryEmbedding2D
    >>> layer = MultiHeadSelfAttention(num_heads=2, position=RotaryEmbedding2D(width=3, prefix=1))
    >>> tuple(layer(np.ones((1, 1 + 2 * 3, 8), "float32")).shape)
    (1, 7, 8)
    """

    def __init__(self, width: int, prefix: int = 0, max_wavelength: float = 10000.0, **kwargs: Any):
        super().__init__(max_wavelength, **kwargs)
        check_integer("width", width)
        check_integer("prefix", prefix, minimum=0)
        self.width = width
        self.prefix = prefix

    def build_for(self, num_heads: int, head_dim: int, value_dim: int) -> None:
        """Checks the head size; there are no weights."""
        if head_dim % 4:
            raise ValueError(f"{self.name}: head_dim must be a multiple of 4, got {head_dim}")
        self.built = True

    def _settings(self) -> tuple[object, ...]:
        return "2d", self.width, self.prefix, self.max_wavelength

    def _pairs(self, positions: Span | Tensor, dim: int) -> Tensor:
        frequencies = angular_frequencies(dim // 2, self.max_wavelength)
        if isinstance(positions, Span) and positions.is_static:
            numbers = positions.array() - self.prefix
            axes = [exact_sinusoids(x, frequencies) for x in self._cells(numbers, np)]
            return ops.convert_to_tensor(np.concatenate(axes, axis=-2).astype("float32"))
        if isinstance(positions, Span):
            positions = positions.tensor()
        one = len(positions.shape) < 3 or positions.shape[-1] != 2
        cells = self._cells(positions - self.prefix, ops) if one else ops.unstack(positions, 2, -1)
        return ops.concatenate([sinusoids(x, frequencies) for x in cells], axis=-2)

    def _cells(self, numbers: Tensor, backend: ModuleType) -> tuple[Tensor, Tensor]:
        """Rows and columns of cells; 0 for the tokens before the grid."""
        numbers = backend.maximum(numbers, 0)
        return numbers // self.width, numbers % self.width

    def get_config(self) -> Config:
        """The constructor's arguments."""
        config = super().get_config()
        for name in ("rotary_dim", "interleaved", "scaling"):
            del config[name]
        return {**config, "width": self.width, "prefix": self.prefix}
