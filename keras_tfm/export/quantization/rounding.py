"""Rounds weights to the grids of a file: what every preset stores."""

from collections.abc import Iterator

import ml_dtypes
import numpy as np

# The number of weights that share a scale in 4 bits; XNNPACK has kernels for multiples of 32.
BLOCK = 32
LARGEST_LEVEL = 7  # of the levels -7..7 of 4 bits
# The converter's largest value of a row of smaller ones, or of zeros.
CONVERTERS_SMALLEST = 5e-7
# Rounded at once, so that a table of a language model is not copied as a whole.
_VALUES_AT_ONCE = 1 << 22


def row_parts(values: np.ndarray) -> Iterator[slice]:
    """Slices of the first axis, of a few million values each.

    >>> import numpy as np
    >>> from keras_tfm.export.quantization.rounding import row_parts
    >>> list(row_parts(np.zeros((5, 1 << 21), "int8")))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 6, None)]
    """
    rows = max(1, _VALUES_AT_ONCE * len(values) // max(1, values.size))
    return (slice(start, start + rows) for start in range(0, len(values), rows))


def int8_scales(
    values: np.ndarray, axis: int | None, smallest: float = CONVERTERS_SMALLEST
) -> np.ndarray:
    """The scales with which the largest value along an axis becomes 127, as the converter has them.

    Args:
        values: float32 array.
        axis: int, the axis along which each index has a scale of its own; None: one for all.
        smallest: float, what counts as the largest value where all are smaller.

    Returns:
        float32, (values.shape[axis],) or (1,).
    """
    if axis == 0:
        others = tuple(range(1, values.ndim))
        parts = [values[part] for part in row_parts(values)]
        largest = np.concatenate(
            [np.maximum(x.max(axis=others), -x.min(axis=others)) for x in parts]
        )
    else:
        others = tuple(x for x in range(values.ndim) if x != axis)
        largest = np.maximum(values.max(axis=others), -values.min(axis=others)).reshape(-1)
    return (np.maximum(largest.astype("float64"), smallest) / 127).astype("float32")


def round_to_int8(values: np.ndarray, scale: np.ndarray, axis: int | None) -> np.ndarray:
    """The nearest levels of -127..127, halves away from zero: q with values = q scale.

    Args:
        values: float32 array, or some indices of its first axis with their scales.
        scale: float32, from `int8_scales`.
        axis: int or None, as there.

    Returns:
        int8, of the shape of `values`.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.export.quantization.rounding import int8_scales, round_to_int8
    >>> weight = np.array([[1.0, -0.5], [0.25, 0.127]], "float32")
    >>> round_to_int8(weight, int8_scales(weight, axis=0), axis=0).tolist()
    [[127, -64], [127, 65]]
    """
    shape = [1] * values.ndim
    if axis is not None:
        shape[axis] = -1
    step = scale.reshape(shape)
    rounded = np.empty(values.shape, "int8")
    for part in row_parts(values):
        quotient = values[part] / (step[part] if step.shape[0] > 1 else step)
        rounded[part] = np.trunc(quotient + np.copysign(np.float32(0.5), quotient))
    return rounded


def int4_scales(matrix: np.ndarray) -> np.ndarray:
    """The scales with which the largest of 32 values in a row becomes 7.

    A file holds them in float16, with the seven bits of bfloat16's fraction; at least the smallest
    normal number, since XNNPACK refuses 0.

    Args:
        matrix: (F, D), float32, with D a multiple of 32.

    Returns:
        (F, D / 32), float16.
    """
    scales = np.empty((len(matrix), matrix.shape[1] // BLOCK), "float16")
    for part in row_parts(matrix):
        blocks = matrix[part].reshape(-1, scales.shape[1], BLOCK)
        largest = np.maximum(blocks.max(axis=-1), -blocks.min(axis=-1)) / LARGEST_LEVEL
        scales[part] = largest.astype(ml_dtypes.bfloat16).astype("float16")
    return np.maximum(scales, np.finfo("float16").tiny)


def round_to_int4(matrix: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The nearest levels of -7..7, halves to even: (F, D), int8.

    >>> import numpy as np
    >>> from keras_tfm.export.quantization.rounding import int4_scales, round_to_int4
    >>> row = np.zeros((1, 32), "float32")
    >>> row[0, :3] = 7.0, -3.6, 0.5
    >>> round_to_int4(row, int4_scales(row))[0, :3].tolist()
    [7, -4, 0]
    """
    blocks = matrix.reshape(*scales.shape, BLOCK)
    levels = np.rint(blocks / scales.astype("float32")[..., np.newaxis])
    levels = np.clip(levels, -LARGEST_LEVEL, LARGEST_LEVEL)
    return levels.astype("int8").reshape(matrix.shape)
