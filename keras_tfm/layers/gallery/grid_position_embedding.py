"""Learned position embeddings of a text and of the rows and columns of an image."""

import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers.arguments import check_sequence
from keras_tfm.layers.images.patch_embedding import as_pair
from keras_tfm.layers.positions.position_embedding import PositionTable
from keras_tfm.layers.types import Initializer, Shape, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class GridPositionEmbedding(PositionTable):
    """Adds a learned vector for each position of a text, and those of row and column to an image.

    The sequence is `text_length` tokens of a text, then the cells of an image row by row: y_t = x_t
    + P_t for the text, and x_t + R_i + C_j for the cell in row i and column j. "Zero-Shot
    Text-to-Image Generation" (arXiv:2102.12092), figure 10.

    Args:
        text_length: int, number of positions before the image (N).
        grid: int or (height, width), number of cells.
        initializer: initializer of the three tables. Default: normal with standard deviation 0.02.
        dropout: float, dropout rate of the sum.

    Call arguments:
        inputs: float tensor (..., T, D), with T up to N + height width.
        positions: int32, (T,) or (B, T), positions of the tokens. Default: 0 to T - 1, or the
            scope's positions inside a `DecodingScope`.

    Returns:
        Float tensor (..., T, D).

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or more tokens than positions.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import GridPositionEmbedding
    >>> layer = GridPositionEmbedding(text_length=2, grid=(2, 3))
    >>> tuple(layer(np.zeros((1, 8, 4), "float32")).shape)
    (1, 8, 4)
    """

    def __init__(
        self,
        text_length: int,
        grid: int | Sequence[int],
        initializer: Initializer | None = None,
        dropout: float = 0.0,
        **kwargs: Any,
    ):
        super().__init__(initializer, dropout, **kwargs)
        check_integer("text_length", text_length, minimum=0)
        self.text_length = text_length
        self.grid = as_pair("grid", grid)
        self.max_length = text_length + math.prod(self.grid)

    def build(self, inputs_shape: Shape, positions_shape: Shape | None = None) -> None:
        """Creates the tables for inputs of width D."""
        check_sequence(self, "inputs", inputs_shape)
        height, width = self.grid
        sizes = {"text": self.text_length, "rows": height, "columns": width}
        self.tables = {
            name: self.add_weight(
                name=name,
                shape=(size, inputs_shape[-1]),
                # Cloned: one initializer object would draw the same numbers for every table.
                initializer=self.initializer.clone(),
            )
            for name, size in sizes.items()
            if size
        }
        self.built = True

    def table(self) -> Tensor:
        """The vectors of all positions, (max_length, D): for cells the sums of row and column."""
        rows, columns = self.tables["rows"], self.tables["columns"]
        cells = ops.expand_dims(rows, 1) + ops.expand_dims(columns, 0)
        cells = ops.reshape(cells, (math.prod(self.grid), columns.shape[-1]))
        if "text" not in self.tables:
            return cells
        return ops.concatenate([ops.convert_to_tensor(self.tables["text"]), cells], axis=0)
