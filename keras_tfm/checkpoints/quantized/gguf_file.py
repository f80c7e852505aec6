"""Reads GGUF files: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.

Example:

>>> import numpy as np
>>> from keras_tfm.checkpoints.quantized.gguf_file import FORMATS
>>> block = np.zeros((1, 1, 18), "uint8")  # of Q4_0: a scale in float16, and 32 levels
>>> block[0, 0, :2] = np.array([0.5], "float16").view("uint8")
>>> block[0, 0, 2] = 0xF9  # the first level and the 17th
>>> values = FORMATS[2].decode(block).values()
>>> values[0, [0, 16, 1]].tolist()
[0.5, 3.5, -4.0]
"""

import math
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from keras_tfm.checkpoints.quantized.grids import QuantizedTensor
from keras_tfm.checkpoints.tensors import Stamp, change_error

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
# By the number of a field's type.
_NUMBERS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_MOST_AXES = 4


def is_gguf(path: Path) -> bool:
    """Whether a path names a GGUF file, which need not exist, and no folder.

    >>> is_gguf(Path("model.Q4_0.gguf")), is_gguf(Path("folder"))
    (True, False)
    """
    return path.suffix == ".gguf" and not path.is_dir()


class Format(NamedTuple):
    """How the values of a tensor are stored.

    Attributes:
        name: str.
        values: int, their number in a block.
        size: int, the bytes of a block.
        decode: function of bytes (F, N, `size`) that returns a `QuantizedTensor`, or values (F, D)
            in float32.
    """

    name: str
    values: int
    size: int
    decode: Callable[[np.ndarray], Any]


def _nibbles(data: np.ndarray) -> np.ndarray:
    """Levels 0..15 of blocks (..., 16): the low bits are the first half of a block."""
    return np.concatenate([data & 15, data >> 4], axis=-1)


def _halves(blocks: np.ndarray, start: int) -> np.ndarray:
    """The float16 numbers at a byte of each block, (F, N), in float32."""
    numbers = np.ascontiguousarray(blocks[..., start : start + 2]).view("float16")
    return numbers[..., 0].astype("float32")


def _decode_q4_0(blocks: np.ndarray) -> QuantizedTensor:
    levels = _nibbles(blocks[..., 2:]).astype("int8") - np.int8(8)
    return QuantizedTensor(4, levels.reshape(len(levels), -1), _halves(blocks, 0))


def _decode_q4_1(blocks: np.ndarray) -> QuantizedTensor:
    levels = _nibbles(blocks[..., 4:]).astype("int8") - np.int8(8)
    scales, lowest = _halves(blocks, 0), _halves(blocks, 2)
    return QuantizedTensor(4, levels.reshape(len(levels), -1), scales, lowest + 8 * scales)


def _decode_q8_0(blocks: np.ndarray) -> QuantizedTensor:
    levels = np.ascontiguousarray(blocks[..., 2:]).view("int8")
    return QuantizedTensor(8, levels.reshape(len(levels), -1), _halves(blocks, 0))


def _decode_q6_k(blocks: np.ndarray) -> np.ndarray:
    """256 values in 16 parts: d scale (q - 32), q of four low bits and two high bits."""
    shape = blocks.shape[:-1]
    low = blocks[..., :128].reshape(*shape, 2, 1, 64) >> np.array([[0], [4]], "uint8")
    high = blocks[..., 128:192].reshape(*shape, 2, 1, 32)
    high = high >> np.array([[0], [2], [4], [6]], "uint8")
    levels = (low & 15).reshape(*shape, 8, 32) | ((high & 3) << 4).reshape(*shape, 8, 32)
    scales = np.ascontiguousarray(blocks[..., 192:208]).view("int8").astype("float32")
    scales = scales * _halves(blocks, 208)[..., np.newaxis]
    parts = (levels.astype("int8") - np.int8(32)).reshape(*shape, 16, 16).astype("float32")
    return (scales[..., np.newaxis] * parts).reshape(len(blocks), -1)


def _decode_bfloat16(blocks: np.ndarray) -> np.ndarray:
    numbers = np.ascontiguousarray(blocks).view("uint16").astype("uint32") << 16
    return numbers.view("float32").reshape(len(blocks), -1)


