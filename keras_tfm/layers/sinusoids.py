"""Sines and cosines of positions, exact to float32 rounding at any position."""

from typing import Any

import numpy as np
from keras import ops

from keras_tfm.layers.decoding_scope import DecodingScope

Tensor = Any

# Positions whose number is known only at run time are written in this base, two digits long.
_BASE = 1024


def angular_frequencies(dim: int, max_wavelength: float) -> np.ndarray:
    """w^(-2i/D) for i = 0 .. ceil(D/2) - 1, in float64."""
    return max_wavelength ** (-2.0 * np.arange((dim + 1) // 2) / dim)


def sinusoids(positions: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    """sin(p f), cos(p f) of integer positions (T,), in float64: (T, F, 2)."""
    angles = np.asarray(positions, "float64")[:, np.newaxis] * frequencies
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1)


def sinusoids_of_sequence(length: Any, frequencies: np.ndarray) -> Tensor:
    """sin(p f), cos(p f) of the positions of a sequence of `length`: (T, F, 2), float32.

    Positions begin at 0, inside a `DecodingScope` at the scope's; if all tokens of its step have
    one position, the result is (1, F, 2). float32 angles are off by 6e-3 at
    position 100,000, so no angle is ever made in float32. Positions that are known when the graph
    is made become float64 constants, rounded; inside a scope the step's rows are cut out of such a
    table; otherwise two small tables are joined by sin(a + b) = sin a cos b + cos a sin b, up to
    position 1,048,575.
    """
    scope = DecodingScope.current()
    start = 0 if scope is None else scope.position
    length = length if scope is None else scope.span(length)
    if not isinstance(length, int):
        return sinusoids_of_positions(ops.arange(length, dtype="int32") + start, frequencies)
    if isinstance(start, int):
        return _constant(np.arange(start, start + length), frequencies)
    assert scope is not None
    # Long enough for any start: an encoder inside the scope, whose output no later step reads, may
    # have a longer input than the tokens.
    table = _constant(np.arange(scope.length + length), frequencies)
    return ops.slice(table, (start, 0, 0), (length, len(frequencies), 2))


def _constant(positions: np.ndarray, frequencies: np.ndarray) -> Tensor:
    return ops.convert_to_tensor(sinusoids(positions, frequencies).astype("float32"))


def sinusoids_of_positions(positions: Tensor, frequencies: np.ndarray) -> Tensor:
    """sin(p f), cos(p f) of int32 positions of any shape (...), to 1,048,575: (..., F, 2)."""
    low = ops.take(_constant(np.arange(_BASE), frequencies), positions % _BASE, axis=0)
    high = ops.take(_constant(np.arange(_BASE) * _BASE, frequencies), positions // _BASE, axis=0)
    sine = high[..., 0] * low[..., 1] + high[..., 1] * low[..., 0]
    cosine = high[..., 1] * low[..., 1] - high[..., 0] * low[..., 0]
    return ops.stack([sine, cosine], axis=-1)
