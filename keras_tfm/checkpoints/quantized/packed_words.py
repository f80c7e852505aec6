"""Folders that GPTQ or AWQ quantized: levels without sign, packed into int32 numbers.

A matrix (out, in) is `qweight`, its levels; `scales` (groups, out), float16; and `qzeros`, the
packed zero points: value = (level - zero) scale. GPTQ packs along the inputs, `qweight` (in / 8,
out) in 4 bits, and has the group of each input in `g_idx` (in,). AWQ packs along the outputs,
`qweight` (in, out / 8), in the order 0, 2, 4, 6, 1, 3, 5, 7. The `qzeros` (groups, out / 8) of both
are packed along the outputs; those of GPTQ's first format are one less than the zero points.

GPTQ: Frantar et al., 2023, https://arxiv.org/abs/2210.17323.
AWQ: Lin et al., 2024, https://arxiv.org/abs/2306.00978.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from keras_tfm.checkpoints.config import Config
from keras_tfm.checkpoints.quantized.folder import Matrix, by_column, part_of, unpack_words
from keras_tfm.checkpoints.quantized.grids import QuantizedTensor
from keras_tfm.checkpoints.tensors import Tensors

_FLOATS = ("F16", "BF16", "F32")
# The place of each of eight outputs among the eight levels of a number of AWQ.
_AWQ_PLACES = [0, 4, 1, 5, 2, 6, 3, 7]


def gptq_matrices(config: Config, settings: Mapping[str, Any], files: Tensors) -> dict[str, Matrix]:
    """The quantized matrices of a folder of GPTQ.

    Raises:
        ValueError: they are quantized in an unsupported way, a matrix lacks a part, or its parts
            have other shapes or dtypes.
    """
    _check(config, settings, bits=(4, 8), checkpoint_format=("gptq", "gptq_v2", None))
    _check(config, settings, dynamic=(None, {}), pack_dtype=("int32", None))
    bits, added = settings["bits"], settings.get("checkpoint_format") != "gptq_v2"

    def matrix(prefix: str) -> Matrix:
        per_word = 32 // bits
        words, rows = part_of(files, f"{prefix}qweight", (None, None), ("I32",)).shape
        width = words * per_word
        count = part_of(files, f"{prefix}scales", (None, rows), _FLOATS).shape[0]
        part_of(files, f"{prefix}qzeros", (count, -(-rows // per_word)), ("I32",))
        part_of(files, f"{prefix}g_idx", (width,), ("I32",))
        parts = [f"{prefix}{x}" for x in ("qweight", "scales", "qzeros", "g_idx")]
        return Matrix((rows, width), f"int{bits}", parts, partial(read, prefix))

    def read(prefix: str) -> QuantizedTensor:
        levels = unpack_words(files.integers(f"{prefix}qweight").T, bits)
        words = files.integers(f"{prefix}qzeros")
        if added:
            # 1 in each level, with carries, as the conversion to the second format of GPTQModel.
            words = words + np.int32(0x11111111 if bits == 4 else 0x01010101)
        tensor = _tensor(files, prefix, bits, levels, unpack_words(words, bits))
        columns = f"{prefix}g_idx"
        return by_column(tensor, files.integers(columns), f"{files[columns].file}: {columns}")

    return _matrices(files, matrix)


def awq_matrices(config: Config, settings: Mapping[str, Any], files: Tensors) -> dict[str, Matrix]:
    """The quantized matrices of a folder of AWQ.

    Raises:
        ValueError: they are quantized in an unsupported way, a matrix lacks a part, or its parts
            have other shapes or dtypes.
    """
    _check(config, settings, bits=(4,), version=("gemm", "GEMM", None))

    def matrix(prefix: str) -> Matrix:
        width, words = part_of(files, f"{prefix}qweight", (None, None), ("I32",)).shape
        rows = words * 8
        scales = part_of(files, f"{prefix}scales", (None, rows), _FLOATS)
        count = scales.shape[0]
        part_of(files, f"{prefix}qzeros", (count, words), ("I32",))
        if not count or width % count:
            raise ValueError(
                f"{scales.file}: {prefix}scales has {count} groups, which do not divide {width} "
                "inputs"
            )
        parts = [f"{prefix}{x}" for x in ("qweight", "scales", "qzeros")]
        return Matrix((rows, width), "int4", parts, partial(read, prefix))

    def read(prefix: str) -> QuantizedTensor:
        levels, zeros = (
            _in_order(unpack_words(files.integers(f"{prefix}{x}"), 4))
            for x in ("qweight", "qzeros")
        )
        return _tensor(files, prefix, 4, np.ascontiguousarray(levels.T), zeros)

    return _matrices(files, matrix)


def _check(config: Config, settings: Mapping[str, Any], **allowed: tuple[Any, ...]) -> None:
    """Refuses a field that is none of the allowed values."""
    for name, values in allowed.items():
        if settings.get(name) not in values:
            config.refuse(
                f"quantization_config: {name}", settings.get(name), f"one of {list(values)}"
            )


def _matrices(files: Tensors, matrix: Callable[[str], Matrix]) -> dict[str, Matrix]:
    """The matrices of all tensors named "qweight"."""
    prefixes = [x.removesuffix("qweight") for x in files if x.endswith(".qweight")]
    return {f"{prefix}weight": matrix(prefix) for prefix in prefixes}


def _in_order(levels: np.ndarray) -> np.ndarray:
    """The levels (n, out) of AWQ in the order of the outputs.

    >>> _in_order(np.array([[0, 2, 4, 6, 1, 3, 5, 7]], "int8")).tolist()
    [[0, 1, 2, 3, 4, 5, 6, 7]]
    """
    return levels.reshape(len(levels), -1, 8)[:, :, _AWQ_PLACES].reshape(levels.shape)


def _tensor(
    files: Tensors, prefix: str, bits: int, levels: np.ndarray, zeros: np.ndarray
) -> QuantizedTensor:
    """Of signed levels (out, in) and zero points (groups, out), which may be padded."""
    scales = files.array(f"{prefix}scales").astype("float32").T
    offsets = -zeros[:, : len(scales)].T.astype("float32") * scales
    scales = np.ascontiguousarray(scales)
    return QuantizedTensor(bits, levels, scales, offsets if np.any(offsets) else None)
