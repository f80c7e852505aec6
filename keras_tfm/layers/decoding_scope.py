"""The scope in which a model is stepped: a token at a time against key/value caches."""

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Any, NamedTuple

from keras import ops

Tensor = Any
Cache = dict[str, dict[str, Tensor]]

# Along which axis the columns of a cache's parts lie.
COLUMN_AXES = {"key": 2, "transposed_key": 3, "value": 2, "mask": 1}

_current: ContextVar["DecodingScope | None"] = ContextVar("decoding_scope", default=None)


_exporting: ContextVar[bool] = ContextVar("exporting", default=False)


@contextmanager
def exporting() -> Iterator[None]:
    """While a graph for a device is traced outside a `DecodingScope`: see `for_device`."""
    token = _exporting.set(True)
    try:
        yield
    finally:
        _exporting.reset(token)


def for_device() -> bool:
    """Whether to prefer what LiteRT runs well: inside a `DecodingScope`, or while exporting.

    Asked where a table is looked up, scores are masked, and a projection is computed and cut. Each
    has a twin that is better in training, and a test that both agree.
    """
    return _exporting.get() or DecodingScope.current() is not None


class Branches(NamedTuple):
    """Several continuations of each row, of which a step feeds one token each, side by side.

    A beam search goes on from its n best beginnings. They share one cache, in which the n tokens of
    a step lie side by side, and each attends to its own ancestors: nothing is copied when a
    beginning is given up and another goes on twice. The tokens of a step are (B, n), all at the
    scope's position.

    Attributes:
        ancestors: (B, n, S), boolean, which columns of the cache each continues.
        positions: (S,), int32, where the columns stand, in all rows.
        column: where in the cache the step's tokens go, an integer or an int32 scalar tensor.
    """

    ancestors: Tensor
    positions: Tensor
    column: Any


class Keys(NamedTuple):
    """What the queries of a causal self-attention may attend to in a step.

    Attributes:
        key: (B, G, S, K), or several of these which lie side by side: the cache, and what is new.
        value: (B, G, S, V), likewise.
        mask: (B, S), boolean, which are real, or None; with `own` it is in `pairs`.
        distances: (T, S), int32, each key's position minus the query's, positive where the query
            must not look; None: keys and queries are the same positions.
        pairs: (1 | B, T, S), boolean, which of them a query continues, or None: all that are
            before it by `distances`.
        positions: (S,), int32, where each key stands; None with `distances`.
        own: whether the last column stands for the new keys, each query seeing its own alone.
    """

    key: Any
    value: Any
    mask: Tensor | None
    distances: Tensor | None = None
    pairs: Tensor | None = None
    positions: Tensor | None = None
    own: bool = False


