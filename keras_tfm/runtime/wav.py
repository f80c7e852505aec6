"""Reads WAV files and resamples audio, with NumPy alone.

Example:

>>> import io, wave
>>> import numpy as np
>>> from keras_tfm.runtime.wav import read_wav
>>> file = io.BytesIO()
>>> with wave.open(file, "wb") as out:
...     out.setparams((1, 2, 8000, 0, "NONE", None))
...     out.writeframes(np.array([0, 16384, -32768], "<i2").tobytes())
>>> samples, rate = read_wav(file.getvalue())
>>> samples.tolist(), rate
([0.0, 0.5, -1.0], 8000)
"""

import math
import struct
from pathlib import Path

import numpy as np

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
# Of the low-pass filter: zero crossings at each side, and its cutoff relative to the lower rate.
_CROSSINGS, _CUTOFF = 32, 0.95


def read_wav(source: str | Path | bytes | bytearray) -> tuple[np.ndarray, int]:
    """The samples of a WAV file, the average of its channels, and the sample rate.

    Args:
        source: path, or the bytes of a file: PCM with 8, 16, 24 or 32 bits, or floats with 32 or
            64 bits.

    Returns:
        (samples,), float32, from -1 to 1, and int, the number of samples per second.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is no WAV file, is damaged, or is compressed.
    """
    is_bytes = isinstance(source, bytes | bytearray)
    content = bytes(source) if is_bytes else Path(source).read_bytes()  # type: ignore[arg-type]
    name = "the WAV file" if is_bytes else str(source)
    if content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        raise ValueError(
            f"{name} is no WAV file: convert it, for instance with ffmpeg -i INPUT -ar 16000 -ac 1 "
            "OUTPUT.wav"
        )
    form, place = b"", 12
    while place + 8 <= len(content):
        kind, size = struct.unpack_from("<4sI", content, place)
        body = content[place + 8 : place + 8 + size]
        if kind == b"fmt ":
            form = body
        elif kind == b"data":
            return _samples(name, form, body)
        place += 8 + size + size % 2
    raise ValueError(f"{name} is damaged: it has no samples")


def _samples(name: str, form: bytes, body: bytes) -> tuple[np.ndarray, int]:
    if len(form) < 16:
        raise ValueError(f"{name} is damaged: it has samples of an unknown format")
    kind, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", form)
    if kind == _EXTENSIBLE and len(form) >= 26:
        (kind,) = struct.unpack_from("<H", form, 24)
    known = {_PCM: (8, 16, 24, 32), _FLOAT: (32, 64)}
    if bits not in known.get(kind, ()):
        raise ValueError(
            f"{name} must have PCM of 8, 16, 24 or 32 bits, or floats of 32 or 64, got {bits} bits "
            f"of format {kind}"
        )
    if channels < 1 or rate < 1:
        raise ValueError(f"{name} is damaged: it has {channels} channels at {rate} Hz")
    body = body[: len(body) // (channels * bits // 8) * (channels * bits // 8)]
    if kind == _FLOAT:
        x = np.frombuffer(body, f"<f{bits // 8}").astype("float64")
    elif bits == 8:
        x = np.frombuffer(body, "u1") / 128.0 - 1.0
    elif bits == 24:
        parts = np.frombuffer(body, "u1").reshape(-1, 3)
        # As the upper bytes of 32 bits, which keeps the sign.
        wide = np.concatenate([np.zeros((len(parts), 1), "u1"), parts], axis=1)
        x = np.ascontiguousarray(wide).view("<i4")[:, 0] / 2.0**31
    else:
        x = np.frombuffer(body, f"<i{bits // 8}") / 2.0 ** (bits - 1)
    return x.reshape(-1, channels).mean(axis=1).astype("float32"), rate


def resampled(samples: np.ndarray, rate: int, new_rate: int) -> np.ndarray:
    """The same sound at another sample rate, by band-limited interpolation.

    A sinc function times a Hann window, with 32 zero crossings at each side; frequencies above 95 %
    of half the lower rate are removed.

    Args:
        samples: (N,), float32.
        rate: int, their number per second.
        new_rate: int, that of the result.

    Returns:
        (ceil(N new_rate / rate),), float32.

    >>> import numpy as np
    >>> from keras_tfm.runtime.wav import resampled
    >>> resampled(np.ones(441, "float32"), 44100, 16000).shape
    (160,)
    """
    if rate == new_rate:
        return samples
    divisor = math.gcd(rate, new_rate)
    old, new = rate // divisor, new_rate // divisor
    base = min(old, new) * _CUTOFF
    width = math.ceil(_CROSSINGS * old / base)
    # Output i of a block of `new` is at i / new, input j of a block of `old` at j / old.
    here = np.arange(-width, width + old) / old
    times = (here[np.newaxis] - np.arange(new)[:, np.newaxis] / new) * base
    window = np.cos(np.clip(times / _CROSSINGS, -1, 1) * np.pi / 2) ** 2
    kernels = np.sinc(times) * window * (base / old)
    length = math.ceil(len(samples) * new / old)
    blocks = math.ceil(length / new)
    padded = np.pad(samples.astype("float64"), (width, blocks * old - len(samples) + width))
    frames = np.lib.stride_tricks.sliding_window_view(padded, 2 * width + old)[::old][:blocks]
    return (frames @ kernels.T).reshape(-1)[:length].astype("float32")
