"""Triangular filters on the mel scale, as constants.

Example:

>>> from keras_tfm.layers.audio.mel_filters import mel_filters
>>> mel_filters(num_mels=80, window=400, sample_rate=16000).shape
(201, 80)
"""

import numpy as np

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
