"""Fewer and wider features of an image: pixel shuffle, as space to depth."""

from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers.types import Config, Shape, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class PixelShuffle(keras.layers.Layer):
    """Joins the features of s x s neighbouring patches of a square image to one.

    y_ij = [x_(si)(sj); x_(si)(sj + 1); ...; x_(si + s - 1)(sj + s - 1)], row by row: a language
    model reads N / s^2 features of width s^2 D instead of N of width D. The connector of InternVL
    (arXiv:2404.16821), Idefics3 (arXiv:2408.12637) and SmolVLM (arXiv:2504.05299), before a dense
    layer.

    Args:
        factor: int, patches that are joined in each direction (s).

    Call arguments:
        x: float tensor (B, N, D), the features of a grid of sqrt(N) x sqrt(N) patches, row by row.

    Returns:
        Float tensor (B, N / s^2, s^2 D).

    Raises:
        TypeError: `factor` is not an integer.
        ValueError: `factor` is below 1; or N is unknown, not a square, or `factor` does not divide
            its root.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import PixelShuffle
    >>> x = np.arange(16.0).reshape(1, 16, 1)  # four rows of four patches
    >>> np.array(PixelShuffle(2)(x))[0].astype(int).tolist()
    [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    """

    def __init__(self, factor: int, **kwargs: Any):
        super().__init__(**kwargs)
        check_integer("factor", factor)
        self.factor = factor

    def build(self, x_shape: Shape) -> None:
        """Checks the shape; there are no weights."""
        self.compute_output_shape(x_shape)
        self.built = True

    def call(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, N / s^2, s^2 D)."""
        _, length, width = self.compute_output_shape(x.shape)
        s, side = self.factor, self._side(x.shape)
        # Of four axes, which every device transposes: rows of cells, s rows, cells, s D.
        x = ops.reshape(x, (-1, s, side // s, s * x.shape[2]))
        return ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (-1, length, width))

    def _side(self, shape: Shape) -> int:
        """The number of rows and columns of patches."""
        if len(shape) != 3 or shape[1] is None or shape[2] is None:
            raise ValueError(
                f"{self.name}: x must have shape (B, N, D) with N and D known, got {tuple(shape)}"
            )
        side = round(shape[1] ** 0.5)
        if side**2 != shape[1] or side % self.factor:
            raise ValueError(
                f"{self.name}: the patches must be a square whose side is a multiple of "
                f"factor={self.factor}, got {shape[1]} patches"
            )
        return side

    def compute_output_shape(self, x_shape: Shape) -> Shape:
        """(B, N / s^2, s^2 D)."""
        side, s = self._side(x_shape), self.factor
        return (x_shape[0], (side // s) ** 2, s**2 * x_shape[2])

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {**super().get_config(), "factor": self.factor}
