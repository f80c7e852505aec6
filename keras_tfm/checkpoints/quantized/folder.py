"""A folder whose matrices are quantized: under the names of the float model, from their parts."""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import numpy as np

from keras_tfm.checkpoints.quantized.grids import QuantizedTensor
from keras_tfm.checkpoints.stored_tensor import Tensor
from keras_tfm.checkpoints.tensors import AnyTensors, Tensors


class Matrix(NamedTuple):
    """A quantized matrix.

    Attributes:
        shape: (out, in), that of the float matrix.
        kind: str, how it is stored, for messages, such as "int4".
        parts: names of its tensors in the folder.
        read: returns its levels and scales.
    """

    shape: tuple[int, int]
    kind: str
    parts: Collection[str]
    read: Callable[[], QuantizedTensor]


class QuantizedFolder(AnyTensors):
    """The tensors of a folder, with matrices in place of their parts.

    Args:
        files: the tensors in the files.
        matrices: dict from the names of the float model to the quantized matrices.
    """

    def __init__(self, files: Tensors, matrices: Mapping[str, Matrix]):
        super().__init__()
        self._files, self._matrices = files, matrices
        parts = {part for matrix in matrices.values() for part in matrix.parts}
        self._tensors = {name: tensor for name, tensor in files.items() if name not in parts}
        for name, matrix in matrices.items():
            first = files[next(iter(matrix.parts))]
            self._tensors[name] = first._replace(dtype="F32", shape=matrix.shape)

    def array(self, name: str) -> np.ndarray:
        """The values of a tensor: float32 of a quantized one."""
        matrix = self._matrices.get(name)
        return self._files.array(name) if matrix is None else matrix.read().values()

    def quantized_tensor(self, name: str) -> QuantizedTensor | None:
        """The levels and scales of a matrix; None: it has none."""
        matrix = self._matrices.get(name)
        return None if matrix is None else matrix.read()

    def kind(self, name: str) -> str:
        """How a tensor is stored."""
        matrix = self._matrices.get(name)
        return self._files[name].dtype if matrix is None else matrix.kind

    def check_unchanged(self) -> None:
        """Raises a ValueError if a file was changed, replaced or removed since it was opened."""
        self._files.check_unchanged()


def part_of(
    files: Tensors,
    name: str,
    shape: tuple[int | None, ...] | None = None,
    dtypes: tuple[str, ...] | None = None,
) -> Tensor:
    """A part of a quantized matrix.

    Args:
        files: the tensors in the files.
        name: str.
        shape: its shape; None, or a None in it: any.
        dtypes: the allowed dtypes; None: any.

    Raises:
        ValueError: it is missing, or has another shape or dtype.
    """
    tensor = files.get(name)
    if tensor is None:
        folder = next(iter(files.values())).file.parent
        raise ValueError(f"{folder}: the quantized tensors of the folder lack {name}")
    if shape is not None and (
        len(shape) != len(tensor.shape)
        or any(x not in (None, y) for x, y in zip(shape, tensor.shape, strict=True))
    ):
        shown = ", ".join("any" if x is None else str(x) for x in shape)
        raise ValueError(f"{tensor.file}: {name} must have the shape ({shown}), got {tensor.shape}")
    if dtypes is not None and tensor.dtype not in dtypes:
        raise ValueError(
            f"{tensor.file}: {name} must have the dtype {' or '.join(dtypes)}, got {tensor.dtype}"
        )
    return tensor


def unpack_words(words: np.ndarray, bits: int) -> np.ndarray:
    """Signed levels (F, n 32 / bits), int8, of unsigned ones in int32 numbers (F, n).

    The first level is in the lowest bits, and 2^(bits - 1) is level 0.

    >>> unpack_words(np.array([[0x21]], "int32"), 4)[0, :3].tolist()
    [-7, -6, -8]
    """
    data = np.ascontiguousarray(words, "<i4").view("uint8")
    if bits == 8:
        return (data ^ 128).view("int8")
    halves = np.stack([data & 15, data >> 4], axis=-1).reshape(len(data), -1)
    return halves.astype("int8") - np.int8(8)


def by_column(tensor: QuantizedTensor, groups: np.ndarray, name: str) -> QuantizedTensor:
    """The same matrix, whose columns are in these groups.

    Args:
        tensor: with a scale and offset for each group: (F, N).
        groups: (D,), int, the group of each column.
        name: str, the file and the tensor of the groups, for the error.

    Returns:
        The same tensor if each group is the next D / N columns, otherwise one with a scale and an
        offset for each column.

    Raises:
        ValueError: there is no such group.
    """
    count, width = tensor.scales.shape[1], tensor.levels.shape[1]
    if groups.min() < 0 or groups.max() >= count:
        raise ValueError(
            f"{name} must be groups from 0 to {count - 1}, got {groups.min()} to {groups.max()}"
        )
    if width % count == 0 and np.array_equal(groups, np.arange(width) // (width // count)):
        return tensor
    offsets = None if tensor.offsets is None else tensor.offsets[:, groups]
    return tensor._replace(scales=tensor.scales[:, groups], offsets=offsets)
