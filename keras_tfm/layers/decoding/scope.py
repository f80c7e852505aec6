"""The scope of a decoding step: a few new tokens against a KV cache."""

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token

from keras import ops

from keras_tfm.layers.decoding.cache import (
    Cache,
    Entry,
    check_part,
    columns_of_entry,
    empty,
    is_int8,
    make_entry,
    owns_mask,
    write,
)
from keras_tfm.layers.decoding.visibility import (
    Branches,
    Extended,
    Visible,
    real_tokens,
    visible,
)
from keras_tfm.layers.positions.coordinates import Span, check_positions
from keras_tfm.layers.target import current_target
from keras_tfm.layers.types import Size, Tensor, Window

# The innermost open scope; None outside of scopes.
current_scope: ContextVar["DecodingScope | None"] = ContextVar("decoding_scope", default=None)


class DecodingScope:
    """Turns every model call inside it into one decoding step.

    Causal self-attention attends to the KV cache and to the new tokens, and writes their keys and
    values to the cache at `position`. Cross-attention projects its context in the first step and
    reads the stored keys and values afterwards. Positional layers start at `position`. The model is
    the trained one, unchanged. Layers that do not depend on the generated input, such as an
    encoder, are called once, outside the scope: see `generation.SteppedModel`.

    The KV cache is a value, not a state: pass it in as an argument and read the updated one from
    `scope.cache` afterwards. `decoding/cache.py` describes its contents.

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
        self._prefixes: dict[str, int] = {}  # by cache entry
        self._before: Cache = {}
        self._new: Cache = {}
        self._after: Cache = {}  # with `write_first`
        self._growing: list[str] = []
        self._written: Cache | None = None
        self._visible: dict[tuple[object, ...], Visible] = {}
        self._with_context: dict[tuple[object, ...], tuple[Visible, Size, Visible]] = {}
        self._spans: dict[tuple[object, ...], Span] = {}
        # By `id` of the mask; the mask is stored too, so that its id is not reused.
        self._masks: dict[int, tuple[Tensor, Tensor]] = {}
        self._context_masks: dict[int, tuple[Tensor, Tensor]] = {}
        # Likewise, by the keys that a layer returned to others.
        self._shared: dict[int, tuple[Tensor, Extended | None]] = {}
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

    def cache_after(self, result: Tensor) -> Cache:
        """`cache`, written only after `result` is computed: (B, ...), the ids chosen in this step.

        Otherwise a compiler may write first, and copy the whole cache for the reads that follow.
        """
        # Ids, not logits: logits of a finished row may be NaN, and 0 x NaN is NaN.
        nothing = ops.minimum(ops.reshape(result, (-1,))[0], 0)
        return self._write(nothing)

    def _write(self, nothing: Size = 0) -> Cache:
        if self._given is not None and len(self._before) != len(self._given):
            raise ValueError(
                f"the cache has entries {list(self._given)}, but the model called inside the "
                f"scope used {list(self._before)}: it was made by another model"
            )
        cache = dict(self._before)
        columns = {prefix: self._column(prefix) + nothing for prefix in self._prefixes.values()}
        for name in self._growing:
            if name in self._after:
                cache[name] = self._after[name]
            else:
                column = columns[self._prefixes[name]]
                cache[name] = write(cache[name], self._new[name], column)
        return cache

    @property
    def is_first(self) -> bool:
        """Whether this is the first step, which gets no cache."""
        return self._given is None

    @property
    def prefixes(self) -> dict[str, int]:
        """The number of columns before the first token, by name of the entries that have some."""
        return {name: prefix for name, prefix in self._prefixes.items() if prefix}

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
    def growing(self) -> list[str]:
        """Names of the entries that grow with every step: those of causal self-attention."""
        return self._growing

    @property
    def initial_cache(self) -> Cache:
        """The cache before this step.

        In the first step: zeros for causal self-attention, after the columns of a prefix, and the
        projected context for cross-attention. A loop that starts from it still has to process the
        first token.
        """
        cache = dict(self._before)
        for name, prefix in self.prefixes.items() if self._given is None else ():
            new = columns_of_entry(self._new[name], 0, prefix)
            cache[name] = write(cache[name], new, 0)
        return cache

    @property
    def new(self) -> Cache:
        """The entries that this step adds to the cache, with T columns, one per new token.

        In the first step these are preceded by the columns of a prefix, and the entries of
        cross-attention are included.
        """
        return self._new

    def extend(
        self,
        name: str,
        key: Tensor | None,
        value: Tensor,
        mask: Tensor | None,
        window: Window | None = None,
        joined: bool = False,
    ) -> Extended:
        """Adds new keys and values at `position`; returns what the queries attend to.

        Args:
            name: str, the layer's name.
            key: (B, G, T, K), keys of this step's tokens; None: the entry has values alone.
            value: (B, G, T, V), values of this step's tokens.
            mask: (B, T), boolean, True = token, False = padding; optional.
            window: int, the layer's attention window. Default: none.
            joined: bool, whether every query needs a column for each new key, not just its own.
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
        stored = self._store(name, entry, added)
        self._growing.append(stored)
        self._prefixes[stored] = self._prefix
        if self._write_first:
            self._after[stored] = entry = write(entry, added, self._column(self._prefix))
        if owner:
            self._masks[id(mask)] = (mask, entry["mask"])
        at_start = isinstance(self.position, int) and self.position == 0
        nothing_cached = is_first or (at_start and not self._prefix)
        if nothing_cached and self.branches is None:
            return Extended(None, None, real_tokens(mask, self.columns(length), self.padding))
        return Extended(entry, self._see(length, mask, window, joined), mask)

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
        self, length: Size, mask: Tensor | None, window: Window | None, joined: bool
    ) -> Visible:
        """What the step's tokens see; computed once and shared by layers with the same view."""
        known = length if isinstance(length, int) else None
        key = (known, id(mask), window, joined, self._prefix)
        if key in self._visible and key[0] is not None:
            return self._visible[key]
        one = isinstance(length, int) and length == 1
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
        )
        self._visible[key] = result
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
        self._store(name, entry, {} if self._given is not None else entry)
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
        self._store(name, entry, {} if self._given is not None else entry)
        return entry["kept"]

    def upcoming(self, count: int) -> list[Entry]:
        """The cache entries that the next `count` calls will read; none in the first step."""
        return list((self._given or {}).values())[len(self._before) :][:count]

    @contextmanager
    def substitute(self, entries: list[Entry]) -> Iterator[list[tuple[Entry, Entry | None, bool]]]:
        """Calls inside read these entries instead and leave the scope unchanged.

        Yields a list that afterwards holds one tuple per call: its entry before the step, what it
        adds (or None), and whether the entry grows with every step.
        """
        given, before, new, growing = self._given, self._before, self._new, self._growing
        if given is not None:
            names = list(given)[len(before) :]
            self._given = {**given, **dict(zip(names, entries, strict=False))}
        self._before, self._new, self._growing = dict(before), {}, []
        notes: list[tuple[Entry, Entry | None, bool]] = []
        try:
            yield notes
            for name in list(self._before)[len(before) :]:
                notes.append((self._before[name], self._new.get(name), name in self._growing))
        finally:
            self._given, self._before, self._new, self._growing = given, before, new, growing

    def note(self, name: str, entry: Entry, new: Entry | None, grows: bool) -> None:
        """Records an entry as a call of the layer `name` would."""
        stored = self._store(name, entry, new or {})
        if grows:
            self._growing.append(stored)
            self._prefixes[stored] = self._prefix

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

    def _store(self, name: str, before: dict[str, Tensor], new: dict[str, Tensor]) -> str:
        """Stores an entry and returns its name in the cache."""
        entry_name = self._entry_name(name)
        self._before[entry_name] = before
        if new:
            self._new[entry_name] = new
        return entry_name

    def _entry_name(self, name: str) -> str:
        return f"{len(self._before):03d}_{name}"


def positions_of(x: Tensor, positions: Tensor | None = None) -> Span | Tensor:
    """Positions of the tokens of `x` (..., T, D): those given, else the scope's, else 0 to T - 1.

    Returns:
        A `Span`, or int32 (..., T).
    """
    return _where(x, positions, DecodingScope.positions, coordinates=False)


def columns_of(x: Tensor, positions: Tensor | None = None) -> Span | Tensor:
    """As `positions_of`, but counting left padding: for distances, which it does not change."""
    return _where(x, positions, DecodingScope.columns, coordinates=True)


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
