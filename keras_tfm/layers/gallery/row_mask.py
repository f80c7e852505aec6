"""DALL-E's row attention."""

import math

import keras
import numpy as np

from keras_tfm.layers.gallery.grid_mask import GridMask


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
    >>> mask.seen().astype(int).tolist()
    [1, 1, 1, 1, 0, 0]
    >>> layer = MultiHeadSelfAttention(num_heads=2, causal=True, position=mask)
    >>> tuple(layer(np.ones((1, 8, 4), "float32")).shape)
    (1, 8, 4)
    """

    def seen(self) -> np.ndarray:
        """(cells,), boolean: the cells up to one row before."""
        return np.arange(math.prod(self.grid)) <= self.grid[1]
