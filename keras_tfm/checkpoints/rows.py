"""Rows of a family's table: which tensors of a checkpoint become which weight of a model."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import keras
import ml_dtypes
import numpy as np

from keras_tfm.checkpoints.transforms import (
    ConvolutionKernel,
    Joined,
    Offset,
    Same,
    Shape,
    Transform,
    Transposed,
)

# Rows and columns of a tile: two of them, in float32, fit in the cache of a core.
_TILE = 256
# The rounding of an offset that is added and subtracted in float32.
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Row:
    """One line of a family's table.

    Attributes:
        weight: str, path of a weight, in which {i} stands for a block's number and {j} for an
            expert's.
        tensors: names in the checkpoint, with {i} and {j} for the same numbers.
        transform: `Transform` between the tensors and the weight.
        head: bool, whether the weight belongs to a head: names of heads have no family prefix.
    """

    weight: str
    tensors: tuple[str, ...]
    transform: Transform = field(default_factory=Same)
    head: bool = False


def dense(
    weight: str,
    *tensors: str,
    bias: bool = True,
    transposed: bool = True,
    widths: tuple[int, ...] | None = None,
    head: bool = False,
) -> tuple[Row, ...]:
    """The rows of a dense layer's kernel and bias.

    Args:
        weight: str, path of the layer.
        tensors: names in the checkpoint without ".weight" and ".bias". Several tensors are
            concatenated in the layer.
        bias: bool, whether the layer has a bias.
        transposed: bool, whether the checkpoint's matrices are (out, in), as in PyTorch.
        widths: number of outputs of each of several tensors. Default: all have the same number.
        head: bool, as in `Row`.

    >>> from keras_tfm.checkpoints.rows import dense
    >>> [(row.weight, row.tensors) for row in dense("pooler", "pooler.dense")]
    [('pooler/kernel', ('pooler.dense.weight',)), ('pooler/bias', ('pooler.dense.bias',))]
    """
    each = Transposed() if transposed else Same()
    parts = len(tensors) if widths is None else widths
    joined = len(tensors) > 1
    kernel = Row(
        f"{weight}/kernel",
        tuple(f"{x}.weight" for x in tensors),
        Joined(parts, each=each) if joined else each,
        head,
    )
    if not bias:
        return (kernel,)
    names = tuple(f"{x}.bias" for x in tensors)
    return kernel, Row(f"{weight}/bias", names, Joined(parts) if joined else Same(), head)


def norm(weight: str, tensor: str, head: bool = False) -> tuple[Row, ...]:
    """The rows of a layer normalisation's scale and offset."""
    return (
        Row(f"{weight}/gamma", (f"{tensor}.weight",), head=head),
        Row(f"{weight}/beta", (f"{tensor}.bias",), head=head),
    )


def rms_norm(weight: str, tensor: str, offset: float = 0.0) -> tuple[Row, ...]:
    """The row of an RMS normalisation; `offset` is 1 in checkpoints whose scale is 1 + w."""
    transform = Offset(offset) if offset else Same()
    return (Row(f"{weight}/scale", (f"{tensor}.weight",), transform),)


def convolution(weight: str, tensor: str, bias: bool = True) -> tuple[Row, ...]:
    """The rows of a convolution's kernel and bias."""
    kernel = Row(f"{weight}/kernel", (f"{tensor}.weight",), ConvolutionKernel())
    return (kernel, Row(f"{weight}/bias", (f"{tensor}.bias",))) if bias else (kernel,)


def batch_norm(weight: str, tensor: str) -> tuple[Row, ...]:
    """The rows of a batch normalisation: scale, offset, and both moving statistics."""
    names = {
        "gamma": "weight",
        "beta": "bias",
        "moving_mean": "running_mean",
        "moving_variance": "running_var",
    }
    return tuple(Row(f"{weight}/{ours}", (f"{tensor}.{x}",)) for ours, x in names.items())


