"""Rotary position embedding (RoPE)."""

from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer, check_number, check_positive
from keras_tfm.layers.multi_head_attention.heads import merge_last, split_last
from keras_tfm.layers.positions.attention_position import AttentionPosition, Span, as_tensor
from keras_tfm.layers.positions.rotary_scaling import RotaryScaling
from keras_tfm.layers.positions.sinusoids import angular_frequencies, sinusoids
from keras_tfm.layers.types import Config, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class RotaryEmbedding(AttentionPosition):
    """Rotary positions (RoPE): rotates queries and keys, so that scores depend on distances only.

    (x_i, x_{i+K/2}) -> (x_i cos - x_{i+K/2} sin, x_{i+K/2} cos + x_i sin), angle p w^(-2i/K) at
    position p: RoFormer (arXiv:2104.09864). Pass it to attention:
    `MultiHeadSelfAttention(position=RotaryEmbedding())`. Angles are computed in float64, the
    rotation in float32, and the result is cast last.

    Args:
        max_wavelength: float, w.
        rotary_dim: int, even, number of a head's K dimensions that are rotated, from the first.
            Default: K. GPT-J and GPT-NeoX rotate only some.
        interleaved: bool, pair neighbours (x_2i, x_2i+1) as in the paper and GPT-J, instead of
            halves (x_i, x_{i+K/2}) as in Llama and GPT-NeoX. Weights trained with one kind do not
            work with the other.
        scaling: `LinearScaling`, `Llama3Scaling`, `LongRoPEScaling`, `NTKScaling` or `YaRNScaling`,
            for sequences longer than in training. Default: none.
        query_beta: float, b in 1 + b ln(1 + floor(p / n)), by which the queries at position p are
            multiplied, counted from a row's first token; n is the `original_length` of `scaling`.
            Attention over long texts stays sharp (Ministral 3 and Llama 4; arXiv:2501.19399).
            Default: they are not multiplied.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, `query_beta` without an `original_length`; when the
            layer is built, an odd `rotary_dim` or one above K.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import MultiHeadSelfAttention, RotaryEmbedding
    >>> layer = MultiHeadSelfAttention(num_heads=2, causal=True, position=RotaryEmbedding())
    >>> tuple(layer(np.ones((1, 5, 8), "float32")).shape)
    (1, 5, 8)
    """

    def __init__(
        self,
        max_wavelength: float = 10000.0,
        rotary_dim: int | None = None,
        interleaved: bool = False,
        scaling: RotaryScaling | None = None,
        query_beta: float = 0.0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_positive("max_wavelength", max_wavelength)
        check_integer("rotary_dim", rotary_dim, minimum=2, optional=True)
        if isinstance(scaling, dict):
            scaling = keras.saving.deserialize_keras_object(scaling)
        if scaling is not None and not isinstance(scaling, RotaryScaling):
            raise TypeError(
                "scaling must be LinearScaling, Llama3Scaling, LongRoPEScaling, NTKScaling or "
                f"YaRNScaling, got {type(scaling).__name__}"
            )
        self.max_wavelength = max_wavelength
        self.rotary_dim = rotary_dim
        self.interleaved = interleaved
        self.scaling = scaling
        check_number("query_beta", query_beta)
        if query_beta < 0.0:
            raise ValueError(f"query_beta must be at least 0, got {query_beta}")
        self._trained_length = getattr(scaling, "original_length", None)
        if query_beta and self._trained_length is None:
            raise ValueError(
                "query_beta requires a scaling with an original_length, such as YaRNScaling, got "
                f"{scaling}"
            )
        self.query_beta = query_beta
        self.scales_query = query_beta > 0.0

    def build_for(self, num_heads: int, head_dim: int, value_dim: int) -> None:
        """Checks the widths; there are no weights."""
        dim = self.rotary_dim or head_dim
        if dim % 2 or dim > head_dim:
            raise ValueError(
                f"{self.name}: rotary_dim must be even and at most head_dim ({head_dim}), got {dim}"
            )
        self.built = True

    def rotate(self, x: Tensor, positions: Span | Tensor) -> Tensor:
        """(..., H, T, K) -> (..., H, T, K), rotated by its positions."""
        head_dim = x.shape[-1]
        dim = self.rotary_dim or head_dim
        sine, cosine = self._sine_and_cosine(positions, dim)
        turned = ops.cast(x if dim == head_dim else x[..., :dim], "float32")
        y = turned * cosine + self._partners(turned, dim // 2) * sine
        y = ops.cast(y, x.dtype)
        return y if dim == head_dim else ops.concatenate([y, x[..., dim:]], axis=-1)

    def scale_query(self, query: Tensor, positions: Span | Tensor) -> Tensor:
        """(..., H, T, K), multiplied by 1 + b ln(1 + floor(p / n)); see `query_beta`."""
        length = self._trained_length
        assert length is not None
        if isinstance(positions, Span) and positions.end is not None and positions.end <= length:
            return query  # all factors are 1
        times = ops.cast(as_tensor(positions) // length, "float32")
        factor = ops.expand_dims(1.0 + self.query_beta * ops.log(1.0 + times), -1)
        if len(factor.shape) > 2:
            factor = ops.expand_dims(factor, -3)  # same for all heads
        return query * ops.cast(factor, query.dtype)

    def _partners(self, x: Tensor, half: int) -> Tensor:
        """(..., K), what the sine of each dimension is multiplied with: the other of its pair."""
        if not self.interleaved:
            return ops.concatenate([x[..., half:], x[..., :half]], axis=-1)
        pairs = split_last(x, half, 2)
        return merge_last(ops.stack([pairs[..., 1], pairs[..., 0]], axis=-1))

    def _sine_and_cosine(self, positions: Span | Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """Of each dimension's angle, float32 (T, dim); the first of a pair has the negative sine.

        If positions differ by row, (..., 1, T, dim).
        """
        shared = positions.shared if isinstance(positions, Span) else {}
        key = ("rotary", dim, *self._settings())
        if key not in shared:
            pairs = self._pairs(positions, dim)
            if len(pairs.shape) > 3:
                pairs = ops.expand_dims(pairs, -4)  # same for all heads
            sine, cosine = pairs[..., 0], pairs[..., 1]
            shared[key] = self._of_both(-sine, sine), self._of_both(cosine, cosine)
        return shared[key]

    def _settings(self) -> tuple[object, ...]:
        """What the sines and cosines depend on beside positions and width."""
        return self.max_wavelength, self.scaling, self.interleaved

    def _pairs(self, positions: Span | Tensor, dim: int) -> Tensor:
        """Sine and cosine of each pair's angle: (..., T, dim / 2, 2), float32."""
        if self.scaling is None:
            return sinusoids(positions, angular_frequencies(dim, self.max_wavelength))
        if isinstance(positions, Span) and positions.end is not None:
            self.scaling.check_length(positions.end)
        pairs = sinusoids(positions, self.scaling.frequencies(dim, self.max_wavelength))
        return pairs if self.scaling.magnitude == 1.0 else pairs * self.scaling.magnitude

    def _of_both(self, first: Tensor, second: Tensor) -> Tensor:
        """(..., K/2) for the first and the second of each pair -> (..., K)."""
        if self.interleaved:
            return merge_last(ops.stack([first, second], axis=-1))
        return ops.concatenate([first, second], axis=-1)

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "max_wavelength": self.max_wavelength,
            "rotary_dim": self.rotary_dim,
            "interleaved": self.interleaved,
            "scaling": keras.saving.serialize_keras_object(self.scaling),
            "query_beta": self.query_beta,
        }
