"""Folders that torchao quantized to integers in int8 tensors, for phones and CPUs.

`transformers` stores a matrix `x.weight` of the class IntxUnpackedToInt8Tensor or Int8Tensor as
`x._weight_qdata` (out, in), int8; `x._weight_scale` (out, groups); and, of most,
`x._weight_zero_point`: value = (level - zero) scale. The classes and their attributes are JSON in
the metadata of the safetensors file. The other classes of torchao are layouts of one accelerator's
kernels.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_tfm.checkpoints.config import Config
from keras_tfm.checkpoints.quantized.folder import Matrix, part_of
from keras_tfm.checkpoints.quantized.grids import QuantizedTensor
from keras_tfm.checkpoints.tensors import Tensors

_INTX, _INT8 = "IntxUnpackedToInt8Tensor", "Int8Tensor"
# Of the tensors beside the levels: which change the inputs, or belong to static activations.
_REFUSED = ("act_pre_scale", "act_quant_scale", "act_quant_zero_point")


def matrices(config: Config, settings: Mapping[str, Any], files: Tensors) -> dict[str, Matrix]:
    """The quantized matrices of a folder.

    Raises:
        ValueError: a class of tensors is not supported, the metadata does not describe a tensor,
            a matrix lacks a part, or its parts have other shapes or dtypes.
    """
    found = {}
    for name, text in files.metadata.items():
        described = _description(config, name, text)
        kind = described.get("_type")
        if kind in (None, "Tensor"):
            continue
        if kind not in (_INTX, _INT8):
            config.refuse(
                f"quantization_config: torchao's class of {name}", kind, f"{_INTX} or {_INT8}"
            )
        module, _, weight = name.rpartition(".")
        prefix = f"{module}._{weight}_"
        for part in _REFUSED:
            if f"{prefix}{part}" in files:
                config.refuse(
                    f"quantization_config: {prefix}{part}", "a tensor", "dynamic activations"
                )
        for part in described.get("_tensor_data_names") or ():
            part_of(files, f"{prefix}{part}")
        found[name] = _matrix(files, prefix, kind, described.get("_data"))
    return found


def _description(config: Config, name: str, text: str) -> dict[str, Any]:
    """What the metadata say of a tensor; {} if `name` is none."""
    try:
        described = json.loads(text)
    except ValueError:
        described = None
    if isinstance(described, dict):
        return described
    if "." in name:  # the others are "format" and "tensor_names"
        config.refuse(f"quantization_config: metadata of {name}", text, "a dictionary in JSON")
    return {}


def _matrix(files: Tensors, prefix: str, kind: str, settings: Any) -> Matrix:
    """The matrix whose parts begin with `prefix`."""
    levels = part_of(files, f"{prefix}qdata", (None, None), ("I8",))
    rows, width = levels.shape
    place = f"{levels.file}: {prefix}"
    settings = settings if isinstance(settings, dict) else {}
    bits = 8 if kind == _INT8 else _bits(place, settings.get("target_dtype"))
    blocks = settings.get("block_size")
    if not (
        isinstance(blocks, list)
        and [type(x) for x in blocks] == [int, int]
        and min(blocks) > 0
        and not (rows % blocks[0] or width % blocks[1])
    ):
        raise ValueError(
            f"{place}qdata of shape {(rows, width)} must have a block_size that divides it, got "
            f"{blocks}"
        )
    parts = [f"{prefix}qdata", f"{prefix}scale"]
    part_of(files, parts[1])
    if f"{prefix}zero_point" in files:
        parts.append(f"{prefix}zero_point")

    def wide(values: np.ndarray, name: str) -> np.ndarray:
        """Values of blocks for each row (F, N)."""
        shape = rows // blocks[0], width // blocks[1]
        if values.size != shape[0] * shape[1]:
            file = files[name].file
            raise ValueError(f"{file}: {name} must have the shape {shape}, got {values.shape}")
        return np.repeat(values.astype("float32").reshape(shape), blocks[0], axis=0)

    def read() -> QuantizedTensor:
        scales = wide(files.array(parts[1]), parts[1])
        offsets = None
        if len(parts) > 2:
            integers = files[parts[2]].dtype == "I8"
            zeros = files.integers(parts[2]) if integers else files.array(parts[2])
            offsets = -wide(zeros, parts[2]) * scales
            offsets = offsets if np.any(offsets) else None
        return QuantizedTensor(bits, files.integers(parts[0]), scales, offsets)

    return Matrix((rows, width), f"int{bits}", parts, read)


def _bits(place: str, dtype: object) -> int:
    """4 or 8, in which the levels of a dtype fit.

    >>> _bits("", {"_type": "torch.dtype", "_data": "int3"})
    4
    """
    name = dtype.get("_data") if isinstance(dtype, dict) else dtype
    names = [f"int{bits}" for bits in range(1, 9)]
    if name not in names:
        raise ValueError(f"{place}qdata must have a target_dtype of {names}, got {dtype}")
    return 4 if names.index(name) < 4 else 8
