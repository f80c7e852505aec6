"""The grids of quantized tensors, and how a model keeps them.

Example:

>>> import numpy as np
>>> from keras_tfm.checkpoints.quantized.grids import QuantizedTensor
>>> levels = np.zeros((1, 32), "int8")
>>> levels[0, :2] = -8, 3
>>> tensor = QuantizedTensor(4, levels, np.array([[-0.5]], "float32"))  # a scale of Q4_0 has a sign
>>> tensor.values()[0, :2].tolist()
[4.0, -1.5]
>>> scales, offsets = tensor.with_positive_scales()
>>> scales.tolist(), offsets.tolist()  # 4 = -(-8 + 1) 0.5 + 0.5
([[0.5]], [[0.5]])
"""

import logging
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from keras_tfm.checkpoints.names import Named
from keras_tfm.checkpoints.rows import Entry
from keras_tfm.checkpoints.transforms import Joined, Same, Transform, Transposed
from keras_tfm.models import Model
from keras_tfm.models.quantization.rounding import BLOCK, SMALLEST_INT4_SCALE, Grid
from keras_tfm.models.quantization.state import TrainedQuantization, set_quantization

_log = logging.getLogger(__name__)


class QuantizedTensor(NamedTuple):
    """A matrix of a checkpoint: levels times scales, plus offsets.

    Attributes:
        bits: int, 4 or 8.
        levels: (F, D), int8, -8..7 or -128..127.
        scales: (F, N), float32, one for each of N equal parts of a row. They may be negative.
        offsets: (F, N), float32; None: zeros.
    """

    bits: int
    levels: np.ndarray
    scales: np.ndarray
    offsets: np.ndarray | None = None

    def values(self) -> np.ndarray:
        """The matrix in float32."""
        width = self.levels.shape[1] // self.scales.shape[1]
        matrix = self.levels.astype("float32") * np.repeat(self.scales, width, axis=1)
        return matrix if self.offsets is None else matrix + np.repeat(self.offsets, width, axis=1)

    def with_positive_scales(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Scales and offsets of the same values, with positive scales; offsets may be None.

        XNNPACK refuses other scales. With s < 0, s q = |s| (-q). A level -8 would become 8, which
        4 bits do not have, so -q = (-q - 1) + 1, and |s| is added to the values of the block.
        """
        scales = np.abs(self.scales)
        offsets = np.zeros_like(scales) if self.offsets is None else self.offsets.copy()
        blocks = self.levels.reshape(*scales.shape, -1)
        has_lowest = blocks.min(axis=-1) == -(1 << (self.bits - 1))
        offsets += np.where((self.scales < 0) & has_lowest, scales, 0)
        # All values of a scale of 0 are its offset: of level 0 with any other scale.
        scales = np.where(scales == 0, SMALLEST_INT4_SCALE, scales)
        return scales, offsets if np.any(offsets) else None


class QuantizedTensors(Protocol):
    """Tensors of a checkpoint, some of which are quantized."""

    def quantized_tensor(self, name: str) -> QuantizedTensor | None:
        """The levels and scales of a tensor; None: it is not quantized."""

    def kind(self, name: str) -> str:
        """How a tensor is stored, for messages, such as "Q4_0"."""


def keep_grids(
    model: Model, named: Named, entries: Iterable[Entry], tensors: QuantizedTensors, source: str
) -> None:
    """Lets a model compute with the grids of its checkpoint, if a file can store them.

    A .tflite file has, in 4 bits, a scale in float16 for each 32 values of a row, and in 8 bits
    one for each row. A checkpoint's groups of 64 or 128 values, or whole rows, are several equal
    scales in 4 bits. The other matrices are rounded as usual, to 8 bits with a scale for each row.
    A warning names them, and what else no file can store.

    Args:
        model: the model with its values. It is changed.
        named: the tensors by their names in the family's table.
        entries: an `Entry` for every weight.
        tensors: the tensors by their names in the files.
        source: str, the file or folder, for the warning.
    """
    grids: dict[str, tuple[int, np.ndarray, np.ndarray | None]] = {}
    others: dict[str, str] = {}
    for entry in entries:
        if len(entry.weight.shape) < 2:
            continue
        found = [tensors.quantized_tensor(named.own[name]) for name in entry.tensors]
        kinds = ", ".join(dict.fromkeys(tensors.kind(named.own[name]) for name in entry.tensors))
        parts = [x for x in found if x is not None]
        joined = _join(entry, parts) if len(parts) == len(found) else "only a part is quantized"
        if isinstance(joined, str):
            others[entry.weight.path] = f"{kinds}: {joined}" if parts else kinds
        else:
            grids[entry.weight.path] = joined
    if not grids:
        if others:
            warnings.warn(
                f"{source}: its values are loaded as floats, and a file rounds them again: "
                f"{_shorten(others)}",
                stacklevel=3,
            )
        return
    quantization = "int4" if any(bits == 4 for bits, _, _ in grids.values()) else "int8"
    layers = [path.rpartition("/")[0] for path in others]
    state = TrainedQuantization(model, quantization, (), layers if quantization == "int4" else ())
    kept = {}
    for number, (weight, grid) in enumerate(state.weights):
        if weight.path in grids:
            bits, scales, offsets = grids[weight.path]
            kept[number] = _grid(grid, bits, scales, offsets)
    state.publish(kept)
    set_quantization(model, state)
    _log.info("%s: %d of %d matrices keep their grids", source, len(kept), len(state.weights))
    rounded = {x.variable.path for x in state.weights} - {*grids}
    rounded_again = {path: text for path, text in others.items() if path in rounded}
    if rounded_again:
        warnings.warn(
            f"{source}: {len(kept)} of {len(state.weights)} matrices keep their integers and "
            "scales; the others are rounded to 8 bits with a scale for each row: "
            f"{_shorten(rounded_again)}",
            stacklevel=3,
        )


def _shorten(others: Mapping[str, str]) -> str:
    """The first few weights, with how they are stored."""
    shown = [f"{path} ({text})" for path, text in [*others.items()][:4]]
    return ", ".join(shown) + (f" and {len(others) - 4} more" if len(others) > 4 else "")


def _grid(grid: Grid, bits: int, scales: np.ndarray, offsets: np.ndarray | None) -> Grid:
    """The grid of a weight, with scales and offsets whose axes are those of the weight."""
    rows = np.ascontiguousarray(grid.rows(scales))
    if offsets is not None:
        offsets = np.ascontiguousarray(grid.rows(offsets))
    rows = rows[:, 0] if bits == 8 else rows.astype("float16")
    return Grid(bits, grid.first, grid.last, rows, offsets)


def _join(
    entry: Entry, parts: Sequence[QuantizedTensor]
) -> tuple[int, np.ndarray, np.ndarray | None] | str:
    """The bits, scales and offsets of a weight made of quantized tensors, with its axes.

    Or the reason why a file cannot store them.
    """
    bits = parts[0].bits
    if any(x.bits != bits for x in parts):
        return "4 and 8 bits in one matrix"
    if not _keeps_rows(entry.transform):
        return "it is no matrix of a dense layer"
    scales, offsets = [], []
    for part in parts:
        positive, offset = part.with_positive_scales()
        width, count = part.levels.shape[1], positive.shape[1]
        if count == width > 1:
            return "the columns of a group are not next to each other"
        if bits == 8 and count > 1:
            return f"8 bits have a scale for each row, not for {width // count} values"
        if bits == 4 and (width // count) % BLOCK:
            return f"a scale for {width // count} values, which is no multiple of {BLOCK}"
        if bits == 4:
            half = positive.astype("float16").astype("float32")
            if not np.array_equal(half, positive):
                return "its scales are no float16 numbers"
            positive = np.repeat(positive, width // BLOCK // count, axis=1)
        scales.append(positive)
        offsets.append(offset)
    joined = entry.transform.load(scales)
    if all(x is None for x in offsets):
        return bits, joined, None
    count = max(x.shape[1] for x in offsets if x is not None)
    each = [
        np.zeros((len(part.levels), count), "float32")
        if x is None
        else np.repeat(x, count // x.shape[1], axis=1)
        for x, part in zip(offsets, parts, strict=True)
    ]
    return bits, joined, entry.transform.load(each)


def _keeps_rows(transform: Transform) -> bool:
    """Whether a transform only moves the rows of a matrix (out, in), and may transpose it."""
    if isinstance(transform, Joined):
        return transform.axis == -1 and transform.each == Transposed()
    return isinstance(transform, Same) or transform == Transposed()
