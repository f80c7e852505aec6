"""Weights in four bits, through Google's ai-edge-quantizer."""

import re
from collections.abc import Collection
from typing import Any

from keras_tfm.runtime import flatbuffer

# The number of weights that share a scale; XNNPACK has kernels for multiples of 32.
BLOCK = 32


def import_quantizer() -> Any:
    """Imports the quantizer; the error names the extra to install."""
    try:
        import ai_edge_quantizer.quantizer as package
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("ai_edge_quantizer"):
            raise
        raise ModuleNotFoundError(
            'quantization="int4" needs ai-edge-quantizer: pip install "keras-tfm[quantize]"',
            name=error.name,
        ) from None
    return package


def quantize(content: bytes, kept: Collection[int]) -> bytes:
    """A float32 file with weights in four bits, a scale for every 32 numbers of a row.

    Rows whose length is not a multiple of 32, and convolutions, get 8 bits with one scale per row.
    Weights of operators that the quantizer does not support (GATHER, BATCH_MATMUL) get float16.
    Activations are quantised to 8 bits at run time, as in "int8".

    Args:
        content: the file.
        kept: numbers of the buffers that stay float32.
    """
    package = import_quantizer()
    from ai_edge_quantizer import qtyping, recipe_manager

    model = flatbuffer.read(content)
    uses: dict[int, list[flatbuffer.WeightUse]] = {}
    candidates = flatbuffer.float_weights(model).keys() - set(kept)
    for use in flatbuffer.weight_uses(model):
        if use.tensor.buffer in candidates:
            uses.setdefault(use.tensor.buffer, []).append(use)
    recipe, halved = recipe_manager.RecipeManager(), []
    for buffer, readers in uses.items():
        bits = _bits(readers)
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
    result = quantizer.quantize(enable_progress_bar=False, enable_progress_report=False)
    # Rewritten, because the quantizer stores large weights after the flatbuffer, where neither the
    # manifest nor the report would find them.
    return flatbuffer.write(flatbuffer.read(bytes(result.quantized_model)))


def _bits(uses: list[flatbuffer.WeightUse]) -> int | None:
    """The number of bits that all readers of a weight support, so that it is stored once."""
    names = {use.name for use in uses}
    if names <= {"FULLY_CONNECTED", "EMBEDDING_LOOKUP"}:
        return 4 if uses[0].tensor.shape[-1] % BLOCK == 0 else 8
    return 8 if names <= {"CONV_2D"} or names <= {"DEPTHWISE_CONV_2D"} else None
