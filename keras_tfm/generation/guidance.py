"""The second run of the model in a guided loop: the same rows after an empty prompt.

Example:

>>> import numpy as np
>>> from keras_tfm.generation.guidance import GuidedBatch
>>> np.asarray(GuidedBatch((7, 8)).prompts(np.array([[3, 4, 5]]), None)).tolist()
[[3, 4, 5], [7, 8, 5]]
"""

import numpy as np
from keras import ops

from keras_tfm.generation.strategies import Strategy, Task
from keras_tfm.layers.types import Tensor


class GuidedBatch:
    """Doubles the rows of what the model reads, and divides what it returns.

    The second half of the rows follows the empty prompt. Without one, all methods return their
    argument.

    Args:
        prompt: tuple of int, the empty prompt; () for none.
    """

    def __init__(self, prompt: tuple[int, ...] = ()):
        self.prompt = prompt

    @classmethod
    def of(cls, strategy: Strategy) -> "GuidedBatch":
        """The batch for the `Guidance` among a strategy's processors, if there is one.

        Raises:
            ValueError: different empty prompts, or a strategy that steps several tokens at once.
        """
        prompts = {getattr(x, "unconditional", ()) for x in strategy.processors} - {()}
        if not prompts:
            return cls()
        name = type(strategy).__name__
        if len(prompts) > 1:
            raise ValueError(f"{name}: all Guidance must have the same prompt, got {prompts}")
        if strategy.consecutive > 1 or strategy.lookahead:
            raise ValueError(
                f"Guidance is for strategies that choose a token in each step, such as Greedy, "
                f"Sample and Beam, got {name}"
            )
        return cls(prompts.pop())

    def double(self, x: Tensor | None) -> Tensor | None:
        """(B, ...) -> (2 B, ...), the same rows twice."""
        return x if x is None or not self.prompt else ops.concatenate([x, x], axis=0)

    def prompts(self, prompt: Tensor, padding: Tensor | None) -> Tensor:
        """(B, P) -> (2 B, P): the prompts, then the same with the empty prompt at the start.

        Args:
            prompt: (B, P), int32.
            padding: (B,), int32, number of padding columns before each prompt; optional.
        """
        if not self.prompt:
            return prompt
        columns = ops.arange(prompt.shape[1], dtype="int32")
        return ops.concatenate([prompt, self._replace_prompt(prompt, columns, padding)], axis=0)

    def tokens(self, token: Tensor, task: Task, position: Tensor) -> Tensor:
        """(B, width) -> (2 B, width): the tokens of a step, which may be the last of the prompt."""
        if not self.prompt:
            return token
        columns = ops.reshape(ops.cast(position, "int32"), (1,))
        replaced = self._replace_prompt(token, columns, task.padding)
        return ops.concatenate([token, replaced], axis=0)

    def _replace_prompt(self, tokens: Tensor, columns: Tensor, padding: Tensor | None) -> Tensor:
        """Tokens (B, T) at columns (T,), with those of the empty prompt at its positions."""
        positions = ops.expand_dims(columns, 0)
        if padding is not None:
            positions = positions - ops.expand_dims(padding, 1)
        count = len(self.prompt)
        inside = ops.logical_and(positions >= 0, positions < count)
        table = ops.convert_to_tensor(np.array(self.prompt, "int32"))
        empty = ops.take(table, ops.clip(positions, 0, count - 1), axis=0)
        return ops.where(inside, empty, tokens)

    def conditional(self, x: Tensor | None) -> Tensor | None:
        """(2 B, ...) -> (B, ...), the rows after the given prompts."""
        return x if x is None or not self.prompt else ops.split(x, 2, axis=0)[0]

    def split_logits(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits (2 N, V) -> those after the prompts and after the empty prompt, (N, V) each."""
        if not self.prompt:
            return logits, None
        given, empty = ops.split(logits, 2, axis=0)
        return given, ops.cast(empty, "float32")
