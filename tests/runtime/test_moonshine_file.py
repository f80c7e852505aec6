"""A file that takes audio of several lengths, the shortest that fits; what it refuses."""

import keras
import numpy as np
import pytest
from compare import assert_close
from execution import tensorflow_only
from keras_weights import randomize
from small_tokenizers import WORDS, words

from keras_tfm import layers, models, runtime
from keras_tfm.generation import generate
from keras_tfm.runtime import loaded_file
from keras_tfm.runtime.checked_inputs import longest_row
from keras_tfm.runtime.manifest.manifest import Generate
from keras_tfm.runtime.media.wav import resample

pytestmark = tensorflow_only
SIZES = {"dim": 32, "num_layers": 1, "num_heads": 2, "intermediate_dim": 64}
LENGTHS = [1600, 6000]
RNG = np.random.default_rng(0)
CLIPS = [RNG.normal(scale=0.1, size=n).astype("float32") for n in (895, 1600, 1601, 5000)]


@pytest.fixture(scope="module")
def model():
    """Weights with which each of the clips has another text."""
    built = models.moonshine(len(WORDS), **SIZES, max_length=9, pad_id=0, end_id=7)
    return randomize(built, seed=1)


def export(model, path, **options):
    from keras_tfm.export import export_tflite

    given = {"source_length": LENGTHS, "max_length": 9, "start_id": 1, "end_id": 7, **options}
    return export_tflite(model, path, tokenizer=words(), **given)


@pytest.fixture(scope="module")
def file(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("moonshine") / "x.tflite"
    export(model, path, signatures=["generate"])
    return runtime.load(path)


def test_each_clip_runs_in_the_shortest_length(file, model):
    assert list(file.signatures) == ["generate_1600", "generate_6000"]
    assert file.sample_rates == {"audio": 16000}
    texts = set()
    for clip, length in zip(CLIPS, (1600, 1600, 6000, 6000), strict=True):
        inputs = {"audio": clip[np.newaxis]}
        tokens = generate(model, inputs, 9, start_id=1, end_id=7).tokens
        np.testing.assert_array_equal(file.generate(inputs).tokens, tokens)
        name, _ = file.file.choose(Generate, inputs)
        assert name == f"generate_{length}"
        text = file.transcribe(clip)
        assert text == words().decode([x for x in tokens[0, 1:].tolist() if x != 7])
        texts.add(text)
    assert len(texts) == len(CLIPS)
    # Padded by hand, as in a batch: in one length or in another.
    padded = np.pad(CLIPS[0], (0, 3000))
    assert file.transcribe(padded) == file.transcribe(CLIPS[0])


def test_a_clip_of_another_sample_rate_is_resampled(file):
    clip = np.repeat(CLIPS[2], 2)
    text = file.transcribe(clip, sample_rate=32000)
    assert text == file.transcribe(resample(clip, 32000, 16000))
    assert text != file.transcribe(clip)


@pytest.mark.parametrize(
    ("clip", "message"),
    [
        (
            CLIPS[0][:894],
            "audio has 894 samples, 0.056 seconds, but the model needs at least 895",
        ),
        (np.zeros(6001), "6001 samples, 0.38 seconds, but the file takes at most 6000, 0.38 sec"),
        (CLIPS[0][:0], "audio has no samples"),
    ],
)
def test_too_short_and_too_long(clip, message, file):
    with pytest.raises(ValueError, match=message) as error:
        file.transcribe(clip)
    assert "\n" not in str(error.value)


def test_logits_of_a_loop_that_begins_with_empty_caches(file, model, monkeypatch):
    """As of a file above 32 MB, which LiteRT's CompiledModel runs: it returns no constants."""
    from keras_tfm.export.verification.loop_logits import LoopLogits

    monkeypatch.setattr(loaded_file, "SHARED_BYTES", 0)
    loop = LoopLogits(file.path.read_bytes(), "generate_1600", len(WORDS))
    inputs = {"audio": CLIPS[1][np.newaxis]}
    found, tokens = loop.run(inputs), file.generate(inputs).tokens
    expected = model({**inputs, "target": tokens[:, : found.shape[1]]})
    assert_close(found, expected, 1e-4)


def test_silence_is_no_error(file, model):
    silent = np.zeros((1, 2000), "float32")
    expected = generate(model, {"audio": silent}, 9, start_id=1, end_id=7).tokens
    np.testing.assert_array_equal(file.generate({"audio": silent}).tokens, expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source_length": None}, r"'audio' has shape \(None, None\): give source_length"),
        ({"source_length": [800, 6000]}, "audio must have at least 895 samples, got 800"),
    ],
)
def test_lengths_that_cannot_be_exported(options, message, model, tmp_path):
    with pytest.raises(ValueError, match=message):
        export(model, tmp_path / "x.tflite", **options)


@pytest.mark.parametrize(
    "quantization",
    ["int8", *(pytest.param(x, marks=pytest.mark.slow) for x in ("float32", "int4"))],
)
def test_files_are_verified_and_their_signatures_agree(quantization, model, tmp_path):
    """With host loops: `encode` of each length, whose keys and values one `decode` reads."""
    export(
        model, tmp_path / "x.tflite", signatures=["generate", "encode", "decode"],
        quantization=quantization,
    )  # fmt: skip
    loaded = runtime.load(tmp_path / "x.tflite")
    for clip in CLIPS[::3]:
        inputs = {"audio": clip[np.newaxis]}
        steps = np.concatenate([*loaded.stream(inputs)])
        tokens = loaded.generate(inputs).tokens[0, 1:]
        np.testing.assert_array_equal(steps, tokens[: len(steps)])
    # The first kernel has all its bits: otherwise a loud sound would drown the quiet ones.
    kernel = model.get_layer("waveform").kernel.numpy().astype("<f4").transpose(2, 1, 0)
    assert kernel.tobytes() in (tmp_path / "x.tflite").read_bytes()


def test_a_classifier_of_any_audio_by_own_layers(tmp_path):
    """An `AudioLayer` of one's own makes its input one of audio."""
    from keras_tfm.export import export_tflite
    from keras_tfm.layers.audio.audio_layer import AudioLayer

    class Loudness(AudioLayer):
        sample_rate = 8000

        def call(self, audio):
            return keras.ops.mean(keras.ops.abs(audio), axis=1, keepdims=True)

    audio = keras.Input((400,), name="audio")
    path = tmp_path / "x.tflite"
    export_tflite(keras.Model(audio, keras.layers.Dense(2)(Loudness()(audio))), path)
    assert runtime.load(path).sample_rates == {"audio": 8000}
    assert layers.LogMelSpectrogram().shortest == 201
    assert longest_row(np.zeros((1, 5))) == longest_row([[0.0] * 5]) == 5
