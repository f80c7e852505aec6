"""The KV cache: the contents of an entry, the kind of its state, and how it is read and written.

A cache is a plain dictionary with one entry per call of an attention layer, in call order. The name
of an entry is the call's number and the layer's name ("002_cross_attention"), so a layer that is
called twice has two entries. An entry holds "key" (B, G, S, K) or "transposed_key" (B, G, K, S),
and "value" (B, G, S, V) or "transposed_value" (B, G, V, S); that of `ReplacePlaceholders` has no
key. If several calls share one padding
mask, the entry of the first also holds "mask" (B, S), boolean. Along S there is one column per
position.

An entry in int8 holds "transposed_key" and "value" as integers q from -127 to 127, and beside each
its scales, "key_scale" and "value_scale" (B, G, 1, S), float32: one for each position and head. The
key k is scale q. Scales are multiplied with scores and weights, so no product reads a cache in
float32; see `products` and `weighted_values`.

Example:

>>> import numpy as np
>>> from keras_tfm.layers.decoding.cache import empty, make_entry, write
>>> new = make_entry(*np.ones((2, 1, 1, 1, 1), "float32"), transposed=False)
>>> entry = {part: empty(part, x, capacity=4) for part, x in new.items()}
>>> write(entry, new, column=2)["key"].numpy().ravel().tolist()
[0.0, 0.0, 1.0, 0.0]
"""

from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import ClassVar

import keras
from keras import ops

from keras_tfm.layers.decoding.state import Entry, State
from keras_tfm.layers.target import current_target
from keras_tfm.layers.types import Shape, Size, Tensor

Cache = dict[str, Entry]

# The axis S of each part.
COLUMN_AXES = {
    "key": 2,
    "transposed_key": 3,
    "key_scale": 3,
    "value": 2,
    "transposed_value": 3,
    "value_scale": 3,
    "mask": 1,
}
# The largest integer of an entry in int8. -128 is not used, so that scales have no offset.
_LARGEST = 127.0
# The smallest scale, for keys and values that are all zero.
_SMALLEST = 1e-30


@dataclass(frozen=True)
class Columns(State):
    """Keys and values by position: hypotheses share them, and a step may write any position again.

    Attributes:
        prefix: int, the number of columns before the first token.
    """

    grows: ClassVar[bool] = True
    prefix: int = 0

    def initial(self, before: Entry, new: Entry) -> Entry:
        """Zeros after the columns of a prefix."""
        if not self.prefix:
            return before
        return write(before, columns_of_entry(new, 0, self.prefix), 0)

    def after(self, before: Entry, new: Entry, column: Size, kept: Size | None) -> Entry:
        """The entry with the columns of the step. Those that do not count are written again."""
        return write(before, new, column)

    def longer(self, entry: Entry, more: int) -> Entry:
        """The entry with `more` additional columns."""
        return self.map_columns(entry, lambda part, x: longer(part, x, more))

    def map_columns(self, entry: Entry, change: Callable[[str, Tensor], Tensor]) -> Entry:
        """The entry after `change(part, x)` of each part."""
        return {part: change(part, x) for part, x in entry.items()}


def make_entry(
    key: Tensor | None,
    value: Tensor,
    transposed: bool,
    transposed_values: bool = False,
    int8: bool = False,
) -> Entry:
    """A cache entry of keys, if any, and values, either of them transposed, or in int8."""
    keys: Entry = {}
    if int8:
        if key is not None:
            key, scale = _round_to_int8(key)
            keys = {"transposed_key": _transpose(key), "key_scale": _transpose(scale)}
        value, scale = _round_to_int8(value)
        return {**keys, "value": value, "value_scale": _transpose(scale)}
    if key is not None:
        keys = {"transposed_key": _transpose(key)} if transposed else {"key": key}
    if transposed_values:
        return {**keys, "transposed_value": _transpose(value)}
    return {**keys, "value": value}


def _round_to_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """(B, G, S, K) in int8, and the scales (B, G, S, 1)."""
    x = ops.cast(x, "float32")
    largest = ops.max(ops.abs(x), axis=-1, keepdims=True)
    scale = ops.maximum(largest * (1.0 / _LARGEST), _SMALLEST)
    # In a file, rounding and cast are one operator; see `export.int8_caches`.
    return ops.cast(ops.round(x / scale), "int8"), scale


_rounds: ContextVar[bool] = ContextVar("rounded_caches", default=False)


@contextmanager
def rounded_caches() -> Iterator[None]:
    """The context in which attention computes as with int8 caches, in full passes, too.

    Every key and value that a cache would store is rounded where it is made, so that a full pass, a
    prefill and a step compute the same. The gradient is that of the identity.

    >>> import numpy as np
    >>> from keras_tfm.layers.decoding.cache import as_cached, rounded_caches
    >>> x = np.array([[[[0.1, 0.504, 1.27]]]], "float32")
    >>> with rounded_caches():
    ...     [round(float(y), 3) for y in as_cached(x)[0, 0, 0]]
    [0.1, 0.5, 1.27]
    """
    token = _rounds.set(True)
    try:
        yield
    finally:
        _rounds.reset(token)


def as_cached(x: Tensor) -> Tensor:
    """Keys or values (..., S, K) as a cache returns them: rounded inside `rounded_caches`."""
    if not _rounds.get():
        return x
    constant = ops.stop_gradient(x)
    levels, scale = _round_to_int8(constant)
    rounded = ops.cast(ops.cast(levels, "float32") * scale, x.dtype)
    return rounded if current_target.get().is_edge else rounded + (x - constant)


