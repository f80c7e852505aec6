"""The scope in which a model is stepped: a token at a time against a KV cache."""

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Any, NamedTuple

from keras import ops

from keras_tfm.layers.decoding.cache import Cache, Entry, check_part, empty, make_entry, written
from keras_tfm.layers.decoding.visibility import Branches, Visible, real_tokens, visible
from keras_tfm.layers.positions.coordinates import Span, check_positions
from keras_tfm.layers.target import current_target

Tensor = Any

_current: ContextVar["DecodingScope | None"] = ContextVar("decoding_scope", default=None)


class Extended(NamedTuple):
    """What the queries of a causal self-attention attend to in a step.

    Attributes:
        entry: the cache before the step; None where it is known to be empty.
        visible: what the queries see of it and of the new keys; None where it is empty.
        mask: (B, T), boolean, which of the new keys are real, or None for all.
    """

    entry: Entry | None
    visible: Visible | None
    mask: Tensor | None


class DecodingScope:
    """Makes every call of a model inside it one step of decoding.

    Causal self-attention attends to what a cache holds and to the tokens it is given, whose keys
    and values it adds to the cache at `position`. Cross-attention projects its context on the first
    call and later reads only what it stored. Positional layers number from `position`. Nothing else
    changes: the model is the one that was trained. Layers that do not depend on the stepped input,
    an encoder for instance, are called once, outside: see `generation.SteppedModel`.

    The KV cache is a value, not a state: it comes in as an argument and the updated one is read
    from `scope.cache` afterwards. `decoding/cache.py` says what it holds.

    Args:
        cache: what an earlier scope returned, or None for the first step, which must be at
            position 0.
        position: the position of the first token given, an integer or an int32 scalar tensor.
        length: the capacity, in positions, of the caches of causal self-attention. With `branches`
            a cache has as many columns as `branches.positions`.
        padding: (B,), int32, how many positions before a row's first token hold none, for rows of
            different lengths that end together (left padding). No row attends to them, and
            positional layers number from the row's first token.
        branches: several hypotheses of each row at once.
        xla: whether XLA compiles the steps: a first step stores transposed keys, with which its
            products are faster.

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
        position: Any = 0,
        length: int,
        padding: Tensor | None = None,
        branches: Branches | None = None,
        xla: bool = False,
    ):
        position = _integer(position)
        if cache is None and not (isinstance(position, int) and position == 0):
            raise ValueError(f"without a cache, position must be 0, got {position}")
        if isinstance(position, int) and position < 0:
            raise ValueError(f"position must be at least 0, got {position}")
        if length < 1:
            raise ValueError(f"length must be at least 1, got {length}")
        self.position = position
        self.length = length
        self.padding = padding
        self.branches = branches
        self.xla = xla
        self._masked_score = current_target().masked_score
        self._given = cache
        self._before: Cache = {}
        self._new: Cache = {}
        self._growing: list[str] = []
        self._written: Cache | None = None
        self._visible: dict[Any, Visible] = {}
        self._spans: dict[Any, Span] = {}
        # Padding masks by identity. The tensor is kept beside its cached twin, so that its id
        # cannot be given to another one while the scope lives.
        self._masks: dict[int, tuple[Tensor, Tensor]] = {}
        self._context_masks: dict[int, tuple[Tensor, Tensor]] = {}
        self._token: Token[DecodingScope | None] | None = None

    @staticmethod
    def current() -> "DecodingScope | None":
        """The innermost scope that is open, or None."""
        return _current.get()

    def __enter__(self) -> "DecodingScope":
        """Opens the scope."""
        self._token = _current.set(self)
        return self

    def __exit__(self, *exception: object) -> None:
        """Closes the scope."""
        assert self._token is not None
        _current.reset(self._token)

    @property
    def cache(self) -> Cache:
        """The cache after this step, the next scope's argument."""
        if self._written is None:
            self._written = self._write(self._column())
        return self._written

    def cache_after(self, result: Tensor) -> Cache:
        """The same cache, written when `result` (B, ...), ids that this step chose, is there.

        A compiler that may choose the order would copy a whole cache to read it after a write.
        """
        # Ids, not logits: these may be no number where a row has ended, and 0 times that is none.
        nothing = ops.minimum(ops.reshape(result, (-1,))[0], 0)
        return self._write(self._column() + nothing)

    def _write(self, column: Any) -> Cache:
        if self._given is not None and len(self._before) != len(self._given):
            raise ValueError(
                f"the cache has entries {list(self._given)}, but the model called inside the "
                f"scope used {list(self._before)}: it was made by another model"
            )
        cache = dict(self._before)
        for name in self._growing:
            cache[name] = written(cache[name], self._new[name], column)
        return cache

    @property
    def growing(self) -> list[str]:
        """The entries to which every step adds, those of causal self-attention."""
        return self._growing

    @property
    def initial_cache(self) -> Cache:
        """The cache as it was before this step.

        On a first step: zeros for causal self-attention, the projections of the context for
        cross-attention. A loop that starts from it feeds the first token itself.
        """
        return self._before

    @property
    def new(self) -> Cache:
        """What this step adds to the cache: entries of the tokens given, T columns.

        Those of cross-attention are here on the first step only.
        """
        return self._new

    def extend(
        self,
        name: str,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        window: int | None = None,
        joined: bool = False,
    ) -> Extended:
        """Adds new keys and values at `position`; returns what may be attended to.

        Args:
            name: the layer's name.
            key: (B, G, T, K), of the tokens of this step.
            value: (B, G, T, V).
            mask: (B, T), boolean, which of them are real, or None.
            window: of the layer, or None.
            joined: whether the layer needs all new keys in a row, not each query its own alone.
        """
        length = key.shape[2] if isinstance(key.shape[2], int) else ops.shape(key)[2]
        self._check_capacity(length)
        entry = self._take(name)
        is_first = entry is None
        added = make_entry(key, value, self.xla if entry is None else "transposed_key" in entry)
        if entry is None:
            entry = {part: empty(part, x, self._capacity) for part, x in added.items()}
            if mask is not None and id(mask) not in self._masks:
                entry["mask"] = empty("mask", mask, self._capacity)
        else:
            for part, x in added.items():
                check_part(name, part, entry[part].shape, x.shape, self._capacity)
        if self._owns_mask(name, entry, mask, self._masks):
            assert mask is not None
            added["mask"] = mask
            self._masks[id(mask)] = (mask, entry["mask"])
        self._growing.append(self._store(name, entry, added))
        nothing_cached = is_first or (isinstance(self.position, int) and self.position == 0)
        if nothing_cached and self.branches is None:
            return Extended(None, None, real_tokens(mask, self.columns(length), self.padding))
        return Extended(entry, self._see(length, mask, window, joined), mask)

    def _check_capacity(self, length: Any) -> None:
        if not (isinstance(self.position, int) and isinstance(length, int)):
            return
        end = self.position + (length if self.branches is None else 1)
        if end > self.length:
            raise ValueError(f"{end} positions do not fit a DecodingScope of length {self.length}")
        end = self._column() + length
        if isinstance(end, int) and end > self._capacity:
            raise ValueError(f"{end} columns do not fit a cache of {self._capacity}")

    def _column(self) -> Any:
        """Where in the caches the tokens of this step go."""
        return self.position if self.branches is None else _integer(self.branches.column)

    @property
    def _capacity(self) -> int:
        """How many columns the caches have."""
        return self.length if self.branches is None else self.branches.positions.shape[0]

    def _see(self, length: Any, mask: Tensor | None, window: int | None, joined: bool) -> Visible:
        """What the step's tokens see; made once for all layers that see the same."""
        key = (length if isinstance(length, int) else None, id(mask), window, joined)
        if key in self._visible and key[0] is not None:
            return self._visible[key]
        one = isinstance(length, int) and length == 1
        result = visible(
            self.columns(length),
            self._capacity,
            window,
            self.branches,
            None if mask is None else self._masks[id(mask)][1],
            mask,
            self.padding,
            own=not joined and (self.branches is not None or one),
            masked_score=self._masked_score,
        )
        self._visible[key] = result
        return result

    def columns(self, length: Any) -> Span:
        """Where `length` tokens of this step stand, padding counted."""
        return self._span(length, None)

    def positions(self, length: Any) -> Span:
        """The positions of `length` tokens of this step, from each row's first token on."""
        return self._span(length, self.padding)

    def _span(self, length: Any, padding: Tensor | None) -> Span:
        key = (length if isinstance(length, int) else id(length), padding is None)
        if key not in self._spans:
            together = self.branches is not None
            self._spans[key] = Span(self.position, length, self.length, together, padding)
        return self._spans[key]

    def recall(
        self, name: str, mask: Tensor | None, project: Callable[[], tuple[Tensor, Tensor]]
    ) -> tuple[Entry, Tensor | None]:
        """The keys, values and mask of a context: projected on the first step, read afterwards.

        Args:
            name: the layer's name.
            mask: (B, S), boolean, which positions of the context are real, or None.
            project: returns keys (B, G, S, K) and values (B, G, S, V); called on a first step only.
        """
        entry = self._take(name)
        if entry is None:
            entry = make_entry(*project(), self.xla)
            if mask is not None and id(mask) not in self._context_masks:
                entry["mask"] = mask
        if self._owns_mask(name, entry, mask, self._context_masks):
            self._context_masks[id(mask)] = (mask, entry["mask"])
        self._store(name, entry, {} if self._given is not None else entry)
        cached = None if mask is None else self._context_masks[id(mask)][1]
        return entry, cached

    def keep(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """What `make` makes on the first step, read from the cache on all others.

        Args:
            name: the layer's name.
            make: returns a tensor that is the same in every step.
        """
        entry = self._take(name)
        if entry is None:
            entry = {"kept": make()}
        self._store(name, entry, {} if self._given is not None else entry)
        return entry["kept"]

    # For a caller that makes a layer's operations without calling the layer again.

    def upcoming(self, count: int) -> list[Entry]:
        """The entries of the cache that the next calls will take; none in a first step."""
        if self._given is None:
            return []
        return list(self._given.values())[len(self._before) :][:count]

    @contextmanager
    def substituted(self, entries: list[Entry]) -> Iterator[list[Any]]:
        """Calls inside take these entries, and change nothing here.

        Yields a list that holds, afterwards, what each call would have noted: its entry as it was
        before, what it adds or None, and whether it adds at every step.
        """
        given, before, new, growing = self._given, self._before, self._new, self._growing
        if given is not None:
            names = list(given)[len(before) :]
            self._given = {**given, **dict(zip(names, entries, strict=False))}
        self._before, self._new, self._growing = dict(before), {}, []
        notes: list[Any] = []
        try:
            yield notes
            for name in list(self._before)[len(before) :]:
                notes.append((self._before[name], self._new.get(name), name in self._growing))
        finally:
            self._given, self._before, self._new, self._growing = given, before, new, growing

    def note(self, name: str, entry: Entry, new: Entry | None, grows: bool) -> None:
        """What a call of the layer `name` would have noted."""
        stored = self._store(name, entry, new or {})
        if grows:
            self._growing.append(stored)

    def _owns_mask(self, name: str, entry: Any, mask: Tensor | None, masks: Any) -> bool:
        """Whether the call stores its mask; raises where the first step's calls did otherwise."""
        owns = mask is not None and id(mask) not in masks
        if owns != ("mask" in entry):
            raise ValueError(
                f"{name}: a mask must come with every step or with none; the first step "
                + ("had one of its own, this one has not" if "mask" in entry else "had none")
            )
        return owns

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
        """Keeps an entry under the name that it returns."""
        entry_name = self._entry_name(name)
        self._before[entry_name] = before
        if new:
            self._new[entry_name] = new
        return entry_name

    def _entry_name(self, name: str) -> str:
        return f"{len(self._before):03d}_{name}"


def positions_of(x: Tensor, positions: Tensor | None = None) -> Any:
    """Where the tokens of `x` (..., T, D) stand: as given, or as the scope says, or from 0 on.

    Returns:
        A `Span`, or int32 (..., T).
    """
    return _where(x, positions, DecodingScope.positions, coordinates=False)


def columns_of(x: Tensor, positions: Tensor | None = None) -> Any:
    """As `positions_of`, but padding before a row counts: for what compares two positions."""
    return _where(x, positions, DecodingScope.columns, coordinates=True)


def _where(
    x: Tensor,
    positions: Tensor | None,
    of_scope: Callable[[DecodingScope, Any], Span],
    coordinates: bool,
) -> Any:
    length = x.shape[-2]
    if positions is not None:
        return check_positions("positions", positions, length, tuple(x.shape[:-2]), coordinates)
    length = length if isinstance(length, int) else ops.shape(x)[-2]
    scope = DecodingScope.current()
    return Span(0, length) if scope is None else of_scope(scope, length)


def _integer(position: Any) -> Any:
    """A Python integer where the value can be seen (NumPy's, an eager tensor)."""
    try:
        return operator.index(position)
    except TypeError:
        return position
