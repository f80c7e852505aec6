"""Greedy search."""

from collections.abc import Sequence
from dataclasses import dataclass

from keras import ops

from keras_tfm.generation.logits import top_k
from keras_tfm.generation.strategies.strategy import Context, LogitsProcessor, Strategy
from keras_tfm.layers.types import Tensor


@dataclass(frozen=True)
class Greedy(Strategy):
    """Greedy search: chooses the most probable token at each step.

    Args:
        processors: iterable of functions that change the logits, in this order; see
            `generation.processors`.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.generation import Greedy
    >>> Greedy().choose(np.array([[0.1, 0.7, 0.2]], "float32"), None).numpy().tolist()
    [1]
    """

    processors: Sequence[LogitsProcessor] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "processors", tuple(self.processors))

    def choose(self, logits: Tensor, context: Context) -> Tensor:
        """Logits (B, V) -> tokens (B,), int32."""
        # Not ops.argmax: on TensorFlow it distinguishes 0.0 from -0.0 with bitwise operations that
        # LiteRT does not support.
        return ops.squeeze(top_k(logits, 1)[1], -1)
