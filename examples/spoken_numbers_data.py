"""Spoken numbers from the voices of eSpeak NG, for examples/spoken_numbers.py.

`espeakng-loader` (PyPI, 10 MB) has the synthesiser as a shared library with its voices, so nothing
is installed on the system. Each recording is a number from 0 to 999 in one of some hundred voices,
with an accent of English, a speed and a pitch. Some voices are for the test alone.
"""

import ctypes
import functools
import multiprocessing
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

RATE = 16000
ACCENTS = ["en-us", "en", "en-gb-x-rp", "en-029", "en-gb-scotland", "en-gb-x-gbcwmd"]
ONES = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"),
    "nineteen",
]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
WORDS = [*ONES, *TENS, "hundred", "and"]
# espeak_ng's constants: results in a callback, UTF-8, and the numbers of two parameters.
_RETRIEVAL, _UTF8, _SPEED, _PITCH = 1, 1, 1, 3


class Recording(NamedTuple):
    """One spoken number.

    Attributes:
        samples: (N,), int16, at 16 kHz.
        words: tuple of str, such as ("forty", "two").
        voice: str, name of the voice.
    """

    samples: np.ndarray
    words: tuple[str, ...]
    voice: str


def words_of(number: int, with_and: bool = False) -> tuple[str, ...]:
    """A number from 0 to 999 in words.

    >>> words_of(342, with_and=True)
    ('three', 'hundred', 'and', 'forty', 'two')
    """
    if number >= 100:
        rest = words_of(number % 100) if number % 100 else ()
        return (ONES[number // 100], "hundred", *(("and",) if with_and and rest else ()), *rest)
    if number < 20:
        return (ONES[number],)
    return (TENS[number // 10 - 2], *((ONES[number % 10],) if number % 10 else ()))


def voices() -> tuple[list[str], list[str]]:
    """The voices to train with, and every fifth one, for the test."""
    import espeakng_loader

    folder = Path(espeakng_loader.get_data_path(), "voices", "!v")
    names = sorted(x.name for x in folder.iterdir())
    return [x for i, x in enumerate(names) if i % 5], names[::5]


def recordings(count: int, names: list[str], seed: int) -> list[Recording]:
    """Random numbers in random voices, made by all processors."""
    rng = np.random.default_rng(seed)
    jobs = [
        (
            int(rng.integers(1000)) if rng.random() < 0.85 else int(rng.integers(100)),
            bool(rng.random() < 0.5),
            f"{ACCENTS[rng.integers(len(ACCENTS))]}+{names[rng.integers(len(names))]}",
            int(rng.integers(130, 220)),
            int(rng.integers(25, 75)),
        )
        for _ in range(count)
    ]
    # Of the processes that are started: one each, rather than all processors for small products.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with multiprocessing.get_context("spawn").Pool() as pool:
        made = pool.map(_spoken, jobs, chunksize=64)
    return [x for x in made if x is not None]


def _spoken(job: tuple[int, bool, str, int, int]) -> Recording | None:
    """One recording; None for a voice that the synthesiser refuses."""
    from keras_tfm.runtime.media.wav import resample

    number, with_and, voice, speed, pitch = job
    words = words_of(number, with_and)
    samples, rate = _synthesized(" ".join(words), voice, speed, pitch)
    if len(samples) < rate // 10:
        return None
    loud = np.flatnonzero(np.abs(samples) > 200)
    samples = samples[loud[0] : loud[-1] + 1] if len(loud) else samples
    found = resample(samples.astype("float32") / 32768, rate, RATE)
    found /= max(1e-3, float(np.abs(found).max()))
    return Recording(np.round(found * 32767).astype("int16"), words, voice.split("+")[1])


@functools.cache
def _library():
    """The library, its sample rate, the chunks that it fills, and the callback, kept alive."""
    import espeakng_loader

    library = ctypes.CDLL(espeakng_loader.get_library_path())
    chunks: list[np.ndarray] = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
    def receive(samples, count, _events):
        if samples and count > 0:
            chunks.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    path = str(espeakng_loader.get_data_path()).encode()
    rate = library.espeak_Initialize(_RETRIEVAL, 0, path, 0)
    if rate < 1:
        raise RuntimeError(f"espeak_Initialize failed with the data in {path.decode()}")
    library.espeak_SetSynthCallback(receive)
    return library, rate, chunks, receive


def _synthesized(text: str, voice: str, speed: int, pitch: int) -> tuple[np.ndarray, int]:
    library, rate, chunks, _ = _library()
    chunks.clear()
    if library.espeak_SetVoiceByName(voice.encode()):
        return np.zeros(0, "int16"), rate
    library.espeak_SetParameter(_SPEED, speed, 0)
    library.espeak_SetParameter(_PITCH, pitch, 0)
    content = text.encode()
    library.espeak_Synth(content, ctypes.c_size_t(len(content) + 1), 0, 1, 0, _UTF8, None, None)
    library.espeak_Synchronize()
    return (np.concatenate(chunks) if chunks else np.zeros(0, "int16")), rate
