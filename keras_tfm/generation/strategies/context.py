"""The inputs of processors, and of a strategy's `choose`, besides the logits."""

from typing import NamedTuple

from keras import ops

from keras_tfm.layers.types import Tensor


class Context(NamedTuple):
    """The tokens so far, how many may follow, and a seed for this step.

    In a beam search each hypothesis is a row.

    Attributes:
        tokens: (B, T), int32, the prompt and the tokens generated so far. Only columns in which
            `written` is True are valid; the others are padding.
        written: (B, T) or (1, T), boolean, True = the column holds a token.
        position: () int32, the column of the last token, the same in all rows.
        seed: (2,), int32, different in each step; None for strategies that do not sample.
        new_length: () int32, the number of tokens generated so far, the same in all rows.
        remaining: (B, 1) or (1, 1), int32, the number of tokens that the row may still get.
        end_ids: tuple of the tokens that end a row.
        copies: int, the number of consecutive rows that belong to one row of the inputs.
        unconditional: (B, V), float32, the logits after the empty prompt of a `Guidance` and the
            same tokens; None without one.

    A strategy that never generates a token twice:

    >>> from keras import ops
    >>> from keras_tfm.generation import Context, Strategy
    >>> class Fresh(Strategy):
    ...     def choose(self, logits, context: Context):
    ...         size = logits.shape[-1]
    ...         seen = ops.one_hot(ops.where(context.written, context.tokens, -1), size)
    ...         return ops.cast(ops.argmax(logits - 1e9 * ops.max(seen, axis=1), axis=-1), "int32")
    >>> context = Context(ops.array([[2, 0, 0]]), ops.array([[True, False, False]]), 0, None)
    >>> Fresh().choose(ops.array([[0.1, 0.2, 0.7]]), context).numpy().tolist()
    [1]
    """

    tokens: Tensor
    written: Tensor
    position: Tensor
    seed: Tensor
    new_length: Tensor = 0
    remaining: Tensor = 0
    end_ids: tuple[int, ...] = ()
    copies: int = 1
    unconditional: Tensor | None = None

    @property
    def length(self) -> Tensor:
        """(B, 1) or (1, 1), int32, the number of tokens so far, prompt included."""
        return ops.sum(ops.cast(self.written, "int32"), axis=1, keepdims=True)
