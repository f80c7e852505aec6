"""Sinusoidal positions."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.layers.decoding_scope import DecodingScope

Tensor = Any

# Positions whose number is known only at run time are written in this base, two digits long.
_BASE = 1024


def sinusoids(positions: np.ndarray, dim: int, max_wavelength: float = 10000.0) -> np.ndarray:
    """PE of integer positions (T,) in float64: (T, D).

    PE(p, 2i) = sin(p / max_wavelength^(2i/D)), PE(p, 2i+1) = cos of the same angle.
    """
    frequencies = _frequencies(dim, max_wavelength)
    angles = np.asarray(positions, "float64")[:, np.newaxis] * frequencies  # (T, ceil(D/2))
    pairs = np.stack([np.sin(angles), np.cos(angles)], axis=-1)  # (T, ceil(D/2), 2)
    return pairs.reshape(len(angles), -1)[:, :dim]


def _frequencies(dim: int, max_wavelength: float) -> np.ndarray:
    return max_wavelength ** (-2.0 * np.arange(math.ceil(dim / 2)) / dim)


@keras.saving.register_keras_serializable("keras_tfm")
class PositionalEncoding(keras.layers.Layer):
    """Adds sinusoidal positions to its input.

    y = x + PE, PE(p, 2i) = sin(p / w^(2i/D)), PE(p, 2i+1) = cos of the same angle, where w is
    `max_wavelength`. "Attention Is All You Need" (arXiv:1706.03762), section 3.5. An odd D ends
    in a sine. The layer adds, unlike `keras_hub.layers.SinePositionEncoding`, so that a padding
    mask is kept.

    The encoding is computed from float64 tables, exact to float32 rounding, and rounded last
    under mixed precision. Lengths that are known when the graph is made become constants. Others
    use sin(a + b) = sin a cos b + cos a sin b on two tables, up to position 1,048,575. Inside a
    `DecodingScope` positions start at the scope's.

    Args:
        max_wavelength: w; the longest wavelength is 2 pi w.
        dropout: rate of the dropout of the sum.

    Call arguments:
        inputs: (B, T, D).

    Returns:
        (B, T, D).

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import PositionalEncoding
    >>> PositionalEncoding()(np.zeros((1, 2, 4), "float32"))[0, 1].numpy().round(4).tolist()
    [0.8414999842643738, 0.5403000116348267, 0.009999999776482582, 0.9998999834060669]
    """

    def __init__(self, max_wavelength: float = 10000.0, dropout: float = 0.0, **kwargs: Any):
        super().__init__(**kwargs)
        if max_wavelength <= 0:
            raise ValueError(f"max_wavelength must be positive, got {max_wavelength}")
        self.max_wavelength = max_wavelength
        self.dropout = dropout
        self.dropout_layer = keras.layers.Dropout(dropout, dtype=self.dtype_policy)
        self.supports_masking = True

    def build(self, inputs_shape: Any) -> None:
        """Checks the input's shape; there are no weights."""
        if len(inputs_shape) != 3 or inputs_shape[-1] is None:
            raise ValueError(f"PositionalEncoding expects (B, T, D), got shape {inputs_shape}")
        self.built = True

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        length, dim = ops.shape(inputs)[1:]
        scope = DecodingScope.current()
        start = 0 if scope is None else scope.position
        if not isinstance(length, int):
            encoding = self._from_digits(ops.arange(length, dtype="int32") + start, dim)
        elif isinstance(start, int):
            positions = np.arange(start, start + length)
            encoding = ops.convert_to_tensor(self._table(positions, dim))
        else:
            assert scope is not None
            # Long enough for any start: an encoder inside the scope, whose output no later step
            # reads, may have a longer input than the tokens.
            table = self._table(np.arange(scope.length + length), dim)
            encoding = ops.slice(ops.convert_to_tensor(table), (start, 0), (length, dim))
        x = inputs + ops.cast(encoding, inputs.dtype)
        return self.dropout_layer(x, training=training)

    def _table(self, positions: np.ndarray, dim: int) -> np.ndarray:
        return sinusoids(positions, dim, self.max_wavelength).astype("float32")

    def _from_digits(self, positions: Tensor, dim: int) -> Tensor:
        """PE of int32 positions (T,), known at run time only: (T, D), float32."""
        even = 2 * math.ceil(dim / 2)
        low = self._pairs(positions % _BASE, np.arange(_BASE), dim)
        high = self._pairs(positions // _BASE, np.arange(_BASE) * _BASE, dim)
        sine = high[..., 0] * low[..., 1] + high[..., 1] * low[..., 0]
        cosine = high[..., 1] * low[..., 1] - high[..., 0] * low[..., 0]
        return ops.reshape(ops.stack([sine, cosine], axis=-1), (-1, even))[:, :dim]

    def _pairs(self, digit: Tensor, positions: np.ndarray, dim: int) -> Tensor:
        """The sine and cosine of the position that each digit stands for: (T, ceil(D/2), 2)."""
        angles = positions[:, np.newaxis] * _frequencies(dim, self.max_wavelength)
        table = np.stack([np.sin(angles), np.cos(angles)], axis=-1).astype("float32")
        return ops.take(ops.convert_to_tensor(table), digit, axis=0)

    def compute_output_shape(self, inputs_shape: Any) -> Any:
        """The input's."""
        return inputs_shape

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "max_wavelength": self.max_wavelength,
            "dropout": self.dropout,
        }
