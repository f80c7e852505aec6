"""Four ways to extend rotary positions to longer sequences."""

import math
from dataclasses import asdict, dataclass

import keras
import numpy as np

from keras_tfm.arguments import check_number, check_positive
from keras_tfm.layers.positions.sinusoids import angular_frequencies
from keras_tfm.layers.types import Config


@dataclass(frozen=True)
class RotaryScaling:
    """Base class: extends rotary positions to sequences longer than in training.

    Args:
        factor: float, how many times longer, at least 1.
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
        """The factor of queries and keys."""
        return 1.0

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return asdict(self)

    @classmethod
    def from_config(cls, config: Config) -> "RotaryScaling":
        """Creates the object from its `get_config()`."""
        return cls(**config)


@keras.saving.register_keras_serializable("keras_tfm")
@dataclass(frozen=True)
class LinearScaling(RotaryScaling):
    """Divides positions by `factor`: position interpolation (arXiv:2306.15595).

    Args:
        factor: float, how many times longer, at least 1.

    Example:

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
    """A larger base: the slowest frequency is divided by `factor`, the fastest is kept.

    w' = w factor^(D / (D - 2)): "NTK-aware" interpolation, YaRN (arXiv:2309.00071), section 3.1.

    Args:
        factor: float, how many times longer, at least 1.

    Example:

    >>> from keras_tfm.layers import NTKScaling
    >>> NTKScaling(4.0).frequencies(4, 10000.0).round(4).tolist()
    [1.0, 0.0025]
    """

    def frequencies(self, dim: int, max_wavelength: float) -> np.ndarray:
        """The angular frequencies of a rotation of width `dim`: (dim / 2,)."""
        if dim == 2:  # a single frequency, the fastest
            return angular_frequencies(dim, max_wavelength)
        return angular_frequencies(dim, max_wavelength * self.factor ** (dim / (dim - 2)))


@keras.saving.register_keras_serializable("keras_tfm")
@dataclass(frozen=True)
class YaRNScaling(RotaryScaling):
    """YaRN: divides slow frequencies by `factor`, keeps fast ones, with a ramp between.

    A frequency with more than `beta_fast` turns in `original_length` positions is kept, one with
    fewer than `beta_slow` turns is divided. Queries and keys are multiplied by 0.1 ln(factor) + 1,
    the temperature of equation 22 of arXiv:2309.00071, or by `attention_factor`.

    Args:
        factor: float, how many times longer, at least 1.
        original_length: int, sequence length in training.
        beta_fast: float, number of turns from which a frequency is kept.
        beta_slow: float, number of turns below which a frequency is divided by `factor`.
        attention_factor: float, factor of queries and keys. Default: 0.1 ln(factor) + 1.
        truncate: bool, whether the ramp begins and ends at whole indices of frequencies, as in
            `transformers`, or at the exact ones.

    Example:

    >>> from keras_tfm.layers import YaRNScaling
    >>> YaRNScaling(4.0, original_length=64).frequencies(4, 10000.0).round(4).tolist()
    [1.0, 0.0025]
    """

    original_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("original_length", self.original_length)
        if self.original_length < 1:
            raise ValueError(f"original_length must be at least 1, got {self.original_length}")
        check_positive("attention_factor", self.attention_factor, optional=True)
        if not 0.0 < self.beta_slow <= self.beta_fast:
            raise ValueError(
                f"beta_fast ({self.beta_fast}) must be at least beta_slow ({self.beta_slow}), "
                "which must be positive"
            )

    def frequencies(self, dim: int, max_wavelength: float) -> np.ndarray:
        """The angular frequencies of a rotation of width `dim`: (dim / 2,)."""

        def index(turns: float) -> float:
            """The (fractional) index of the frequency with `turns` turns in `original_length`."""
            wavelength = self.original_length / (turns * 2 * math.pi)
            return dim * math.log(wavelength) / (2 * math.log(max_wavelength))

        low, high = index(self.beta_fast), index(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        ramp = np.clip((np.arange((dim + 1) // 2) - low) / max(high - low, 1e-3), 0.0, 1.0)
        plain = angular_frequencies(dim, max_wavelength)
        return plain * (1.0 - ramp) + plain / self.factor * ramp

    @property
    def magnitude(self) -> float:
        """The factor of queries and keys."""
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * math.log(self.factor) + 1.0


@keras.saving.register_keras_serializable("keras_tfm")
@dataclass(frozen=True)
class Llama3Scaling(RotaryScaling):
    """Llama 3.1: divides slow frequencies by `factor`, keeps fast ones, blends those between.

    "The Llama 3 Herd of Models" (arXiv:2407.21783), section 3.4.2. With t the number of turns of a
    frequency f in `original_length` positions, f is kept for t above `high_turns`, divided for t
    below `low_turns`, and otherwise (1 - s) f / factor + s f with
    s = (t - low_turns) / (high_turns - low_turns).

    Args:
        factor: float, how many times longer, at least 1.
        original_length: int, sequence length in training.
        low_turns: float, `low_freq_factor` of Hugging Face.
        high_turns: float, `high_freq_factor` of Hugging Face.

    Example:

    >>> from keras_tfm.layers import Llama3Scaling
    >>> Llama3Scaling(8.0, original_length=64).frequencies(4, 10000.0).round(5).tolist()
    [1.0, 0.00125]
    """

    original_length: int
    low_turns: float = 1.0
    high_turns: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("original_length", self.original_length)
        if self.original_length < 1:
            raise ValueError(f"original_length must be at least 1, got {self.original_length}")
        if not 0.0 < self.low_turns < self.high_turns:
            raise ValueError(
                f"high_turns ({self.high_turns}) must be above low_turns ({self.low_turns}), "
                "which must be positive"
            )

    def frequencies(self, dim: int, max_wavelength: float) -> np.ndarray:
        """The angular frequencies of a rotation of width `dim`: (dim / 2,)."""
        plain = angular_frequencies(dim, max_wavelength)
        turns = self.original_length * plain / (2 * math.pi)
        kept = np.clip((turns - self.low_turns) / (self.high_turns - self.low_turns), 0.0, 1.0)
        return plain * kept + plain / self.factor * (1.0 - kept)
