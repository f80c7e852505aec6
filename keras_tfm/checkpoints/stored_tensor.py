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

    def parts(self) -> list["Tensor"]:
        """Its parts along the first axis.

        >>> from pathlib import Path
        >>> from keras_tfm.checkpoints.stored_tensor import Tensor
        >>> tensor = Tensor(Path("model.safetensors"), "F32", (2, 3), begin=100, end=124)
        >>> [(part.shape, part.begin, part.end) for part in tensor.parts()]
        [((3,), 100, 112), ((3,), 112, 124)]
        """
        shape, size = self.shape[1:], self.end - self.begin
        if self.strides is None:
            step = length = size // max(self.shape[0], 1)
            strides = None
        else:
            spans = [(n - 1) * step for n, step in zip(self.shape, self.strides, strict=True)]
            width = size // (sum(spans) + 1)
            step, length = self.strides[0] * width, (sum(spans[1:]) + 1) * width
            strides = self.strides[1:]
        begins = [self.begin + i * step for i in range(self.shape[0])]
        return [
            self._replace(shape=shape, begin=x, end=x + length, strides=strides) for x in begins
        ]
