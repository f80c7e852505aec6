"""Sines and cosines of positions, accurate to float32 rounding at any position.

Example:

>>> from keras_tfm.layers.positions.sinusoids import angular_frequencies, exact_sinusoids
>>> frequencies = angular_frequencies(4, max_wavelength=10_000)
>>> frequencies.tolist()
[1.0, 0.01]
>>> exact_sinusoids([0], frequencies).tolist()  # sin, cos of position 0
[[[0.0, 1.0], [0.0, 1.0]]]
"""

import numpy as np
from keras import ops

from keras_tfm.layers.embeddings.lookup import lookup
from keras_tfm.layers.positions.attention_position import Span
from keras_tfm.layers.target import current_target
from keras_tfm.layers.types import Tensor

# Positions known only at run time are split into two digits in this base, one table lookup each.
_BASE = 1024


def angular_frequencies(dim: int, max_wavelength: float) -> np.ndarray:
    """w^(-2i/D) for i = 0 .. ceil(D/2) - 1, in float64."""
    return max_wavelength ** (-2.0 * np.arange((dim + 1) // 2) / dim)


def sinusoids(positions: Span | Tensor, frequencies: np.ndarray) -> Tensor:
    """sin(p f), cos(p f): (..., T, F, 2), float32; T is 1 for a span whose tokens share a position.

    A float32 angle has an error of 6e-3 at position 100,000, so angles are never float32. For
    positions known when the graph is made, the result is a constant computed in float64. For a span
    with a known limit it is a slice of such a constant, or with padding, rows of it. Otherwise, and
    for rows of more than 2047 positions with padding, it is computed from two tables with
    sin(a + b) = sin a cos b + cos a sin b, up to position 1,048,575.

    Args:
        positions: a `Span`, or int32 of any shape (..., T).
        frequencies: (F,), float64.
    """
    if not isinstance(positions, Span):
        return _from_two_tables(positions, frequencies)
    key = ("sinusoids", frequencies.tobytes())
    if key not in positions.shared:
        positions.shared[key] = _of_span(positions, frequencies)
    return positions.shared[key]


def _of_span(span: Span, frequencies: np.ndarray) -> Tensor:
    count, start = 1 if span.together else span.length, span.start
    if span.padding is not None:
        if span.end is None or not isinstance(count, int) or span.end + count > 2 * _BASE:
            return _from_two_tables(span.tensor(), frequencies)
        table = _constant(np.arange(span.end + count - 1), frequencies)  # smaller than the two
        return ops.take(table, span.tensor(), axis=0)
    if not isinstance(count, int):
        return _from_two_tables(ops.arange(count, dtype="int32") + start, frequencies)
    if isinstance(start, int):
        return _constant(np.arange(start, start + count), frequencies)
    if span.limit is None:
        # Slices and sums, which no preset rounds, unlike tables in which rows are looked up.
        first = start - span.least
        rows = [
            ops.slice(_constant(table, frequencies), (row, 0, 0), (1, len(frequencies), 2))
            for table, row in zip(_digits(), (first % _BASE, first // _BASE), strict=True)
        ]
        steps = _constant(np.arange(count) + span.least, frequencies)
        return _add_angles(_add_angles(*rows), steps)
    # A slice must not end behind the table: its start would be moved.
    table = _constant(np.arange(span.limit + count - 1), frequencies)
    if current_target.get().name == "gpu-edge":  # a slice of a constant is not supported
        rows = lookup(ops.reshape(table, (table.shape[0], -1)), ops.arange(count) + start)
        return ops.reshape(rows, (count, len(frequencies), 2))
    return ops.slice(table, (start, 0, 0), (count, len(frequencies), 2))


def exact_sinusoids(positions: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    """sin(p f), cos(p f) of integer positions (T,), in float64: (T, F, 2)."""
    angles = np.asarray(positions, "float64")[:, np.newaxis] * frequencies
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1)


def _constant(positions: np.ndarray, frequencies: np.ndarray) -> Tensor:
    return ops.convert_to_tensor(exact_sinusoids(positions, frequencies).astype("float32"))


def _from_two_tables(positions: Tensor, frequencies: np.ndarray) -> Tensor:
    low, high = (_constant(x, frequencies) for x in _digits())
    return _add_angles(
        ops.take(low, positions % _BASE, axis=0), ops.take(high, positions // _BASE, axis=0)
    )


def _digits() -> tuple[np.ndarray, np.ndarray]:
    """The positions of the rows of the tables of both digits."""
    return np.arange(_BASE), np.arange(_BASE) * _BASE


def _add_angles(x: Tensor, y: Tensor) -> Tensor:
    """Sine and cosine of a + b, (..., 2), given those of a and b."""
    sine = y[..., 0] * x[..., 1] + y[..., 1] * x[..., 0]
    cosine = y[..., 1] * x[..., 1] - y[..., 0] * x[..., 0]
    return ops.stack([sine, cosine], axis=-1)
