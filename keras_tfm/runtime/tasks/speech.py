"""Speech in, text out: a file of a model such as Whisper transcribes arrays and WAV files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from keras_tfm.runtime.checked_inputs import check_duration, samples_of
from keras_tfm.runtime.media.wav import read_wav, resampled, resampled_length
from keras_tfm.runtime.signature_runner import check_one
from keras_tfm.runtime.tasks.text import generated_texts, target_of

if TYPE_CHECKING:
    from keras_tfm.runtime.model import Model

# In Hz. Recorders of ultrasound reach 1 MHz; a header with more is damaged.
LARGEST_RATE = 10_000_000


class Speech:
    """The methods of `runtime.Model` that take audio."""

    @property
    def sample_rates(self) -> dict[str, int]:
        """The sample rate of each input of audio, in Hz; empty for a file without one."""
        signatures = cast("Model", self).signatures.values()
        inputs = [pair for signature in signatures for pair in signature["inputs"].items()]
        return {name: x["sample_rate"] for name, x in inputs if "sample_rate" in x}

    def transcribe(
        self, audio: Any, sample_rate: int | None = None, prompt: Sequence[int] | None = None
    ) -> str:
        """The text of speech, as a model such as `models.whisper` hears it.

        Audio at another rate is resampled, several channels are averaged, and audio shorter than
        the file was exported for is padded with silence. Silence is given to the model like any
        other sound: what it then writes depends on its training.

        Args:
            audio: path or bytes of a WAV file, or array (samples,) or (samples, channels): floats
                from -1 to 1, or int16.
            sample_rate: int, that of an array, in Hz. Default: that of the file's input.
            prompt: list of int, the first tokens of the answer: for Whisper the start token, the
                language and the task. They are not a part of the text. Default: the
                `default_prompt` with which the file was exported, or its `start_id`.

        Raises:
            ValueError: there are no samples, or more than the file takes; samples that are NaN, or
                not from -1 to 1; a sample rate over 10 MHz; a file that is no WAV file; the .tflite
                file has no input of audio or no tokenizer; or as `generate_text`.
            TypeError: the samples are not numbers of a known kind.
            FileNotFoundError: there is no such WAV file.
        """
        model = cast("Model", self)
        name, samples = as_samples(model, audio, sample_rate)
        inputs: dict[str, Any] = {name: samples[np.newaxis]}
        if prompt is not None:
            inputs[target_of(model)] = [list(prompt)]
        return str(_of_generated(model, inputs))

    def predict_audio(self, audio: Any, sample_rate: int | None = None) -> dict[str, np.ndarray]:
        """The outputs of one full pass over audio, by name: (1, ...), as from `predict`.

        Args:
            audio, sample_rate: as in `transcribe`.

        Raises:
            ValueError, TypeError, FileNotFoundError: as `transcribe`.
        """
        model = cast("Model", self)
        name, samples = as_samples(model, audio, sample_rate)
        return model.predict({name: samples[np.newaxis]})


def _of_generated(model: Model, inputs: dict[str, Any]) -> str:
    """The best text of the only row, without its prompt."""
    (text,) = generated_texts(model, inputs, with_prompt=False)
    return text if isinstance(text, str) else str(text[0].text)


def as_samples(model: Model, audio: Any, sample_rate: int | None) -> tuple[str, np.ndarray]:
    """The name of the input of audio, and the samples (samples,) at its rate, float32."""
    check_one(model.path, model.signatures)
    rates = model.sample_rates
    if not rates:
        raise ValueError(f"{model.path} has no input of audio, which a LogMelSpectrogram reads")
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
    lengths = [
        x["inputs"][name]["shape"][1] for x in model.signatures.values() if name in x["inputs"]
    ]
    # Before it is resampled: the sound of a low rate becomes many samples.
    check_duration(name, resampled_length(len(samples), int(found), rate), max(lengths), rate)
    return name, resampled(samples, int(found), rate)
