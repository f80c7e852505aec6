"""Speech in, text out: files of Whisper or wav2vec 2.0 transcribe arrays and WAV files."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from keras_tfm.runtime.checked_inputs import Values, check_duration, samples_of
from keras_tfm.runtime.loaded_file import LoadedFile
from keras_tfm.runtime.media.wav import read_wav, resample, resampled_length
from keras_tfm.runtime.tasks.best_path import best_path, ctc_output
from keras_tfm.runtime.tasks.text import answers, target_of

# The path or the bytes of a WAV file, or samples.
Audio = str | Path | bytes | bytearray | npt.ArrayLike
# In Hz. Recorders of ultrasound reach 1 MHz; a header with more is damaged.
LARGEST_RATE = 10_000_000


def sample_rates(file: LoadedFile) -> dict[str, int]:
    """See `Model.sample_rates`."""
    inputs = [x for signature in file.signatures.values() for x in signature.inputs.items()]
    return {name: x.sample_rate for name, x in inputs if x.sample_rate is not None}


def transcribe(
    file: LoadedFile,
    audio: Audio,
    sample_rate: int | None,
    prompt: str | Sequence[int] | None,
    labels: Sequence[str] | None,
) -> str:
    """See `Model.transcribe`. `labels`: the names of the classes."""
    output = ctc_output(file, labels)
    if output is not None and labels is not None:
        if prompt is not None:
            raise ValueError(f"{file.path} has labels of CTC, and takes no prompt, got {prompt!r}")
        (scores,) = predict_audio(file, audio, sample_rate)[output]
        return best_path(scores, labels)
    name, samples = as_samples(file, audio, sample_rate)
    inputs: dict[str, Values] = {name: samples[np.newaxis]}
    if prompt is not None:
        one = prompt if isinstance(prompt, str) else list(prompt)
        inputs[target_of(file)] = cast("Values", [one])
    (text,) = answers(file, inputs)
    return text


def predict_audio(file: LoadedFile, audio: Audio, sample_rate: int | None) -> dict[str, np.ndarray]:
    """See `Model.predict_audio`."""
    name, samples = as_samples(file, audio, sample_rate)
    return file.predict({name: samples[np.newaxis]})


def as_samples(file: LoadedFile, audio: Audio, sample_rate: int | None) -> tuple[str, np.ndarray]:
    """The name of the input of audio, and the samples (samples,) at its rate, float32."""
    file.check_single()
    rates = sample_rates(file)
    if not rates:
        raise ValueError(f"{file.path} has no input of audio, which a LogMelSpectrogram reads")
    name, rate = next(iter(rates.items()))
    if isinstance(audio, str | Path | bytes | bytearray):
        if sample_rate is not None:
            raise ValueError("sample_rate is for arrays: a WAV file has its own, got both")
        what = "the WAV file" if isinstance(audio, bytes | bytearray) else str(audio)
        samples, found = read_wav(audio)
    else:
        what, found = name, rate if sample_rate is None else sample_rate
        if not isinstance(found, int | np.integer) or isinstance(found, bool) or found < 1:
            raise ValueError(f"sample_rate must be a positive integer, in Hz, got {found!r}")
        array = np.asarray(audio)
        if array.ndim not in (1, 2) or array.shape[1:] == (0,):
            raise ValueError(
                f"{name} must have shape (samples,) or (samples, channels), got {array.shape}"
            )
        if array.ndim == 2 and array.shape[1] > array.shape[0] > 0:
            raise ValueError(
                f"{name} must have shape (samples, channels), got {array.shape}: transpose it"
            )
        channels = array.T if array.ndim == 2 else array[np.newaxis]
        samples = np.mean([samples_of(name, channel) for channel in channels], axis=0)
    if found > LARGEST_RATE:
        raise ValueError(
            f"{what} must have a sample rate of at most {LARGEST_RATE} Hz, got {found} Hz"
        )
    samples = samples_of(what, np.asarray(samples, "float32"))
    lengths = [x.inputs[name].shape[1] for x in file.signatures.values() if name in x.inputs]
    # Before it is resampled: the sound of a low rate becomes many samples.
    check_duration(name, resampled_length(len(samples), int(found), rate), max(lengths), rate)
    return name, resample(samples, int(found), rate)
