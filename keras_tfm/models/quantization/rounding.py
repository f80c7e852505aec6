"""Rounds weights to the grids of a file: what every preset stores, and what training computes with.

Each rule has two forms, equal bit for bit: NumPy for files, `keras.ops` for training.
"""

from collections.abc import Iterator
from typing import NamedTuple

import ml_dtypes
import numpy as np
from keras import ops

from keras_tfm.layers.types import Tensor

# The number of weights that share a scale in 4 bits; XNNPACK has kernels for multiples of 32.
BLOCK = 32
LARGEST_LEVEL = 7  # of the levels -7..7 of 4 bits
# The converter's largest value of a row of smaller ones, or of zeros.
CONVERTERS_SMALLEST = 5e-7
_SMALLEST_INT8_SCALE = np.float32(CONVERTERS_SMALLEST / 127)
# Scales of 4 bits are stored in float16: XNNPACK refuses 0, a subnormal one has few digits.
SMALLEST_INT4_SCALE = np.float32(np.finfo("float16").tiny)
# Rounded at once, so that a table of a language model is not copied as a whole.
_VALUES_AT_ONCE = 1 << 22


def row_parts(values: np.ndarray) -> Iterator[slice]:
    """Slices of the first axis, of a few million values each.

    >>> import numpy as np
    >>> from keras_tfm.models.quantization.rounding import row_parts
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
    >>> from keras_tfm.models.quantization.rounding import int8_scales, round_to_int8
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
    return np.maximum(scales, SMALLEST_INT4_SCALE.astype("float16"))


def round_to_int4(matrix: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The nearest levels of -7..7, halves to even: (F, D), int8.

    >>> import numpy as np
    >>> from keras_tfm.models.quantization.rounding import int4_scales, round_to_int4
    >>> row = np.zeros((1, 32), "float32")
    >>> row[0, :3] = 7.0, -3.6, 0.5
    >>> round_to_int4(row, int4_scales(row))[0, :3].tolist()
    [7, -4, 0]
    """
    blocks = matrix.reshape(*scales.shape, BLOCK)
    levels = np.rint(blocks / scales.astype("float32")[..., np.newaxis])
    levels = np.clip(levels, -LARGEST_LEVEL, LARGEST_LEVEL)
    return levels.astype("int8").reshape(matrix.shape)


