"""Layers of audio, against NumPy in float64 and the feature extractor of transformers."""

import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy
from execution import tensorflow_only

from keras_tfm.layers import LogMelSpectrogram
from keras_tfm.layers.audio.log_mel_spectrogram import mel_filters

# Float32 sums of 400 products, relative to a row's loudest frequency; the quietest that is kept has
# 1e-4 of its amplitude. Measured: 6e-5, as much as between PyTorch's and NumPy's transforms.
LOG_MEL = 1e-4
N = 5077
rng = np.random.default_rng(5)
TIME = np.arange(N) / 16000
SOUNDS = {
    "noise": rng.normal(scale=0.1, size=N),
    "tone": np.sin(2 * np.pi * 440 * TIME),
    "quiet and loud": np.sin(2 * np.pi * 150 * TIME) * TIME + rng.normal(scale=1e-3, size=N),
    "silence": np.zeros(N),
    "clipped": np.sign(np.sin(2 * np.pi * 97 * TIME)),
}


def log_mel(x, filters, window, hop):
    """Of one waveform, from the definition, in float64."""
    half = window // 2
    padded = np.pad(x.astype("float64"), half, mode="reflect")
    frames = np.stack([padded[i : i + window] for i in range(0, len(x) // hop * hop, hop)])
    hann = np.sin(np.pi * np.arange(window) / window) ** 2
    power = np.abs(np.fft.rfft(frames * hann)) ** 2
    logarithm = np.log10(np.maximum(power @ filters.astype("float64"), 1e-10))
    return (np.maximum(logarithm, logarithm.max() - 8) + 4) / 4


@pytest.mark.parametrize("sound", SOUNDS)
def test_the_definition_in_float64(sound):
    x = SOUNDS[sound].astype("float32")
    filters = mel_filters(80, 400, 16000)
    expected = log_mel(x, filters, 400, 160)
    assert expected.shape == (31, 80)
    assert_close(LogMelSpectrogram()(x[np.newaxis])[0], expected, LOG_MEL)
    padded = log_mel(np.pad(x, (0, 8000 - N)), filters, 400, 160)
    assert_close(LogMelSpectrogram(length=8000)(x[np.newaxis])[0], padded, LOG_MEL)


def test_the_maximum_is_that_of_each_row():
    rows = np.stack([SOUNDS["tone"], 1e-3 * SOUNDS["noise"]]).astype("float32")
    layer = LogMelSpectrogram()
    assert_close(layer(rows), np.concatenate([layer(rows[:1]), layer(rows[1:])]), LOG_MEL)


@pytest.mark.parametrize("mels", [80, 128])
@pytest.mark.parametrize("sound", SOUNDS)
def test_the_features_of_transformers(sound, mels):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    x = SOUNDS[sound].astype("float32")
    extractor = transformers.WhisperFeatureExtractor(feature_size=mels, chunk_length=1)
    for padding, length in (("max_length", 16000), (False, None)):
        expected = extractor(x, sampling_rate=16000, padding=padding, return_tensors="np")
        expected = expected.input_features[0].T
        layer = LogMelSpectrogram(mels, length=length)
        assert_close(layer(x[np.newaxis])[0], expected, LOG_MEL)


@pytest.mark.parametrize(("mels", "window", "rate"), [(80, 400, 16000), (7, 64, 8000)])
def test_the_filters_of_transformers(mels, window, rate):
    audio_utils = pytest.importorskip("transformers.audio_utils")
    expected = audio_utils.mel_filter_bank(
        window // 2 + 1, mels, 0.0, rate / 2, rate, norm="slaney", mel_scale="slaney"
    )
    assert_close(mel_filters(mels, window, rate), expected, 1e-7)


def test_a_length_that_is_known_only_at_run_time():
    layer = LogMelSpectrogram(length=8000)
    audio = keras.Input((None,))
    model = keras.Model(audio, layer(audio))
    assert model.output.shape == (None, 50, 80)
    for n in (1, 3000, 8000):
        x = SOUNDS["noise"][np.newaxis, :n].astype("float32")
        x = np.pad(x, [(0, 0), (0, n - x.shape[1])])
        assert_close(model.predict(x, verbose=0), layer(x), 1e-5)


@tensorflow_only
def test_audio_that_is_too_long_is_not_cut_in_silence():
    import tensorflow as tf

    layer = LogMelSpectrogram(length=400)
    run = tf.function(layer, input_signature=[tf.TensorSpec((None, None))])
    assert np.isfinite(run(np.ones((2, 400), "float32"))).all()
    assert np.isnan(run(np.ones((2, 401), "float32"))).all()


def test_what_is_not_a_number_does_not_stay_hidden():
    x = SOUNDS["noise"].astype("float32")[np.newaxis]
    x[0, 2500] = np.nan
    assert np.isnan(to_numpy(LogMelSpectrogram()(x))).any()


@pytest.mark.parametrize(
    ("arguments", "shape", "message"),
    [
        ({}, (2, 200), "audio must have at least 201 samples, got 200"),
        ({"length": 300}, (2, 301), "at least 1 and at most 300 samples, got 301"),
        ({}, (2, 300, 1), r"audio must have shape \(B, samples\), got \(2, 300, 1\)"),
        ({"length": 200}, None, "length must be at least 201, got 200"),
        ({"window": 401}, None, "window must be even, got 401"),
        ({"num_mels": 0}, None, "num_mels must be at least 1, got 0"),
    ],
)
def test_impossible_audio(arguments, shape, message):
    with pytest.raises(ValueError, match=message):
        LogMelSpectrogram(**arguments)(np.zeros(shape, "float32"))


@tensorflow_only
@pytest.mark.parametrize("quantization", ["float32", "float16", "int8", "int4"])
def test_a_file_takes_samples(quantization, tmp_path):
    """The constants are never rounded: a rounded transform would be louder than quiet sounds."""
    from keras_tfm import runtime
    from keras_tfm.export import export_tflite

    audio = keras.Input((N,), name="audio")
    layer = LogMelSpectrogram()
    x = layer(audio)
    model = keras.Model(audio, {"mel": x, "y": keras.layers.Dense(41)(x)})
    path = tmp_path / "x.tflite"
    export_tflite(model, path, ["predict"], quantization=quantization, verify=False)
    rows = SOUNDS["quiet and loud"].astype("float32")[np.newaxis]
    assert_close(runtime.load(path).predict(rows)["mel"], layer(rows), LOG_MEL)


@tensorflow_only
def test_integers_alone_are_refused(tmp_path):
    from keras_tfm.export import export_tflite

    audio = keras.Input((N,), name="audio")
    model = keras.Model(audio, LogMelSpectrogram(name="mel")(audio))
    with pytest.raises(ValueError, match="would round the Fourier transform of mel: use 'int8'"):
        export_tflite(model, tmp_path / "x", ["predict"], "int8_full", representative_data=[])
