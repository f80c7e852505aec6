"""Forced first and last tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from keras import ops

from keras_tfm.generation.processors.processor import (
    NEVER,
    Processor,
    as_ids,
    check_in_vocabulary,
    is_among,
)
from keras_tfm.generation.strategies.strategy import Context
from keras_tfm.layers.types import Tensor


@dataclass(frozen=True)
class ForcedBOS(Processor):
    """Forces the token after the start token, for instance the language in mBART.

    It acts on rows with one token. A row with a longer prompt is not changed: its prompt already
    has its first tokens. The same as `forced_bos_token_id` in transformers.

    Args:
        id: int, the token.

    >>> import numpy as np
    >>> from keras_tfm.generation import Generator, Greedy, processors
    >>> from keras_tfm.models import transformer
    >>> model = transformer(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> forced = Greedy(processors=[processors.ForcedBOS(7), processors.ForcedEOS(2)])
    >>> generator = Generator(model, max_length=5, start_id=1, end_id=2, strategy=forced)
    >>> tokens = generator(np.array([[3, 4, 5]])).tokens[0]
    >>> tokens[:2].tolist(), 2 in tokens
    ([1, 7], True)
    """

    id: int

    def __post_init__(self) -> None:
        (value,) = as_ids("id", [self.id])
        object.__setattr__(self, "id", value)

    def check(self, vocabulary_size: int) -> None:
        """Raises ValueError if the token is not in a vocabulary of this size."""
        check_in_vocabulary("ForcedBOS: id", [self.id], vocabulary_size)

    def __call__(self, logits: Tensor, context: Context) -> Tensor:
        """Logits (B, V) -> logits (B, V): 0 for the token, -inf for all others."""
        return _force(logits, [self.id], ops.equal(context.length, 1))


@dataclass(frozen=True)
class ForcedEOS(Processor):
    """Forces the last token of a row that reaches its maximum length.

    The same as `forced_eos_token_id` in transformers.

    Args:
        ids: int or several int, the end token, or several, each of which may be the last.
    """

    ids: int | Sequence[int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", as_ids("ids", self.ids))

    def check(self, vocabulary_size: int) -> None:
        """Raises ValueError if a token is not in a vocabulary of this size."""
        check_in_vocabulary("ForcedEOS: ids", as_ids("ids", self.ids), vocabulary_size)

    def __call__(self, logits: Tensor, context: Context) -> Tensor:
        """Logits (B, V) -> logits (B, V): 0 for the end tokens, -inf for all others."""
        return _force(logits, as_ids("ids", self.ids), ops.equal(context.remaining, 1))


def _force(logits: Tensor, ids: Sequence[int], when: Tensor) -> Tensor:
    row = np.where(is_among(logits, ids), 0.0, NEVER).astype("float32")
    return ops.where(when, row, logits)
