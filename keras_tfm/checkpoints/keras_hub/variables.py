"""The float values of the variables of a KerasHub model, by path."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.keras_internals import float_kernel, is_initialized, sublayers

# Of a layer with LoRA adapters or rounded weights, all others belong to these.
_WEIGHTS = ("kernel", "embeddings", "reverse_embeddings", "bias")


class Variables:
    """The weights of a model by path: adapters merged, rounded kernels dequantised.

    Args:
        model: a built model of KerasHub.

    Attributes:
        notes: list of str, what was changed.

    Raises:
        ValueError: a weight has no value, or two have the same path.

    Example:

    >>> import keras
    >>> from keras_tfm.checkpoints.keras_hub.variables import Variables
    >>> x = keras.Input((3,))
    >>> Variables(keras.Model(x, keras.layers.Dense(2, name="logits")(x))).paths
    ['logits/kernel', 'logits/bias']
    """

    def __init__(self, model: keras.Model):
        self._found: dict[str, Any] = {}
        self._changed: dict[str, Any] = {}
        adapted, rounded = 0, dict[str, int]()
        layers = [x for x in sublayers(model) if not sublayers(x)]
        for layer in layers:
            mode = getattr(layer, "quantization_mode", None)
            has_adapter = bool(getattr(layer, "lora_enabled", False))
            if mode is None and not has_adapter:
                continue
            adapted += has_adapter
            if mode is not None:
                rounded[mode] = rounded.get(mode, 0) + 1
            self._changed.update({x.path: layer for x in layer.weights})
        for weight in model.weights:
            if weight.path in self._changed and weight.name not in _WEIGHTS:
                continue
            if not is_initialized(weight):
                raise ValueError(f"{model.name}: {weight.path} has no value, load its weights")
            if weight.path in self._found:
                raise ValueError(f"{model.name}: two weights have the path {weight.path}")
            self._found[weight.path] = weight
        self.notes = [f"{n} layers in {mode} were dequantised" for mode, n in rounded.items()]
        if adapted:
            self.notes.append(f"the LoRA adapters of {adapted} layers were merged")
        dtypes = {str(x.dtype) for x in self._found.values() if x.path not in self._changed}
        half = sorted(dtypes & {"float16", "bfloat16"})
        if half:
            self.notes.append(f"weights in {' and '.join(half)} became float32")

    @property
    def paths(self) -> list[str]:
        """The paths of all weights."""
        return list(self._found)

    def value(self, path: str) -> np.ndarray:
        """The value of a weight, in float32 if it is a float."""
        variable = self._found[path]
        layer = self._changed.get(path)
        if layer is not None and variable.name != "bias":
            return ops.convert_to_numpy(float_kernel(layer, variable.name))
        value = ops.convert_to_numpy(variable)
        return value.astype("float32") if str(variable.dtype) != "float32" else value

    def variable(self, path: str) -> Any:
        """The `keras.Variable` itself."""
        return self._found[path]
