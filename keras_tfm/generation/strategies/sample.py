"""Sampling."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import keras
from keras import ops

from keras_tfm.arguments import check_integer, check_positive
from keras_tfm.generation import filters
from keras_tfm.generation.strategies.strategy import Context, LogitsProcessor, Strategy
from keras_tfm.layers.dropout import DrawnSeed
from keras_tfm.layers.types import Tensor


@dataclass(frozen=True)
class Sample(Strategy):
    """Samples the next token from the model's distribution, after filtering it.

    After the processors, the filters are applied in this order: temperature, top k, top p, min p.

    Args:
        temperature: float, divides the logits; below 1 it makes probable tokens more probable.
        top_k: int, sample only from the k most probable tokens (arXiv:1805.04833).
        top_p: float, sample only from the smallest set of tokens whose probabilities sum to at
            least p, "nucleus sampling" (arXiv:1904.09751).
        min_p: float, sample only from tokens at least min_p times as probable as the most probable
            one (arXiv:2407.01082).
        seed: int, for the same tokens in every call (`jit_compile=True` gives other tokens than
            False). None: different tokens in every call, which `keras.utils.set_random_seed`
            determines.
        hypotheses: int, number of independent samples per row of the inputs. With 1, `tokens` is
            (B, T) and `scores` (B,); with n > 1, (B, n, T) and (B, n).
        processors: iterable of functions that change the logits before the filters, in this order;
            see `generation.processors`.

    Scores are log-probabilities under the model's own distribution, without processors and filters.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range.

    Example:

    >>> from keras_tfm.generation import Sample
    >>> Sample(temperature=0.7, top_p=0.9, seed=1).top_p
    0.9
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    hypotheses: int = 1
    processors: Sequence[LogitsProcessor] = field(default=(), kw_only=True)
    draws: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive("temperature", self.temperature)
        check_integer("top_k", self.top_k, optional=True)
        for name in ("top_p", "min_p"):
            value = getattr(self, name)
            check_positive(name, value, optional=True)
            if value is not None and value > 1:
                raise ValueError(f"{name} must be within 0 and 1, got {value}")
        check_integer("hypotheses", self.hypotheses)
        check_integer("seed", self.seed, minimum=0, optional=True)
        object.__setattr__(self, "processors", tuple(self.processors))

    def filter(self, logits: Tensor) -> Tensor:
        """Logits (B, V) -> filtered logits (B, V), -inf for tokens that are never sampled."""
        logits = ops.cast(logits, "float32") / self.temperature
        if self.top_k is not None:
            logits = filters.top_k(logits, self.top_k)
        if self.top_p is not None:
            logits = filters.top_p(logits, self.top_p)
        if self.min_p is not None:
            logits = filters.min_p(logits, self.min_p)
        return logits

    def choose(self, logits: Tensor, context: Context) -> Tensor:
        """Logits (B, V) -> tokens (B,), int32."""
        logits = self.filter(logits)
        drawn = keras.random.categorical(logits, 1, seed=DrawnSeed(context.seed), dtype="int32")
        # For NaN logits TensorFlow returns V, which is out of range; the loop then stops.
        return ops.minimum(ops.squeeze(drawn, 1), logits.shape[-1] - 1)
