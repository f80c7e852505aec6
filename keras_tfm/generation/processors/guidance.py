"""Classifier-free guidance."""

from collections.abc import Sequence
from dataclasses import dataclass

from keras_tfm.arguments import check_number
from keras_tfm.generation.logits import log_normalizer
from keras_tfm.generation.processors.processor import Processor, as_ids, check_in_vocabulary
from keras_tfm.generation.strategies.strategy import Context
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
