"""Rounds weights to the grids of a file."""

import numpy as np

# Rounded at once, so that a table of a language model is not copied as a whole.
_VALUES_AT_ONCE = 1 << 24


def round_to_int8(values: np.ndarray, axis: int | None) -> tuple[np.ndarray, np.ndarray]:
    """The nearest values q of -127..127 with values = q scale, as TensorFlow's converter has them.

    Args:
        values: float32 array.
        axis: int, the axis along which each index has a scale of its own; None: one for all.

    Returns:
        q, int8, of the shape of `values`, and the scales in float32, (values.shape[axis],) or (1,).

    Example:

    >>> import numpy as np
    >>> from keras_tfm.export.quantization.rounding import round_to_int8
    >>> q, scale = round_to_int8(np.array([[1.0, -0.5], [0.25, 0.127]], "float32"), axis=0)
    >>> q.tolist()
    [[127, -64], [127, 65]]
    """
    others = tuple(x for x in range(values.ndim) if x != axis)
    largest = np.maximum(values.max(axis=others), -values.min(axis=others)).reshape(-1)
    scale = (largest.astype("float64") / 127).astype("float32")
    shape = [1] * values.ndim
    if axis is not None:
        shape[axis] = -1
    step = np.where(scale == 0, np.float32(1), scale).reshape(shape)
    rounded = np.empty(values.shape, "int8")
    rows = max(1, _VALUES_AT_ONCE * len(values) // max(1, values.size))
    for start in range(0, len(values), rows):
        part = slice(start, start + rows)
        steps = step[part] if step.shape[0] > 1 else step
        quotient = values[part] / steps
        # To the nearest, halves away from zero.
        rounded[part] = np.trunc(quotient + np.copysign(np.float32(0.5), quotient))
    return rounded, scale
