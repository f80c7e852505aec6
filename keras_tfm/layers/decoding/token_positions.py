"""The positions of a layer's tokens: those given, those of the decoding step, or 0 to T - 1.

Example:

>>> import numpy as np
>>> from keras_tfm.layers.decoding.token_positions import positions_of
>>> span = positions_of(np.zeros((1, 3, 4), "float32"))
>>> span.start, span.length
(0, 3)
"""

from collections.abc import Callable
from typing import Any

from keras import ops

from keras_tfm.layers.decoding.scope import DecodingScope
from keras_tfm.layers.positions.coordinates import Span, check_positions

Tensor = Any


def positions_of(x: Tensor, positions: Tensor | None = None) -> Any:
    """Positions of the tokens of `x` (..., T, D): those given, else the scope's, else 0 to T - 1.

    Returns:
        A `Span`, or int32 (..., T).
    """
    return _where(x, positions, DecodingScope.positions, coordinates=False)


def columns_of(x: Tensor, positions: Tensor | None = None) -> Any:
    """As `positions_of`, but counting left padding: for distances, which it does not change."""
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
