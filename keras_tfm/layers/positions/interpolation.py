"""Bicubic interpolation along one axis, as a matrix.

Example:

>>> from keras_tfm.layers.positions.interpolation import bicubic
>>> bicubic(2, 4).round(2).tolist()
[[1.11, -0.11], [0.77, 0.23], [0.23, 0.77], [-0.11, 1.11]]
"""

from types import ModuleType

import numpy as np
from keras import ops

from keras_tfm.layers.types import Size, Tensor


def bicubic(size: int, new_size: Size, antialias: bool = False) -> Tensor:
    """The matrix (new_size, size) that resamples `size` values.

    As `torch.nn.functional.interpolate(mode="bicubic", align_corners=False, antialias=...)`: value
    i of the result stands at (i + 1/2) size / new_size - 1/2. Without `antialias` the kernel of
    Keys (1981) has a = -0.75, spans four values, and values beyond the borders repeat the border.
    With it, a = -0.5 as in Pillow, the kernel is widened when the axis is reduced, and weights
    beyond the borders are left out. For equal sizes the matrix is the identity.

    Args:
        size: int, number of values.
        new_size: int, or int32 scalar tensor if it is known only at run time.
        antialias: bool, see above.

    Returns:
        A NumPy array in float64 for an int; a float32 tensor for a tensor.
    """
    if isinstance(new_size, int):
        backend, numbers = np, np.arange(new_size, dtype="float64")
    else:
        backend, numbers = ops, ops.cast(ops.arange(new_size), "float32")
        new_size = ops.cast(new_size, "float32")
    at = (numbers[:, None] + 0.5) * (size / new_size) - 0.5
    if antialias:
        width = backend.maximum(size / new_size, 1.0)
        weights = _kernel(backend, at - np.arange(size, dtype="float32"), width, -0.5)
        return weights / backend.sum(weights, axis=1, keepdims=True)
    # Two columns beyond each border, whose weights are added to those of the border.
    around = np.arange(-2, size + 2)
    inside = np.eye(size)[np.clip(around, 0, size - 1)]
    weights = _kernel(backend, at - around.astype("float32"), 1.0, -0.75)
    return backend.matmul(weights, inside if backend is np else inside.astype("float32"))


def _kernel(backend: ModuleType, distances: Tensor, width: Size, a: float) -> Tensor:
    """The cubic convolution kernel, `width` times as wide as for the same scale."""
    x = backend.abs(distances) / width
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return backend.where(x <= 1, near, backend.where(x < 2, far, 0.0))
