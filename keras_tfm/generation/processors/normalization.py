"""Scores that sum to one again after other processors."""

from dataclasses import dataclass

from keras import ops

from keras_tfm.generation.processors.processor import Processor
from keras_tfm.generation.strategies.strategy import Context
from keras_tfm.layers.types import Tensor


@dataclass(frozen=True)
class LogitNormalization(Processor):
    """Turns scores into log-probabilities: y = x - log(sum(exp(x))).

    The same as `renormalize_logits` in transformers. In a beam search, the last of the processors:
    the probability of tokens that others forbid goes to the remaining ones. Marian's models need
    it, whose padding token has most of the probability and is forbidden. Other strategies choose
    the same tokens with it and without.

    >>> import numpy as np
    >>> from keras import ops
    >>> from keras_tfm.generation.processors import LogitNormalization
    >>> x = LogitNormalization()(np.log(np.array([[0.1, 0.3, 0.0]], "float32") + 1e-30), None)
    >>> ops.exp(x).numpy().round(2).tolist()
    [[0.25, 0.75, 0.0]]
    """

    def __call__(self, logits: Tensor, context: Context) -> Tensor:
        """Scores (B, V) -> log-probabilities (B, V)."""
        return ops.log_softmax(logits)
