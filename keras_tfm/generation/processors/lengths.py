"""Minimum lengths: no end token before a number of tokens."""

from dataclasses import dataclass

from keras_tfm.arguments import check_integer
from keras_tfm.generation.processors.processor import Processor, forbidden
from keras_tfm.generation.strategies.strategy import Context
from keras_tfm.layers.types import Tensor


@dataclass(frozen=True)
class MinLength(Processor):
    """Prevents end tokens until a row has `min_length` tokens, prompt included.

    The same as `min_length` in transformers. Without an end token it has no effect.

    Args:
        min_length: int, the number of tokens before the end token.
    """

    min_length: int

    def __post_init__(self) -> None:
        check_integer("min_length", self.min_length, minimum=0)

    def __call__(self, logits: Tensor, context: Context) -> Tensor:
        """Logits (B, V) -> logits (B, V), -inf for end tokens in short rows."""
        return forbidden(logits, context.end_ids, context.length < self.min_length)


@dataclass(frozen=True)
class MinNewTokens(Processor):
    """Prevents end tokens until a row has `min_new_tokens` generated tokens.

    The same as `min_new_tokens` in transformers. Without an end token it has no effect.

    Args:
        min_new_tokens: int, the number of generated tokens before the end token.

    >>> from keras import ops
    >>> from keras_tfm.generation import Context
    >>> from keras_tfm.generation.processors import MinNewTokens
    >>> written = ops.array([[True, True, True, False]])
    >>> context = Context(ops.array([[3, 4, 4, 0]]), written, 2, None, new_length=1, end_ids=(2,))
    >>> MinNewTokens(2)(ops.array([[0.5, 1.5, 2.5]]), context).numpy().tolist()
    [[0.5, 1.5, -inf]]
    """

    min_new_tokens: int

    def __post_init__(self) -> None:
        check_integer("min_new_tokens", self.min_new_tokens, minimum=0)

    def __call__(self, logits: Tensor, context: Context) -> Tensor:
        """Logits (B, V) -> logits (B, V), -inf for end tokens in the first steps."""
        return forbidden(logits, context.end_ids, context.new_length < self.min_new_tokens)
