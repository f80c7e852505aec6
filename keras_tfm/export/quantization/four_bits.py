"""4-bit weights ("int4"), made by Google's ai-edge-quantizer."""

import re
from collections.abc import Collection
from types import ModuleType

import numpy as np

from keras_tfm.export.graph.schema import ModelT, TensorT
from keras_tfm.optional_package import optional_package
from keras_tfm.runtime import flatbuffer

# The number of weights that share a scale; XNNPACK has kernels for multiples of 32.
BLOCK = 32
# A block's scale is stored in float16. XNNPACK refuses a file with a scale of 0; a subnormal scale
# has few digits, and a larger one overflows to infinity.
_SMALLEST_SCALE, _LARGEST_SCALE = float(np.finfo("float16").tiny), 65280.0
LARGEST_LEVEL = 7  # of the levels -7..7


def import_quantizer() -> ModuleType:
    """Imports the quantizer; the error names the extra to install."""
    return optional_package(
        "ai_edge_quantizer.quantizer",
        'quantization="int4" needs ai-edge-quantizer',
        "ai-edge-quantizer",
        extra="quantize",
    )


def quantize(content: bytes, kept: Collection[int], eight_bits: Collection[int] = ()) -> bytes:
    """Quantises the weights of a float32 file to 4 bits, with one scale per 32 values of a row.

    Rows whose length is not a multiple of 32, convolutions, and matrices whose values are too
    small or too large for scales in float16, get 8 bits with one scale per row, in float32.
    Weights of operators that the quantizer does not support (GATHER, BATCH_MATMUL) get float16.
    Activations are quantised to 8 bits at run time, as in "int8".

    Args:
        content: the bytes of the file.
        kept: the indices of the buffers that stay float32.
        eight_bits: the indices of the buffers that get 8 bits, with one scale per row.
    """
    package = import_quantizer()
    from ai_edge_quantizer import qtyping, recipe_manager

    model = flatbuffer.read(content)
    uses: dict[int, list[flatbuffer.WeightUse]] = {}
    weights = flatbuffer.float_weights(model)
    candidates = weights.keys() - set(kept)
    for use in flatbuffer.weight_uses(model):
        if use.tensor.buffer in candidates:
            uses.setdefault(use.tensor.buffer, []).append(use)
    recipe, halved = recipe_manager.RecipeManager(), []
    for buffer, readers in uses.items():
        bits = _bits(readers, weights[buffer])
        if bits == 4 and buffer in eight_bits:
            bits = 8
        if bits is None:
            halved.append(buffer)
            continue
        granularity = qtyping.QuantGranularity[f"BLOCKWISE_{BLOCK}" if bits == 4 else "CHANNELWISE"]
        for use in readers:
            outputs = [use.graph.tensors[i].name.decode() for i in use.operator.outputs]
            recipe.add_dynamic_config(
                regex=f"^{re.escape(';'.join(outputs))};?$",
                operation_name=qtyping.TFLOperationName(use.name),
                num_bits=bits,
                granularity=granularity,
            )
    flatbuffer.store_half(model, halved)
    rules = recipe.get_quantization_recipe()
    content = flatbuffer.write(model)
    if not rules:
        return content
    quantizer = package.Quantizer(bytearray(content), rules)
    # A block of zeros has the scale 0, and 0/0 warns here; `_floor_scales` rewrites such blocks.
    with np.errstate(divide="ignore", invalid="ignore"):
        result = quantizer.quantize(enable_progress_bar=False, enable_progress_report=False)
    # Read and written again: the quantizer stores large weights behind the flatbuffer, where
    # neither the manifest nor the report would find them.
    quantized = flatbuffer.read(bytes(result.quantized_model))
    _floor_scales(quantized)
    return flatbuffer.write(quantized)


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
    scale = float(np.abs(values).max(initial=0.0)) / LARGEST_LEVEL
    # Raising a small block's scale to the smallest normal float16 then costs less precision
    # than the block with the largest values loses anyway.
    return 4 if scale == 0.0 or _SMALLEST_SCALE <= scale <= _LARGEST_SCALE else 8


def _floor_scales(model: ModelT) -> None:
    """Raises each block's scale to at least the smallest normal float16, and rounds again."""
    done = set()
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            details = tensor.quantization and tensor.quantization.details
            if not hasattr(details, "scales") or tensor.buffer in done:
                continue
            done.add(tensor.buffer)
            stored = graph.tensors[details.scales].buffer
            scales = np.frombuffer(bytes(model.buffers[stored].data), "float16")
            floored = np.maximum(scales, np.float16(_SMALLEST_SCALE))
            if np.array_equal(scales, floored):
                continue
            blocks = unpack(model, tensor).reshape(-1, details.blockSize).astype("float32")
            blocks *= (scales.astype("float32") / floored.astype("float32"))[:, np.newaxis]
            model.buffers[stored].data = floored.view("uint8")
            model.buffers[tensor.buffer].data = _pack(np.rint(blocks).astype("int8"))


def unpack(model: ModelT, tensor: TensorT) -> np.ndarray:
    """The values -8..7 of a 4-bit tensor, as int8. A byte holds the first value in its low bits."""
    data = np.frombuffer(bytes(model.buffers[tensor.buffer].data), "int8")
    numbers = np.stack([(data << 4).astype("int8") >> 4, data >> 4], axis=-1).ravel()
    return numbers[: int(np.prod(tensor.shape))].reshape(tensor.shape)


def _pack(numbers: np.ndarray) -> np.ndarray:
    low, high = numbers.reshape(-1, 2).astype("uint8").T
    return ((low & 15) | (high << 4)).astype("uint8")
