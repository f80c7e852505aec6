"""A smaller model as a draft."""

from dataclasses import dataclass, field
from typing import Any

import keras
from keras import ops

from keras_tfm.generation.interface import interface_of
from keras_tfm.generation.stepped_model import SteppedModel, table_length
from keras_tfm.generation.strategies.drafts import Choose, Draft, best_tokens
from keras_tfm.generation.strategies.strategy import Task
from keras_tfm.layers.decoding.cache import Cache
from keras_tfm.layers.decoding.scope import DecodingScope
from keras_tfm.layers.decoding.state import State
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
    # The kinds of the entries of its cache, which `start` finds.
    _states: dict[str, State] = field(init=False, repr=False, compare=False, default_factory=dict)

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
        # The first step reads the last of these tokens again, see `step`.
        known = task.first - 1
        with DecodingScope(length=task.length, padding=task.padding) as scope:
            self._stepped.step(encoded, tokens[:, : max(1, known)])
        self._states.clear()
        self._states.update(scope.states)
        cache = scope.cache if known > 0 else scope.initial_cache
        start = ops.convert_to_tensor(max(known, 0), dtype="int32")
        return {"encoded": encoded, **self._with_history(cache, 1), "start": start}

    def _with_history(self, cache: Cache, count: int) -> dict[str, Cache]:
        """The cache, and `count` copies of each recurrent state, (B, count, ...).

        A recurrent state cannot be rewound. The history has the state before column `start` and
        after each of the columns that were read from there on.
        """
        replaced = {name: x for name, x in cache.items() if self._states[name].is_replaced}
        history = {
            name: {part: ops.repeat(ops.expand_dims(x, 1), count, axis=1) for part, x in y.items()}
            for name, y in replaced.items()
        }
        return {"cache": cache, "history": history}

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
        encoded, cache, history = state["encoded"], state["cache"], state["history"]
        last = self._last_column(task)
        # If all drafts were right, the model has not read the last one: the first step reads two
        # tokens. At the very first token the second one is padding, and is read again later.
        newest = ops.minimum(position, last)
        start = column = ops.maximum(newest - 1, 0)
        before = {
            name: {part: _at(x, start - state["start"]) for part, x in parts.items()}
            for name, parts in history.items()
        }
        cache = {**cache, **before}
        history = self._with_history(cache, count + 2)["history"]
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
                drafts=bool(history),
            ) as scope:
                logits = self._stepped.step(encoded, inputs)
            if not i:
                size = (task.batch, 1, logits.shape[-1])
                logits = ops.slice(logits, (0, newest - column, 0), size)
            logits = ops.squeeze(logits, 1)
            if choose is None:
                token = best_tokens(logits)
            else:
                token = choose(logits, ops.minimum(position + i, task.length - 1), tokens)
                token = ops.minimum(token, logits.shape[-1] - 1)
            inputs = ops.expand_dims(token, 1)
            drafts.append(inputs)
            kept = None if not history else 1 if i else newest - column + 1
            cache = scope.cache_after(token, kept)
            for name, parts in history.items():
                for part, x in scope.new[name].items():
                    place = (0, column - start + 1, *(0 for _ in x.shape[2:]))
                    parts[part] = ops.slice_update(parts[part], place, x)
            if choose is not None:  # processors read the drafts so far
                following = ops.minimum(position + i + 1, task.length - 1)
                tokens = ops.slice_update(tokens, (0, following), inputs)
        after = {"encoded": encoded, "cache": cache, "history": history, "start": start}
        return ops.concatenate(drafts, axis=1), after

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


def _at(x: Tensor, index: Tensor) -> Tensor:
    """(B, N, ...) -> (B, ...), at an index, () int32."""
    batch, _, *sizes = ops.shape(x)
    chosen = ops.slice(x, (0, index, *(0 for _ in sizes)), (batch, 1, *sizes))
    return ops.squeeze(chosen, 1)
