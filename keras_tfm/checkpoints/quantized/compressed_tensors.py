"""Folders that compressed-tensors quantized to 4-bit or 8-bit integers.

Their matrices are `weight_packed` (out, in / 8), int32, eight levels in each number, or `weight`,
int8; `weight_scale` (out, groups); if they are asymmetric, `weight_zero_point`; and, if columns of
a group are not next to each other, `weight_g_idx`.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from keras_tfm.checkpoints.config import Config
from keras_tfm.checkpoints.quantized.folder import Matrix, by_column, part_of, unpack_words
from keras_tfm.checkpoints.quantized.grids import QuantizedTensor
from keras_tfm.checkpoints.tensors import Tensors

_FORMATS = ("pack-quantized", "int-quantized")
_PACKED, _PLAIN, _ZERO = "weight_packed", "weight", "weight_zero_point"
_PARTS = ("weight_scale", "weight_shape", _ZERO, "weight_g_idx")


def matrices(config: Config, settings: Mapping[str, Any], files: Tensors) -> dict[str, Matrix]:
    """The quantized matrices of a folder.

    Raises:
        ValueError: they are quantized in an unsupported way, a matrix lacks a part, or its parts
            have other shapes or dtypes.
    """
    if settings.get("format") not in _FORMATS:
        config.refuse("quantization_config: format", settings.get("format"), f"one of {_FORMATS}")
    transforms = settings.get("transform_config")
    # Rotations, some of which are computed at run time.
    if transforms and transforms != {"config_groups": {}}:
        config.refuse("quantization_config: transform_config", transforms, "absent")
    groups = settings.get("config_groups")
    if not isinstance(groups, dict) or not all(isinstance(x, dict) for x in groups.values()):
        config.refuse("quantization_config: config_groups", groups, "a dictionary of groups")
    every = {_bits(config, group) for group in groups.values()}
    if len(every) != 1:
        config.refuse("quantization_config: num_bits", sorted(every), "the same in all groups")
    bits, found = every.pop(), {}
    symmetric = [(x.get("weights") or {}).get("symmetric", True) for x in groups.values()]
    for name, tensor in files.items():
        prefix, dot, part = name.rpartition(".")
        prefix += dot
        if part == _PACKED or (part == _PLAIN and tensor.dtype == "I8"):
            found[f"{prefix}weight"] = _matrix(files, prefix, part, bits)
            if not any(symmetric):
                part_of(files, f"{prefix}{_ZERO}")
    return found


def _bits(config: Config, group: Mapping[str, Any]) -> int:
    """The bits of a group's weights; refuses what the file's computation would not do."""
    weights = group.get("weights")
    weights = weights if isinstance(weights, dict) else {}
    for name, allowed in (
        ("type", ("int",)),
        ("num_bits", (4, 8)),
        ("strategy", ("group", "channel")),
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
    results = group.get("output_activations")
    if results is not None:
        config.refuse("quantization_config: output_activations", results, "absent")
    return int(weights["num_bits"])


def _matrix(files: Tensors, prefix: str, part: str, bits: int) -> Matrix:
    """The matrix whose levels are `part`."""
    if part == _PACKED:
        described = part_of(files, f"{prefix}weight_shape", (2,), ("I64",))
        rows, width = (int(x) for x in files.integers(f"{prefix}weight_shape"))
        if rows < 1 or width < 1:
            raise ValueError(f"{described.file}: {prefix}weight_shape is {[rows, width]}")
        part_of(files, f"{prefix}{part}", (rows, -(-width * bits // 32)), ("I32",))
    else:
        rows, width = part_of(files, f"{prefix}{part}", (None, None)).shape
    scale = part_of(files, f"{prefix}weight_scale", (rows, None))
    zero, columns = f"{prefix}{_ZERO}", f"{prefix}weight_g_idx"
    if zero in files:
        packed = files[zero].dtype == "I32"  # along the rows
        part_of(files, zero, (-(-rows * bits // 32) if packed else rows, scale.shape[1]))
    if columns in files:
        part_of(files, columns, (width,), ("I32",))
    elif width % scale.shape[1]:
        raise ValueError(
            f"{scale.file}: {prefix}weight_scale of shape {scale.shape} does not suit a "
            f"matrix of shape {(rows, width)}"
        )
    names = (f"{prefix}{x}" for x in _PARTS)
    parts = [f"{prefix}{part}", *(x for x in names if x in files)]
    read = partial(_read, files, prefix, part, bits, width)
    return Matrix((rows, width), f"int{bits}", parts, read)


def _read(files: Tensors, prefix: str, part: str, bits: int, width: int) -> QuantizedTensor:
    scales = files.array(f"{prefix}weight_scale").astype("float32")
    levels = files.integers(f"{prefix}{part}")
    if part == _PACKED:
        levels = unpack_words(levels, bits)[:, :width]
    zeros = _zeros(files, f"{prefix}{_ZERO}", bits, len(levels))
    offsets = None if zeros is None else -zeros.astype("float32") * scales
    columns = f"{prefix}weight_g_idx"
    if columns not in files:
        return QuantizedTensor(bits, levels, scales, offsets)
    tensor = QuantizedTensor(bits, levels, scales, offsets)
    return by_column(tensor, files.integers(columns), f"{files[columns].file}: {columns}")


def _zeros(files: Tensors, name: str, bits: int, rows: int) -> np.ndarray | None:
    """The zero point of each scale (F, N); None: all are 0."""
    if name not in files:
        return None
    zeros = files.integers(name)
    if files[name].dtype == "I32":
        zeros = unpack_words(zeros.T, bits).T[:rows]
    return zeros if np.any(zeros) else None
