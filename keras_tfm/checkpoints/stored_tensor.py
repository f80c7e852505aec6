"""Where the values of a tensor are in a file, whatever the format of the file is."""

from pathlib import Path
from typing import NamedTuple


class Tensor(NamedTuple):
    """The location of a tensor in a file.

    Attributes:
        file: Path of the file.
        dtype: str, the dtype's name in safetensors, such as "F32" or "BF16".
        shape: tuple of int.
        begin, end: int, the range of bytes that has all of its elements.
        strides: tuple of int, the steps between neighbours along each axis, in elements; None: the
            elements are in the order of their indices, without gaps.

    Example:

    >>> from pathlib import Path
    >>> from keras_tfm.checkpoints.stored_tensor import Tensor
    >>> tensor = Tensor(Path("model.safetensors"), "F32", (2, 3), begin=100, end=124)
    >>> tensor.end - tensor.begin
    24
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int
    strides: tuple[int, ...] | None = None
