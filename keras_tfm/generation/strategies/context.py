"""The inputs of a strategy's `choose` besides the logits."""

from typing import Any, NamedTuple

Tensor = Any


class Context(NamedTuple):
    """The tokens so far, and a seed for this step.

    Attributes:
        tokens: (B, T), int32, the prompt and the tokens generated so far. Only columns in which
            `written` is True are valid; the others are padding.
        written: (B, T) or (1, T), boolean, True = the column holds a token.
        position: () int32, the column of the last token, the same in all rows.
        seed: (2,), int32, different in each step; None for strategies that do not sample.

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
