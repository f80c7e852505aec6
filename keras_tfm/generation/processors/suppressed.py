"""Tokens and sequences of tokens that are not generated, or are more or less probable."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.generation.processors.processor import (
    NEVER,
    Processor,
    as_ids,
    check_in_vocabulary,
    forbidden,
    scatter,
)
from keras_tfm.generation.strategies.strategy import Context
from keras_tfm.layers.types import Tensor

Ids = tuple[int, ...]


@dataclass(frozen=True)
class SuppressTokens(Processor):
    """Prevents tokens; the same as `suppress_tokens` in transformers.

    Args:
        ids: int or several int, the tokens.
    """

    ids: int | Sequence[int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", as_ids("ids", self.ids))

    def check(self, vocabulary_size: int) -> None:
        """Raises ValueError if a token is not in the vocabulary, or all tokens are suppressed."""
        ids = as_ids("ids", self.ids)
        check_in_vocabulary("SuppressTokens: ids", ids, vocabulary_size)
        if len(set(ids)) >= vocabulary_size:
            raise ValueError(
                f"SuppressTokens: ids must leave at least one of {vocabulary_size} tokens, "
                "got all of them"
            )

    def __call__(self, logits: Tensor, context: Context) -> Tensor:
        """Logits (B, V) -> logits (B, V), -inf for the tokens."""
        return forbidden(logits, as_ids("ids", self.ids), True)


@dataclass(frozen=True)
class SuppressTokensAtBegin(SuppressTokens):
    """Prevents tokens in one step; the same as `begin_suppress_tokens` in transformers.

    Args:
        ids: int or several int, the tokens.
        index: int, the number of tokens generated before that step: 0, or 1 after a `ForcedBOS`.
    """

    index: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("index", self.index, minimum=0)

    def __call__(self, logits: Tensor, context: Context) -> Tensor:
        """Logits (B, V) -> logits (B, V), -inf for the tokens in that step."""
        return forbidden(logits, as_ids("ids", self.ids), ops.equal(context.new_length, self.index))


@dataclass(frozen=True)
class SequenceBias(Processor):
    """Adds a bias to the last token of a sequence where the tokens before it are the sequence's.

    The same as `sequence_bias` in transformers. A negative bias makes the sequence less probable.

    Args:
        biases: dict from sequences of ids (tuples) to biases (float), or pairs of them.

    >>> from keras import ops
    >>> from keras_tfm.generation import Context
    >>> from keras_tfm.generation.processors import SequenceBias
    >>> context = Context(ops.array([[3, 1, 0]]), ops.array([[True, True, False]]), 1, None)
    >>> bias = SequenceBias({(1, 0): -2.0, (3, 2): 5.0, (2,): 0.5})
    >>> bias(ops.array([[0.0, 0.0, 0.0, 0.0]]), context).numpy().tolist()
    [[-2.0, 0.0, 0.5, 0.0]]
    """

    biases: Mapping[Ids, float] | Iterable[tuple[Sequence[int], float]]

    def __post_init__(self) -> None:
        given = self.biases.items() if isinstance(self.biases, Mapping) else self.biases
        biases = {as_ids("biases", list(ids)): float(bias) for ids, bias in given}
        if not biases or any(np.isnan(bias) or bias == np.inf for bias in biases.values()):
            raise ValueError(f"biases must be numbers of at least one sequence, got {self.biases}")
        object.__setattr__(self, "biases", tuple(biases.items()))

    def check(self, vocabulary_size: int) -> None:
        """Raises ValueError if a token is not in a vocabulary of this size."""
        for ids, _ in self._pairs():
            check_in_vocabulary("SequenceBias: biases", ids, vocabulary_size)

    def _pairs(self) -> list[tuple[Ids, float]]:
        return list(self.biases)  # type: ignore[arg-type]

    def __call__(self, logits: Tensor, context: Context) -> Tensor:
        """Logits (B, V) -> logits (B, V), with the biases added."""
        return _add_biases(logits, context, self._pairs())


@dataclass(frozen=True)
class NoBadWords(Processor):
    """Prevents sequences of tokens: the last token of each, after all the others.

    The same as `bad_words_ids` in transformers. An end token alone is not prevented.

    Args:
        sequences: list of sequences of ids.
    """

    sequences: Sequence[Sequence[int]]

    def __post_init__(self) -> None:
        sequences = tuple(as_ids("sequences", list(ids)) for ids in self.sequences)
        if not sequences:
            raise ValueError("sequences must have at least one sequence of ids, got none")
        object.__setattr__(self, "sequences", tuple(dict.fromkeys(sequences)))

    def check(self, vocabulary_size: int) -> None:
        """Raises ValueError if a token is not in a vocabulary of this size."""
        for ids in self.sequences:
            check_in_vocabulary("NoBadWords: sequences", ids, vocabulary_size)

    def __call__(self, logits: Tensor, context: Context) -> Tensor:
        """Logits (B, V) -> logits (B, V), -inf for tokens that complete a sequence."""
        ends = {(one,) for one in context.end_ids}
        pairs = [(tuple(ids), NEVER) for ids in self.sequences if tuple(ids) not in ends]
        return _add_biases(logits, context, pairs)


def _add_biases(logits: Tensor, context: Context, pairs: list[tuple[Ids, float]]) -> Tensor:
    """The logits with the biases of sequences that the next token can complete."""
    vocabulary = logits.shape[-1]
    always = np.zeros((1, vocabulary), "float32")
    by_length: dict[int, list[tuple[Ids, float]]] = {}
    for ids, bias in pairs:
        if len(ids) == 1:
            always[0, ids[0]] = bias
        elif len(ids) <= context.tokens.shape[1]:
            by_length.setdefault(len(ids) - 1, []).append((ids, bias))
    if always.any():
        logits = ops.add(logits, always)
    for length, several in by_length.items():
        before = np.array([[ids[:-1] for ids, _ in several]], "int32")  # (1, N, length)
        last = np.array([[ids[-1] for ids, _ in several]], "int32")
        biases = np.array([[bias for _, bias in several]], "float32")
        start = ops.maximum(context.position - length + 1, 0)
        batch = ops.shape(context.tokens)[0]
        suffix = ops.slice(context.tokens, (0, start), (batch, length))
        same = ops.all(ops.equal(ops.expand_dims(suffix, 1), before), axis=-1)  # (B, N)
        same = ops.logical_and(same, context.length >= length)
        logits = logits + scatter(last, ops.where(same, biases, 0.0), vocabulary)
    return logits
