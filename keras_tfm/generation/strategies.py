"""How the next token is chosen."""

from dataclasses import dataclass
from typing import Any

from keras import ops

Tensor = Any


@dataclass(frozen=True)
class Greedy:
    """Takes the most probable token at each step.

    >>> import numpy as np
    >>> from keras_tfm.generation import Greedy
    >>> Greedy().choose(np.array([[0.1, 0.7, 0.2]], "float32")).numpy().tolist()
    [1]
    """

    def choose(self, logits: Tensor) -> Tensor:
        """Logits (B, V) -> tokens (B,), int32."""
        # Not ops.argmax: on TensorFlow it compares bits to tell 0.0 from -0.0, with operations that
        # no .tflite file may hold.
        return ops.cast(ops.squeeze(ops.top_k(logits, k=1)[1], -1), "int32")
