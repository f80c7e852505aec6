"""The scope of a decoding step: a few new tokens against a KV cache."""

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import NamedTuple

import keras
from keras import ops

from keras_tfm.layers.decoding.cache import (
    Cache,
    Columns,
    Entry,
    check_part,
    empty,
    is_int8,
    make_entry,
    owns_mask,
    write,
)
from keras_tfm.layers.decoding.state import Recurrent, State, check_state, make_recurrent_entry
from keras_tfm.layers.decoding.visibility import Branches, Extended, Visible, real_tokens, visible
from keras_tfm.layers.positions.attention_position import Span, check_positions
from keras_tfm.layers.target import current_target
from keras_tfm.layers.types import Size, Tensor, Window

# The innermost open scope; None outside of scopes.
current_scope: ContextVar["DecodingScope | None"] = ContextVar("decoding_scope", default=None)

# Function of inputs (R, N, ...), a state (R, ...), and a mask (R, N) or None for all tokens, that
# returns outputs (R, N, ...) and the state after the tokens of the mask.
StateStep = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]


class Recorded(NamedTuple):
    """What a scope records of a layer's call.

    Attributes:
        state: the kind of the entry.
        before: the entry before the step.
        new: what the step adds; {} for nothing.
        after: the entry after the step, if it was written first.
    """

    state: State
    before: Entry
    new: Entry
    after: Entry | None = None


