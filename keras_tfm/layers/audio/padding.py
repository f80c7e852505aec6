"""The padding of audio: the zeros behind the last sample of a row that is not zero."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.layers.types import Tensor

# Numbers of all samples would be a constant of megabytes in a file: a sample is numbered by its
# block, and inside it.
_BLOCK = 512


def last_sample(audio: Tensor) -> Tensor:
    """The number of each row's last sample that is not zero: (B, samples) -> (B, 1), int32.

    It is negative in a row of zeros.

    >>> import numpy as np
    >>> from keras_tfm.layers.audio.padding import last_sample
    >>> np.array(last_sample(np.array([[0.1, 0.0, 0.2, 0.0], [0.3, 0, 0, 0]]))).ravel().tolist()
    [2, 0]
    """
    block, place = _last(audio)
    return block * _BLOCK + place


def audio_mask(audio: Tensor) -> Tensor:
    """Which samples are not padding: (B, samples) -> (B, samples), boolean.

    >>> import numpy as np
    >>> from keras_tfm.layers.audio.padding import audio_mask
    >>> np.array(audio_mask(np.array([[0.1, 0.0, 0.2, 0.0]]))).tolist()
    [[True, True, True, False]]
    """
    block, place = (ops.expand_dims(x, -1) for x in _last(audio))
    samples = ops.shape(audio)[1]
    blocks = ops.arange(_blocks(samples), dtype="int32")[:, np.newaxis]
    is_before = ops.less_equal(ops.arange(_BLOCK, dtype="int32"), place)
    mask = ops.logical_or(
        ops.less(blocks, block), ops.logical_and(ops.equal(blocks, block), is_before)
    )
    return ops.reshape(mask, (ops.shape(audio)[0], -1))[:, :samples]


def _blocks(samples: Any) -> Any:
    return (samples + _BLOCK - 1) // _BLOCK


def _last(audio: Tensor) -> tuple[Tensor, Tensor]:
    """The block of each row's last sample that is not zero, and its place there: (B, 1) each."""
    blocks = _blocks(ops.shape(audio)[1])
    x = ops.pad(audio, [[0, 0], [0, _BLOCK - 1]])[:, : blocks * _BLOCK]
    real = ops.not_equal(ops.reshape(x, (ops.shape(audio)[0], blocks, _BLOCK)), 0)
    numbers = ops.arange(blocks, dtype="int32")
    block = ops.max(ops.where(ops.any(real, axis=-1), numbers, -1), axis=1, keepdims=True)
    is_last = ops.expand_dims(ops.equal(numbers, block), -1)
    inside = ops.any(ops.logical_and(real, is_last), axis=1)
    place = ops.where(inside, ops.arange(_BLOCK, dtype="int32"), -1)
    return block, ops.max(place, axis=1, keepdims=True)


def windows_of_audio(audio: Tensor, count: Any, width: int, step: int) -> Tensor:
    """Which of `count` windows end before the padding: (B, samples) -> (B, count), boolean.

    Args:
        audio: (B, samples).
        count: int, number of windows; window i begins at sample i * step.
        width: int, number of samples of a window.
        step: int, number of samples between the first samples of neighbouring windows.

    >>> import numpy as np
    >>> from keras_tfm.layers.audio.padding import windows_of_audio
    >>> np.array(windows_of_audio(np.array([[0.1, 0.2, 0.3, 0.0]]), 3, 2, 1)).tolist()
    [[True, True, False]]
    """
    ends = ops.arange(count, dtype="int32") * step + (width - 1)
    return ops.less_equal(ends, last_sample(audio))


def normalize_windows(
    x: Tensor, real: Tensor, gamma: Tensor, beta: Tensor, by_channel: bool = False
) -> Tensor:
    """Group normalisation (arXiv:1803.08494) over the windows of each row's audio alone.

    Args:
        x: (B, windows, D).
        real: (B, windows), which of them are of audio, and not of padding.
        gamma: (D,), scale.
        beta: (D,), offset.
        by_channel: bool, whether each channel is a group. Default: all are one group.

    Returns:
        (B, windows, D), in float32 at least.
    """
    x = ops.cast(x, keras.backend.result_type(x.dtype, "float32"))
    real = ops.expand_dims(ops.cast(real, x.dtype), -1)
    count = ops.maximum(ops.sum(real, axis=1, keepdims=True), 1.0)

    def mean(y: Tensor) -> Tensor:
        y = y if by_channel else ops.mean(y, axis=-1, keepdims=True)
        return ops.sum(real * y, axis=1, keepdims=True) / count

    x = x - mean(x)
    y = x * ops.rsqrt(mean(ops.square(x)) + 1e-5)
    return y * ops.cast(gamma, y.dtype) + ops.cast(beta, y.dtype)
