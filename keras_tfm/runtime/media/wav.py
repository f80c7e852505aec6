"""Reads WAV files and resamples audio, with NumPy alone.

Example:

>>> import io, wave
>>> import numpy as np
>>> from keras_tfm.runtime.media.wav import read_wav
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
# Numbers in an array of kernels, and in the samples they are multiplied with: 1 MB, for the caches.
_BLOCK = 1 << 17
# Of data sizes close to these, which programs write that do not know the size yet: sox to a pipe
# 0x7FFFF000, arecord 0x80000000, ffmpeg 0xFFFFFFFF.
_OPEN_SIZES, _NEAR = (1 << 31, 1 << 32), 1 << 16


def read_wav(source: str | Path | bytes | bytearray) -> tuple[np.ndarray, int]:
    """The samples of a WAV file, the average of its channels, and the sample rate.

    A file that was written to a pipe, whose header leaves the size open, has samples to its end.

    Args:
        source: path, or the bytes of a file: PCM with 8, 16, 24 or 32 bits, or floats with 32 or
            64 bits.

    Returns:
        (samples,), float32, from -1 to 1, and int, the number of samples per second.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is no WAV file, is damaged, for instance cut off, or is compressed.
    """
    is_bytes = isinstance(source, bytes | bytearray)
    try:
        content = memoryview(source if is_bytes else Path(source).read_bytes())  # type: ignore[arg-type]
    except FileNotFoundError:
        raise FileNotFoundError(f"no such file: {source!s}") from None
    name = "the WAV file" if is_bytes else str(source)
    if bytes(content[:4]) != b"RIFF" or bytes(content[8:12]) != b"WAVE":
        raise ValueError(
            f"{name} is no WAV file: convert it, for instance with ffmpeg -i INPUT -ar 16000 -ac 1 "
            "OUTPUT.wav"
        )
    form, place = content[:0], 12
    while place + 8 <= len(content):
        kind, size = struct.unpack_from("<4sI", content, place)
        body = content[place + 8 : place + 8 + size]
        if kind == b"fmt ":
            form = body
        elif kind == b"data":
            if _is_open(size, content):
                body = content[place + 8 :]
            elif len(body) < size:
                raise ValueError(
                    f"{name} is damaged: {size - len(body)} of its {size} bytes of samples are "
                    "missing"
                )
            return _samples(name, form, body)
        place += 8 + size + size % 2
    raise ValueError(f"{name} is damaged: it has no samples")


def _is_open(size: int, content: memoryview) -> bool:
    """Whether the size of the samples was not known yet when the header was written."""
    if size == 0:  # no samples, unless the size of the whole file is wrong, too
        (whole,) = struct.unpack_from("<I", content, 4)
        return bool(whole + 8 != len(content))
    return any(limit - _NEAR <= size <= limit for limit in _OPEN_SIZES)


def _samples(name: str, form: memoryview, body: memoryview) -> tuple[np.ndarray, int]:
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
    frame = channels * bits // 8
    size = max(1, _BLOCK // frame) * frame  # in parts: as float64 they take up to 8 times as much
    body = body[: len(body) // frame * frame]
    parts = [_values(body[i : i + size], kind, bits) for i in range(0, len(body), size)]
    means = [x.reshape(-1, channels).mean(axis=1).astype("float32") for x in parts]
    return np.concatenate(means or [np.zeros(0, "float32")]), rate


def _values(body: memoryview, kind: int, bits: int) -> np.ndarray:
    """The samples of all channels, from -1 to 1, float64."""
    if kind == _FLOAT:
        return np.frombuffer(body, f"<f{bits // 8}").astype("float64")
    if bits == 8:
        return np.frombuffer(body, "u1") / 128.0 - 1.0
    if bits == 24:
        parts = np.frombuffer(body, "u1").reshape(-1, 3)
        # As the upper bytes of 32 bits, which keeps the sign.
        wide = np.concatenate([np.zeros((len(parts), 1), "u1"), parts], axis=1)
        return np.ascontiguousarray(wide).view("<i4")[:, 0] / 2.0**31
    return np.frombuffer(body, f"<i{bits // 8}") / 2.0 ** (bits - 1)


def resample(samples: np.ndarray, rate: int, new_rate: int) -> np.ndarray:
    """The same sound at another sample rate, by band-limited interpolation.

    A sinc function times a Hann window, with 32 zero crossings at each side; frequencies above 95 %
    of half the lower rate are removed. Its memory is bounded by that of the samples and the
    result, whatever the two rates are.

    Args:
        samples: (N,), float32.
        rate: int, their number per second.
        new_rate: int, that of the result.

    Returns:
        (ceil(N new_rate / rate),), float32.

    >>> import numpy as np
    >>> from keras_tfm.runtime.media.wav import resample
    >>> resample(np.ones(441, "float32"), 44100, 16000).shape
    (160,)
    """
    if rate == new_rate or not len(samples):
        return samples
    divisor = math.gcd(rate, new_rate)
    old, new = rate // divisor, new_rate // divisor
    base = min(old, new) * _CUTOFF
    length = resampled_length(len(samples), rate, new_rate)
    # There is silence before the first sample and after the last, however wide the filter is.
    width = min(math.ceil(_CROSSINGS * old / base), len(samples))
    # The kernels repeat after `new` outputs, if there are as many. `count` neighbours are computed
    # together: the more of them, the more zeros their common array has.
    columns = min(new, length)
    count = max(1, min(width * new // old, _BLOCK // (3 * width)))
    result = np.empty((-(-length // columns), columns), "float32")
    padded = np.pad(samples.astype("float64"), (width, width + count * old // new + 4))
    for first in range(0, columns, count):
        outputs = np.arange(first, min(first + count, columns))
        # Output i of a block of `new` is at i / new, input j of a block of `old` at j / old; both
        # in crossings from input `origin` on.
        origin = first * old // new
        start, end = origin - width, int(outputs[-1]) * old // new + width + 2
        here = np.arange(start - origin, end - origin) / old * base
        there = (outputs / new - origin / old)[:, np.newaxis] * base
        kernels = (_windowed_sinc(here, there) * (base / old)).T
        frames = np.lib.stride_tricks.sliding_window_view(padded[start + width :], end - start)
        rows = -(-(length - first) // new)  # the last block may end before these outputs
        step = max(1, _BLOCK // (end - start))
        for row in range(0, rows, step):
            after = min(row + step, rows)
            part = np.ascontiguousarray(frames[row * old : (after - 1) * old + 1 : old])
            result[row:after, first : first + len(outputs)] = part @ kernels
    return result.reshape(-1)[:length]


def _windowed_sinc(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """sinc(x - y) times the window, (P, J), of x (J,) and y (P, 1)."""
    times = x - y
    # sin(x - y) by products: a sine for each pair would take most of the time.
    x, y = x * np.pi, y * np.pi
    sines = np.sin(x) * np.cos(y) - np.cos(x) * np.sin(y)
    sinc = np.divide(sines, times * np.pi, out=np.ones_like(times), where=times != 0)
    sinc *= np.cos(np.clip(times / _CROSSINGS, -1, 1) * np.pi / 2) ** 2
    return sinc


def resampled_length(count: int, rate: int, new_rate: int) -> int:
    """The number of samples of `resample`."""
    return -(-count * new_rate // rate)
