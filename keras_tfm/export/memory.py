"""The memory that an export needs beside the model, and that this machine has."""

import warnings

import keras

from keras_tfm.host_memory import available_memory

# Bytes per weight of each preset; the scales of "int4" are half a bit.
_BYTES = {"float32": 4.0, "float16": 2.0, "int8": 1.0, "int8_full": 1.0, "int4": 0.5625}
_GIGABYTE = 1e9


def memory_needed(parameters: int, quantization: str, verify: bool) -> float:
    """About how many bytes an export needs beside the model.

    The file, mapped, and XNNPACK's copy of its weights; with verification, instead, the file's
    graph with weights in float32, mapped. Large weights are otherwise in memory one at a time.

    Args:
        parameters: int, the number of weights.
        quantization: the preset.
        verify: bool, whether the file is verified.

    >>> from keras_tfm.export.memory import memory_needed
    >>> [memory_needed(600_000_000, "int8", verify) / 1e9 for verify in (False, True)]
    [1.2, 3.0]
    """
    file = parameters * _BYTES[quantization]
    return max(2 * file, file + 4 * parameters if verify else 0)


def warn_if_short(model: keras.Model, quantization: str, verify: bool) -> None:
    """Warns, before anything is converted, if the memory is likely too small.

    Args:
        model: functional `keras.Model`, or a `ModelGroup`.
        quantization, verify: as in `export_tflite`.
    """
    need, left = memory_needed(model.count_params(), quantization, verify), available_memory()
    if left is not None and left < need:
        less = memory_needed(model.count_params(), quantization, verify=False)
        advice = f"; verify=False needs about {less / _GIGABYTE:.2g} GB" if less < need else ""
        warnings.warn(
            f"exporting {model.name} needs about {need / _GIGABYTE:.2g} GB of memory beside the "
            f"model, {left / _GIGABYTE:.2g} GB are available: it may be slow, or the system may "
            f"end it{advice}",
            UserWarning,
            stacklevel=5,  # at the caller of `export_tflite`, over its two decorators
        )