class Grid(NamedTuple):
    """The values that a weight may have in a file: levels times scales.

    Attributes:
        bits: int, 8: one scale per output, levels -127..127; 4: one scale per 32 values of an
            output, levels -7..7.
        first, last: int, the axes `first` to `last - 1` of the weight are those of the inputs; the
            others are those of the outputs.

    >>> import numpy as np
    >>> from keras_tfm.models.quantization.rounding import Grid
    >>> kernel = np.array([[1.0, -0.5], [0.3, 0.127]], "float32")  # (D, F)
    >>> levels, scales = Grid(8, 0, 1).round(kernel)
    >>> levels.tolist(), scales.shape
    ([[127, 38], [-127, 32]], (2,))
    >>> bool(np.abs(Grid(8, 0, 1).values(levels, scales, kernel.shape) - kernel).max() < 0.004)
    True
    """

    bits: int
    first: int
    last: int
    scales: np.ndarray | None = None
    offsets: np.ndarray | None = None

    def as_it_runs(self) -> "Grid":
        """The grid with what XNNPACK reads of published scales in 4 bits: 7 bits of fraction."""
        if self.scales is None or self.bits != 4:
            return self
        return self._replace(scales=self.scales.astype(ml_dtypes.bfloat16).astype("float16"))

    def with_factors(
        self, weight: np.ndarray, inputs: np.ndarray, outputs: np.ndarray
    ) -> "Grid | None":
        """The published grid of a weight whose inputs and outputs are multiplied; its levels stay.

        Args:
            weight: float32, before that.
            inputs: float, (D,), powers of two; in 4 bits the same for each 32 inputs, in 8 bits
                for all.
            outputs: float, (F,), powers of two.

        Returns:
            None: the file's float16 cannot hold the new scales, or the factors do not fit.

        >>> import numpy as np
        >>> from keras_tfm.models.quantization.rounding import Grid
        >>> grid = Grid(4, 0, 1, scales=np.ones((1, 2), "float16"))
        >>> weight = np.ones((64, 1), "float32")
        >>> grid.with_factors(weight, np.repeat([1.0, 4.0], 32), np.array([0.5])).scales.tolist()
        [[0.5, 2.0]]
        >>> grid.with_factors(weight, np.repeat([1.0, 2.0**20], 32), np.array([1.0])) is None
        True
        """
        assert self.scales is not None
        blocks = inputs.reshape(-1, BLOCK if self.bits == 4 else len(inputs))
        if np.any(blocks != blocks[:, :1]):
            return None
        factors = outputs[:, np.newaxis] * blocks[:, 0]
        scales = self.scales.reshape(len(outputs), -1)
        products = scales.astype("float64") * factors
        with np.errstate(over="ignore"):
            stored = products.astype(scales.dtype)
        is_lost = stored != products
        is_lost |= stored < np.minimum(scales, np.finfo(scales.dtype).tiny)
        if np.any(is_lost):  # a block of zeros may have any scale
            levels, _ = self.round(weight)
            if np.any(levels.reshape(*scales.shape, -1)[is_lost]):
                return None
        stored = np.where(is_lost, scales, stored).reshape(self.scales.shape)
        offsets = self.offsets
        if offsets is not None:
            groups = factors.reshape(len(factors), offsets.shape[1], -1)
            if np.any(groups != groups[..., :1]):
                offsets, groups = np.repeat(offsets, groups.shape[2], axis=1), factors[..., None]
            offsets = (offsets * groups[..., 0]).astype("float32")
        return self._replace(scales=stored, offsets=offsets)

    def with_rows(self, weight: np.ndarray, kept: np.ndarray) -> "Grid":
        """The grid of a weight of other outputs: those of `kept` have their published scales.

        Args:
            weight: float32, the new weight. Its first outputs are those of `kept`.
            kept: (F,), int, the old numbers of these outputs.

        >>> import numpy as np
        >>> from keras_tfm.models.quantization.rounding import Grid
        >>> grid = Grid(8, 1, 2, scales=np.array([1, 2, 3], "float32"))
        >>> grid.with_rows(np.full((3, 2), 1270, "float32"), np.array([0, 2])).scales.tolist()
        [1.0, 3.0, 10.0]
        """
        if self.scales is None:
            return self
        new = self.rows(weight)[len(kept) :]
        scales, offsets = self.scales[kept], self.offsets
        if len(new):
            scales = np.concatenate([scales, Grid(self.bits, 1, 2).round(new)[1]])
        if offsets is not None:
            offsets = np.pad(offsets[kept], ((0, len(new)), (0, 0)))
        return self._replace(scales=scales, offsets=offsets)

    def rows(self, weight: np.ndarray) -> np.ndarray:
        """The weight as the matrix (F, D) of a file, a row for each output."""
        shape = _three_axes(weight.shape, self)
        return weight.reshape(shape).swapaxes(1, 2).reshape(-1, shape[1])

    def round(self, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The nearest levels (F, D), int8, and the scales: (F,) float32, or (F, D / 32) float16."""
        rows = np.ascontiguousarray(self.rows(weight))
        if self.scales is not None:
            parts = [self.levels(rows[part], self.scales, part) for part in row_parts(rows)]
            return np.concatenate(parts), self.scales
        if self.bits == 8:
            scales = int8_scales(rows, 0)
            return round_to_int8(rows, scales, 0), scales
        scales = int4_scales(rows)
        return round_to_int4(rows, scales), scales

    def levels(self, rows: np.ndarray, scales: np.ndarray, part: slice) -> np.ndarray:
        """The nearest levels, int8, of rows `part` of the matrix, with the scales of all rows."""
        step, offset = self._steps_and_offsets(scales, rows.shape[1], part)
        levels = np.rint((rows - offset) / step)
        return np.clip(levels, *_level_range(self.bits)).astype("int8")

    def values(self, levels: np.ndarray, scales: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Levels times scales, float32, in the shape of the weight."""
        step, offset = self._steps_and_offsets(scales, levels.shape[1], slice(None))
        before, width, after = _three_axes(shape, self)
        matrix = (levels.astype("float32") * step + offset).reshape(before, after, width)
        return matrix.swapaxes(1, 2).reshape(shape)

    def _steps_and_offsets(
        self, scales: np.ndarray, width: int, part: slice
    ) -> tuple[np.ndarray, np.ndarray | float]:
        """The scale and the offset of each value of some rows of a matrix (F, `width`)."""
        step = scales[part].astype("float32")
        step = step[:, np.newaxis] if self.bits == 8 else np.repeat(step, BLOCK, axis=1)
        if self.offsets is None:
            return step, 0.0
        return step, np.repeat(self.offsets[part], width // self.offsets.shape[1], axis=1)

    def straight_through(self, weight: Tensor) -> Tensor:
        """The rounded weight, with the gradient of the identity.

        With s the scales, y = s round(w / s), and dL/dw = dL/dy: the straight-through estimator of
        "Estimating or Propagating Gradients Through Stochastic Neurons for Conditional
        Computation" (arXiv:1308.3432), for the weights as in "Quantization and Training of Neural
        Networks for Efficient Integer-Arithmetic-Only Inference" (arXiv:1712.05877). Here the
        scales follow the largest value of each row or block, so no value is clipped. Published
        scales stay, and values beyond the last level are clipped to it.

        Args:
            weight: float tensor.
        """
        constant = ops.stop_gradient(weight)
        rounded = ops.cast(_round_tensor(ops.cast(constant, "float32"), self), weight.dtype)
        # w - w is 0, so the values are on the grid exactly; w + (y - w) would be rounded.
        return rounded + (weight - constant)


def round_rows(x: Tensor, axes: tuple[int, ...] | None) -> Tensor:
    """Activations in 8 bits, as XNNPACK rounds the input of a product with rounded weights.

    With a step s = (max(x, 0) - min(x, 0)) / 255 and a zero point z in -128..127 for each row,
    y = s (clip(round(x / s) + z) - z), and dL/dx = dL/dy, see `Grid.straight_through`.

    Args:
        x: float tensor.
        axes: the axes that share a step; None: all but the first, as in a convolution.

    >>> import numpy as np
    >>> from keras_tfm.models.quantization.rounding import round_rows
    >>> x = np.array([[0.0, 0.12, 25.5]], "float32")
    >>> [round(float(y), 3) for y in round_rows(x, (-1,))[0]]
    [0.0, 0.1, 25.5]
    """
    constant = ops.stop_gradient(x)
    wide = ops.cast(constant, "float32")
    if axes is None:
        axes = tuple(range(1, len(x.shape)))
    smallest = ops.minimum(ops.min(wide, axis=axes, keepdims=True), 0.0)
    largest = ops.maximum(ops.max(wide, axis=axes, keepdims=True), 0.0)
    is_zero = ops.equal(smallest, largest)
    per_step = ops.where(is_zero, 1.0, 255.0 / ops.where(is_zero, 1.0, largest - smallest))
    # The bound that is represented with the smaller error decides on the zero point.
    low, high = smallest * per_step, largest * per_step
    zero = ops.where(low - 128.0 + (high + 127.0) > 0, -128.0 - low, 127.0 - high)
    zero = ops.round(ops.clip(zero, -128.0, 127.0))
    levels = ops.clip(ops.round(wide * per_step) + zero, -128.0, 127.0)
    rounded = (levels - zero) * (1.0 / per_step)
    return ops.cast(rounded, x.dtype) + (x - constant)


def _three_axes(shape: tuple[int, ...], grid: Grid) -> tuple[int, int, int]:
    """A shape with the outputs before the inputs, the inputs, and the outputs after them."""
    sizes = [shape[: grid.first], shape[grid.first : grid.last], shape[grid.last :]]
    before, width, after = (int(np.prod(x)) for x in sizes)
    return before, width, after


def _level_range(bits: int) -> tuple[int, int]:
    """The lowest and the highest level of a published grid."""
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def _round_tensor(weight: Tensor, grid: Grid) -> Tensor:
    """What `Grid.round` and `Grid.values` compute, of a tensor."""
    if grid.scales is not None:
        return _round_to_scales(weight, grid)
    before, width, after = _three_axes(tuple(weight.shape), grid)
    block = width if grid.bits == 8 else BLOCK
    x = ops.reshape(weight, (before, width // block, block, after))
    magnitude = ops.abs(x)
    largest = ops.max(magnitude, axis=2, keepdims=True)
    # XLA multiplies by the reciprocal of a constant or of a number for many values, which is
    # rounded in another way. It divides by what a condition chooses for each value.
    levels_of_largest = np.float32(127 if grid.bits == 8 else LARGEST_LEVEL)
    scale = largest / ops.where(largest > 0, levels_of_largest, np.float32(1))
    if grid.bits == 8:
        scale = ops.maximum(scale, _SMALLEST_INT8_SCALE)
    else:
        scale = ops.maximum(_round_to_bfloat16(scale), SMALLEST_INT4_SCALE)
    levels = magnitude / ops.where(magnitude > 0, scale, np.float32(1))
    if grid.bits == 8:
        levels = ops.floor(levels + 0.5)
    else:
        levels = ops.minimum(ops.round(levels), np.float32(LARGEST_LEVEL))
    return ops.reshape(ops.where(x < 0, -levels, levels) * scale, weight.shape)


def _round_to_scales(weight: Tensor, grid: Grid) -> Tensor:
    """`_round_tensor` for published scales."""
    before, width, after = _three_axes(tuple(weight.shape), grid)

    def spread(numbers: np.ndarray, count: int) -> Tensor:
        # (before after, N), a row for each output, to the axes of x, with `count` values of each
        parts = numbers.reshape(before, after, -1).swapaxes(1, 2)
        return ops.cast(ops.repeat(ops.convert_to_tensor(parts), count, axis=1), "float32")

    assert grid.scales is not None
    x = ops.reshape(weight, (before, width, after))
    scale = spread(grid.scales, width if grid.bits == 8 else BLOCK)
    offset = ops.zeros((), "float32")
    if grid.offsets is not None:
        offset = spread(grid.offsets, width // grid.offsets.shape[1])
    levels = ops.clip(ops.round((x - offset) / scale), *_level_range(grid.bits))
    return ops.reshape(levels * scale + offset, weight.shape)


def _round_to_bfloat16(x: Tensor) -> Tensor:
    """Positive numbers, float32, with the seven bits of bfloat16's fraction, halves to even.

    Of a cast to bfloat16 and back, XLA keeps nothing.
    """
    bits = ops.view(x, "int32")
    bits = bits + 0x7FFF + ops.bitwise_and(ops.right_shift(bits, 16), 1)
    return ops.view(ops.bitwise_and(bits, -0x10000), "float32")
