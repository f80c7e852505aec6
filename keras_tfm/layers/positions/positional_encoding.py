"""Sinusoidal positional encoding."""

from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer, check_positive
from keras_tfm.layers.arguments import check_sequence
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.decoding.scope import positions_of
from keras_tfm.layers.dropout import Dropout
from keras_tfm.layers.multi_head_attention.heads import merge_last
from keras_tfm.layers.positions.attention_position import Span
from keras_tfm.layers.positions.sinusoids import angular_frequencies, sinusoids
from keras_tfm.layers.types import Shape, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class PositionalEncoding(RematerializedLayer):
    """Adds a sinusoidal positional encoding to its input.

    y = x + PE, PE(p, 2i) = sin(p / w^(2i/D)), PE(p, 2i+1) = cos(p / w^(2i/D)), where w is
    `max_wavelength`. "Attention Is All You Need" (arXiv:1706.03762), section 3.5. An odd D ends
    with a sine. Unlike `keras_hub.layers.SinePositionEncoding` the layer returns the sum, so the
    padding mask of its input is kept.

    The encoding is computed in float64, rounded to float32, and under mixed precision cast last. If
    the length is known when the graph is made, it is a constant. Otherwise it is computed with
    sin(a + b) = sin a cos b + cos a sin b from two tables, up to position 1,048,575.

    Args:
        max_wavelength: float, w; the longest wavelength is 2 pi w.
        dropout: float, dropout rate of the sum.
        interleaved: bool, sines and cosines alternate (True), or all sines come first (False), as
            in the checkpoints of Marian and Pegasus.
        offset: int, added to every position, as in the checkpoints of M2M-100, where the first
            token has position 2.

    Call arguments:
        inputs: float tensor (..., T, D).
        positions: int32, (T,) or (B, T), positions of the tokens, for instance those of
            `text.PackedBatches`. Default: 0 to T - 1, or the scope's positions inside a
            `DecodingScope`.

    Returns:
        Float tensor (..., T, D).

    Raises:
        TypeError: `positions` are not integers.
        ValueError: `positions` have the wrong shape.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import PositionalEncoding
    >>> PositionalEncoding()(np.zeros((1, 2, 4), "float32"))[0, 1].numpy().round(3).tolist()
    [0.8410000205039978, 0.5400000214576721, 0.009999999776482582, 1.0]
    """

    def __init__(
        self,
        max_wavelength: float = 10000.0,
        dropout: float = 0.0,
        interleaved: bool = True,
        offset: int = 0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_positive("max_wavelength", max_wavelength)
        check_integer("offset", offset, minimum=0)
        self.max_wavelength = max_wavelength
        self.dropout = dropout
        self.interleaved = interleaved
        self.offset = offset
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy)

    def build(self, inputs_shape: Shape, positions_shape: Shape | None = None) -> None:
        """Checks the input's shape; there are no weights."""
        check_sequence(self, "inputs", inputs_shape)
        self.built = True

    def call(
        self, inputs: Tensor, positions: Tensor | None = None, training: bool | None = None
    ) -> Tensor:
        """(..., T, D) -> (..., T, D)."""
        dim = inputs.shape[-1]
        frequencies = angular_frequencies(dim, self.max_wavelength)
        where = positions_of(inputs, positions)
        if self.offset:
            where = where.shift(self.offset) if isinstance(where, Span) else where + self.offset
        pairs = sinusoids(where, frequencies)  # (..., T, ceil(D/2), 2)
        if self.interleaved:
            encoding = merge_last(pairs)
        else:
            encoding = ops.concatenate([pairs[..., 0], pairs[..., 1]], axis=-1)
        if dim % 2:
            encoding = encoding[..., :dim]
        x = inputs + ops.cast(encoding, inputs.dtype)
        return self.dropout_layer(x, training=training)