def is_int8(entry: Entry) -> bool:
    """Whether keys and values of an entry are stored in int8."""
    return "value_scale" in entry


def key_of(entry: Entry) -> Tensor:
    """The keys of an entry, (B, G, S, K), in float."""
    return entry["key"] if "key" in entry else _transpose(transposed_key_of(entry))


def transposed_key_of(entry: Entry) -> Tensor:
    """The keys of an entry, transposed: (B, G, K, S), in float."""
    if is_int8(entry):
        return ops.cast(entry["transposed_key"], "float32") * entry["key_scale"]
    return entry["transposed_key"] if "transposed_key" in entry else _transpose(entry["key"])


def products(query: Tensor, entry: Entry) -> Tensor:
    """(B, G, N, K) q k^T with the keys of an entry: (B, G, N, S), float32."""
    if is_int8(entry):
        keys = ops.cast(entry["transposed_key"], "float32")
        return ops.matmul(ops.cast(query, "float32"), keys) * entry["key_scale"]
    keys = ops.cast(transposed_key_of(entry), query.dtype)
    return ops.cast(ops.matmul(query, keys), "float32")


def weighted_values(weights: Tensor, entry: Entry) -> Tensor:
    """Sums of the values of an entry: (B, G, N, S) -> (B, G, N, V), in the dtype of `weights`."""
    if is_int8(entry):
        scaled = ops.cast(weights, "float32") * entry["value_scale"]
        sums = ops.matmul(scaled, ops.cast(entry["value"], "float32"))
        return ops.cast(sums, weights.dtype)
    return ops.matmul(weights, value_of(entry))


def value_of(entry: Entry) -> Tensor:
    """The values of an entry, (B, G, S, V), in float."""
    if is_int8(entry):
        return ops.cast(entry["value"], "float32") * _transpose(entry["value_scale"])
    return entry["value"] if "value" in entry else _transpose(entry["transposed_value"])


def heads_and_columns(entry: Entry) -> tuple[int, Size]:
    """The numbers of heads (G) and of columns (S) of an entry."""
    part = "value" if "value" in entry else "transposed_value"
    shape, axis = entry[part].shape, COLUMN_AXES[part]
    return shape[1], ops.shape(entry[part])[axis] if shape[axis] is None else shape[axis]


def empty(part: str, x: Tensor, capacity: int) -> Tensor:
    """Zeros shaped like `x`, but with `capacity` columns."""
    shape = list(ops.shape(x))
    shape[COLUMN_AXES[part]] = capacity
    return ops.zeros(shape, dtype=x.dtype)


def write(entry: Entry, new: Entry, column: Size) -> Entry:
    """The entry after writing the parts of `new`, starting at `column`."""
    return {
        part: ops.slice_update(entry[part], _start(part, column, x), x) for part, x in new.items()
    }


def longer(part: str, x: Tensor, more: int) -> Tensor:
    """A part of an entry with `more` additional columns: zeros, or in int8 copies of earlier ones.

    Scales get zeros, so the copies count as zeros too.
    """
    if not more:
        return x
    if keras.backend.standardize_dtype(x.dtype) == "int8":
        # TensorFlow Lite's converter has no PAD of int8, and zeros would be stored in the file.
        axis = COLUMN_AXES[part]
        count = x.shape[axis]
        rest = [slice(None)] * axis + [slice(0, more % count)]
        copies = [x] * (1 + more // count) + [x[tuple(rest)]] * (more % count > 0)
        return ops.concatenate(copies, axis=axis)
    paddings = [(0, 0)] * len(x.shape)
    paddings[COLUMN_AXES[part]] = (0, more)
    return ops.pad(x, paddings)


def columns_of_entry(entry: Entry, start: int, end: int) -> Entry:
    """The columns `start` to `end` - 1 of an entry."""
    result = {}
    for part, x in entry.items():
        chosen = [slice(None)] * len(x.shape)
        chosen[COLUMN_AXES[part]] = slice(start, end)
        result[part] = x[tuple(chosen)]
    return result


def check_part(name: str, part: str, cached: Shape, new: Shape, capacity: int) -> None:
    """Raises unless a cached part has the shape of the new one, but with `capacity` columns."""
    axis = COLUMN_AXES[part]
    expected = (*new[:axis], capacity, *new[axis + 1 :])
    if any(a != b for a, b in zip(cached, expected, strict=True) if None not in (a, b)):
        raise ValueError(
            f"{name}: the cache has {part} of shape {tuple(cached)}, expected {expected}: "
            "it was made by another model or for another length"
        )


def owns_mask(name: str, entry: Entry, mask: Tensor | None, known: Container[int]) -> bool:
    """Whether a call stores its mask; raises unless the first step did the same.

    Args:
        name: str, the layer's name.
        entry: the call's entry.
        mask: its padding mask; None if it has no padding.
        known: the ids of the masks that other calls of this step have stored.
    """
    owns = mask is not None and id(mask) not in known
    if owns != ("mask" in entry):
        raise ValueError(
            f"{name}: a mask must come with every step or with none; the first step "
            + ("had one, this step has none" if "mask" in entry else "had none, this step has")
        )
    return owns


def _transpose(x: Tensor) -> Tensor:
    """(..., M, N) -> (..., N, M)."""
    rank = len(x.shape)
    return ops.transpose(x, (*range(rank - 2), rank - 1, rank - 2))


def _start(part: str, column: Size, x: Tensor) -> list[Size]:
    """The start indices for writing `x` into a part of the cache."""
    return [column if axis == COLUMN_AXES[part] else 0 for axis in range(len(x.shape))]