class DecodingScope:
    """Turns every model call inside it into one decoding step.

    Causal self-attention attends to the KV cache and to the new tokens, and writes their keys and
    values to the cache at `position`. Cross-attention projects its context in the first step and
    reads the stored keys and values afterwards. Recurrent layers and causal convolutions continue
    from the state that the step before has left. Positional layers start at `position`. The model
    is the trained one, unchanged. Layers that do not depend on the generated input, such as an
    encoder, are called once, outside the scope: see `generation.SteppedModel`.

    The cache is a value: pass it in as an argument and read the updated one from `scope.cache`
    afterwards. `decoding/state.py` has the kinds of its entries, and `decoding/cache.py` describes
    those of attention.

    Args:
        cache: dict, `scope.cache` of the step before. Default: this is the first step, which must
            be at position 0.
        position: int or int32 scalar tensor, position of the first new token.
        length: int, number of positions of a row, and of cache columns. With `branches` the cache
            has one column for each entry of `branches.positions` instead.
        capacity: int, number of cache columns, if padding at the end of a step needs more.
        padding: (B,), int32, number of padding positions before each row's first token (left
            padding: rows of different lengths end together). They are not attended to, and
            positional layers start at each row's first token.
        branches: `Branches`, several hypotheses of each row at once (beam search); optional.
        xla: bool, whether XLA compiles the steps. The first step then stores transposed keys, which
            XLA multiplies faster.
        write_first: bool, whether queries read the new keys and values from the updated cache. Of a
            graph that returns whole caches, each is then copied once and read once, while it is in
            the processor's cache. The first step stores transposed values, which XNNPACK multiplies
            faster. Not with `branches`.
        int8: bool, whether the first step stores keys and values in int8, with a scale for each
            token and head: a quarter of the memory, with an error of at most 1/254 of a head's
            largest value. Later steps follow the cache.
        count: () int32, number of the step's tokens that are no padding, for a prefill whose tokens
            are padded on the right. Recurrent states are those after these tokens. Default: all.
        drafts: bool, whether tokens at the end of the step may turn out wrong: `cache_after` then
            gets the number of tokens that count, and recurrent states are recorded after each one.
        restarts: bool, whether a step at position 0 begins with initial states, whatever the cache
            holds, so that a host can begin with zeros.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import DecodingScope, MultiHeadSelfAttention
    >>> layer = MultiHeadSelfAttention(num_heads=2, causal=True)
    >>> x = np.random.default_rng(0).normal(size=(1, 3, 8)).astype("float32")
    >>> whole = layer(x)
    >>> cache = None
    >>> for position in range(3):
    ...     with DecodingScope(cache, position=position, length=3) as scope:
    ...         step = layer(x[:, position : position + 1])
    ...     cache = scope.cache
    >>> bool(np.allclose(step, whole[:, 2:], atol=1e-6))
    True
    """

    def __init__(
        self,
        cache: Cache | None = None,
        *,
        position: Size = 0,
        length: int,
        capacity: int | None = None,
        padding: Tensor | None = None,
        branches: Branches | None = None,
        xla: bool = False,
        write_first: bool = False,
        int8: bool = False,
        count: Tensor | None = None,
        drafts: bool = False,
        restarts: bool = False,
    ):
        position = _known_integer(position)
        if cache is None and not (isinstance(position, int) and position == 0):
            raise ValueError(f"without a cache, position must be 0, got {position}")
        if isinstance(position, int) and position < 0:
            raise ValueError(f"position must be at least 0, got {position}")
        if length < 1:
            raise ValueError(f"length must be at least 1, got {length}")
        if write_first and branches is not None:
            raise ValueError("write_first must be False with branches, got True")
        self.position = position
        self.length = length
        self._write_first = write_first
        self._capacity = capacity or length if branches is None else branches.positions.shape[0]
        self.padding = padding
        self.branches = branches
        self.xla = xla
        self._transposed = xla or current_target.get().name == "gpu-edge"
        self._int8 = int8
        self._masked_score = current_target.get().masked_score
        self._given = cache
        self._prefix = 0  # columns before the first token, at the present place of the model
        self._count, self._drafts, self._restarts = count, drafts, restarts
        self._calls: dict[str, Recorded] = {}
        self._written: Cache | None = None
        # With the groups, so that their id is not reused.
        self._visible: dict[tuple[object, ...], tuple[Visible, Tensor | None]] = {}
        self._with_context: dict[tuple[object, ...], tuple[Visible, Size, Visible]] = {}
        self._spans: dict[tuple[object, ...], Span] = {}
        # By `id` of the mask; the mask is stored too, so that its id is not reused.
        self._masks: dict[int, tuple[Tensor, Tensor]] = {}
        self._context_masks: dict[int, tuple[Tensor, Tensor]] = {}
        # Likewise, by the keys that a layer returned to others.
        self._shared: dict[int, tuple[Tensor, Extended | None]] = {}
        # Likewise, by the inputs of a convolution, the zeros that a layer put before them.
        self._zeros_before: dict[int, tuple[Tensor, set[int]]] = {}
        self._token: Token[DecodingScope | None] | None = None

    @staticmethod
    def current() -> "DecodingScope | None":
        """The innermost open scope; None outside of scopes."""
        return current_scope.get()

    def __enter__(self) -> "DecodingScope":
        """Opens the scope."""
        self._token = current_scope.set(self)
        return self

    def __exit__(self, *exception: object) -> None:
        """Closes the scope."""
        assert self._token is not None
        current_scope.reset(self._token)

    @property
    def cache(self) -> Cache:
        """The cache after this step: the argument of the next scope."""
        if self._written is None:
            self._written = self._write()
        return self._written

    def cache_after(self, result: Tensor, kept: Size | None = None) -> Cache:
        """`cache`, written only after `result` is computed: (B, ...), the ids chosen in this step.

        Otherwise a compiler may write first, and copy the whole cache for the reads that follow.
        With `drafts`, `kept` is the number of the step's tokens that count, () int32.
        """
        # Ids, not logits: logits of a finished row may be NaN, and 0 x NaN is NaN.
        nothing = ops.minimum(ops.reshape(result, (-1,))[0], 0)
        return self._write(nothing, kept)

    def _write(self, nothing: Size = 0, kept: Size | None = None) -> Cache:
        if self._given is not None and len(self._calls) != len(self._given):
            raise ValueError(
                f"the cache has entries {list(self._given)}, but the model called inside the "
                f"scope used {list(self._calls)}: it was made by another model"
            )
        if self._drafts and kept is None:
            raise ValueError("a scope with drafts has a cache only by cache_after(result, kept)")
        prefixes = {getattr(x.state, "prefix", 0) for x in self._calls.values()}
        columns = {prefix: self._column(prefix) + nothing for prefix in prefixes}
        return {
            name: state.after(before, new, columns[getattr(state, "prefix", 0)], kept)
            if after is None
            else after
            for name, (state, before, new, after) in self._calls.items()
        }

    @property
    def is_first(self) -> bool:
        """Whether this is the first step, which gets no cache."""
        return self._given is None

    @property
    def states(self) -> dict[str, State]:
        """The kind of each entry of the cache, by name."""
        return {name: x.state for name, x in self._calls.items()}

    def begin_prefix(self, count: int) -> None:
        """Layers called from here on have `count` positions more before the first token.

        The first step computes these positions, such as the features of an image, along with those
        of the tokens, and the cache entries have `count` more columns.
        """
        self._prefix += count

    def end_prefix(self, count: int) -> None:
        """Layers called from here on have `count` positions less before the first token."""
        if count > self._prefix:
            raise ValueError(
                f"a prefix of {count} positions cannot be removed: the sequence has one of "
                f"{self._prefix}"
            )
        self._prefix -= count

    @property
    def initial_cache(self) -> Cache:
        """The cache before this step.

        In the first step: zeros for causal self-attention, after the columns of a prefix, the
        projected context for cross-attention, and the states before the first token. A loop that
        starts from it still has to process the first token.
        """
        return {
            name: x.state.initial(x.before, x.new) if self._given is None else x.before
            for name, x in self._calls.items()
        }

    @property
    def new(self) -> Cache:
        """The entries that this step adds to the cache, with T columns, one per new token.

        In the first step these are preceded by the columns of a prefix, and the entries of
        cross-attention are included. Recurrent states are those after the step; with `drafts`,
        those after each of its tokens, (B, T, ...).
        """
        return {name: x.new for name, x in self._calls.items() if x.new}

    def extend(
        self,
        name: str,
        key: Tensor | None,
        value: Tensor,
        mask: Tensor | None,
        window: Window | None = None,
        joined: bool = False,
        groups: Tensor | None = None,
    ) -> Extended:
        """Adds new keys and values at `position`; returns what the queries attend to.

        Args:
            name: str, the layer's name.
            key: (B, G, T, K), keys of this step's tokens; None: the entry has values alone.
            value: (B, G, T, V), values of this step's tokens.
            mask: (B, T), boolean, True = token, False = padding; optional.
            window: int, the layer's attention window. Default: none.
            joined: bool, whether every query needs a column for each new key, not just its own.
            groups: (B, T), int32, groups of this step's tokens that see each other; optional. They
                are not those of hypotheses or drafted tokens.
        """
        length = value.shape[2] if isinstance(value.shape[2], int) else ops.shape(value)[2]
        self._check_capacity(length)
        entry, capacity = self._take(name), self._capacity + self._prefix
        is_first = entry is None
        transposed = self._transposed if entry is None else "transposed_key" in entry
        values = self._write_first if entry is None else "transposed_value" in entry
        int8 = self._int8 if entry is None else is_int8(entry)
        added = make_entry(key, value, transposed, values, int8)
        if entry is None:
            entry = {part: empty(part, x, capacity) for part, x in added.items()}
            if mask is not None and id(mask) not in self._masks:
                entry["mask"] = empty("mask", mask, capacity)
        else:
            for part, x in added.items():
                check_part(name, part, entry[part].shape, x.shape, capacity)
        owner = owns_mask(name, entry, mask, self._masks)
        if owner:
            added["mask"] = mask
        before, after = entry, None
        if self._write_first:
            after = entry = write(entry, added, self._column(self._prefix))
        self._store(name, Columns(self._prefix), before, added, after)
        if owner:
            self._masks[id(mask)] = (mask, entry["mask"])
        at_start = isinstance(self.position, int) and self.position == 0
        nothing_cached = is_first or (at_start and not self._prefix)
        if nothing_cached and self.branches is None:
            return Extended(None, None, real_tokens(mask, self.columns(length), self.padding))
        return Extended(entry, self._see(length, mask, window, joined, groups), mask)

    def share(self, keys: Tensor, step: Extended | None) -> None:
        """Records what the queries of a layer with these keys attend to, for other layers."""
        self._shared[id(keys)] = (keys, step)

    def shares(self, x: Tensor) -> bool:
        """Whether a tensor is the keys that a layer of this step returned."""
        return id(x) in self._shared

    def extended_by(self, name: str, keys: Tensor) -> Extended | None:
        """What the layer that returned `keys` attends to in this step.

        Args:
            name: str, the name of the layer that the keys are given to.
            keys: (B, T, G K), the very tensor that was returned.
        """
        if id(keys) not in self._shared:
            raise ValueError(
                f"{name}: inside a DecodingScope, keys must be what a self-attention with "
                'key_value="returned" returned in the same step'
            )
        return self._shared[id(keys)][1]

    def _check_capacity(self, length: Size) -> None:
        if not (isinstance(self.position, int) and isinstance(length, int)):
            return
        before = self._prefix if self._given is None else 0  # of `length`, not tokens
        end = self.position + (length - before if self.branches is None else 1)
        if end > self.length:
            raise ValueError(f"{end} positions do not fit a DecodingScope of length {self.length}")
        end = self._column(self._prefix) + length
        if isinstance(end, int) and end > self._capacity + self._prefix:
            raise ValueError(f"{end} columns do not fit a cache of {self._capacity}")

    def _column(self, prefix: int) -> Size:
        """The first column that this step writes in caches with a prefix."""
        if self._given is None:
            return self.position
        column = self.position if self.branches is None else _known_integer(self.branches.column)
        return column + prefix

    def _see(
        self,
        length: Size,
        mask: Tensor | None,
        window: Window | None,
        joined: bool,
        groups: Tensor | None,
    ) -> Visible:
        """What the step's tokens see; computed once and shared by layers with the same view."""
        known = length if isinstance(length, int) else None
        one = isinstance(length, int) and length == 1
        if one or self.branches is not None or self._drafts:
            groups = None
        if groups is not None and self._write_first:
            raise ValueError("groups of several tokens need a DecodingScope with write_first=False")
        key = (known, id(mask), window, joined, self._prefix, id(groups))
        if key in self._visible and key[0] is not None:
            return self._visible[key][0]
        result = visible(
            self.columns(length),
            self._capacity + self._prefix,
            window,
            None if self.branches is None else self.branches.after(self._prefix),
            None if mask is None else self._masks[id(mask)][1],
            mask,
            self.padding,
            own=not joined and not self._write_first and (self.branches is not None or one),
            masked_score=self._masked_score,
            write_first=self._write_first,
            groups=groups,
        )
        self._visible[key] = (result, groups)
        return result

    def see_context(self, visible: Visible, mask: Tensor | None, count: Size) -> Visible:
        """`visible.with_context(mask, count)`, computed once and shared by layers."""
        key = (id(visible), id(mask), count if isinstance(count, int) else id(count))
        if key not in self._with_context:  # with what must not be collected
            self._with_context[key] = (visible, count, visible.with_context(mask, count))
        return self._with_context[key][-1]

    def columns(self, length: Size) -> Span:
        """The columns of `length` tokens of this step: positions that count the padding."""
        return self._span(length, None)

    def positions(self, length: Size) -> Span:
        """The positions of `length` tokens of this step, counted from each row's first token."""
        return self._span(length, self.padding)

    def _span(self, length: Size, padding: Tensor | None) -> Span:
        key = (length if isinstance(length, int) else id(length), padding is None, self._prefix)
        together, prefix = self.branches is not None, self._prefix
        start = self.position if self._given is None else self.position + prefix
        span = Span(start, length, self.length + prefix, together, padding)
        return self._spans.setdefault(key, span)

    def recall(
        self, name: str, mask: Tensor | None, project: Callable[[], tuple[Tensor, Tensor]]
    ) -> tuple[Entry, Tensor | None]:
        """Keys, values and mask of a context: projected in the first step, then read from cache.

        Args:
            name: str, the layer's name.
            mask: (B, S), boolean, True = token, False = padding; optional.
            project: function that returns keys (B, G, S, K) and values (B, G, S, V); for the first
                step only.
        """
        entry = self._take(name)
        if entry is None:
            key, value = project()
            int8 = self._int8 and len(key.shape) == 4
            entry = make_entry(key, value, self._transposed, int8=int8)
            if mask is not None and id(mask) not in self._context_masks:
                entry["mask"] = mask
        if owns_mask(name, entry, mask, self._context_masks):
            self._context_masks[id(mask)] = (mask, entry["mask"])
        self._store(name, State(), entry, {} if self._given is not None else entry)
        cached = None if mask is None else self._context_masks[id(mask)][1]
        return entry, cached

    def keep(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """The result of `make`, called in the first step and read from the cache afterwards.

        Args:
            name: str, the layer's name.
            make: function that returns a tensor that does not change between steps.
        """
        entry = self._take(name)
        if entry is None:
            entry = {"kept": make()}
        self._store(name, State(), entry, {} if self._given is not None else entry)
        return entry["kept"]

    def recur(
        self,
        name: str,
        step: StateStep,
        inputs: Tensor,
        begin: Callable[[Size], Tensor],
        mask: Tensor | None = None,
    ) -> Tensor:
        """Steps a layer whose state is replaced: its outputs for the tokens of this step.

        The hypotheses of a search are rows here, with a state each, so `step` knows of none.

        Args:
            name: str, the layer's name.
            step: function of inputs (R, N, ...), a state, and a mask (R, N) or None for all tokens,
                that returns outputs (R, N, ...) and the state after the tokens of the mask.
            inputs: (B, T, ...), or nested tensors.
            begin: function of the number of rows R that returns the state before the first token:
                (R, ...), or nested tensors.
            mask: (B, T), boolean, True = token, False = padding; optional.

        Raises:
            ValueError: the state that `step` returns has another structure, shape or dtype.
        """
        first, *_ = keras.tree.flatten(inputs)
        batch, length = (a or b for a, b in zip(first.shape, ops.shape(first)[:2], strict=False))
        together = self.branches is not None
        if together:
            inputs, mask = self._as_rows((inputs, mask), batch, length)
        else:
            mask = self._real_tokens(mask, length)
        entry = self._take(name)
        state = begin(batch * length if together else batch)
        before = make_recurrent_entry(state)
        if entry is not None:
            if self._restarts:
                entry = self._begin_again(before, entry)
            before = entry
            state = keras.tree.pack_sequence_as(state, list(entry.values()))
        if self._drafts:
            outputs, new = _step_each(name, step, inputs, state, mask, length)
        else:
            outputs, after = step(inputs, state, mask)
            check_state(name, state, after)
            new = make_recurrent_entry(after)
        self._store(name, Recurrent(), before, new)
        if together:
            outputs = keras.tree.map_structure(
                lambda y: ops.reshape(y, (batch, length, *y.shape[2:])), outputs
            )
        return outputs

    def convolve(
        self, name: str, convolution: Callable[[Tensor], Tensor], x: Tensor, count: int
    ) -> Tensor:
        """The outputs of a causal convolution, or pooling, for the tokens of this step.

        Its state is its last inputs; before the first token they are zeros.

        Args:
            name: str, the layer's name.
            convolution: function of (R, count + N, D) that returns (R, N, F), without padding.
            x: (B, T, D).
            count: int, the number of inputs before a token that its output depends on.
        """

        def step(x: Tensor, last: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
            rows, length = x.shape[0] or ops.shape(x)[0], x.shape[1] or ops.shape(x)[1]
            end = length
            if mask is not None and self.padding is not None:
                x = ops.where(ops.expand_dims(mask, -1), x, ops.zeros_like(x))
            if self._count is not None:
                end = ops.cast(self._count, "int32")
            both = ops.concatenate([last, x], axis=1)
            return convolution(both), ops.slice(both, (0, end, 0), (rows, count, x.shape[-1]))

        return self.recur(
            name, step, x, lambda rows: ops.zeros((rows, count, x.shape[-1]), dtype=x.dtype)
        )

    def put_zeros_before(self, x: Tensor, count: int) -> None:
        """Records that a layer has put `count` zeros before the tokens of x, for a convolution.

        In a step, the last inputs of the convolution take the place of the zeros.
        """
        self._zeros_before.setdefault(id(x), (x, set()))[1].add(count)

    def has_zeros_before(self, x: Tensor, count: int | None = None) -> bool:
        """Whether a layer has put `count` zeros, or any number, before the tokens of x."""
        counts = self._zeros_before[id(x)][1] if id(x) in self._zeros_before else set()
        return bool(counts) if count is None else count in counts

    def _as_rows(self, nested: Tensor, batch: Size, length: Size) -> Tensor:
        """Tensors (B, n, ...) of n hypotheses as (B n, 1, ...)."""
        return keras.tree.map_structure(
            lambda x: x if x is None else ops.reshape(x, (batch * length, 1, *x.shape[2:])), nested
        )

    def _real_tokens(self, mask: Tensor | None, length: Size) -> Tensor | None:
        """The mask of the step's tokens (B, T); None: no input is padding."""
        mask = real_tokens(mask, self.columns(length), self.padding)
        if self._count is None:
            return mask
        counted = ops.expand_dims(ops.arange(length, dtype="int32") < self._count, 0)
        return counted if mask is None else ops.logical_and(mask, counted)

    def _begin_again(self, initial: Entry, entry: Entry) -> Entry:
        """The entry; at position 0 the initial one, if that is known to be other than zeros."""
        begins = ops.equal(self.position, 0)
        return {
            part: x if _is_zero(initial[part]) else ops.where(begins, initial[part], x)
            for part, x in entry.items()
        }

    def upcoming(self, count: int) -> list[Entry]:
        """The cache entries that the next `count` calls will read; none in the first step."""
        return list((self._given or {}).values())[len(self._calls) :][:count]

    @contextmanager
    def substitute(self, entries: list[Entry]) -> Iterator[list[Recorded]]:
        """Calls inside read these entries instead and leave the scope unchanged.

        Yields a list that afterwards has what each call would record.
        """
        given, calls = self._given, self._calls
        if given is not None:
            names = list(given)[len(calls) :]
            self._given = {**given, **dict(zip(names, entries, strict=False))}
        self._calls = dict(calls)
        notes: list[Recorded] = []
        try:
            yield notes
            notes += list(self._calls.values())[len(calls) :]
        finally:
            self._given, self._calls = given, calls

    def note(self, name: str, state: State, entry: Entry, new: Entry) -> None:
        """Records an entry as a call of the layer `name` would."""
        self._store(name, state, entry, new)

    def _take(self, name: str) -> dict[str, Tensor] | None:
        if self._given is None:
            return None
        entry_name = self._entry_name(name)
        if entry_name not in self._given:
            raise ValueError(
                f"the cache has no entry {entry_name!r}: it was made by another model, "
                f"with entries {list(self._given)}"
            )
        return self._given[entry_name]

    def _store(
        self, name: str, state: State, before: Entry, new: Entry, after: Entry | None = None
    ) -> None:
        self._calls[self._entry_name(name)] = Recorded(state, before, new, after)

    def _entry_name(self, name: str) -> str:
        return f"{len(self._calls):03d}_{name}"


def _step_each(
    name: str, step: StateStep, inputs: Tensor, state: Tensor, mask: Tensor | None, length: int
) -> tuple[Tensor, Entry]:
    """The outputs of a step, a token at a time, and the states after each, (B, T, ...)."""
    outputs, entries = [], []
    for i in range(length):
        token, seen = keras.tree.map_structure(
            lambda x, i=i: x if x is None else x[:, i : i + 1], (inputs, mask)
        )
        y, after = step(token, state, seen)
        check_state(name, state, after)
        state = after
        outputs.append(y)
        entries.append(make_recurrent_entry(state))
    together = keras.tree.map_structure(lambda *x: ops.concatenate(x, axis=1), *outputs)
    return together, {part: ops.stack([x[part] for x in entries], axis=1) for part in entries[0]}


def _is_zero(x: Tensor) -> bool:
    """Whether a tensor is known to be zeros when a graph is traced."""
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    value = tf.get_static_value(x)
    return value is not None and not value.any()


def positions_of(x: Tensor, positions: Tensor | None = None) -> Span | Tensor:
    """Positions of the tokens of `x` (..., T, D): those given, else the scope's, else 0 to T - 1.

    Returns:
        A `Span`, or int32 (..., T).
    """
    return _where(x, positions, lambda scope, length: scope.positions(length), coordinates=False)


def columns_of(x: Tensor, positions: Tensor | None = None) -> Span | Tensor:
    """As `positions_of`, but counting left padding: for distances, which it does not change."""
    return _where(x, positions, lambda scope, length: scope.columns(length), coordinates=True)


def _where(
    x: Tensor,
    positions: Tensor | None,
    of_scope: Callable[[DecodingScope, Size], Span],
    coordinates: bool,
) -> Span | Tensor:
    length = x.shape[-2]
    if positions is not None:
        return check_positions("positions", positions, length, tuple(x.shape[:-2]), coordinates)
    length = length if isinstance(length, int) else ops.shape(x)[-2]
    scope = current_scope.get()
    return Span(0, length) if scope is None else of_scope(scope, length)


def _known_integer(position: Size) -> Size:
    """`position` as a Python integer if its value is known (NumPy, an eager tensor)."""
    try:
        return operator.index(position)
    except TypeError:
        return position
