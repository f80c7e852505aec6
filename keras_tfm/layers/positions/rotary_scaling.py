"""Six ways to change the frequencies of rotary positions, mostly for longer sequences."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import keras
import numpy as np

from keras_tfm.arguments import check_integer, check_number, check_positive
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

    def check_length(self, length: int) -> None:
        """Raises if the frequencies are not those of sequences of this length."""

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


@keras.saving.register_keras_serializable("keras_tfm")
@dataclass(frozen=True)
class LongRoPEScaling(RotaryScaling):
    """LongRoPE: divides each frequency by a factor of its own (arXiv:2402.13753), as in Phi-3.

    There are two lists of factors, for sequences of at most `original_length` tokens and for longer
    ones. A model has one of them: keys in a cache must not change when a text grows. `transformers`
    chooses by the length of each call.

    Queries and keys are multiplied by sqrt(1 + ln(factor) / ln(original_length)), or by
    `attention_factor`.

    Args:
        factor: float, how many times longer, at least 1.
        original_length: int, sequence length in training, at least 2.
        short_factors, long_factors: list of positive floats, a factor for each frequency: half the
            number of rotated dimensions.
        is_long: bool, whether the long factors are used. Without them, a sequence that is longer
            than `original_length` is an error, if its length is known when the graph is made.
        attention_factor: float, factor of queries and keys. Default: see above.

    Example:

    >>> from keras_tfm.layers import LongRoPEScaling
    >>> scaling = LongRoPEScaling(4.0, 64, short_factors=[1.0, 2.0], long_factors=[1.0, 8.0])
    >>> scaling.frequencies(4, 10000.0).tolist()
    [1.0, 0.005]
    """

    original_length: int
    short_factors: Sequence[float]
    long_factors: Sequence[float]
    is_long: bool = False
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("original_length", self.original_length, minimum=2)
        check_positive("attention_factor", self.attention_factor, optional=True)
        for name in ("short_factors", "long_factors"):
            factors = tuple(getattr(self, name))
            for factor in factors:
                check_positive(f"each of {name}", factor)
            object.__setattr__(self, name, factors)  # hashable, as the others

    def frequencies(self, dim: int, max_wavelength: float) -> np.ndarray:
        """The angular frequencies of a rotation of width `dim`: (dim / 2,)."""
        name = "long_factors" if self.is_long else "short_factors"
        plain, factors = angular_frequencies(dim, max_wavelength), getattr(self, name)
        if len(factors) != len(plain):
            raise ValueError(
                f"{name} must have {len(plain)} entries for {dim} rotated dimensions, "
                f"got {len(factors)}"
            )
        return plain / np.array(factors)

    @property
    def magnitude(self) -> float:
        """The factor of queries and keys."""
        if self.attention_factor is not None:
            return self.attention_factor
        return math.sqrt(1.0 + math.log(self.factor) / math.log(self.original_length))

    def check_length(self, length: int) -> None:
        """Raises if short factors are to be used for longer sequences."""
        if length > self.original_length and not self.is_long:
            raise ValueError(
                f"sequences must have at most original_length ({self.original_length}) tokens with "
                f"LongRoPE's short factors, got {length}: use is_long=True"
            )


@keras.saving.register_keras_serializable("keras_tfm")
@dataclass(frozen=True)
class ProportionalScaling(RotaryScaling):
    """Rotates a part of the pairs, with the frequencies of a whole head, as in Gemma 4.

    The slow pairs are not rotated: their frequency is 0. `RotaryEmbedding(rotary_dim=)` instead
    rotates the first dimensions, with the frequencies of a narrower head.

    Args:
        factor: float, at least 1, by which the frequencies are divided.
        part: float, the part of the pairs that is rotated, above 0 and at most 1.

    Example:

    >>> from keras_tfm.layers import ProportionalScaling
    >>> ProportionalScaling(part=0.5).frequencies(8, 10000.0).round(4).tolist()
    [1.0, 0.1, 0.0, 0.0]
    """

    factor: float = 1.0
    part: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("part", self.part)
        if self.part > 1:
            raise ValueError(f"part must be at most 1, got {self.part}")

    def frequencies(self, dim: int, max_wavelength: float) -> np.ndarray:
        """The angular frequencies of a rotation of width `dim`: (dim / 2,)."""
        plain = angular_frequencies(dim, max_wavelength)
        rotated = int(self.part * dim // 2)
        return np.where(np.arange(len(plain)) < rotated, plain / self.factor, 0.0)
