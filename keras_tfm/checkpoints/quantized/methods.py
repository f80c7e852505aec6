"""The methods of quantization whose folders are loaded, by `quantization_config` of config.json."""

from collections.abc import Callable, Mapping
from typing import Any

from keras_tfm.checkpoints.config import Config
from keras_tfm.checkpoints.quantized import compressed_tensors, packed_words, torchao
from keras_tfm.checkpoints.quantized.folder import Matrix, QuantizedFolder
from keras_tfm.checkpoints.tensors import Tensors

METHODS: dict[str, Callable[[Config, dict[str, Any], Tensors], Mapping[str, Matrix]]] = {
    "compressed-tensors": compressed_tensors.matrices,
    "gptq": packed_words.gptq_matrices,
    "awq": packed_words.awq_matrices,
    "torchao": torchao.matrices,
}


def quantized_tensors(config: Config, tensors: Tensors) -> Tensors | QuantizedFolder:
    """The tensors of a folder, unpacked if its configuration says how they are quantized.

    Raises:
        ValueError: they are quantized in an unsupported way, a matrix lacks a part, or its parts
            have other shapes or dtypes.
    """
    settings = config.fields.get("quantization_config")
    if not settings:
        return tensors
    method = settings.get("quant_method") if isinstance(settings, dict) else settings
    read = METHODS.get(method) if isinstance(method, str) else None
    if read is None:
        config.refuse(
            "quantization_config", method, f"one of {list(METHODS)}, or absent: load float weights"
        )
    matrices = read(config, settings, tensors)
    if not matrices:
        config.refuse("quantization_config", method, "none, as no tensor is quantized")
    return QuantizedFolder(tensors, matrices)
