"""The generation loop: step the model, choose the next token. Exported files contain it too."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.generation.gather import gather, gather_columns
from keras_tfm.generation.logits import log_normalizer
from keras_tfm.generation.processors.guidance import GuidedBatch
from keras_tfm.generation.stepped_model import SteppedModel
from keras_tfm.generation.strategies import Greedy, Strategy, Task
from keras_tfm.generation.tree import Tree
from keras_tfm.layers import DecodingScope
from keras_tfm.layers.decoding.cache import COLUMN_AXES, Cache
from keras_tfm.layers.decoding.state import State as CacheState
from keras_tfm.layers.decoding.visibility import Branches
from keras_tfm.layers.target import current_target
from keras_tfm.layers.types import Tensor

# Keys: "strategy" (its state), "cache", "tree" (if width > 1), "failed" (with `score`).
State = dict[str, Any]

# Caches with more columns are not pruned: the memory for pruning is quadratic in the columns.
LONGEST_PRUNED = 1024

# The number of keys for which XNNPACK computes scores at once, on processors with AVX-512.
BLOCK = 32


class GenerationLoop:
    """Generation after a prompt with KV caches, as pure functions that every backend can trace.

    Args:
        model: functional model; its outputs are logits (B, T, V) and, for a strategy that reads
            features, features (B, T, D).
        inputs: dict of the model's inputs by name, without the stepped one.
        target: str, name of the stepped input.
        prompt: (B, P), int32, the start token or a whole prompt. P is known and at least 1.
        length: int, number of columns of the result, including prompt and padding (T).
        end_ids: the tokens that end a row; the rest of the row is padded with `pad_id`. If empty,
            no row ends early.
        strategy: `Strategy`, how the next token is chosen. Default: `Greedy()`.
        score: bool, whether to sum log-probabilities, which costs one softmax per token, and to
            stop if the softmax of the logits is NaN.
        padding: (B,), int32, number of padding columns before each row's prompt; optional.
        limit: (B,), int32, number of columns that each row may use. Default: all T.
        seed: (2,), int32, for strategies that sample.
        capacity: int, number of cache columns at the start. Each position takes one column per
            hypothesis. Caches grow when they are full; see `cache_capacities`.
        xla: bool, whether XLA compiles the loop.
        pad_id: int, the token of the columns after the end of a row.
        int8_caches: bool, whether KV caches are stored in int8; see `DecodingScope`.
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
        capacity: int = 128,
        xla: bool = False,
        pad_id: int = 0,
        int8_caches: bool = False,
    ):
        self._stepped = SteppedModel(model, target)
        if strategy is not None and strategy.reads_drafts and len(model.outputs) != 2:
            raise ValueError(
                f"DraftHeads needs a model with two outputs, such as one of models.with_draft_heads"
                f", got {len(model.outputs)}"
            )
        self.inputs = inputs
        # The result of `SteppedModel.encode`. `start` sets it; a caller of `step` alone sets it.
        self.encoded: dict[str, Tensor] = {}
        self.prompt = ops.cast(prompt, "int32")
        self.strategy = strategy or Greedy()
        self._guided = GuidedBatch.of(self.strategy)
        batch, prompt_length = ops.shape(self.prompt)
        self._first_capacity = capacity
        self._xla = xla
        self._int8 = int8_caches
        # In LiteRT, products of several tokens with their own keys take longer than it saves to
        # read the cache before it is written; see benchmarks/NOTES.md.
        self._write_first = self.strategy.consecutive > 1 and current_target.get().is_edge
        self.task = Task(
            batch,
            length,
            prompt_length - 1,
            tuple(end_ids),
            limit,
            padding,
            score,
            seed,
            pad_id,
            self.strategy.copies,
            inputs,
        )
        # The capacity that is enough for every row, the current one, and the kinds of the entries.
        # The last token is never an input and needs no column: 65 tokens take 64. But 64 take 64,
        # too, since XNNPACK multiplies whole blocks of columns faster.
        width = self.strategy.width
        needed = prompt_length - 1 + width * (length - prompt_length + self.strategy.lookahead)
        spare = -needed % BLOCK if isinstance(needed, int) else 0
        self._largest_capacity = needed + spare if spare <= width else needed
        self._capacity = self._largest_capacity
        self._states: dict[str, CacheState] = {}

    def start(self) -> State:
        """The state after the prefill of the prompt without its last token (the next input)."""
        task, width = self.task, self.strategy.width
        cache, features = self._prefill()
        started = self.strategy.start(task, task.sequences(self.prompt), features)
        if self.strategy.consecutive > 1 and any(x.is_replaced for x in self._states.values()):
            cache = self._read_again(self.strategy.column(started))
        state: State = {"strategy": started, "cache": cache}
        if width > 1:
            state["tree"] = Tree.of_prompt(task.batch, width, self._capacity, task.first)
            cache = self._longer(cache, self._capacity - self._length)
            state["cache"] = {
                name: self._states[name].map_rows(entry, lambda x: ops.repeat(x, width, axis=0))
                for name, entry in cache.items()
            }
        if task.score:
            state["failed"] = ops.convert_to_tensor(-1, dtype="int32")
        return state

    def _prefill(self) -> tuple[Cache, Tensor | None]:
        task, prompt, guided = self.task, self.prompt, self._guided
        self.encoded = self._stepped.encode(
            {key: guided.double(x) for key, x in self.inputs.items()}
        )
        # A prompt of one token is processed in the loop's first step. Stepping it here only gives
        # the shapes of the caches and projects the context.
        alone = task.first == 0
        ids = guided.prompts(prompt, task.padding)
        ids = ids if alone else ids[:, : task.first]
        with self._prompt_scope() as scope:
            features = self._call(ids)[1]
        features = None if self.strategy.reads_drafts else guided.conditional(features)
        self._states = scope.states
        if alone:
            return scope.initial_cache, None if features is None else features[:, :0]
        return scope.cache, features

    def _prompt_scope(
        self, cache: Cache | None = None, position: int = 0, drafts: bool = False
    ) -> DecodingScope:
        return DecodingScope(
            cache,
            position=position,
            length=self._length,
            padding=self._guided.double(self.task.padding),
            xla=self._xla,
            int8=self._int8,
            drafts=drafts,
        )

    def _read_again(self, end: Tensor) -> Cache:
        """The cache after the first `end` tokens of the prompt, () int32.

        A step with drafts begins before the end of a prompt that nearly fills the row, and
        recurrent states cannot be rewound. It begins at most `consecutive` tokens before the end.
        """
        first, cache = self.task.first, None
        known = max(first - self.strategy.consecutive, 0)
        if known:
            with self._prompt_scope() as scope:
                self._call(self.prompt[:, :known])
            cache = scope.cache
        ids = self.prompt[:, known : max(first, 1)]
        with self._prompt_scope(cache, known, drafts=True) as scope:
            self._call(ids)
        return scope.cache_after(ids, end - known)

    @property
    def _length(self) -> int:
        """The maximum number of positions in the caches."""
        return min(self._capacity, self.task.length)

    def _call(self, ids: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.strategy.reads_drafts:
            return self._stepped.step_partly(self.encoded, ids)
        outputs = keras.tree.flatten(self._stepped.step(self.encoded, ids))
        return outputs[0], outputs[1] if self.strategy.reads_features else None

    def is_unfinished(self, state: State) -> Tensor:
        """Whether the loop continues."""
        more = ops.less(state["strategy"].position, self.task.length - 1 + self.strategy.lookahead)
        going = self.strategy.going(self.task, state["strategy"])
        if going is not None:
            more = ops.logical_and(more, ops.any(going))
        if "failed" in state:
            more = ops.logical_and(more, ops.less(state["failed"], 0))
        return more

    def step(self, state: State) -> State:
        """Steps the model with the next tokens, and chooses those after them."""
        task, guided = self.task, self._guided
        before = state["strategy"]
        position = self.strategy.column(before)
        tree = state.get("tree")
        branches = None
        if tree is not None:
            ancestors = guided.double(ops.greater(tree.ancestors, 0.5))
            branches = Branches(ancestors, tree.positions, tree.filled)
        with DecodingScope(
            state["cache"],
            position=position,
            length=self._length,
            padding=guided.double(task.padding),
            branches=branches,
            xla=self._xla,
            write_first=self._write_first,
            drafts=self.strategy.consecutive > 1,
        ) as scope:
            logits, features = self._call(guided.tokens(before.token, task, position))
        self._states = scope.states
        if self.strategy.consecutive == 1:
            logits = ops.reshape(logits, (-1, logits.shape[-1]))
        logits, unconditional = guided.split_logits(logits)
        if features is not None and not self.strategy.reads_drafts:
            features = ops.reshape(guided.conditional(features), (-1, features.shape[-1]))
        task = task._replace(unconditional=unconditional)
        chosen, parents = self.strategy.advance(task, before, logits, features)
        kept = None
        if self.strategy.consecutive > 1:
            kept = self.strategy.column(chosen) - position
        after: State = {"strategy": chosen, "cache": scope.cache_after(chosen.token, kept)}
        if tree is not None:
            after["tree"] = tree.grow(position, parents)
            after["cache"] = self._of_parents(after["cache"], guided.double(parents))
        if "failed" in state:
            broken = self._find_broken(before, chosen, ops.cast(logits, "float32"))
            columns = position + 1 + ops.arange(self.strategy.consecutive, dtype="int32")
            first = ops.min(ops.where(ops.any(broken, axis=0), columns, task.length))
            after["failed"] = ops.where(ops.any(broken), first, state["failed"])
        return after

    def _find_broken(self, before: Any, chosen: Any, logits: Tensor) -> Tensor:
        """Where the softmax of the logits has no value, in rows that go on: (B, consecutive)."""
        task, width = self.task, self.strategy.width
        if width > 1:
            logits = ops.reshape(logits, (task.batch, width, logits.shape[-1]))
        # Most strategies compute this too, so a compiler reads all logits only once.
        sums = log_normalizer(logits)
        if self.strategy.consecutive > 1:
            sums = ops.squeeze(sums, -1)
            return ops.logical_and(
                ops.logical_or(ops.isnan(sums), ops.equal(sums, -np.inf)), chosen.followed
            )
        sums = ops.reshape(sums, (task.batch, width))
        # NaN, or every continuation has probability 0.
        broken = ops.logical_or(
            ops.any(ops.isnan(sums), axis=1), ops.all(ops.equal(sums, -np.inf), axis=1)
        )
        going = self.strategy.going(task, before)
        if going is not None:  # a finished row may be past the end of a position table
            broken = ops.logical_and(broken, going)
        return ops.expand_dims(broken, 1)

    def result(self, state: State) -> dict[str, Tensor]:
        """A dict of "tokens"; with `score` also "scores", and "failed", a NaN's column or -1."""
        result = self.strategy.result(self.task, state["strategy"])
        if "failed" in state:
            result["failed"] = state["failed"]
        return result

    def run(self) -> dict[str, Tensor]:
        """Runs the loop from the prompt to the end."""
        width = self.strategy.width
        capacities = cache_capacities(
            self._largest_capacity,
            self._first_capacity,
            self.task.first + max(width, self.strategy.consecutive),
        )
        self._capacity = capacities[0]
        state = self.start()
        for capacity in capacities:
            state = self._grow(state, capacity)
            prunes = width > 1 and capacity < self._largest_capacity and capacity <= LONGEST_PRUNED
            state = self._pruning(state) if prunes else self._stepping(state)
        return self.result(state)

    def _stepping(self, state: State) -> State:
        """Steps to the end, or until the caches are full."""
        steps = self.strategy.consecutive
        return _while_loop(lambda state: self._is_unfinished_within(state, steps), self.step, state)

    def _pruning(self, state: State) -> State:
        """Steps, and prunes full caches, until pruning frees too few columns.

        Pruning removes the columns that no hypothesis continues.
        """
        # Pruning once costs a third to a half of a step.
        enough = max(1, self._capacity // (8 * self.strategy.width))
        return _while_loop(
            lambda state: self._is_unfinished_within(state, enough),
            lambda state: self._prune(self._stepping(state)),
            state,
        )

    def _is_unfinished_within(self, state: State, steps: int) -> Tensor:
        more = self.is_unfinished(state)
        if self._capacity == self._largest_capacity:
            return more
        left = (
            state["tree"].steps_left
            if "tree" in state
            else self._capacity - self.strategy.column(state["strategy"])
        )
        return ops.logical_and(more, left >= steps)

    def _prune(self, state: State) -> State:
        tree, columns = state["tree"].prune()
        columns = self._guided.double(columns)

        def choose(part: str, x: Tensor) -> Tensor:
            here = _after(x.shape[COLUMN_AXES[part]] - self._capacity, columns)
            if part == "mask":
                return gather(x, here)
            if COLUMN_AXES[part] == 2:
                return gather_columns(x, here)
            x = gather_columns(ops.transpose(x, (0, 1, 3, 2)), here)
            return ops.transpose(x, (0, 1, 3, 2))

        cache = {
            name: self._states[name].map_columns(x, choose) for name, x in state["cache"].items()
        }
        return {**state, "cache": cache, "tree": tree}

    def _grow(self, state: State, capacity: int) -> State:
        """The same state with caches of `capacity` columns."""
        more, self._capacity = capacity - self._capacity, capacity
        if not more:
            return state
        state = {**state, "cache": self._longer(state["cache"], more)}
        if "tree" in state:
            state["tree"] = state["tree"].wider(more)
        return state

    def _longer(self, cache: Cache, more: int) -> Cache:
        """The cache with `more` additional columns."""
        if not more:
            return cache
        return {name: self._states[name].longer(x, more) for name, x in cache.items()}

    def _of_parents(self, cache: Cache, parents: Tensor) -> Cache:
        """The cache with the states of the hypotheses (B, width) that the next ones continue."""
        batch, width = ops.shape(parents)[0], self.strategy.width

        def choose(x: Tensor) -> Tensor:
            _, *sizes = x.shape
            rows = gather(ops.reshape(x, (batch, width, *sizes)), parents)
            return ops.reshape(rows, (batch * width, *sizes))

        return {name: self._states[name].map_rows(x, choose) for name, x in cache.items()}

    def changing_entries(self, cache: Cache) -> Cache:
        """The entries that a step changes."""
        return {
            name: x
            for name, x in cache.items()
            if self._states[name].grows or self._states[name].is_replaced
        }


def _after(prefix: int, columns: Tensor) -> Tensor:
    """The columns (B, S) in caches that begin with those of a prefix: (B, prefix + S)."""
    if not prefix:
        return columns
    before = ops.expand_dims(ops.arange(prefix, dtype=columns.dtype), 0)
    before = ops.broadcast_to(before, (ops.shape(columns)[0], prefix))
    return ops.concatenate([before, columns + prefix], axis=1)


def cache_capacities(largest: int, first: int, used: int = 0) -> tuple[int, ...]:
    """The successive capacities of growing caches, so that short texts run with small caches.

    Each capacity is four times the previous one and has its own copy of the loop. Weights are
    shared.

    Args:
        largest: int, the last capacity, enough for every row.
        first: int, the smallest capacity that is worth its own loop.
        used: int, number of columns in use before the first step.

    >>> from keras_tfm.generation.loop import cache_capacities
    >>> cache_capacities(1000, first=32)
    (32, 128, 512, 1000)
    """
    result = []
    capacity = first
    while 3 * capacity < 2 * largest:  # another loop for the last third would not pay off
        if capacity > used:
            result.append(capacity)
        capacity *= 4
    return (*result, largest)


def _while_loop(
    condition: Callable[[State], Tensor], body: Callable[[State], State], state: State
) -> State:
    """`ops.while_loop` over a nested state, in which optional parts may be None."""
    present = [leaf is not None for leaf in keras.tree.flatten(state)]

    def flatten(state: State) -> tuple[Tensor, ...]:
        return tuple(leaf for leaf in keras.tree.flatten(state) if leaf is not None)

    def unflatten(values: tuple[Tensor, ...]) -> State:
        rest = iter(values)
        leaves = [next(rest) if there else None for there in present]
        return keras.tree.pack_sequence_as(state, leaves)

    def step(*values: Tensor) -> tuple[Tensor, ...]:
        before = unflatten(values)
        # `body` returns only the changed entries.
        return flatten({**before, **body(before)})

    result = ops.while_loop(lambda *values: condition(unflatten(values)), step, flatten(state))
    return unflatten(result)