# By ggml's number of the type.
FORMATS = {
    0: Format("F32", 1, 4, lambda x: np.ascontiguousarray(x).view("float32").reshape(len(x), -1)),
    1: Format("F16", 1, 2, lambda x: _halves(x, 0).reshape(len(x), -1)),
    2: Format("Q4_0", 32, 18, _decode_q4_0),
    3: Format("Q4_1", 32, 20, _decode_q4_1),
    8: Format("Q8_0", 32, 34, _decode_q8_0),
    14: Format("Q6_K", 256, 210, _decode_q6_k),
    30: Format("BF16", 1, 2, _decode_bfloat16),
}
# Other types, for the error that names them.
_OTHERS = {
    6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 15: "Q8_K",
    16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S",
    22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M",
    34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip


class GgufTensor(NamedTuple):
    """The location of a tensor: its format, shape, first byte and number of bytes."""

    format: Format
    shape: tuple[int, ...]
    begin: int
    size: int


class GgufFile:
    """The fields and the tensors of a GGUF file, little-endian.

    Args:
        path: the file.

    Attributes:
        fields: dict of the metadata.
        tensors: dict of `GgufTensor` by name.
        stamp: `Stamp` of the file when it was opened.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no GGUF file, is truncated, or has a tensor of an unsupported type.
    """

    def __init__(self, path: Path):
        self.path = path
        if not path.is_file():
            raise FileNotFoundError(f"no such file: {path}")
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            self.stamp = Stamp.of(status)
            reader = _Reader(file, status.st_size)
            try:
                self.fields, self.tensors = _read(reader)
            except (ValueError, struct.error, OverflowError) as error:
                raise ValueError(f"{path} is no GGUF file that can be loaded: {error}") from None

    def read(self, name: str) -> Any:
        """The `QuantizedTensor` (F, D) of a tensor, or its values in float32, in its shape."""
        tensor = self.tensors[name]
        raw = np.fromfile(self.path, "uint8", tensor.size, offset=tensor.begin)
        if len(raw) != tensor.size:
            raise change_error(self.path)
        rows = math.prod(tensor.shape[:-1])
        found = tensor.format.decode(raw.reshape(rows, -1, tensor.format.size))
        return found if isinstance(found, QuantizedTensor) else found.reshape(tensor.shape)

    def check_unchanged(self) -> None:
        """Raises a ValueError if the file was changed, replaced or removed since it was opened."""
        self.stamp.check(self.path)


class _Reader:
    """Reads numbers and strings, of which a damaged file may have any length."""

    def __init__(self, file: IO[bytes], size: int):
        self._file, self.size = file, size

    @property
    def position(self) -> int:
        return self._file.tell()

    def read(self, count: int) -> bytes:
        if count > self.size - self.position:
            raise ValueError(f"it ends at byte {self.size}, in the middle of its header")
        return self._file.read(count)

    def number(self, kind: str) -> Any:
        return struct.unpack(f"<{kind}", self.read(struct.calcsize(kind)))[0]

    def string(self) -> str:
        return self.read(self.number("Q")).decode("utf-8", "replace")

    def value(self, kind: int, in_array: bool = False) -> Any:
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind])
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY or in_array:
            raise ValueError(f"a field has the unknown type {kind}")
        inner, count = self.number("I"), self.number("Q")
        if inner not in _NUMBERS:
            if count > self.size:
                raise ValueError(f"a list of {count} values is longer than the file")
            return [self.value(inner, in_array=True) for _ in range(count)]
        size = struct.calcsize(_NUMBERS[inner])
        return [*struct.unpack(f"<{count}{_NUMBERS[inner]}", self.read(count * size))]


def _read(reader: _Reader) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
    """The metadata and the tensors."""
    if reader.read(4) != _MAGIC:
        raise ValueError("it does not begin with GGUF")
    version = reader.number("I")
    if version not in _VERSIONS:
        raise ValueError(f"its version must be one of {list(_VERSIONS)}, got {version}")
    count, pairs = reader.number("Q"), reader.number("Q")
    if max(count, pairs) > reader.size:
        raise ValueError(f"{count} tensors and {pairs} fields are more than the file can have")
    fields = {}
    for _ in range(pairs):
        name = reader.string()
        fields[name] = reader.value(reader.number("I"))
    found = {}
    for _ in range(count):
        name, axes = reader.string(), reader.number("I")
        if not 1 <= axes <= _MOST_AXES:
            raise ValueError(f"{name} must have 1 to {_MOST_AXES} axes, got {axes}")
        shape = tuple(reader.number("Q") for _ in range(axes))[::-1]  # the last axis is first
        found[name] = shape, reader.number("I"), reader.number("Q")
    alignment = fields.get("general.alignment", 32)
    if type(alignment) is not int or alignment < 1:
        raise ValueError(f"general.alignment must be a positive integer, got {alignment!r}")
    start = reader.position + -reader.position % alignment
    tensors = {}
    for name, (shape, kind, offset) in found.items():
        if kind not in FORMATS:
            known = ", ".join(x.name for x in FORMATS.values())
            raise ValueError(f"{name} is {_OTHERS.get(kind, f'type {kind}')}; supported: {known}")
        form = FORMATS[kind]
        if shape[-1] % form.values or not math.prod(shape):
            raise ValueError(f"{name}, {form.name}, cannot have rows of {shape[-1]} values")
        size = math.prod(shape) // form.values * form.size
        if start + offset + size > reader.size:
            raise ValueError(
                f"{name} ends at byte {start + offset + size}, and the file at {reader.size}"
            )
        tensors[name] = GgufTensor(form, shape, start + offset, size)
    return fields, tensors
