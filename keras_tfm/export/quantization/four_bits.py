"""4-bit weights ("int4"): one scale per 32 values of a row."""

from collections.abc import Callable, Collection, Iterable, Iterator

import numpy as np

from keras_tfm.export.graph.schema import ModelT, TensorT
from keras_tfm.models.quantization.rounding import (
    BLOCK,
    LARGEST_LEVEL,
    int4_scales,
    int8_scales,
    round_to_int4,
    round_to_int8,
    row_parts,
)
from keras_tfm.runtime import flatbuffer
from keras_tfm.runtime.flatbuffer import LazyBytes
from keras_tfm.runtime.manifest.storage import import_litert

# A block's scale is stored in float16. XNNPACK refuses a file with a scale of 0; a subnormal scale
# has few digits, and a larger one overflows to infinity.
_SMALLEST_SCALE, _LARGEST_SCALE = float(np.finfo("float16").tiny), 65280.0

# What returns the levels of a weight, int8, a few rows at a time.
Levels = Callable[[], Iterable[np.ndarray]]


def quantize(model: ModelT, kept: Collection[int], eight_bits: Collection[int] = ()) -> None:
    """Quantises the weights of a float32 file to 4 bits, with one scale per 32 values of a row.

    Rows whose length is not a multiple of 32, convolutions, and matrices whose values are too
    small or too large for scales in float16, get 8 bits with one scale per row, in float32.
    Weights of operators without kernels for them (GATHER, BATCH_MATMUL) get float16. Activations
    are quantised to 8 bits at run time, as in "int8".

    Args:
        model: the file, from `flatbuffer.read`.
        kept: the indices of the buffers that stay float32.
        eight_bits: the indices of the buffers that get 8 bits, with one scale per row.
    """
    uses: dict[int, list[flatbuffer.WeightUse]] = {}
    weights = flatbuffer.float_weights(model)
    candidates = weights.keys() - set(kept)
    for use in flatbuffer.weight_uses(model):
        if use.tensor.buffer in candidates:
            uses.setdefault(use.tensor.buffer, []).append(use)
    halved = []
    for buffer, readers in uses.items():
        bits = _bits(readers, weights[buffer])
        if bits == 4 and buffer in eight_bits:
            bits = 8
        if bits is None:
            halved.append(buffer)
        elif bits == 8:
            _store_int8(model, buffer, 3 if readers[0].name == "DEPTHWISE_CONV_2D" else 0)
        else:
            _store_int4(model, buffer)
    flatbuffer.store_half(model, halved)


def _bits(uses: list[flatbuffer.WeightUse], values: np.ndarray) -> int | None:
    """The number of bits of a weight that all operators reading it support; None: use float16."""
    names = {use.name for use in uses}
    if names <= {"FULLY_CONNECTED", "EMBEDDING_LOOKUP"}:
        return matrix_bits(values)
    return 8 if names <= {"CONV_2D"} or names <= {"DEPTHWISE_CONV_2D"} else None


def matrix_bits(values: np.ndarray) -> int:
    """The number of bits, 4 or 8, that suit a matrix (..., D) with inputs of width D."""
    if values.shape[-1] % BLOCK:
        return 8
    largest = max(float(values.max(initial=0.0)), -float(values.min(initial=0.0)))
    scale = largest / LARGEST_LEVEL
    # Raising a small block's scale to the smallest normal float16 then costs less precision
    # than the block with the largest values loses anyway.
    return 4 if scale == 0.0 or _SMALLEST_SCALE <= scale <= _LARGEST_SCALE else 8


def _tensors(model: ModelT, buffer: int) -> list[TensorT]:
    return [x for graph in model.subgraphs for x in graph.tensors if x.buffer == buffer]


def _store_int8(model: ModelT, buffer: int, axis: int) -> None:
    """Stores a float32 weight in 8 bits, with one scale for each index of an axis."""
    data, shape = model.buffers[buffer].data, _tensors(model, buffer)[0].shape

    def values() -> np.ndarray:
        return np.asarray(data, np.uint8).view("float32").reshape(shape)

    scale = int8_scales(values(), axis, 127 * float(np.finfo("float32").tiny))
    store_int8_levels(model, buffer, scale, lambda: [round_to_int8(values(), scale, axis)], axis)


def _store_int4(model: ModelT, buffer: int) -> None:
    """Stores a float32 matrix in 4 bits."""
    data, shape = model.buffers[buffer].data, _tensors(model, buffer)[0].shape

    def values() -> np.ndarray:
        return np.asarray(data, np.uint8).view("float32").reshape(-1, shape[-1])

    scales = int4_scales(values())

    def chunks() -> Iterator[np.ndarray]:
        matrix = values()
        for part in row_parts(matrix):
            yield round_to_int4(matrix[part], scales[part])

    store_int4_levels(model, buffer, scales, chunks)


def store_int8_levels(
    model: ModelT, buffer: int, scales: np.ndarray, levels: Levels, axis: int = 0
) -> None:
    """Replaces a float32 weight by levels in 8 bits, in its order, times scales along an axis."""
    schema = import_litert("schema_py_generated")
    for tensor in _tensors(model, buffer):
        tensor.type = schema.TensorType.INT8
        tensor.quantization = schema.QuantizationParametersT()
        tensor.quantization.scale, tensor.quantization.quantizedDimension = scales, axis
        tensor.quantization.zeroPoint = np.zeros(len(scales), "int64")
    model.buffers[buffer].data = LazyBytes(len(model.buffers[buffer].data) // 4, levels)


def store_int4_levels(model: ModelT, buffer: int, scales: np.ndarray, levels: Levels) -> None:
    """Replaces a float32 matrix by levels in 4 bits; each graph gets a tensor with the scales."""
    schema = import_litert("schema_py_generated")
    size, shape = len(model.buffers[buffer].data) // 8, _tensors(model, buffer)[0].shape
    model.buffers[buffer].data = LazyBytes(size, lambda: map(_pack, levels()))
    stored = schema.BufferT()
    stored.data = np.ascontiguousarray(scales).view("uint8").reshape(-1)
    model.buffers.append(stored)
    for graph in model.subgraphs:
        for tensor in [x for x in graph.tensors if x.buffer == buffer]:
            rows = schema.TensorT()
            rows.name, rows.type = tensor.name + b"_scales", schema.TensorType.FLOAT16
            rows.shape, rows.buffer = [*shape[:-1], shape[-1] // BLOCK], len(model.buffers) - 1
            details = schema.BlockwiseQuantizationT()
            details.scales, details.zeroPoints = len(graph.tensors), -1
            details.blockSize = BLOCK
            graph.tensors.append(rows)
            tensor.type = schema.TensorType.INT4
            tensor.quantization = schema.QuantizationParametersT()
            tensor.quantization.details = details
            tensor.quantization.detailsType = schema.QuantizationDetails.BlockwiseQuantization


def unpack(model: ModelT, tensor: TensorT) -> np.ndarray:
    """The values -8..7 of a 4-bit tensor, as int8. A byte holds the first value in its low bits."""
    data = np.asarray(model.buffers[tensor.buffer].data, np.uint8).view("int8")
    numbers = np.stack([(data << 4).astype("int8") >> 4, data >> 4], axis=-1).ravel()
    return numbers[: int(np.prod(tensor.shape))].reshape(tensor.shape)


def _pack(numbers: np.ndarray) -> np.ndarray:
    low, high = numbers.reshape(-1, 2).astype("uint8").T
    return ((low & 15) | (high << 4)).astype("uint8")