class DecodingScope:
    """Makes every call of a model inside it one step of decoding.

    Causal self-attention attends to what a cache holds and to the tokens it is given, whose keys
    and values it adds to the cache at `position`. Cross-attention projects its context on the first
    call and later reads only what it stored. Positional layers number from `position`. Nothing else
    changes: the model is the one that was trained.

    The cache is a value, not a state: it comes in as an argument and the updated one is read from
    `scope.cache` afterwards. It is a dictionary in the order of the calls, one entry a call of an
    attention layer, named by its number and its layer ("002_cross_attention"), so that a layer
    called twice has two entries. An entry holds "key" (B, G, S, K), or "transposed_key"
    (B, G, K, S), "value" (B, G, S, V), and "mask" (B, S), boolean, at the first of the calls that
    share one padding mask.

    Args:
        cache: what an earlier scope returned, or None for the first step, which must be at
            position 0.
        position: the position of the first token given, an integer or an int32 scalar tensor.
        length: how many positions the caches of causal self-attention hold; with `branches`, which
            have columns, how many there are.
        padding: (B,), int32, how many positions before a row's first token hold none, for rows of
            different lengths that end together. No row attends to them, and positional layers
            number from the row's first token; it needs a cache, so that an encoder, whose positions
            must not be shifted, has been read before.
        branches: several continuations of each row at once.
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
        if padding is not None and cache is None:
            raise ValueError("padding needs the cache of a first step without it")
        self.position = position
        self.length = length
        self.padding = padding
        self.branches = branches
        self.xla = xla
        self._given = cache
        self._before: Cache = {}
        self._new: Cache = {}
        self._growing: list[str] = []
        self._written: Cache | None = None
        self._known: dict[tuple[Any, int], dict[str, Any]] = {}
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
            cache[name] = {
                part: ops.slice_update(cache[name][part], _start(part, column, new), new)
                for part, new in self._new[name].items()
            }
        return cache

    @property
    def growing(self) -> list[str]:
        """The entries to which every step adds, those of causal self-attention."""
        return self._growing

    @property
    def initial_cache(self) -> Cache:
        """The cache as it stood before this step.

        On a first step: zeros for causal self-attention, what was projected for cross-attention.
        A loop that starts from it feeds the first token itself.
        """
        return self._before

    @property
    def new(self) -> Cache:
        """What this step adds to the cache: entries of the tokens given, T columns.

        Those of cross-attention are here on the first step only.
        """
        return self._new

    def extend(self, name: str, key: Tensor, value: Tensor, mask: Tensor | None) -> Keys:
        """Adds new keys and values at `position`; returns all that may be attended to.

        The new ones are attended to as they are, beside the cache as it was before: no step waits
        for a cache to be written.

        Args:
            name: the layer's name.
            key: (B, G, T, K), of the tokens of this step.
            value: (B, G, T, V).
            mask: (B, T), boolean, which of them are real, or None.
        """
        new_length = ops.shape(key)[2]
        if isinstance(self.position, int) and isinstance(new_length, int):
            end = self.position + self.span(new_length)
            if end > self.length:
                raise ValueError(
                    f"{end} positions do not fit a DecodingScope of length {self.length}"
                )
            end = self._column() + new_length
            if isinstance(end, int) and end > self._capacity:
                raise ValueError(f"{end} columns do not fit a cache of {self._capacity}")
        entry = self._take(name)
        added = self._parts(entry, key, value)
        if entry is None:
            entry = {part: self._empty(part, x) for part, x in added.items()}
            if mask is not None and id(mask) not in self._masks:
                entry["mask"] = self._empty("mask", mask)
        else:
            for part, x in added.items():
                self._check_shape(name, part, entry[part].shape, x.shape)
        if self._owns_mask(name, entry, mask, self._masks):
            assert mask is not None
            added["mask"] = mask
            self._masks[id(mask)] = (mask, entry["mask"])
        self._growing.append(self._store(name, entry, added))
        if self._is_empty and self.branches is None:
            return Keys(key, value, self._real(mask, self._positions(new_length)))
        return Keys(
            (_key_of(entry), key), (entry["value"], value), **self._visible(new_length, mask)
        )

    @property
    def _is_empty(self) -> bool:
        """Whether the cache is known to hold nothing yet."""
        return self._given is None or (isinstance(self.position, int) and self.position == 0)

    def _column(self) -> Any:
        """Where in the caches the tokens of this step go."""
        return self.position if self.branches is None else _integer(self.branches.column)

    @property
    def _capacity(self) -> int:
        """How many columns the caches have."""
        return self.length if self.branches is None else self.branches.positions.shape[0]

    def _visible(self, length: Any, mask: Tensor | None) -> dict[str, Any]:
        """What T new tokens see of the cache and of themselves: the other fields of `Keys`."""
        known = self._known.get((length, id(mask))) if isinstance(length, int) else None
        if known is not None:
            return known
        tokens = self._positions(length)
        before = None if mask is None else self._masks[id(mask)][1]
        if self.branches is None:
            columns = ops.arange(self.length, dtype="int32")
        else:
            columns = ops.convert_to_tensor(self.branches.positions)
        own = self.branches is not None or (isinstance(length, int) and length == 1)
        positions = ops.concatenate([columns, tokens[:1] if own else tokens], axis=0)
        distances = ops.expand_dims(positions, 0) - ops.expand_dims(tokens, 1)
        result = {"positions": positions, "distances": distances, "own": own}
        # Beyond what is written lies nothing, or what another text has left there.
        written = columns < self.position
        if own:
            result |= {"mask": None, "pairs": self._pairs(length, columns, written, before, mask)}
        else:
            new = ops.ones((length,), dtype="bool")
            written = ops.concatenate([written, new], axis=0)
            result["distances"] = ops.where(written, distances, 1)
            both = None if before is None else ops.concatenate([before, mask], axis=1)
            result["mask"] = self._real(both, positions)
        if isinstance(length, int):
            self._known[length, id(mask)] = result
        return result

    def _pairs(
        self,
        length: Any,
        columns: Tensor,
        written: Tensor,
        before: Tensor | None,
        mask: Tensor | None,
    ) -> Tensor | None:
        """Which columns of the cache each token sees, and whether it sees itself: (1 | B, T, S)."""
        if self.branches is None:
            seen = ops.expand_dims(written, (0, 1))
        elif isinstance(length, int) and length == self.branches.ancestors.shape[1]:
            seen = ops.convert_to_tensor(self.branches.ancestors)
        else:
            # An encoder that is causal itself comes with tokens of its own, and nothing reads it.
            return None
        real, itself = self._real(before, columns), self._real(mask, self._positions(length))
        if real is not None:
            seen = ops.logical_and(seen, ops.expand_dims(real, 1))
        if itself is None:
            itself = ops.ones((ops.shape(seen)[0], length), dtype="bool")
        return ops.concatenate([seen, ops.expand_dims(itself, 2)], axis=2)

    def _real(self, mask: Tensor | None, positions: Tensor) -> Tensor | None:
        """Which keys are real, by their mask and by the padding: (B, S), or None for all."""
        if self.padding is None:
            return mask
        tokens = ops.greater_equal(ops.expand_dims(positions, 0), ops.expand_dims(self.padding, 1))
        return tokens if mask is None else ops.logical_and(mask, tokens)

    def span(self, length: Any) -> Any:
        """How many positions `length` tokens of this step take."""
        return length if self.branches is None else 1

    def _positions(self, length: Any) -> Tensor:
        """Where `length` tokens of this step stand, padding counted: (T,), int32."""
        offsets = ops.arange(length, dtype="int32")
        return (offsets if self.branches is None else offsets * 0) + self.position

    def positions(self, length: Any) -> Tensor:
        """The positions of `length` tokens of this step, from each row's first: (B | 1, T), int32.

        Columns of padding are at position 0.
        """
        columns = ops.expand_dims(self._positions(length), 0)
        if self.padding is None:
            return columns
        return ops.maximum(columns - ops.expand_dims(self.padding, 1), 0)

    def recall(
        self, name: str, mask: Tensor | None, project: Callable[[], tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The keys, values and mask of a context: projected on the first step, read afterwards.

        Args:
            name: the layer's name.
            mask: (B, S), boolean, which positions of the context are real, or None.
            project: returns keys (B, G, S, K) and values (B, G, S, V); called on a first step only.
        """
        entry = self._take(name)
        if entry is None:
            entry = self._parts(None, *project())
            if mask is not None and id(mask) not in self._context_masks:
                entry["mask"] = mask
        if self._owns_mask(name, entry, mask, self._context_masks):
            self._context_masks[id(mask)] = (mask, entry["mask"])
        self._store(name, entry, {} if self._given is not None else entry)
        cached = None if mask is None else self._context_masks[id(mask)][1]
        return _key_of(entry), entry["value"], cached

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

    def _owns_mask(self, name: str, entry: Any, mask: Tensor | None, masks: Any) -> bool:
        """Whether the call stores its mask; raises where the first step's calls did otherwise."""
        owns = mask is not None and id(mask) not in masks
        if owns != ("mask" in entry):
            raise ValueError(
                f"{name}: a mask must come with every step or with none; the first step "
                + ("had one of its own, this one has not" if "mask" in entry else "had none")
            )
        return owns

    def _check_shape(self, name: str, part: str, cached: Any, new: Any) -> None:
        axis = COLUMN_AXES[part]
        expected = (*new[:axis], self._capacity, *new[axis + 1 :])
        if any(a != b for a, b in zip(cached, expected, strict=True) if None not in (a, b)):
            raise ValueError(
                f"{name}: the cache has {part} of shape {tuple(cached)}, expected {expected}: "
                "it was made by another model, or for another length"
            )

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

    def _parts(self, entry: Any, key: Tensor, value: Tensor) -> dict[str, Tensor]:
        """Keys and values as the entry holds them, or as a new one shall."""
        transposed = "transposed_key" in entry if entry is not None else self.xla
        if transposed:
            return {"transposed_key": _transposed(key), "value": value}
        return {"key": key, "value": value}

    def _empty(self, part: str, x: Tensor) -> Tensor:
        shape = list(ops.shape(x))
        shape[COLUMN_AXES[part]] = self._capacity
        return ops.zeros(shape, dtype=x.dtype)


def _key_of(entry: dict[str, Tensor]) -> Tensor:
    return entry["key"] if "key" in entry else _transposed(entry["transposed_key"])


def _transposed(x: Tensor) -> Tensor:
    return ops.transpose(x, (0, 1, 3, 2))


def _start(part: str, column: Any, x: Tensor) -> list[Any]:
    """Where `x` begins in the part of a cache to which it is written."""
    return [column if axis == COLUMN_AXES[part] else 0 for axis in range(len(x.shape))]


def _integer(position: Any) -> Any:
    """A Python integer where the value can be seen (NumPy's, an eager tensor)."""
    try:
        return operator.index(position)
    except TypeError:
        return position
