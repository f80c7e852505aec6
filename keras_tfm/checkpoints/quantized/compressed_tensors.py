"""Folders that compressed-tensors quantized to 4-bit or 8-bit integers.

Their matrices are `weight_packed` (out, in / 8), int32, eight levels in each number, or `weight`,
int8; `weight_scale` (out, groups); and, if they are asymmetric, `weight_zero_point`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_tfm.checkpoints.config import Config
from keras_tfm.checkpoints.quantized.grids import QuantizedTensor
from keras_tfm.checkpoints.tensors import AnyTensors, Tensor, Tensors

_METHOD = "compressed-tensors"
_FORMATS = ("pack-quantized", "int-quantized")
_PACKED, _PLAIN = "weight_packed", "weight"
_PARTS = ("weight_scale", "weight_shape", "weight_zero_point")


def quantized_tensors(config: Config, tensors: Tensors) -> "Tensors | CompressedTensors":
    """The tensors of a folder, unpacked if its configuration says how they are quantized.

    Raises:
        ValueError: they are quantized in an unsupported way.
    """
    settings = config.fields.get("quantization_config")
    if not settings:
        return tensors
    method = settings.get("quant_method") if isinstance(settings, dict) else settings
    if method != _METHOD:
        config.refuse(
            "quantization_config", method, f"that of {_METHOD}, or absent: load the float weights"
        )
    if settings.get("format") not in _FORMATS:
        config.refuse("quantization_config: format", settings.get("format"), f"one of {_FORMATS}")
    groups = settings.get("config_groups")
    if not isinstance(groups, dict) or not all(isinstance(x, dict) for x in groups.values()):
        config.refuse("quantization_config: config_groups", groups, "a dictionary of groups")
    bits = {_bits(config, group) for group in groups.values()}
    if len(bits) != 1:
        config.refuse("quantization_config: num_bits", sorted(bits), "the same in all groups")
    return CompressedTensors(tensors, bits.pop())


def _bits(config: Config, group: Mapping[str, Any]) -> int:
    """The bits of a group's weights; refuses what the file's computation would not do."""
    weights = group.get("weights")
    weights = weights if isinstance(weights, dict) else {}
    for name, allowed in (
        ("type", ("int",)),
        ("num_bits", (4, 8)),
        ("strategy", ("group", "channel")),
        ("actorder", (None, False, "static", "weight")),  # others move columns
    ):
        if weights.get(name) not in allowed:
            config.refuse(
                f"quantization_config: weights {name}", weights.get(name), f"one of {allowed}"
            )
    activations = group.get("input_activations")
    if isinstance(activations, dict) and activations.get("dynamic") is not True:
        config.refuse(
            "quantization_config: input_activations", activations, "dynamic, as in a .tflite file"
        )
    return int(weights["num_bits"])


class CompressedTensors(AnyTensors):
    """The tensors of a folder, with the matrices of which it has the parts.

    Args:
        tensors: those in the files.
        bits: int, of the quantized matrices.

    Raises:
        ValueError: a matrix lacks a part, or its parts have other shapes or dtypes.
    """

    def __init__(self, tensors: Tensors, bits: int):
        super().__init__()
        self._files, self._bits = tensors, bits
        self._quantized: dict[str, str] = {}  # by the matrix, the prefix of its parts
        for name, tensor in tensors.items():
            prefix, dot, part = name.rpartition(".")
            prefix += dot
            if part == _PACKED:
                shape: tuple[int, ...] = self._shape_of(prefix)
                words = -(-shape[1] * bits // 32)
                self._check(name, (shape[0], words), "I32")
            elif part == _PLAIN and tensor.dtype == "I8":
                shape = self._check(name, None, "I8").shape
            elif part not in _PARTS:
                self._tensors[name] = tensor
                continue
            else:
                continue
            scale = self._check(f"{prefix}weight_scale", None, None)
            if len(scale.shape) != 2 or scale.shape[0] != shape[0] or shape[1] % scale.shape[1]:
                raise ValueError(
                    f"{scale.file}: {prefix}weight_scale of shape {scale.shape} does not suit a "
                    f"matrix of shape {shape}"
                )
            self._quantized[f"{prefix}weight"] = prefix
            self._tensors[f"{prefix}weight"] = tensor._replace(dtype="F32", shape=shape)

    def _shape_of(self, prefix: str) -> tuple[int, int]:
        tensor = self._check(f"{prefix}weight_shape", (2,), "I64")
        rows, width = (int(x) for x in self._files.integers(f"{prefix}weight_shape"))
        if rows < 1 or width < 1:
            raise ValueError(f"{tensor.file}: {prefix}weight_shape is {[rows, width]}")
        return rows, width

    def _check(self, name: str, shape: tuple[int, ...] | None, dtype: str | None) -> Tensor:
        """The tensor of this name; raises unless it has the shape and dtype."""
        tensor = self._files.get(name)
        if tensor is None:
            raise ValueError(f"the quantized tensors of the folder lack {name}")
        wanted = shape or tensor.shape, dtype or tensor.dtype
        if (tensor.shape, tensor.dtype) != wanted or len(tensor.shape) > 2:
            raise ValueError(
                f"{tensor.file}: {name} must have the shape {wanted[0]} and dtype {wanted[1]}, "
                f"got {tensor.shape} and {tensor.dtype}"
            )
        return tensor

    def array(self, name: str) -> np.ndarray:
        """The values of a tensor: float32 of a quantized one."""
        found = self.quantized_tensor(name)
        return self._files.array(name) if found is None else found.values()

    def quantized_tensor(self, name: str) -> QuantizedTensor | None:
        """The levels and scales of a matrix; None: it has none."""
        prefix = self._quantized.get(name)
        if prefix is None:
            return None
        scales = self._files.array(f"{prefix}weight_scale").astype("float32")
        width = self._tensors[name].shape[1]
        if f"{prefix}{_PACKED}" in self._files:
            words = self._files.integers(f"{prefix}{_PACKED}")
            levels = _unpack(words, self._bits)[:, :width]
        else:
            levels = self._files.integers(f"{prefix}weight")
        zeros = self._zeros(prefix, scales.shape)
        offsets = None if zeros is None else -zeros.astype("float32") * scales
        return QuantizedTensor(self._bits, levels, scales, offsets)

    def _zeros(self, prefix: str, shape: tuple[int, ...]) -> np.ndarray | None:
        """The zero point of each scale; None: all are 0."""
        name = f"{prefix}weight_zero_point"
        if name not in self._files:
            return None
        zeros = self._files.integers(name)
        if self._files[name].dtype == "I32":  # packed, too, along the rows
            zeros = _unpack(zeros.T, self._bits).T[: shape[0]]
        if zeros.shape != shape:
            raise ValueError(
                f"{self._files[name].file}: {name} must have the shape {shape}, got {zeros.shape}"
            )
        return zeros if np.any(zeros) else None

    def kind(self, name: str) -> str:
        """How a tensor is stored."""
        return f"int{self._bits}" if name in self._quantized else self._files[name].dtype

    def check_unchanged(self) -> None:
        """Raises a ValueError if a file was changed, replaced or removed since it was opened."""
        self._files.check_unchanged()


def _unpack(words: np.ndarray, bits: int) -> np.ndarray:
    """The levels (F, n) in int32 numbers (F, n bits / 32), the first in the lowest bits.

    >>> _unpack(np.array([[0x21]], "int32"), 4)[0, :3].tolist()
    [-7, -6, -8]
    """
    data = np.ascontiguousarray(words, "<i4").view("uint8")
    if bits == 8:
        return (data ^ 128).view("int8")
    halves = np.stack([data & 15, data >> 4], axis=-1).reshape(len(data), -1)
    return halves.astype("int8") - np.int8(8)
