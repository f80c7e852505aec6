"""Drafts: cheap guesses of the next tokens, which `generation.Drafted` verifies."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import keras
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.generation.gather import gather
from keras_tfm.generation.logits import top_k
from keras_tfm.generation.strategies.strategy import Task
from keras_tfm.layers.types import Tensor

# A function of logits (B, V), their column, () int32, and the tokens (B, T) up to that column, that
# returns tokens (B,), int32.
Choose = Callable[[Tensor, Tensor, Tensor], Tensor]


class Draft:
    """The base class of drafts. A custom draft defines `propose`.

    >>> from keras import ops
    >>> from keras_tfm.generation import Draft
    >>> class Same(Draft):
    ...     def propose(self, task, tokens, position, count, heads=None):
    ...         return ops.repeat(ops.slice(tokens, (0, position), (task.batch, 1)), count, axis=1)
    """

    # Whether the draft reads the model's second output.
    reads_heads: ClassVar[bool] = False

    # The variables that the draft reads.
    variables: Sequence[keras.Variable] = ()

    def check(self, vocabulary_size: int) -> None:
        """Raises ValueError if the draft is for a vocabulary of another size."""

    def start(self, task: Task, tokens: Tensor) -> Any:
        """The draft's state before the first step, nested tensors: None for a draft without one.

        Args:
            task: `Task`, the constants of the loop.
            tokens: (B, T), int32, the prompt, then padding.
        """
        return None

    def step(
        self,
        task: Task,
        tokens: Tensor,
        position: Tensor,
        count: int,
        heads: Tensor | None,
        state: Any,
        choose: Choose | None = None,
    ) -> tuple[Tensor, Any]:
        """The guessed tokens, and the next state. A draft with a state defines `start` and `step`.

        Args:
            task, tokens, position, count, heads: as in `propose`.
            state: object, nested tensors, the result of `start` or of the step before.
            choose: function of the logits (B, V) after a column, the column, and the tokens (B, T)
                up to it, that returns the tokens (B,) that the strategy would choose: it samples
                with the random numbers of the column. None: the most probable tokens.
        """
        return self.propose(task, tokens, position, count, heads), state

    def propose(
        self,
        task: Task,
        tokens: Tensor,
        position: Tensor,
        count: int,
        heads: Tensor | None = None,
    ) -> Tensor:
        """The guessed tokens after column `position`: (B, count), int32.

        A pure function of tensors, which is compiled into the loop and exported with it. A wrong
        guess costs time and changes nothing else.

        Args:
            task: `Task`, the constants of the loop.
            tokens: (B, T), int32, the tokens so far. Columns after `position` are not valid.
            position: () int32, the column of the last one, the same in all rows.
            count: int, number of tokens to guess.
            heads: (B, ...), the model's second output at column `position` - 1, if `reads_heads`;
                None before the first step.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not define propose(task, tokens, position, count, heads)"
        )


