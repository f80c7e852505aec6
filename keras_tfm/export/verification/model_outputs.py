"""The outputs of a model, each computed once."""

from functools import cached_property
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.export.signatures.input_numbers import InputNumbers, input_numbers
from keras_tfm.generation.interface import interface_of


class ModelOutputs:
    """The outputs of a model, each computed once.

    Args:
        model: a model in float32.

    >>> from keras_tfm.export.verification.model_outputs import ModelOutputs
    >>> x = keras.Input((2,), name="x")
    >>> outputs = ModelOutputs(keras.Model(x, keras.layers.Dense(3)(x)))
    >>> outputs.of({"x": np.ones((70, 2), "float32")})["output"].shape
    (70, 3)
    """

    # Rows per call of the model.
    ROWS = 64

    def __init__(self, model: keras.Model):
        self.model = model
        self.interface = interface_of(model)
        self._known: dict[Any, dict[str, np.ndarray]] = {}

    @cached_property
    def numbers(self) -> dict[str, InputNumbers]:
        """What the model tells of its inputs of numbers."""
        return input_numbers(self.model)

    def of(self, inputs: dict[str, Any]) -> dict[str, np.ndarray]:
        """The outputs by their names in a file, for arrays of inputs by name."""
        key = tuple((name, x.shape, x.tobytes()) for name, x in inputs.items())
        if key not in self._known:
            rows = len(next(iter(inputs.values())))
            # A model may have a fixed batch size.
            step = next(iter(self.interface.inputs.values())).spec.shape[0] or self.ROWS
            parts: list[dict[str, np.ndarray]] = []
            for start in range(0, rows, step):
                chunk = {name: x[start : start + step] for name, x in inputs.items()}
                tensors = {name: ops.convert_to_tensor(x) for name, x in chunk.items()}
                results = self.interface.name_outputs(self.interface.call(tensors))
                parts.append({name: ops.convert_to_numpy(y) for name, y in results.items()})
            self._known[key] = {
                name: np.concatenate([part[name] for part in parts]) for name in parts[0]
            }
        return self._known[key]

    def logits(self, inputs: dict[str, Any]) -> np.ndarray:
        """The first output of the model, before the draft heads that it may have."""
        return next(iter(self.of(inputs).values()))
