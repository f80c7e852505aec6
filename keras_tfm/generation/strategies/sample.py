"""Sampling."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import keras
from keras import ops

from keras_tfm.arguments import check_integer, check_positive
from keras_tfm.generation import filters
from keras_tfm.generation.strategies.context import Context
from keras_tfm.generation.strategies.strategy import Strategy
from keras_tfm.layers.drawn_seed import DrawnSeed

Tensor = Any


@dataclass(frozen=True)
class Sample(Strategy):
    """Samples the next token from the model's distribution, after filtering it.

    The filters are applied in this order: repetition penalty, banned ids, temperature, top k,
    top p, min p.

    Args:
        temperature: float, divides the logits; below 1 it makes probable tokens more probable.
        top_k: int, sample only from the k most probable tokens (arXiv:1805.04833).
        top_p: float, sample only from the smallest set of tokens whose probabilities sum to at
            least p, "nucleus sampling" (arXiv:1904.09751).
        min_p: float, sample only from tokens at least min_p times as probable as the most probable
            one (arXiv:2407.01082).
        repetition_penalty: float, divides the positive logits and multiplies the negative logits of
            tokens that occur in the prompt or the output so far (arXiv:1909.05858).
        banned_ids: list of int, ids that are never sampled.
        seed: int, for the same tokens in every call (`jit_compile=True` gives other tokens than
            False). None: different tokens in every call, which `keras.utils.set_random_seed`
            determines.

    Scores are log-probabilities under the model's own distribution, without the filters.

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
    repetition_penalty: float = 1.0
    banned_ids: Sequence[int] = ()
    seed: int | None = None
    draws: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive("temperature", self.temperature)
        check_integer("top_k", self.top_k, optional=True)
        for name in ("top_p", "min_p"):
            value = getattr(self, name)
            check_positive(name, value, optional=True)
            if value is not None and value > 1:
                raise ValueError(f"{name} must be within 0 and 1, got {value}")
        check_positive("repetition_penalty", self.repetition_penalty)
        check_integer("seed", self.seed, minimum=0, optional=True)
        object.__setattr__(self, "banned_ids", tuple(map(operator.index, self.banned_ids)))

    def check(self, vocabulary_size: int) -> None:
        """Raises ValueError if a banned token is not in the vocabulary, or all are banned."""
        for banned in self.banned_ids:
            if not 0 <= banned < vocabulary_size:
                raise ValueError(f"banned_ids must be in 0..{vocabulary_size - 1}, got {banned}")
        if len(set(self.banned_ids)) >= vocabulary_size:
            raise ValueError(
                f"banned_ids must leave at least one of {vocabulary_size} tokens, got all of them"
            )

    def filter(self, logits: Tensor, context: Context) -> Tensor:
        """Logits (B, V) -> filtered logits (B, V), -inf for tokens that are never sampled."""
        logits = ops.cast(logits, "float32")
        if self.repetition_penalty != 1.0:
            logits = filters.repetition_penalty(
                logits, context.tokens, context.written, self.repetition_penalty
            )
        if self.banned_ids:
            logits = filters.banned(logits, self.banned_ids)
        logits = logits / self.temperature
        if self.top_k is not None:
            logits = filters.top_k(logits, self.top_k)
        if self.top_p is not None:
            logits = filters.top_p(logits, self.top_p)
        if self.min_p is not None:
            logits = filters.min_p(logits, self.min_p)
        return logits

    def choose(self, logits: Tensor, context: Context) -> Tensor:
        """Logits (B, V) -> tokens (B,), int32."""
        logits = self.filter(logits, context)
        drawn = keras.random.categorical(logits, 1, seed=DrawnSeed(context.seed), dtype="int32")
        # For NaN logits TensorFlow returns V, which is out of range; the loop then stops.
        return ops.minimum(ops.squeeze(drawn, 1), logits.shape[-1] - 1)
