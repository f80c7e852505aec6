"""DALL-E's column attention."""

import math

import keras
import numpy as np

from keras_tfm.layers.gallery.grid_mask import GridMask


@keras.saving.register_keras_serializable("keras_tfm")
class ColumnMask(GridMask):
    """Column attention: a cell sees itself and the cells above it in its column.

    "Zero-Shot Text-to-Image Generation" (arXiv:2102.12092), figure 11 (b). The authors transpose
    the image for it (figure 11 (c)), which gives the same result. The arguments are those of
    `GridMask`: `text_length` and `grid`.

    Example:

    >>> from keras_tfm.layers import ColumnMask
    >>> ColumnMask(text_length=2, grid=(2, 3)).seen().astype(int).tolist()
    [1, 0, 0, 1, 0, 0]
    """

    def seen(self) -> np.ndarray:
        """(cells,), boolean: every W-th cell."""
        return np.arange(math.prod(self.grid)) % self.grid[1] == 0