class Entry:
    """One weight of a model with its tensors in the checkpoint.

    Attributes:
        weight: the `keras.Variable`.
        tensors: names in the checkpoint.
        transform, head: as in `Row`.
        shapes: dict, the shape of each tensor.

    Raises:
        ValueError: the transform does not support the weight's shape or the number of tensors.
    """

    def __init__(self, weight: keras.Variable, tensors: Sequence[str], row: Row):
        self.weight = weight
        self.tensors = tuple(tensors)
        self.transform, self.head = row.transform, row.head
        shape = tuple(weight.shape)
        try:
            shapes = self.transform.shapes(shape)
        except ValueError as error:
            raise ValueError(f"{weight.path} {shape}: {error}") from None
        if len(shapes) != len(self.tensors):
            raise ValueError(
                f"{weight.path} {shape}: {self.transform} expects {len(shapes)} tensors, "
                f"got {list(self.tensors)}"
            )
        self.shapes: dict[str, Shape] = dict(zip(self.tensors, shapes, strict=True))

    def load(self, arrays: Iterable[np.ndarray]) -> np.ndarray:
        """Converts the values of the tensors to the weight's value, in the weight's dtype."""
        parts = list(arrays)
        if len({x.dtype for x in parts}) > 1:
            parts = [x.astype("float32") for x in parts]
        value = self.transform.load(parts)
        shape = tuple(self.weight.shape)
        if value.shape != shape:
            raise ValueError(
                f"{self.weight.path}: {self.transform} must load a weight of shape {shape}, got "
                f"{value.shape}"
            )
        return contiguous(value, self.weight.dtype)

    def save(self, value: np.ndarray) -> dict[str, np.ndarray]:
        """Converts the weight's value to a dict of the tensors' values."""
        parts = self._parts(value)
        return {
            name: np.ascontiguousarray(part).reshape(part.shape)  # it makes scalars (1,)
            for name, part in zip(self.tensors, parts, strict=True)
        }

    def _parts(self, value: np.ndarray) -> tuple[np.ndarray, ...]:
        """`transform.save(value)`; raises if `load` does not invert it."""
        parts = self.transform.save(value)
        shapes = tuple(x.shape for x in parts)
        expected = tuple(self.shapes.values())
        again = self.transform.load(parts)
        what = f"{self.weight.path}: {self.transform} does not invert: expected "
        if value.shape != tuple(self.weight.shape) or again.shape != value.shape:
            raise ValueError(
                f"{what}a weight of shape {tuple(self.weight.shape)}, got {value.shape}, "
                f"then {again.shape}"
            )
        if shapes != expected:
            raise ValueError(f"{what}tensors of shapes {expected}, got {shapes}")
        if not np.array_equal(again, value) and not np.allclose(
            again, value, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True
        ):
            difference = float(np.nanmax(np.abs(again - value)))
            raise ValueError(f"{what}load(save(x)) to be x, got a difference of {difference:.2g}")
        return parts


def contiguous(array: np.ndarray, dtype: str) -> np.ndarray:
    """The values of an array in C order and in another dtype, such as "bfloat16".

    A transposed matrix is copied in tiles: a copy along its rows would miss the cache at every
    element.
    """
    if array.ndim != 2 or array.flags.c_contiguous:
        return np.asarray(array, as_dtype(dtype), order="C")
    result = np.empty(array.shape, as_dtype(dtype))
    for i in range(0, array.shape[0], _TILE):
        for j in range(0, array.shape[1], _TILE):
            tile = np.s_[i : i + _TILE, j : j + _TILE]
            result[tile] = array[tile]
    return result


def as_dtype(name: str) -> np.dtype:
    """NumPy's dtype of a weight; NumPy has no bfloat16 of its own."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def entries(table: Iterable[Row], model: keras.Model, model_type: str) -> list[Entry]:
    """An entry for each weight of a model.

    Raises:
        ValueError: the table has no row for a weight.
    """
    patterns = [
        (re.compile(re.sub(r"\\{([ij])\\}", r"(?P<\1>\\d+)", re.escape(row.weight))), row)
        for row in table
    ]
    result = []
    for weight in model.weights:
        for pattern, row in patterns:
            found = pattern.fullmatch(weight.path)
            if found:
                names = [x.format(**found.groupdict()) for x in row.tensors]
                result.append(Entry(weight, names, row))
                break
        else:
            raise ValueError(
                f"{model.name}: a {model_type} checkpoint has no place for the weight "
                f"{weight.path} {tuple(weight.shape)}"
            )
    # Parts of one tensor, "name[0]", "name[1]" ..., are written one after the other.
    order: dict[str, int] = {}
    for entry in result:
        order.setdefault(_base_name(entry), len(order))
    return sorted(result, key=lambda entry: order[_base_name(entry)])


def _base_name(entry: Entry) -> str:
    return entry.tensors[0].partition("[")[0]
