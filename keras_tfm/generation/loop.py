"""The loop: feed a token, choose the next one. It is compiled, and exported, as it stands."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_tfm.generation.model_inputs import call_model
from keras_tfm.generation.strategies import Greedy, State, Strategy, Task
from keras_tfm.layers import DecodingScope

Tensor = Any


class GenerationLoop:
    """Generation after a prompt, with caches, as pure functions that every backend traces.

    Args:
        model: functional; its outputs are logits (B, T, V) and, for a strategy that reads features,
            those (B, T, D).
        inputs: the model's other inputs, by name.
        target: the name of the input that is stepped.
        prompt: (B, P), int32, P known and at least 1: the start token or a whole prompt.
        length: T, the columns of the result, prompt and padding included.
        end_ids: a row ends with one of these tokens and is filled with 0; none: no row ends early.
        strategy: how the next token is chosen.
        score: whether to add up log-probabilities, which costs a softmax a token, and to stop at
            logits that are NaN.
        padding: (B,), int32: the first so many columns of a row of the prompt hold no token.
        limit: (B,), int32: how many columns a row may fill.
        seed: (2,), int32, for strategies that draw.
    """

    def __init__(
        self,
        model: keras.Model,
        inputs: dict[str, Tensor],
        target: str,
        prompt: Tensor,
        length: int,
        end_ids: Sequence[int] = (),
        strategy: Strategy | None = None,
        score: bool = True,
        padding: Tensor | None = None,
        limit: Tensor | None = None,
        seed: Tensor | None = None,
    ):
        self.model = model
        self.inputs = {name: ops.convert_to_tensor(x) for name, x in inputs.items()}
        self.target = target
        self.prompt = ops.cast(prompt, "int32")
        self.strategy = strategy or Greedy()
        batch, prompt_length = ops.shape(self.prompt)
        self.task = Task(
            batch, length, prompt_length - 1, tuple(end_ids), limit, padding, score, seed
        )

    def start(self) -> State:
        """Fills the caches with all of the prompt but its last token, which the loop feeds."""
        task, width = self.task, self.strategy.width
        cache, features = self._prefill()
        tokens = ops.slice_update(
            ops.zeros((task.batch, task.length), dtype="int32"), (0, 0), self.prompt
        )
        state = self.strategy.start(task, tokens, features)
        state["position"] = ops.convert_to_tensor(task.first, dtype="int32")
        state["cache"] = self._widened(cache)
        if width > 1:  # of what is read once, only the first step's are needed: see `step`
            self.inputs = self._widened(self.inputs)
        if task.score:
            state["failed"] = ops.convert_to_tensor(-1, dtype="int32")
        return state

    def _prefill(self) -> tuple[Any, Tensor | None]:
        task, prompt = self.task, self.prompt
        # A start token alone is fed by the loop, so the decoder is not needed here: nothing reads
        # it, and the graph keeps the encoder and the projections of its output only. So it is with
        # padding before the prompt: it shifts positions, which must not happen to an encoder.
        alone = task.first == 0
        ids = prompt[:, :1] if alone or task.padding is not None else prompt[:, : task.first]
        with DecodingScope(length=task.length) as scope:
            features = self._call(ids)[1]
        if alone:
            return scope.initial_cache, None if features is None else features[:, :0]
        if task.padding is None:
            return scope.cache, features
        cache = scope.initial_cache
        with DecodingScope(cache, position=0, length=task.length, padding=task.padding) as scope:
            features = self._call(prompt[:, : task.first])[1]
        return scope.cache, features

    def _call(self, ids: Tensor) -> tuple[Tensor, Tensor | None]:
        outputs = keras.tree.flatten(call_model(self.model, {**self.inputs, self.target: ids}))
        return outputs[0], outputs[1] if self.strategy.reads_features else None

    def _widened(self, x: Any) -> Any:
        width = self.strategy.width
        if width == 1:
            return x
        return keras.tree.map_structure(lambda y: ops.repeat(y, width, axis=0), x)

    def unfinished(self, state: State) -> Tensor:
        """Whether to go on."""
        more = ops.less(state["position"], self.task.length - 1 + self.strategy.lookahead)
        going = self.strategy.going(self.task, state)
        if going is not None:
            more = ops.logical_and(more, ops.any(going))
        if "failed" in state:
            more = ops.logical_and(more, ops.less(state["failed"], 0))
        return more

    def step(self, state: State) -> State:
        """Feeds a token (of each row), and chooses the next."""
        task, position = self.task, state["position"]
        padding = None if task.padding is None else self._widened(task.padding)
        with DecodingScope(
            state["cache"], position=position, length=task.length, padding=padding
        ) as scope:
            logits, features = self._call(state["token"])
        logits = ops.reshape(logits, (-1, logits.shape[-1]))
        if features is not None:
            features = ops.reshape(features, (-1, features.shape[-1]))
        after, parents = self.strategy.advance(task, state, logits, features)
        after["position"] = position + 1
        after["cache"] = scope.cache if parents is None else _reordered(scope, parents)
        if "failed" in state:
            broken = ops.any(ops.isnan(ops.cast(logits, "float32")), axis=-1)
            going = self.strategy.going(task, state)
            if going is not None:  # a row that has ended may be beyond a table of positions
                broken = ops.logical_and(broken, self._widened(going))
            after["failed"] = ops.where(ops.any(broken), position + 1, state["failed"])
        return after

    def result(self, state: State) -> dict[str, Tensor]:
        """ "tokens" and, with `score`, "scores", and in "failed" the column of NaN logits or -1."""
        result = self.strategy.result(self.task, state)
        if "failed" in state:
            result["failed"] = state["failed"]
        return result

    def run(self) -> dict[str, Tensor]:
        """From the prompt to the end."""
        return self.result(_while_loop(self.unfinished, self.step, self.start()))


def generation_loop(*args: Any, **kwargs: Any) -> dict[str, Tensor]:
    """The result of a `GenerationLoop`, whose arguments it takes."""
    return GenerationLoop(*args, **kwargs).run()


def _reordered(scope: DecodingScope, parents: Tensor) -> Any:
    """The cache of which row i is the one of `parents[i]`."""
    before, after = scope.initial_cache, scope.cache
    # The projections of a context are the same in all rows of one input: they stay.
    return {
        name: entry
        if entry is before[name]
        else {part: ops.take(x, parents, axis=0) for part, x in entry.items()}
        for name, entry in after.items()
    }


def _while_loop(condition: Any, body: Any, state: State) -> State:
    """`ops.while_loop` over a nested dictionary."""
    flat = keras.tree.flatten(state)

    def unflatten(values: Any) -> Any:
        return keras.tree.pack_sequence_as(state, values)

    def step(*values: Any) -> tuple[Any, ...]:
        before = unflatten(values)
        # What a step does not change, it leaves out.
        return tuple(keras.tree.flatten({**before, **body(before)}))

    result = ops.while_loop(lambda *values: condition(unflatten(values)), step, tuple(flat))
    return unflatten(result)
