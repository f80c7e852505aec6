"""The KV cache: the contents of an entry, and how it is read and written.

A cache is a plain dictionary with one entry per call of an attention layer, in call order. The name
of an entry is the call's number and the layer's name ("002_cross_attention"), so a layer that is
called twice has two entries. An entry holds "key" (B, G, S, K) or "transposed_key" (B, G, K, S),
and "value" (B, G, S, V) or "transposed_value" (B, G, V, S). If several calls share one padding
mask, the entry of the first also holds "mask" (B, S), boolean. Along S there is one column per
position.

Example:

>>> import numpy as np
>>> from keras_tfm.layers.decoding.cache import empty, make_entry, written
>>> new = make_entry(*np.ones((2, 1, 1, 1, 1), "float32"), transposed=False)
>>> entry = {part: empty(part, x, capacity=4) for part, x in new.items()}
>>> written(entry, new, column=2)["key"].numpy().ravel().tolist()
[0.0, 0.0, 1.0, 0.0]
"""

from typing import Any

from keras import ops

from keras_tfm.layers.heads import swap

Tensor = Any
Entry = dict[str, Tensor]
Cache = dict[str, Entry]

# The axis S of each part.
COLUMN_AXES = {"key": 2, "transposed_key": 3, "value": 2, "transposed_value": 3, "mask": 1}


def make_entry(
    key: Tensor, value: Tensor, transposed: bool, transposed_values: bool = False
) -> Entry:
    """A cache entry of keys and values, either of them transposed."""
    keys = {"transposed_key": swap(key, -1, -2)} if transposed else {"key": key}
    if transposed_values:
        return {**keys, "transposed_value": swap(value, -1, -2)}
    return {**keys, "value": value}


def key_of(entry: Entry) -> Tensor:
    """The keys of an entry, (B, G, S, K)."""
    return entry["key"] if "key" in entry else swap(entry["transposed_key"], -1, -2)


def transposed_key_of(entry: Entry) -> Tensor:
    """The keys of an entry, transposed: (B, G, K, S)."""
    return entry["transposed_key"] if "transposed_key" in entry else swap(entry["key"], -1, -2)


def value_of(entry: Entry) -> Tensor:
    """The values of an entry, (B, G, S, V)."""
    return entry["value"] if "value" in entry else swap(entry["transposed_value"], -1, -2)


def empty(part: str, x: Tensor, capacity: int) -> Tensor:
    """Zeros shaped like `x`, but with `capacity` columns."""
    shape = list(ops.shape(x))
    shape[COLUMN_AXES[part]] = capacity
    return ops.zeros(shape, dtype=x.dtype)


def written(entry: Entry, new: Entry, column: Any) -> Entry:
    """The entry after writing the parts of `new`, starting at `column`."""
    return {
        part: ops.slice_update(entry[part], _start(part, column, x), x) for part, x in new.items()
    }


def longer(part: str, x: Tensor, more: int) -> Tensor:
    """A part of an entry with `more` additional columns of zeros."""
    if not more:
        return x
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


def check_part(name: str, part: str, cached: Any, new: Any, capacity: int) -> None:
    """Raises unless a cached part has the shape of the new one, but with `capacity` columns."""
    axis = COLUMN_AXES[part]
    expected = (*new[:axis], capacity, *new[axis + 1 :])
    if any(a != b for a, b in zip(cached, expected, strict=True) if None not in (a, b)):
        raise ValueError(
            f"{name}: the cache has {part} of shape {tuple(cached)}, expected {expected}: "
            "it was made by another model or for another length"
        )


def _start(part: str, column: Any, x: Tensor) -> list[Any]:
    """The start indices for writing `x` into a part of the cache."""
    return [column if axis == COLUMN_AXES[part] else 0 for axis in range(len(x.shape))]
