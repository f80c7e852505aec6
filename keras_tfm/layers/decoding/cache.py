"""The key/value cache as a value: what an entry holds, and how it is read and written.

A cache is a dictionary in the order of the calls, one entry a call of an attention layer, named by
its number and its layer ("002_cross_attention"), so that a layer called twice has two. An entry
holds "key" (B, G, S, K), or "transposed_key" (B, G, K, S), and "value" (B, G, S, V), and "mask"
(B, S), boolean, at the first of the calls that share one padding mask. The S axis holds a column a
position.
"""

from typing import Any

from keras import ops

from keras_tfm.layers.heads import swap

Tensor = Any
Entry = dict[str, Tensor]
Cache = dict[str, Entry]

# The axis of each part along which the columns lie.
COLUMN_AXES = {"key": 2, "transposed_key": 3, "value": 2, "mask": 1}


def make_entry(key: Tensor, value: Tensor, transposed: bool) -> Entry:
    """Keys and values as an entry holds them."""
    if transposed:
        return {"transposed_key": swap(key, -1, -2), "value": value}
    return {"key": key, "value": value}


def key_of(entry: Entry) -> Tensor:
    """An entry's keys, (B, G, S, K)."""
    return entry["key"] if "key" in entry else swap(entry["transposed_key"], -1, -2)


def transposed_key_of(entry: Entry) -> Tensor:
    """An entry's keys, (B, G, K, S)."""
    return entry["transposed_key"] if "transposed_key" in entry else swap(entry["key"], -1, -2)


def empty(part: str, x: Tensor, capacity: int) -> Tensor:
    """A part of `capacity` columns of zeros, otherwise shaped like `x`."""
    shape = list(ops.shape(x))
    shape[COLUMN_AXES[part]] = capacity
    return ops.zeros(shape, dtype=x.dtype)


def written(entry: Entry, new: Entry, column: Any) -> Entry:
    """The entry with the parts of `new` written from `column` on."""
    return {
        part: ops.slice_update(entry[part], _start(part, column, x), x) for part, x in new.items()
    }


def check_part(name: str, part: str, cached: Any, new: Any, capacity: int) -> None:
    """Raises unless a cached part has the shape of a new one, with `capacity` columns."""
    axis = COLUMN_AXES[part]
    expected = (*new[:axis], capacity, *new[axis + 1 :])
    if any(a != b for a, b in zip(cached, expected, strict=True) if None not in (a, b)):
        raise ValueError(
            f"{name}: the cache has {part} of shape {tuple(cached)}, expected {expected}: "
            "it was made by another model, or for another length"
        )


def _start(part: str, column: Any, x: Tensor) -> list[Any]:
    """Where `x` begins in the part of a cache to which it is written."""
    return [column if axis == COLUMN_AXES[part] else 0 for axis in range(len(x.shape))]
