"""DALL-E's convolutional attention."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_tfm.arguments import check_integer
from keras_tfm.layers.gallery.grid_mask import GridMask


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
    >>> ConvolutionMask(text_length=2, grid=(2, 4), kernel_size=3).seen().astype(int).tolist()
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

    def seen(self) -> np.ndarray:
        """(cells,), boolean: up to kernel_size // 2 columns and rows away."""
        half, width = self.kernel_size // 2, self.grid[1]
        places = np.arange(math.prod(self.grid))
        rows, columns = divmod(places + half, width)
        return (rows <= half) & (columns <= 2 * half)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "kernel_size": self.kernel_size}
