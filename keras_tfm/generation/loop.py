"""The loop: feed a token, choose the next one. It is compiled, and exported, as it stands."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.generation.gather import gather, gather_columns
from keras_tfm.generation.logits import log_normalizer
from keras_tfm.generation.stepped_model import SteppedModel
from keras_tfm.generation.strategies import Greedy, Strategy, Task
from keras_tfm.generation.tree import Tree
from keras_tfm.layers import DecodingScope
from keras_tfm.layers.decoding.cache import COLUMN_AXES, Cache
from keras_tfm.layers.decoding.visibility import Branches

Tensor = Any
# "strategy" (its own state), "cache", "tree" (if width > 1), "failed" (with `score`).
State = dict[str, Any]

# With more columns none are dropped: to find out which takes memory that grows with their square.
LONG = 1024


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
            logits whose softmax is NaN.
        padding: (B,), int32: the first so many columns of a row of the prompt hold no token.
        limit: (B,), int32: how many columns a row may fill.
        seed: (2,), int32, for strategies that draw.
        room: how many columns the caches have at first, one a position, or of a strategy that keeps
            several rows one for each; see `cache_lengths`.
        xla: whether XLA compiles the loop.
        pad_id: the token of the columns after the end of a row.
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
        room: int = 128,
        xla: bool = False,
        pad_id: int = 0,
    ):
        self._stepped = SteppedModel(model, target)
        self.inputs = inputs
        # What the steps read of the inputs: `start` makes it, or the caller has it from there.
        self.encoded: dict[str, Tensor] = {}
        self.prompt = ops.cast(prompt, "int32")
        self.strategy = strategy or Greedy()
        batch, prompt_length = ops.shape(self.prompt)
        self._first_room = room
        self._xla = xla
        self.task = Task(
            batch, length, prompt_length - 1, tuple(end_ids), limit, padding, score, seed, pad_id
        )
        # The columns the caches have, the most they could need, and the entries that have them.
        self._most = prompt_length - 1 + self.strategy.width * (length - prompt_length + 1)
        self._room = self._most
        self._growing: list[str] = []

    def start(self) -> State:
        """Fills the caches with all of the prompt but its last token, which the loop feeds."""
        task, width = self.task, self.strategy.width
        cache, features = self._prefill()
        started = self.strategy.start(task, task.sequences(self.prompt), features)
        state: State = {"strategy": started, "cache": cache}
        if width > 1:
            state["tree"] = Tree.of_prompt(task.batch, width, self._room, task.first)
            state["cache"] = self._longer(cache, self._room - self._length)
        if task.score:
            state["failed"] = ops.convert_to_tensor(-1, dtype="int32")
        return state

    def _prefill(self) -> tuple[Any, Tensor | None]:
        task, prompt = self.task, self.prompt
        self.encoded = self._stepped.encode(self.inputs)
        # The loop itself feeds a start token that stands alone. Its step here shows what the caches
        # look like, and projects the context.
        alone = task.first == 0
        ids = prompt if alone else prompt[:, : task.first]
        with DecodingScope(length=self._length, padding=task.padding, xla=self._xla) as scope:
            features = self._call(ids)[1]
        self._growing = scope.growing
        if alone:
            return scope.initial_cache, None if features is None else features[:, :0]
        return scope.cache, features

    @property
    def _length(self) -> int:
        """How many positions there can be in the caches."""
        return min(self._room, self.task.length)

    def _call(self, ids: Tensor) -> tuple[Tensor, Tensor | None]:
        outputs = keras.tree.flatten(self._stepped.step(self.encoded, ids))
        return outputs[0], outputs[1] if self.strategy.reads_features else None

    def unfinished(self, state: State) -> Tensor:
        """Whether to go on."""
        more = ops.less(state["strategy"].position, self.task.length - 1 + self.strategy.lookahead)
        going = self.strategy.going(self.task, state["strategy"])
        if going is not None:
            more = ops.logical_and(more, ops.any(going))
        if "failed" in state:
            more = ops.logical_and(more, ops.less(state["failed"], 0))
        return more

    def step(self, state: State) -> State:
        """Feeds a token (of each row), and chooses the next."""
        task, width = self.task, self.strategy.width
        before = state["strategy"]
        position = before.position
        tree = state.get("tree")
        branches = None
        if tree is not None:
            branches = Branches(ops.greater(tree.ancestors, 0.5), tree.positions, tree.filled)
        with DecodingScope(
            state["cache"],
            position=position,
            length=self._length,
            padding=task.padding,
            branches=branches,
            xla=self._xla,
        ) as scope:
            logits, features = self._call(before.token)
        self._growing = scope.growing
        logits = ops.reshape(logits, (-1, logits.shape[-1]))
        if features is not None:
            features = ops.reshape(features, (-1, features.shape[-1]))
        chosen, parents = self.strategy.advance(task, before, logits, features)
        after: State = {"strategy": chosen, "cache": scope.cache_after(chosen.token)}
        if tree is not None:
            after["tree"] = tree.grown(position, parents)
        if "failed" in state:
            # What most strategies compute too, so that a compiler looks at all logits once.
            logits = ops.cast(logits, "float32")
            if width > 1:
                logits = ops.reshape(logits, (task.batch, width, logits.shape[-1]))
            sums = ops.reshape(log_normalizer(logits), (task.batch, width))
            # Or all that could follow has probability 0.
            broken = ops.logical_or(
                ops.any(ops.isnan(sums), axis=1), ops.all(ops.equal(sums, -np.inf), axis=1)
            )
            going = self.strategy.going(task, before)
            if going is not None:  # a row that has ended may be beyond a table of positions
                broken = ops.logical_and(broken, going)
            after["failed"] = ops.where(ops.any(broken), position + 1, state["failed"])
        return after

    def result(self, state: State) -> dict[str, Tensor]:
        """ "tokens" and, with `score`, "scores", and in "failed" the column of a NaN or -1."""
        result = self.strategy.result(self.task, state["strategy"])
        if "failed" in state:
            result["failed"] = state["failed"]
        return result

    def run(self) -> dict[str, Tensor]:
        """From the prompt to the end."""
        width = self.strategy.width
        rooms = cache_lengths(self._most, self._first_room, self.task.first + width)
        self._room = rooms[0]
        state = self.start()
        for room in rooms:
            state = self._grown(state, room)
            prunes = width > 1 and room < self._most and room <= LONG
            state = self._pruning(state) if prunes else self._stepping(state)
        return self.result(state)

    def _stepping(self, state: State) -> State:
        """Steps to the end, or as many as the caches have room for."""
        return _while_loop(lambda state: self._unfinished_within(state, 1), self.step, state)

    def _pruning(self, state: State) -> State:
        """Steps, and makes room by what beginnings have in common, while it makes enough of it."""
        # It costs as much as a third of a step or a half.
        enough = max(1, self._room // (8 * self.strategy.width))
        return _while_loop(
            lambda state: self._unfinished_within(state, enough),
            lambda state: self._pruned(self._stepping(state)),
            state,
        )

    def _unfinished_within(self, state: State, steps: int) -> Tensor:
        more = self.unfinished(state)
        if self._room == self._most:
            return more
        left = (
            state["tree"].steps_left if "tree" in state else self._room - state["strategy"].position
        )
        return ops.logical_and(more, left >= steps)

    def _pruned(self, state: State) -> State:
        tree, columns = state["tree"].pruned()

        def chosen(part: str, x: Tensor) -> Tensor:
            if part == "mask":
                return gather(x, columns)
            if part != "transposed_key":
                return gather_columns(x, columns)
            x = gather_columns(ops.transpose(x, (0, 1, 3, 2)), columns)
            return ops.transpose(x, (0, 1, 3, 2))

        return {**state, "cache": self._changed(state["cache"], chosen), "tree": tree}

    def _grown(self, state: State, room: int) -> State:
        """The same state with caches that have so many columns."""
        more, self._room = room - self._room, room
        if not more:
            return state
        state = {**state, "cache": self._longer(state["cache"], more)}
        if "tree" in state:
            state["tree"] = state["tree"].wider(more)
        return state

    def _longer(self, cache: Cache, more: int) -> Cache:
        """With so many more columns."""

        def longer(part: str, x: Tensor) -> Tensor:
            paddings = [(0, 0)] * len(x.shape)
            paddings[COLUMN_AXES[part]] = (0, more)
            return ops.pad(x, paddings)

        return self._changed(cache, longer) if more else cache

    def growing_entries(self, cache: Cache) -> Cache:
        """Those of self-attention, to which every step adds."""
        return {name: cache[name] for name in self._growing}

    def _changed(self, cache: Cache, change: Callable[[str, Tensor], Tensor]) -> Cache:
        """With each part of the entries that grow changed."""
        growing = {
            name: {part: change(part, x) for part, x in parts.items()}
            for name, parts in self.growing_entries(cache).items()
        }
        return {**cache, **growing}


def generation_loop(*args: Any, **kwargs: Any) -> dict[str, Tensor]:
    """The result of a `GenerationLoop`, whose arguments it takes."""
    return GenerationLoop(*args, **kwargs).run()


def cache_lengths(length: int, room: int, taken: int = 0) -> tuple[int, ...]:
    """How much room the caches have in turn, so that a short text does not pay for a long one.

    Each is four times the one before, and has a copy of the loop (of the weights there is one).

    Args:
        length: the most columns there may be.
        room: the least that are worth a loop.
        taken: how many there are from the beginning.

    >>> from keras_tfm.generation.loop import cache_lengths
    >>> cache_lengths(1000, room=32)
    (32, 128, 512, 1000)
    """
    result = []
    while 3 * room < 2 * length:  # for the last third alone another loop would not pay
        if room > taken:
            result.append(room)
        room *= 4
    return (*result, length)


def _while_loop(condition: Any, body: Any, state: State) -> State:
    """`ops.while_loop` over a nested state, in which optional parts may be None."""
    present = [leaf is not None for leaf in keras.tree.flatten(state)]

    def flatten(state: State) -> tuple[Any, ...]:
        return tuple(leaf for leaf in keras.tree.flatten(state) if leaf is not None)

    def unflatten(values: Any) -> Any:
        rest = iter(values)
        leaves = [next(rest) if there else None for there in present]
        return keras.tree.pack_sequence_as(state, leaves)

    def step(*values: Any) -> tuple[Any, ...]:
        before = unflatten(values)
        # `body` leaves out what it does not change.
        return flatten({**before, **body(before)})

    result = ops.while_loop(lambda *values: condition(unflatten(values)), step, flatten(state))
    return unflatten(result)
