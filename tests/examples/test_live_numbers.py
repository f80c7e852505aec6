"""The words, the batches and the listening of examples/live_numbers.py."""

import live_numbers
import numpy as np
import spoken_numbers_data as data
from execution import tensorflow_only
from keras_weights import randomize
from small_exports import new_path

from keras_tfm import runtime
from keras_tfm.export import export_tflite

pytestmark = tensorflow_only


def recording(count, words=("two",)):
    samples = 8000 * np.sin(np.arange(count) / 5)
    return data.Recording(samples.astype("int16"), words, "f1")


def test_the_best_path():
    best = [0, 3, 3, 0, 3, 5, 0, 0, 1]
    words = live_numbers.text_of(np.eye(len(live_numbers.LABELS))[best])
    assert words == "two two four zero"


def test_batches_have_words_and_no_silence():
    recordings = [recording(9000, ("forty", "two")), recording(15000), recording(31000)]
    batches = live_numbers.batches(recordings)
    audio, words = batches[0]
    assert len(batches) == 1 and audio.shape == (3, live_numbers.SAMPLES)
    assert np.all(audio[:, -1] != 0)  # zeros would be padding
    said = {" ".join(live_numbers.LABELS[i] for i in row if i) for row in words}
    assert said == {"forty two", "two"}


def test_the_file_hears_what_the_model_hears():
    model = randomize(live_numbers.recogniser())
    path = new_path()
    export_tflite(
        model, path, ["stream"], piece_length=live_numbers.PIECE, labels=live_numbers.LABELS,
        verify=False,
    )  # fmt: skip
    file = runtime.load(path)
    rng = np.random.default_rng(0)
    samples = live_numbers.in_quiet(rng.normal(scale=0.1, size=7001))
    said = [*live_numbers.heard(file, samples)]
    assert said[-1][1] == live_numbers.text_of(np.asarray(model(samples[np.newaxis]))[0]) != ""
    times = [milliseconds for milliseconds, _ in said]
    assert times == sorted(times) and times[-1] <= 1000 * len(samples) / data.RATE
    assert file.file.manifest.labels == live_numbers.LABELS


def test_recordings_are_short_enough():
    most = live_numbers.SAMPLES - live_numbers.LATE
    fitting = live_numbers.fitting([recording(most), recording(most + 1)])
    assert [len(x.samples) for x in fitting] == [most]
