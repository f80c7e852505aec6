"""Classifier-free guidance: the processor, and the rows that the loop runs for it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from keras import ops

from keras_tfm.arguments import check_number
from keras_tfm.generation.logits import log_normalizer
from keras_tfm.generation.processors.processor import Processor, as_ids, check_in_vocabulary
from keras_tfm.generation.strategies.strategy import Context, Strategy, Task
from keras_tfm.layers.types import Tensor


@dataclass(frozen=True)
class Guidance(Processor):
    """Classifier-free guidance: makes tokens probable that the prompt makes probable.

    log p' = log p(x | empty) + s (log p(x | prompt) - log p(x | empty)), up to a constant, where
    the empty prompt is one without a caption, which the model has seen in training:
    "Classifier-Free Diffusion Guidance" (arXiv:2207.12598), for tokens as in "Stay on topic with
    Classifier-Free Guidance" (arXiv:2306.17806). The same as `guidance_scale` in transformers.

    The loop runs the model on twice as many rows: on the prompts, and on copies whose first tokens
    are replaced by those of the empty prompt. Both continue with the same tokens, with any strategy
    of one token per step, and in an exported file. Give it first in a list of processors.

    Args:
        scale: float, s. 1: no guidance; 0: the prompt has no effect.
        prompt: list of int, the empty prompt. It replaces the first tokens of each
            prompt. For `models.dalle`: `text.CaptionedImages(...).unconditional`.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: ids that are negative or, when generating, not in the vocabulary.

    >>> from keras_tfm.generation import Greedy, generate, processors
    >>> from keras_tfm.models import gpt
    >>> model = gpt(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, max_length=7)
    >>> guided = Greedy(processors=[processors.Guidance(3.0, prompt=[1, 1])])
    >>> generate(model, [[3, 4, 5]], max_length=6, strategy=guided).tokens.shape
    (1, 6)
    """

    scale: float
    prompt: Sequence[int]

    def __post_init__(self) -> None:
        check_number("scale", self.scale)
        object.__setattr__(self, "prompt", as_ids("prompt", self.prompt))

    @property
    def unconditional(self) -> tuple[int, ...]:
        """The empty prompt, which the loop runs beside each prompt."""
        return tuple(self.prompt)

    def check(self, vocabulary_size: int) -> None:
        """Raises ValueError if an id of the prompt is not in a vocabulary of this size."""
        check_in_vocabulary("Guidance: prompt", self.prompt, vocabulary_size)

    def __call__(self, logits: Tensor, context: Context) -> Tensor:
        """Logits (B, V) -> guided log-probabilities (B, V)."""
        if context.unconditional is None:
            raise ValueError(
                "Guidance needs the logits after the empty prompt, which a generation loop "
                "computes: Context.unconditional is None"
            )
        given = logits - log_normalizer(logits)
        empty = context.unconditional - log_normalizer(context.unconditional)
        return empty + self.scale * (given - empty)


class GuidedBatch:
    """Doubles the rows of what the model reads, and divides what it returns, in a guided loop.

    The second half of the rows follows the empty prompt. Without one, all methods return their
    argument.

    Args:
        prompt: tuple of int, the empty prompt; () for none.

    >>> from keras_tfm.generation.processors.guidance import GuidedBatch
    >>> np.asarray(GuidedBatch((7, 8)).prompts(np.array([[3, 4, 5]]), None)).tolist()
    [[3, 4, 5], [7, 8, 5]]
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
