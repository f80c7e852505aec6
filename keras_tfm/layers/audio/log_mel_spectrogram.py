"""Log-mel spectrogram of audio, inside the model."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers.audio.audio_layer import AudioLayer
from keras_tfm.layers.types import Config, Shape, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class LogMelSpectrogram(AudioLayer):
    """Turns a waveform into the log-mel spectrogram of Whisper.

    P = |DFT(w x)|^2 of each Hann-windowed frame, M = log10(max(P F, 1e-10)) with Slaney's mel
    filters F, and y = (max(M, max(M) - 8) + 4) / 4, where the inner maximum is that of the whole
    row: "Robust Speech Recognition via Large-Scale Weak Supervision" (arXiv:2212.04356), section
    2.2, equal to `WhisperFeatureExtractor` in transformers. Frames are centred on every `hop`-th
    sample; the ends are reflected.

    As a layer of the model it cannot differ between training and device: an exported file takes
    samples. The transform is a convolution with constant kernels, which LiteRT runs without a
    Fourier transform. It computes in float32 under any dtype policy, because the powers of loud and
    quiet frequencies differ by more than float16 can hold. It has no weights.

    Args:
        num_mels: int, number of mel bands (M): 80, or 128 in Whisper large-v3.
        length: int, number of samples to which shorter audio is padded with zeros; longer audio is
            an error. Default: audio of any length from `window` / 2 + 1 samples, not padded.
        sample_rate: int, number of samples per second.
        window: int, number of samples of a frame, even.
        hop: int, number of samples between neighbouring frames.

    Call arguments:
        audio: float tensor (B, samples), values from -1 to 1.

    Returns:
        Float tensor (B, samples // hop, M), float32; with `length` (B, length // hop, M).

    Raises:
        TypeError: an argument that is not an integer.
        ValueError: an argument out of range, or audio of another rank, too short or too long. If
            the number of samples is known only at run time, audio that is too long gives NaN.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import LogMelSpectrogram
    >>> second = np.sin(np.arange(16000) * 0.1).astype("float32")[np.newaxis]
    >>> tuple(LogMelSpectrogram()(second).shape)
    (1, 100, 80)
    >>> tuple(LogMelSpectrogram(length=48000)(second).shape)
    (1, 300, 80)
    """

    def __init__(
        self,
        num_mels: int = 80,
        length: int | None = None,
        sample_rate: int = 16000,
        window: int = 400,
        hop: int = 160,
        **kwargs: Any,
    ):
        kwargs.pop("dtype", None)
        super().__init__(dtype="float32", autocast=False, **kwargs)
        check_integer("num_mels", num_mels)
        check_integer("sample_rate", sample_rate)
        check_integer("window", window, minimum=2)
        check_integer("hop", hop)
        if window % 2:
            raise ValueError(f"window must be even, got {window}")
        check_integer("length", length, minimum=max(window // 2 + 1, hop), optional=True)
        self.num_mels, self.length = num_mels, length
        self.shortest = 1 if length is not None else max(window // 2 + 1, hop)
        self.sample_rate, self.window, self.hop = sample_rate, window, hop
        self.built = True

    def call(self, audio: Tensor) -> Tensor:
        """(B, samples) -> (B, frames, M)."""
        self._check(audio.shape)
        x = self._pad(ops.cast(audio, "float32"))
        half = self.window // 2
        x = ops.expand_dims(ops.pad(x, [[0, 0], [half, half]], mode="reflect"), -1)
        kernel, filters = (ops.convert_to_tensor(array) for array in self.exact_constants())
        x = ops.conv(x, kernel, self.hop, padding="valid", data_format="channels_last")
        # The last frame, which is centred on the end, is left out, as in the original.
        x = ops.square(x[:, :-1])
        bins = half + 1
        x = ops.matmul(x[..., :bins] + x[..., bins:], filters)
        x = ops.log(ops.maximum(x, 1e-10)) * np.float32(1 / np.log(10))
        x = ops.maximum(x, ops.max(x, axis=(1, 2), keepdims=True) - 8.0)
        return x * 0.25 + 1.0

    def exact_constants(self) -> list[np.ndarray]:
        """The arrays that quantization must not round: the transform and the filters.

        A rounded transform leaks more of a loud frequency into the others than quiet sounds have.
        """
        filters = mel_filters(self.num_mels, self.window, self.sample_rate)
        return [_windowed_transform(self.window), filters]

    def _pad(self, x: Tensor) -> Tensor:
        """(B, samples) -> (B, length)."""
        if self.length is None or x.shape[1] == self.length:
            return x
        batch, samples = ops.shape(x)
        if x.shape[1] is not None:
            zeros = ops.zeros((batch, self.length - samples), x.dtype)
            return ops.concatenate([x, zeros], axis=1)
        zeros = ops.zeros((batch, self.length), x.dtype)
        beyond = ops.where(ops.less_equal(samples, self.length), 0.0, float("nan"))
        x = ops.concatenate([x, zeros], axis=1)[:, : self.length]
        return x + ops.cast(beyond, x.dtype)

    def compute_output_shape(self, audio_shape: Shape) -> Shape:
        """(B, frames, M)."""
        self._check(audio_shape)
        samples = audio_shape[1] if self.length is None else self.length
        return (audio_shape[0], None if samples is None else samples // self.hop, self.num_mels)

    def _check(self, shape: Shape) -> None:
        if len(shape) != 2:
            raise ValueError(f"{self.name}: audio must have shape (B, samples), got {tuple(shape)}")
        samples = shape[1]
        if samples is None:
            return
        if samples < self.shortest or (self.length is not None and samples > self.length):
            most = "" if self.length is None else f" and at most {self.length}"
            raise ValueError(
                f"{self.name}: audio must have at least {self.shortest}{most} samples, "
                f"got {samples}"
            )

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "num_mels": self.num_mels,
            "length": self.length,
            "sample_rate": self.sample_rate,
            "window": self.window,
            "hop": self.hop,
        }


def _windowed_transform(window: int) -> np.ndarray:
    """A Fourier transform times a Hann window: (window, 1, window + 2), cosines, then sines.

    It is computed in float64; a frame of float32 samples times it has both parts of each frequency.
    """
    n = np.arange(window)
    # Multiples of the full turn are removed as integers: no cosine of a large angle.
    turns = (np.outer(n, np.arange(window // 2 + 1)) % window) / window
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * n / window)
    parts = [np.cos(2 * np.pi * turns), np.sin(2 * np.pi * turns)]
    kernel = np.concatenate(parts, axis=1) * hann[:, np.newaxis]
    return kernel[:, np.newaxis].astype("float32")


# Slaney's mel scale ("Auditory Toolbox", 1998): linear up to 1 kHz, logarithmic above.
_LINEAR = 200 / 3  # Hz per mel
_CORNER = 1000.0  # Hz
_STEP = np.log(6.4) / 27  # of the logarithm of a frequency, per mel


def mel_filters(num_mels: int, window: int, sample_rate: int) -> np.ndarray:
    """The weight of each frequency in each mel band: (window // 2 + 1, num_mels), float32.

    Neighbouring triangles overlap by half, from 0 to sample_rate / 2 Hz, and each one's area over
    the frequency in Hz is 1, so that white noise has the same level in all bands.

    Args:
        num_mels: int, number of bands.
        window: int, number of samples of the Fourier transform.
        sample_rate: int, in Hz.
    """
    frequencies = np.arange(window // 2 + 1) * (sample_rate / window)
    edges = _hertz(np.linspace(0.0, _mel(sample_rate / 2), num_mels + 2))
    low, centre, high = edges[:-2], edges[1:-1], edges[2:]
    f = frequencies[:, np.newaxis]
    rising, falling = (f - low) / (centre - low), (high - f) / (high - centre)
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return (triangles * (2.0 / (high - low))).astype("float32")


def _mel(hertz: float) -> float:
    if hertz < _CORNER:
        return hertz / _LINEAR
    return float(_CORNER / _LINEAR + np.log(hertz / _CORNER) / _STEP)


def _hertz(mels: np.ndarray) -> np.ndarray:
    corner = _CORNER / _LINEAR
    return np.where(mels < corner, mels * _LINEAR, _CORNER * np.exp(_STEP * (mels - corner)))
