"""Less probable repetitions, and no repeated n-grams."""

from dataclasses import dataclass

from keras import ops

from keras_tfm.arguments import check_integer, check_positive
from keras_tfm.generation.processors.processor import NEVER, Processor, scatter
from keras_tfm.generation.strategies.strategy import Context
from keras_tfm.layers.types import Tensor


@dataclass(frozen=True)
class RepetitionPenalty(Processor):
    """Makes tokens that occur in the prompt or the output so far less probable (arXiv:1909.05858).

    The same as `repetition_penalty` in transformers.

    Args:
        penalty: float, divides the positive logits of these tokens and multiplies the negative
            ones. Below 1 it makes them more probable.

    >>> from keras import ops
    >>> from keras_tfm.generation import Context
    >>> from keras_tfm.generation.processors import RepetitionPenalty
    >>> context = Context(ops.array([[3, 0, 0]]), ops.array([[True, True, False]]), 1, None)
    >>> RepetitionPenalty(2.0)(ops.array([[1.0, 1.0, 1.0, -1.0]]), context).numpy().tolist()
    [[0.5, 1.0, 1.0, -2.0]]
    """

    penalty: float

    def __post_init__(self) -> None:
        check_positive("penalty", self.penalty)

    def __call__(self, logits: Tensor, context: Context) -> Tensor:
        """Logits (B, V) -> logits (B, V)."""
        occurred = _occurring(context.tokens, context.written, logits.shape[-1])
        penalised = ops.where(logits > 0, logits / self.penalty, logits * self.penalty)
        return ops.where(occurred, penalised, logits)


@dataclass(frozen=True)
class NoRepeatNGram(Processor):
    """Prevents every n-gram of tokens that has occurred in the prompt or the output so far.

    The same as `no_repeat_ngram_size` in transformers.

    Args:
        size: int, n.

    >>> from keras import ops
    >>> from keras_tfm.generation import Context
    >>> from keras_tfm.generation.processors import NoRepeatNGram
    >>> written = ops.array([[True, True, True, False]])
    >>> context = Context(ops.array([[1, 2, 1, 0]]), written, 2, None)
    >>> NoRepeatNGram(2)(ops.array([[0.0, 0.0, 0.0]]), context).numpy().tolist()
    [[0.0, 0.0, -inf]]
    """

    size: int

    def __post_init__(self) -> None:
        check_integer("size", self.size)

    def __call__(self, logits: Tensor, context: Context) -> Tensor:
        """Logits (B, V) -> logits (B, V), -inf for tokens that repeat an n-gram."""
        tokens, n = context.tokens, self.size
        batch, count = ops.shape(tokens)[0], tokens.shape[1] - n + 1
        if count < 1:
            return logits
        # The n-gram from each column: both ends hold tokens, and so do the columns between.
        repeated = ops.logical_and(context.written[:, :count], context.written[:, n - 1 :])
        for i in range(n - 1):
            column = ops.maximum(context.position - n + 2 + i, 0)
            own = ops.slice(tokens, (0, column), (batch, 1))
            same = ops.equal(tokens[:, i : i + count], own)
            repeated = ops.logical_and(repeated, same)
        prevented = _occurring(tokens[:, n - 1 :], repeated, logits.shape[-1])
        return ops.where(prevented, NEVER, logits)


def _occurring(tokens: Tensor, counted: Tensor, vocabulary_size: int) -> Tensor:
    """Which tokens occur in the counted columns: (B, V), boolean."""
    ids = ops.where(counted, tokens, vocabulary_size)
    return scatter(ids, ops.ones_like(ids, dtype="float32"), vocabulary_size) > 0.5
