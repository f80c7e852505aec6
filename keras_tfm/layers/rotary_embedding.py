"""Rotary positions, and three ways to stretch them."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.arguments import check_integer, check_number, check_positive
from keras_tfm.layers.attention_position import AttentionPosition
from keras_tfm.layers.sinusoids import angular_frequencies, sinusoids_of_sequence

Tensor = Any


@dataclass(frozen=True)
class RotaryScaling:
    """The base of the ways to stretch rotary positions to sequences longer than those trained on.

    Args:
        factor: how many times longer; at least 1.
    """

    factor: float

    def __post_init__(self) -> None:
        check_number("factor", self.factor)
        if self.factor < 1.0:
            raise ValueError(f"factor must be at least 1, got {self.factor}")

    def frequencies(self, dim: int, max_wavelength: float) -> np.ndarray:
        """The angular frequencies of a rotation of width `dim`: (dim / 2,)."""
        return angular_frequencies(dim, max_wavelength)

    @property
    def magnitude(self) -> float:
        """What queries and keys are multiplied by."""
        return 1.0

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return asdict(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "RotaryScaling":
        """The inverse of `get_config`."""
        return cls(**config)


@keras.saving.register_keras_serializable("keras_tfm")
@dataclass(frozen=True)
class LinearScaling(RotaryScaling):
    """Positions divided by `factor`: "position interpolation" (arXiv:2306.15595).

    >>> from keras_tfm.layers import LinearScaling
    >>> LinearScaling(4.0).frequencies(4, 10000.0).tolist()
    [0.25, 0.0025]
    """

    def frequencies(self, dim: int, max_wavelength: float) -> np.ndarray:
        """The angular frequencies of a rotation of width `dim`: (dim / 2,)."""
        return angular_frequencies(dim, max_wavelength) / self.factor


@keras.saving.register_keras_serializable("keras_tfm")
@dataclass(frozen=True)
class NTKScaling(RotaryScaling):
    """A longer base: the slowest frequency is divided by `factor`, the fastest stays.

    w' = w factor^(D / (D - 2)): "NTK-aware" interpolation, YaRN (arXiv:2309.00071), section 3.1.

    >>> from keras_tfm.layers import NTKScaling
    >>> NTKScaling(4.0).frequencies(4, 10000.0).round(4).tolist()
    [1.0, 0.0025]
    """

    def frequencies(self, dim: int, max_wavelength: float) -> np.ndarray:
        """The angular frequencies of a rotation of width `dim`: (dim / 2,)."""
        if dim == 2:  # one frequency, which is the fastest
            return angular_frequencies(dim, max_wavelength)
        return angular_frequencies(dim, max_wavelength * self.factor ** (dim / (dim - 2)))


@keras.saving.register_keras_serializable("keras_tfm")
@dataclass(frozen=True)
class YaRNScaling(RotaryScaling):
    """Slow frequencies divided by `factor`, fast ones kept, a ramp between: arXiv:2309.00071.

    A frequency that turns more than `beta_fast` times in `original_length` positions is kept, one
    that turns less than `beta_slow` times is divided. Queries and keys are multiplied by
    0.1 ln(factor) + 1, the temperature of equation 22.

    >>> from keras_tfm.layers import YaRNScaling
    >>> YaRNScaling(4.0, original_length=64).frequencies(4, 10000.0).round(4).tolist()
    [1.0, 0.0025]
    """

    original_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("original_length", self.original_length)
        if self.original_length < 1:
            raise ValueError(f"original_length must be at least 1, got {self.original_length}")
        if not 0.0 < self.beta_slow <= self.beta_fast:
            raise ValueError(
                f"beta_fast ({self.beta_fast}) must be at least beta_slow ({self.beta_slow}), "
                "which must be positive"
            )

    def frequencies(self, dim: int, max_wavelength: float) -> np.ndarray:
        """The angular frequencies of a rotation of width `dim`: (dim / 2,)."""

        def index(turns: float) -> float:
            """The pair that turns so often in the original length."""
            wavelength = self.original_length / (turns * 2 * math.pi)
            return dim * math.log(wavelength) / (2 * math.log(max_wavelength))

        low = max(math.floor(index(self.beta_fast)), 0)
        high = min(math.ceil(index(self.beta_slow)), dim - 1)
        ramp = np.clip((np.arange((dim + 1) // 2) - low) / max(high - low, 1e-3), 0.0, 1.0)
        plain = angular_frequencies(dim, max_wavelength)
        return plain * (1.0 - ramp) + plain / self.factor * ramp

    @property
    def magnitude(self) -> float:
        """What queries and keys are multiplied by."""
        return 0.1 * math.log(self.factor) + 1.0


@keras.saving.register_keras_serializable("keras_tfm")
class RotaryEmbedding(AttentionPosition):
    """Rotates queries and keys by their positions, so that scores depend on distances alone.

    (x_i, x_{i+K/2}) -> (x_i cos - x_{i+K/2} sin, x_{i+K/2} cos + x_i sin), angle p w^(-2i/K):
    RoFormer (arXiv:2104.09864). Pass it as `MultiHeadSelfAttention(position=RotaryEmbedding())`.
    Angles come from float64; the rotation is done in float32 and rounded last.

    Args:
        max_wavelength: w.
        rotary_dim: how many of a head's K dimensions are rotated, the first; all by default
            (GPT-J and GPT-NeoX rotate a part). Even.
        interleaved: pair neighbours (x_2i, x_2i+1), as the paper and GPT-J do, rather than halves
            (x_i, x_{i+K/2}), as Llama and GPT-NeoX do. Weights of one kind do not fit the other.
        scaling: `LinearScaling`, `NTKScaling` or `YaRNScaling`, for sequences longer than those
            trained on.

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
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_positive("max_wavelength", max_wavelength)
        check_integer("rotary_dim", rotary_dim, minimum=2, optional=True)
        if isinstance(scaling, dict):
            scaling = keras.saving.deserialize_keras_object(scaling)
        if scaling is not None and not isinstance(scaling, RotaryScaling):
            raise TypeError(
                "scaling must be LinearScaling, NTKScaling or YaRNScaling, "
                f"got {type(scaling).__name__}"
            )
        self.max_wavelength = max_wavelength
        self.rotary_dim = rotary_dim
        self.interleaved = interleaved
        self.scaling = scaling

    def build_for(self, num_heads: int, head_dim: int, value_dim: int) -> None:
        """Checks the widths; there are no weights."""
        dim = self.rotary_dim or head_dim
        if dim % 2 or dim > head_dim:
            raise ValueError(
                f"{self.name}: rotary_dim must be even and at most head_dim ({head_dim}), got {dim}"
            )
        self.built = True

    def rotate(self, x: Tensor) -> Tensor:
        """(B, H, T, K) -> (B, H, T, K), rotated by the positions of the sequence."""
        batch, num_heads, length, head_dim = ops.shape(x)
        dim = self.rotary_dim or head_dim
        if self.scaling is None:
            frequencies = angular_frequencies(dim, self.max_wavelength)
        else:
            frequencies = self.scaling.frequencies(dim, self.max_wavelength)
        pairs = sinusoids_of_sequence(length, frequencies)  # (T, K/2, 2), float32
        if self.scaling is not None:
            pairs = pairs * self.scaling.magnitude
        sine, cosine = pairs[..., 0], pairs[..., 1]
        turned = ops.cast(x[..., :dim], "float32")
        if self.interleaved:
            turned = ops.reshape(turned, (batch, num_heads, length, dim // 2, 2))
            first, second = turned[..., 0], turned[..., 1]
        else:
            first, second = turned[..., : dim // 2], turned[..., dim // 2 :]
        rotated = [first * cosine - second * sine, second * cosine + first * sine]
        if self.interleaved:
            y = ops.reshape(ops.stack(rotated, axis=-1), (batch, num_heads, length, dim))
        else:
            y = ops.concatenate(rotated, axis=-1)
        y = ops.cast(y, x.dtype)
        return y if dim == head_dim else ops.concatenate([y, x[..., dim:]], axis=-1)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "max_wavelength": self.max_wavelength,
            "rotary_dim": self.rotary_dim,
            "interleaved": self.interleaved,
            "scaling": keras.saving.serialize_keras_object(self.scaling),
        }
