"""Bicubic interpolation along one axis, as a matrix.

Example:

>>> from keras_tfm.layers.positions.interpolation import bicubic
>>> bicubic(2, 4).round(3).tolist()
[[1.035, -0.035], [0.845, 0.155], [0.155, 0.845], [-0.035, 1.035]]
"""

import numpy as np


def bicubic(size: int, new_size: int, antialias: bool = False) -> np.ndarray:
    """The matrix (new_size, size) that resamples `size` values, in float64.

    As `torch.nn.functional.interpolate(mode="bicubic", align_corners=False, antialias=...)`: value
    i of the result stands at (i + 1/2) size / new_size - 1/2. Without `antialias` the kernel of
    Keys (1981) has a = -0.75, spans four values, and values beyond the borders repeat the border.
    With it, a = -0.5 as in Pillow, the kernel is widened when the axis is reduced, and weights
    beyond the borders are left out. For equal sizes the matrix is the identity.
    """
    at = (np.arange(new_size) + 0.5) * size / new_size - 0.5
    matrix = np.zeros((new_size, size))
    if antialias:
        width = max(1.0, size / new_size)
        matrix = _kernel(np.abs(at[:, np.newaxis] - np.arange(size)) / width, -0.5)
        return matrix / matrix.sum(axis=1, keepdims=True)
    first = np.floor(at).astype(int)
    for offset in range(-1, 3):
        column = np.clip(first + offset, 0, size - 1)
        weights = _kernel(np.abs(at - first - offset), -0.75)
        np.add.at(matrix, (np.arange(new_size), column), weights)
    return matrix


def _kernel(x: np.ndarray, a: float) -> np.ndarray:
    """The cubic convolution kernel at distances x >= 0."""
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))
