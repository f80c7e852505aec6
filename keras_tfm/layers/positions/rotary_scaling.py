"""Three ways to stretch rotary positions to longer sequences."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import keras
import numpy as np

from keras_tfm.arguments import check_number
from keras_tfm.layers.positions.sinusoids import angular_frequencies


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
