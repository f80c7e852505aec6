"""The sparse masks of DALL-E: which cells of an image a cell sees."""

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers.images.patch_embedding import as_pair
from keras_tfm.layers.positions.attention_position import (
    AttentionInputs,
    AttentionPosition,
    PositionTerms,
    Span,
    as_tensor,
)
from keras_tfm.layers.target import current_target
from keras_tfm.layers.types import Config, Tensor


class GridMask(AttentionPosition):
    """The base of `RowMask`, `ColumnMask` and `ConvolutionMask`, for text before an image.

    The sequence is `text_length` tokens of a text, then the cells of an image row by row. Every
    token sees the text before it. A cell sees some of the cells before it: which ones depends only
    on how many places they are before it. "Zero-Shot Text-to-Image Generation" (arXiv:2102.12092),
    appendix B.1, after the sparse transformer (arXiv:1904.10509). Use it in causal attention.

    The mask is by absolute position, also in a decoding step and with left padding. It has no
    weights. All scores are computed, and those of hidden cells are masked. A subclass defines
    `visible`.

    Args:
        text_length: int, number of positions before the image (N). 0: an image alone.
        grid: int or (height, width), number of cells.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range.

    Example of a custom mask, in which a cell sees only itself and the text:

    >>> import numpy as np
    >>> from keras_tfm.layers import GridMask, MultiHeadSelfAttention
    >>> class Alone(GridMask):
    ...     def visible(self):
    ...         return np.arange(6) == 0
    >>> layer = MultiHeadSelfAttention(2, causal=True, position=Alone(text_length=2, grid=(2, 3)))
    >>> tuple(layer(np.ones((1, 8, 4), "float32")).shape)
    (1, 8, 4)
    """

    absolute = True

    def __init__(self, text_length: int, grid: int | Sequence[int], **kwargs: Any):
        super().__init__(**kwargs)
        check_integer("text_length", text_length, minimum=0)
        self.text_length = text_length
        self.grid = as_pair("grid", grid)

    def visible(self) -> np.ndarray:
        """(cells,), boolean: whether a cell sees the cell that many places before it."""
        raise NotImplementedError(f"{type(self).__name__} does not define visible()")

    def terms(self, inputs: AttentionInputs) -> PositionTerms:
        """The mask as a bias: (T, S), or (..., 1, T, S) if positions differ by row."""
        query, key = inputs.positions
        score = current_target.get().masked_score
        if all(isinstance(x, Span) and x.is_static for x in (query, key)):
            bias = self._bias(query.array()[:, np.newaxis], key.array(), score, np)
            return PositionTerms(bias=ops.convert_to_tensor(bias))
        shared = query.shared if isinstance(query, Span) else {}
        name = (type(self), str(self.get_config() | {"name": None}), score, id(key))
        if name not in shared:
            rows, columns = as_tensor(query), as_tensor(key)
            rows, columns = ops.expand_dims(rows, -1), ops.expand_dims(columns, -2)
            bias = self._bias(rows, columns, score, ops)
            bias = bias if len(bias.shape) == 2 else ops.expand_dims(bias, -3)
            shared[name] = (key, bias)  # the key too: its id must not be reused
        return PositionTerms(bias=shared[name][1])

    def _bias(self, query: Tensor, key: Tensor, score: float, backend: ModuleType) -> Tensor:
        """Positions (..., T, 1) and (..., 1, S) -> (..., T, S), float32."""
        cells = math.prod(self.grid)
        hidden = np.where(self.visible(), 0.0, score).astype("float32")
        # Keys after the query, which causality hides, count as its own.
        distances = backend.clip(query - key, 0, cells - 1)
        if backend is np:
            return hidden[distances] * (key >= self.text_length).astype("float32")
        flat = ops.take(ops.convert_to_tensor(hidden), ops.reshape(distances, (-1,)), axis=0)
        of_image = ops.cast(ops.greater_equal(key, self.text_length), "float32")
        return ops.reshape(flat, ops.shape(distances)) * of_image

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {**super().get_config(), "text_length": self.text_length, "grid": self.grid}


@keras.saving.register_keras_serializable("keras_tfm")
class RowMask(GridMask):
    """Row attention: a cell sees itself and the cells before it, back to the one above it.

    Cell i sees cells i - W to i, where W is the width of the grid. "Zero-Shot Text-to-Image
    Generation" (arXiv:2102.12092), figure 11 (a). The arguments are those of `GridMask`:
    `text_length` and `grid`.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import MultiHeadSelfAttention, RowMask
    >>> mask = RowMask(text_length=2, grid=(2, 3))
    >>> mask.visible().astype(int).tolist()
    [1, 1, 1, 1, 0, 0]
    >>> layer = MultiHeadSelfAttention(num_heads=2, causal=True, position=mask)
    >>> tuple(layer(np.ones((1, 8, 4), "float32")).shape)
    (1, 8, 4)
    """

    def visible(self) -> np.ndarray:
        """(cells,), boolean: the cells up to one row before."""
        return np.arange(math.prod(self.grid)) <= self.grid[1]


@keras.saving.register_keras_serializable("keras_tfm")
class ColumnMask(GridMask):
    """Column attention: a cell sees itself and the cells above it in its column.

    "Zero-Shot Text-to-Image Generation" (arXiv:2102.12092), figure 11 (b). The authors transpose
    the image for it (figure 11 (c)), which gives the same result. The arguments are those of
    `GridMask`: `text_length` and `grid`.

    Example:

    >>> from keras_tfm.layers import ColumnMask
    >>> ColumnMask(text_length=2, grid=(2, 3)).visible().astype(int).tolist()
    [1, 0, 0, 1, 0, 0]
    """

    def visible(self) -> np.ndarray:
        """(cells,), boolean: every W-th cell."""
        return np.arange(math.prod(self.grid)) % self.grid[1] == 0


@keras.saving.register_keras_serializable("keras_tfm")
class ConvolutionMask(GridMask):
    """Convolutional attention: a cell sees itself and the cells before it in a square around it.

    At the left and right edge the square continues in the row before or after, as the places of
    the cells do. "Zero-Shot Text-to-Image Generation" (arXiv:2102.12092), figure 11 (d).

    Args:
        text_length: int, number of positions before the image (N).
        grid: int or (height, width), number of cells.
        kernel_size: int, odd, edge of the square in cells. The original has 11 in a grid of 32.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range; `kernel_size` is even or larger than the grid's width.

    Example:

    >>> from keras_tfm.layers import ConvolutionMask
    >>> ConvolutionMask(text_length=2, grid=(2, 4), kernel_size=3).visible().astype(int).tolist()
    [1, 1, 0, 1, 1, 1, 0, 0]
    """

    def __init__(
        self, text_length: int, grid: int | Sequence[int], kernel_size: int = 11, **kwargs: Any
    ):
        super().__init__(text_length, grid, **kwargs)
        check_integer("kernel_size", kernel_size)
        if kernel_size % 2 == 0 or kernel_size > self.grid[1]:
            raise ValueError(
                f"kernel_size must be odd and at most the width of the grid ({self.grid[1]}), "
                f"got {kernel_size}"
            )
        self.kernel_size = kernel_size

    def visible(self) -> np.ndarray:
        """(cells,), boolean: up to kernel_size // 2 columns and rows away."""
        half, width = self.kernel_size // 2, self.grid[1]
        places = np.arange(math.prod(self.grid))
        rows, columns = divmod(places + half, width)
        return (rows <= half) & (columns <= 2 * half)

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {**super().get_config(), "kernel_size": self.kernel_size}
