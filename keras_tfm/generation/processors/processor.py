"""The base class of logits processors."""

import operator
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from keras import ops

from keras_tfm.generation.strategies.strategy import Context
from keras_tfm.layers.types import Tensor

NEVER = float("-inf")


class Processor:
    """The base class of logits processors, which change the logits before a token is chosen.

    Any function of logits (B, V) and a `Context` is a processor; a class can also check the
    vocabulary size. A processor keeps no state: it computes everything from the tokens so far, so
    that it works with every strategy, and beams may be reordered.

    >>> from keras import ops
    >>> from keras_tfm.generation import Context, Greedy
    >>> def twice(logits, context):
    ...     return 2.0 * logits
    >>> strategy = Greedy(processors=[twice])
    >>> context = Context(ops.array([[3, 0]]), ops.array([[True, False]]), 0, None)
    >>> strategy.process(ops.array([[0.5, 1.5]]), context).numpy().tolist()
    [[1.0, 3.0]]
    """

    # Whether it calls Python in each step. Neither XLA nor an exported file can do that.
    calls_python: ClassVar[bool] = False

    @property
    def unconditional(self) -> tuple[int, ...]:
        """An empty prompt that the loop runs beside each prompt; () for none.

        `Context.unconditional` then has the logits after it.
        """
        return ()

    def __call__(self, logits: Tensor, context: Context) -> Tensor:
        """Logits (B, V), float32 -> logits (B, V); -inf for a token that must not be chosen.

        In a beam search B counts hypotheses, and the logits are log-probabilities.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define a call")

    def check(self, vocabulary_size: int) -> None:
        """Raises ValueError if an id is not in a vocabulary of this size."""


def as_ids(name: str, ids: int | Sequence[int]) -> tuple[int, ...]:
    """One id or several as a tuple; raises unless they are non-negative integers."""
    several = np.atleast_1d(np.asarray(ids, object))
    try:
        result = tuple(operator.index(x) for x in several)
    except TypeError:
        raise TypeError(f"{name} must be an integer or several integers, got {ids!r}") from None
    if not result or min(result) < 0:
        raise ValueError(f"{name} must be at least one id and not negative, got {ids!r}")
    return result


def check_in_vocabulary(name: str, ids: Sequence[int], vocabulary_size: int) -> None:
    """Raises ValueError for an id that is not in the vocabulary."""
    for one in ids:
        if one >= vocabulary_size:
            raise ValueError(f"{name} must be in 0..{vocabulary_size - 1}, got {one}")


def is_among(logits: Tensor, ids: Sequence[int]) -> Tensor:
    """Which tokens of the vocabulary are among `ids`: (1, V), boolean, a constant."""
    result = np.zeros((1, logits.shape[-1]), bool)
    result[0, list(ids)] = True
    return result


def forbidden(logits: Tensor, ids: Sequence[int], when: Tensor) -> Tensor:
    """The logits, -inf for `ids` in the rows (B | 1, 1) where `when` is True."""
    if not ids:
        return logits
    return ops.where(ops.logical_and(when, is_among(logits, ids)), NEVER, logits)


def scatter(ids: Tensor, values: Tensor, vocabulary_size: int) -> Tensor:
    """The sum of the values of each token.

    Args:
        ids: (B, N) or (1, N), int32, tokens; `vocabulary_size` and above for values to ignore.
        values: (B, N), float32.
        vocabulary_size: int, V.

    Returns:
        (B, V), float32.

    >>> from keras import ops
    >>> from keras_tfm.generation.processors.processor import scatter
    >>> scatter(ops.array([[2, 0, 2, 3]]), ops.array([[1.0, 5.0, 1.0, 9.0]]), 3).numpy().tolist()
    [[5.0, 0.0, 2.0]]
    """
    batch, count = ops.shape(values)[0], values.shape[1]
    columns = ops.broadcast_to(ops.minimum(ids, vocabulary_size), (batch, count))
    rows = ops.expand_dims(ops.arange(batch, dtype="int32"), 1)
    rows = ops.broadcast_to(rows, (batch, count))
    places = ops.reshape(ops.stack([rows, columns], axis=-1), (batch * count, 2))
    sums = ops.scatter(places, ops.reshape(values, (batch * count,)), (batch, vocabulary_size + 1))
    return sums[:, :vocabulary_size]
