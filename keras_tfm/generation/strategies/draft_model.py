"""A smaller model as a draft."""

from dataclasses import dataclass, field
from typing import Any

import keras
from keras import ops

from keras_tfm.generation.interface import interface_of
from keras_tfm.generation.position_tables import table_length
from keras_tfm.generation.stepped_model import SteppedModel
from keras_tfm.generation.strategies.drafts import Choose, Draft, best_tokens
from keras_tfm.generation.strategies.task import Task
from keras_tfm.layers.decoding.scope import DecodingScope
from keras_tfm.layers.target import current_target
from keras_tfm.layers.types import Tensor


@dataclass(frozen=True)
class DraftModel(Draft):
    """The next tokens of a smaller model, which is stepped beside the large one.

    The smaller model takes the same ids, and has KV caches of its own. For each step of the large
    model it is stepped as often as tokens are drafted, so it should take a small fraction of the
    time: "Accelerating Large Language Model Decoding with Speculative Sampling" (arXiv:2302.01318).
    In an exported file both models are in one loop.

    With `Sample` inside `Drafted`, the smaller model samples too: from its own distribution, with
    the processors and the random numbers with which the large model will draw the same token. The
    tokens are those that the large model samples without drafts, and the closer the distributions
    are, the more drafts are right.

    Args:
        model: functional model with logits (B, T, V) over the vocabulary of the large model. Its
            inputs, except the stepped one, must be inputs of the large model, by name.
        target: str, name of its stepped input. Default: "target", or its only input.

    Raises:
        TypeError: the model is not functional.
        ValueError: it has no such input, or several outputs; generation raises one if its
            vocabulary is another one, or an input is missing.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.generation import Drafted, DraftModel, generate
    >>> from keras_tfm.models import gpt
    >>> large = gpt(11, dim=8, num_layers=2, num_heads=2, intermediate_dim=16)
    >>> small = gpt(11, dim=4, num_layers=1, num_heads=1, intermediate_dim=8)
    >>> prompt = np.array([[3, 4, 5]])
    >>> drafted = generate(large, prompt, 9, strategy=Drafted(DraftModel(small), length=3))
    >>> bool(np.all(drafted.tokens == generate(large, prompt, 9).tokens))
    True
    """

    model: keras.Model
    target: str | None = None
    _stepped: SteppedModel = field(init=False, repr=False, compare=False)
    _table: int | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        stepped = SteppedModel(self.model, self.target)
        object.__setattr__(self, "_stepped", stepped)
        object.__setattr__(self, "_table", table_length(self.model, stepped.target))
        shapes = [tuple(x.shape) for x in self.model.outputs]
        if len(shapes) != 1 or len(shapes[0]) != 3:
            raise ValueError(f"a draft model has one output, logits (B, T, V), got {shapes}")

    @property
    def variables(self) -> tuple[keras.Variable, ...]:  # type: ignore[override]
        """The variables of the smaller model."""
        return tuple(self.model.variables)

    def check(self, vocabulary_size: int) -> None:
        """Raises ValueError unless the logits are over a vocabulary of this size."""
        size = self.model.outputs[0].shape[-1]
        if size != vocabulary_size:
            raise ValueError(
                f"the draft model {self.model.name} has logits over {size} ids, but the model that "
                f"it drafts for has {vocabulary_size}: both need the same vocabulary"
            )

    def start(self, task: Task, tokens: Tensor) -> Any:
        """What the smaller model encodes, and its caches after the prompt."""
        names = [name for name in interface_of(self.model).inputs if name != self._stepped.target]
        missing = [name for name in names if name not in task.sources]
        if missing:
            raise ValueError(
                f"the draft model reads the input {missing[0]!r}, the model has "
                f"{list(task.sources)} besides the stepped one"
            )
        encoded = self._stepped.encode({name: task.sources[name] for name in names})
        with DecodingScope(length=task.length, padding=task.padding) as scope:
            self._stepped.step(encoded, tokens[:, : max(1, task.first)])
        return {"encoded": encoded, "cache": scope.cache}

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
        """Steps the smaller model once for each of `count` tokens after column `position`."""
        encoded, cache = state["encoded"], state["cache"]
        last = self._last_column(task)
        # If all drafts were right, the model has not read the last one: the first step reads two
        # tokens. At the very first token the second one is padding, and is read again later.
        newest = ops.minimum(position, last)
        column = ops.maximum(newest - 1, 0)
        inputs = ops.slice(tokens, (0, column), (task.batch, 2))
        drafts: list[Tensor] = []
        for i in range(count):
            if i:
                column = ops.minimum(position + i, last)
            with DecodingScope(
                cache,
                position=column,
                length=task.length,
                padding=task.padding,
                write_first=current_target.get().is_edge,
            ) as scope:
                logits = self._stepped.step(encoded, inputs)
            if not i:
                size = (task.batch, 1, logits.shape[-1])
                logits = ops.slice(logits, (0, newest - column, 0), size)
            logits = ops.squeeze(logits, 1)
            if choose is None:
                token = best_tokens(logits)
            else:
                token = ops.minimum(choose(logits, position + i, tokens), logits.shape[-1] - 1)
            inputs = ops.expand_dims(token, 1)
            drafts.append(inputs)
            cache = scope.cache_after(token)
            if choose is not None:  # processors read the drafts so far
                following = ops.minimum(position + i + 1, task.length - 1)
                tokens = ops.slice_update(tokens, (0, following), inputs)
        return ops.concatenate(drafts, axis=1), {"encoded": encoded, "cache": cache}

    def _last_column(self, task: Task) -> Tensor:
        """The last column that is within the limit of each row and within a table of positions.

        Drafts after it are of no use, and have this column, too.
        """
        last: Tensor = task.length - 1
        if task.limit is not None:
            last = ops.min(task.limits) - 1
        if self._table is not None:
            padding = 0 if task.padding is None else ops.min(task.padding)
            last = ops.minimum(last, self._table - 1 + padding)
        return last
