"""Fewer and wider features of an image: pixel shuffle, as space to depth."""

from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers.types import Config, Shape, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class PixelShuffle(keras.layers.Layer):
    """Joins the features of s x s neighbouring patches of an image to one.

    y_ij = [x_(si)(sj); x_(si)(sj + 1); ...; x_(si + s - 1)(sj + s - 1)], row by row: a language
    model reads N / s^2 features of width s^2 D instead of N of width D. The connector of InternVL
    (arXiv:2404.16821), Idefics3 (arXiv:2408.12637), SmolVLM (arXiv:2504.05299) and LFM2-VL
    (arXiv:2511.23404), before a dense layer.

    Args:
        factor: int, patches that are joined in each direction (s).
        columns: int, number of patches in a row. Default: sqrt(N), of a square image.

    Call arguments:
        x: float tensor (B, N, D), the features of a grid of patches, row by row.

    Returns:
        Float tensor (B, N / s^2, s^2 D).

    Raises:
        TypeError: an argument is not an integer.
        ValueError: an argument is below 1; or N is unknown, or not the size of a grid whose rows
            and columns `factor` divides.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import PixelShuffle
    >>> x = np.arange(16.0).reshape(1, 16, 1)  # four rows of four patches
    >>> np.array(PixelShuffle(2)(x))[0].astype(int).tolist()
    [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    """

    def __init__(self, factor: int, columns: int | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        check_integer("factor", factor)
        check_integer("columns", columns, optional=True)
        self.factor = factor
        self.columns = columns

    def build(self, x_shape: Shape) -> None:
        """Checks the shape; there are no weights."""
        self.compute_output_shape(x_shape)
        self.built = True

    def call(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, N / s^2, s^2 D)."""
        _, length, width = self.compute_output_shape(x.shape)
        s, columns = self.factor, self._grid(x.shape)[1]
        # Of four axes, which every device transposes: rows of cells, s rows, cells, s D.
        x = ops.reshape(x, (-1, s, columns // s, s * x.shape[2]))
        return ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (-1, length, width))

    def _grid(self, shape: Shape) -> tuple[int, int]:
        """The number of rows and columns of patches."""
        if len(shape) != 3 or shape[1] is None or shape[2] is None:
            raise ValueError(
                f"{self.name}: x must have shape (B, N, D) with N and D known, got {tuple(shape)}"
            )
        columns = self.columns or round(shape[1] ** 0.5)
        rows = shape[1] // columns
        if rows * columns != shape[1] or rows % self.factor or columns % self.factor:
            expected = "a square whose side is a multiple"
            if self.columns is not None:
                expected = f"rows of {columns}, and both sides multiples"
            raise ValueError(
                f"{self.name}: the patches must be {expected} of factor={self.factor}, got "
                f"{shape[1]} patches"
            )
        return rows, columns

    def compute_output_shape(self, x_shape: Shape) -> Shape:
        """(B, N / s^2, s^2 D)."""
        rows, columns = self._grid(x_shape)
        s = self.factor
        return (x_shape[0], (rows // s) * (columns // s), s**2 * x_shape[2])

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {**super().get_config(), "factor": self.factor, "columns": self.columns}
