"""The scope in which a model is stepped: a token at a time against key/value caches."""

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Any

from keras import ops

Tensor = Any
Cache = dict[str, dict[str, Tensor]]

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

    Two functions ask, the lookup of a table and the masking of scores; each has a twin that is
    better in training, and a test that both agree.
    """
    return _exporting.get() or DecodingScope.current() is not None


class DecodingScope:
    """Makes every call of a model inside it one step of decoding.

    Causal self-attention writes the keys and values of the tokens it is given into a cache at
    `position` and attends to all that the cache holds. Cross-attention projects its context on
    the first call and later reads only what it stored. Positional layers number from `position`.
    Nothing else changes: the model is the one that was trained.

    The cache is a value, not a state: it comes in as an argument and the updated one is read from
    `scope.cache` afterwards. It is a dictionary in the order of the calls, one entry a call of an
    attention layer, named by its number and its layer ("002_cross_attention"), so that a layer
    called twice has two entries. An entry holds "key" (B, G, S, K) and "value" (B, G, S, V), and
    "mask" (B, S), boolean, at the first of the calls that share one padding mask.

    Args:
        cache: what an earlier scope returned, or None for the first step, which must be at
            position 0.
        position: the position of the first token given, an integer or an int32 scalar tensor.
        length: how many positions the caches of causal self-attention hold.
        padding: (B,), int32, how many positions before a row's first token hold none, for rows of
            different lengths that end together. No row attends to them, and positional layers
            number from the row's first token; it needs a cache, so that an encoder, whose positions
            must not be shifted, has been read before.

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
        self._given = cache
        self._before: Cache = {}
        self._after: Cache = {}
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
        if self._given is not None and len(self._after) != len(self._given):
            raise ValueError(
                f"the cache has entries {list(self._given)}, but the model called inside the "
                f"scope used {list(self._after)}: it was made by another model"
            )
        return self._after

    @property
    def initial_cache(self) -> Cache:
        """The cache as it stood before this step.

        On a first step: zeros for causal self-attention, what was projected for cross-attention.
        A loop that starts from it feeds the first token itself.
        """
        return self._before

    def extend(
        self, name: str, key: Tensor, value: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Writes new keys and values at `position`; returns all that the cache now holds.

        Args:
            name: the layer's name.
            key: (B, G, T, K), of the tokens of this step.
            value: (B, G, T, V).
            mask: (B, T), boolean, which of them are real, or None.

        Returns:
            keys (B, G, S, K), values (B, G, S, V) and their mask (B, S) or None. On a first step,
            which begins at position 0, these are the new ones alone: the rest is still empty.
        """
        new_length = key.shape[2]
        if isinstance(self.position, int) and isinstance(new_length, int):
            end = self.position + new_length
            if end > self.length:
                raise ValueError(
                    f"{end} positions do not fit a DecodingScope of length {self.length}"
                )
        entry = self._take(name)
        if entry is None:
            entry = {"key": self._empty(key, 2), "value": self._empty(value, 2)}
            if mask is not None and id(mask) not in self._masks:
                entry["mask"] = self._empty(mask, 1)
        else:
            for part, new in (("key", key), ("value", value)):
                self._check_shape(name, part, entry[part].shape, new.shape)
        owns_mask = self._owns_mask(name, entry, mask, self._masks)
        updated = {
            "key": ops.slice_update(entry["key"], (0, 0, self.position, 0), key),
            "value": ops.slice_update(entry["value"], (0, 0, self.position, 0), value),
        }
        if mask is not None and owns_mask:
            updated["mask"] = ops.slice_update(entry["mask"], (0, self.position), mask)
            self._masks[id(mask)] = (mask, updated["mask"])
        self._store(name, entry, updated)
        if self._given is None:
            return key, value, mask
        cached = None if mask is None else self._masks[id(mask)][1]
        if self.padding is not None:
            columns = ops.expand_dims(ops.arange(self.length, dtype="int32"), 0)
            tokens = ops.greater_equal(columns, ops.expand_dims(self.padding, 1))
            cached = tokens if cached is None else ops.logical_and(cached, tokens)
        return updated["key"], updated["value"], cached

    def positions(self, length: Any) -> Tensor:
        """The positions of `length` tokens of this step, from each row's first: (B, T), int32.

        Only with `padding`; columns of padding are at position 0.
        """
        columns = ops.arange(length, dtype="int32") + self.position
        return ops.maximum(ops.expand_dims(columns, 0) - ops.expand_dims(self.padding, 1), 0)

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
            key, value = project()
            entry = {"key": key, "value": value}
            if mask is not None and id(mask) not in self._context_masks:
                entry["mask"] = mask
        if self._owns_mask(name, entry, mask, self._context_masks):
            self._context_masks[id(mask)] = (mask, entry["mask"])
        self._store(name, entry, entry)
        cached = None if mask is None else self._context_masks[id(mask)][1]
        return entry["key"], entry["value"], cached

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
        expected = (new[0], new[1], self.length, new[3])
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

    def _store(self, name: str, before: dict[str, Tensor], after: dict[str, Tensor]) -> None:
        entry_name = self._entry_name(name)
        self._before[entry_name] = before
        self._after[entry_name] = after

    def _entry_name(self, name: str) -> str:
        return f"{len(self._after):03d}_{name}"

    def _empty(self, x: Tensor, axis: int) -> Tensor:
        shape = list(ops.shape(x))
        shape[axis] = self.length
        return ops.zeros(shape, dtype=x.dtype)


def _integer(position: Any) -> Any:
    """A Python integer where the value can be seen (NumPy's, an eager tensor)."""
    try:
        return operator.index(position)
    except TypeError:
        return position