@dataclass(frozen=True)
class PromptLookup(Draft):
    """Continues as the text did where its last tokens appeared before.

    It finds the latest place in the sources and in the tokens so far that ends in the same n
    tokens, or in as many of them as any place, and copies what follows it. It needs no training,
    and helps where a text repeats its prompt or its source: summaries, corrections, code.

    Args:
        ngram: int, the largest number of tokens that are compared.
        sources: list of str, names of inputs (B, S) of ids to copy from, in the same vocabulary as
            the generated tokens: the source of an encoder-decoder model.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range; generation raises one for an input that is missing.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.generation import PromptLookup
    >>> from keras_tfm.generation.strategies import Task
    >>> task = Task(1, 8, 4, (), None, None, False, None)
    >>> tokens = np.array([[5, 6, 7, 8, 6, 0, 0, 0]], "int32")  # 6 was followed by 7, 8
    >>> PromptLookup().propose(task, tokens, 4, 2).numpy().tolist()
    [[7, 8]]
    """

    ngram: int = 3
    sources: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_integer("ngram", self.ngram)
        if isinstance(self.sources, str):
            raise TypeError(f"sources must be a list of names, got {self.sources!r}")
        object.__setattr__(self, "sources", tuple(self.sources))

    def propose(
        self,
        task: Task,
        tokens: Tensor,
        position: Tensor,
        count: int,
        heads: Tensor | None = None,
    ) -> Tensor:
        """The tokens (B, count) that followed the last ones before."""
        missing = [name for name in self.sources if name not in task.sources]
        if missing:
            raise ValueError(
                f"PromptLookup reads the input {missing[0]!r}, the model has {list(task.sources)} "
                "besides the stepped one"
            )
        before = [ops.cast(task.sources[name], "int32") for name in self.sources]
        history = ops.concatenate([*before, tokens], axis=1)
        size = ops.shape(history)[1]
        last = size - task.length + position  # the index of the last token
        places = ops.expand_dims(ops.arange(size, dtype="int32"), 0)
        equal = ops.cast(places < last, "int32")  # products of integers, as in `Task`
        score = ops.zeros_like(history)
        for i in range(self.ngram):
            key = ops.slice(tokens, (0, ops.maximum(position - i, 0)), (task.batch, 1))
            earlier = ops.pad(history, [(0, 0), (i, 0)], constant_values=-1)[:, :size]
            equal = equal * ops.cast(ops.equal(earlier, key), "int32")
            equal = equal * ops.cast(position >= i, "int32")
            score = score + equal
        # The longest match, and of equal ones the latest: exact in float32 up to 2^24.
        found = ops.cast(score * size + places, "float32")
        found = found - ops.cast(places >= last, "float32") * (self.ngram + 2.0) * ops.cast(
            size, "float32"
        )
        best = top_k(found, 1)[1]
        following = ops.expand_dims(ops.arange(count, dtype="int32"), 0)
        period = ops.maximum(last - best, 1)  # past the end, what was copied is copied again
        # At the very first token there is no earlier one, and nothing to copy.
        return gather(history, ops.minimum(best + 1 + ops.mod(following, period), size - 1))


@dataclass(frozen=True)
class DraftHeads(Draft):
    """The guesses of the model's own draft heads, which `models.with_draft_heads` adds.

    Head i, trained with the model or on it as it is, guesses the token i places after the one that
    the model itself predicts (arXiv:1811.03115). The heads run once per step, on the features that
    predicted the last token.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.generation import DraftHeads, Drafted, generate
    >>> from keras_tfm.models import gpt, with_draft_heads
    >>> model = gpt(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
    >>> fast = with_draft_heads(model, 3)
    >>> prompt = np.array([[3, 4, 5]])
    >>> drafted = generate(fast, prompt, 9, strategy=Drafted(DraftHeads(), length=3))
    >>> bool(np.all(drafted.tokens == generate(model, prompt, 9).tokens))
    True
    """

    reads_heads: ClassVar[bool] = True

    def propose(
        self,
        task: Task,
        tokens: Tensor,
        position: Tensor,
        count: int,
        heads: Tensor | None = None,
    ) -> Tensor:
        """The most probable token (B, count) of each head."""
        if heads is None:
            return ops.full((task.batch, count), task.pad_id, dtype="int32")
        if len(heads.shape) != 3 or heads.shape[1] < count:
            raise ValueError(
                f"the model's second output must be logits (B, T, {count} or more, V) of draft "
                f"heads, got {(*heads.shape[:1], 'T', *heads.shape[1:])}: give Drafted a length of "
                "at most the number of heads"
            )
        if heads.shape[1] > count:  # a slice of all heads would copy their logits
            heads = heads[:, :count]
        logits = ops.reshape(heads, (-1, heads.shape[-1]))
        return ops.reshape(best_tokens(logits), (-1, count))


def best_tokens(logits: Tensor) -> Tensor:
    """The most probable tokens (B,), int32, for logits (B, V); for NaN, any token.

    >>> import numpy as np
    >>> from keras_tfm.generation.strategies.drafts import best_tokens
    >>> best_tokens(np.array([[0.1, 0.7, 0.2]], "float32")).numpy().tolist()
    [1]
    """
    # The largest of NaN logits may be in the padding of the last block.
    return ops.minimum(ops.squeeze(top_k(logits, 1)[1], -1), logits.shape[-1] - 1)
