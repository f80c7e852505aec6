"""WAV files, resampling, and files that take audio: transcripts, classes and clear errors."""

import struct
import wave

import keras
import numpy as np
import pytest
from compare import assert_close
from execution import tensorflow_only
from keras_weights import randomize
from traced_memory import at_most

import keras_tfm
from keras_tfm import layers, models, runtime
from keras_tfm.generation import Greedy, generate, processors
from keras_tfm.runtime.media import wav
from keras_tfm.runtime.media.wav import read_wav, resample

RATE = 16000
TIME = np.arange(8000) / RATE
SOUND = (0.5 * np.sin(2 * np.pi * 440 * TIME)).astype("float32")


def wav_of(samples, rate=RATE, kind=1, bits=16, extensible=False):
    """The bytes of a WAV file with samples (N,) or (N, channels), from -1 to 1."""
    samples = samples if samples.ndim == 2 else samples[:, np.newaxis]
    if kind == 3:
        body = samples.astype(f"<f{bits // 8}").tobytes()
    elif bits == 8:
        body = np.round(samples * 127 + 128).astype("u1").tobytes()
    elif bits == 24:
        body = b"".join(struct.pack("<i", int(x * (2**23 - 1)))[:3] for x in samples.ravel())
    else:
        body = np.round(samples * (2.0 ** (bits - 1) - 1)).astype(f"<i{bits // 8}").tobytes()
    size, channels = bits // 8, samples.shape[1]
    tag = 0xFFFE if extensible else kind
    form = struct.pack("<HHIIHH", tag, channels, rate, rate * channels * size, size, bits)
    if extensible:
        form += struct.pack("<HHIH14s", 22, bits, 0, kind, b"")
    chunks = [(b"fmt ", form), (b"LIST", b"odd"), (b"data", body)]  # padded to an even size
    inside = b"".join(k + struct.pack("<I", len(x)) + x + b"\0" * (len(x) % 2) for k, x in chunks)
    return b"RIFF" + struct.pack("<I", 4 + len(inside)) + b"WAVE" + inside


# WAV files


def of_header(channels=1, rate=RATE):
    """The bytes of a WAV file whose header says this of some bytes of sound."""
    form = struct.pack("<HHIIHH", 1, channels, rate, 0, 0, 16)
    body = b"fmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", 16) + bytes(16)
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WAVE" + body


@pytest.mark.parametrize(
    ("kind", "bits", "step"),
    [(1, 8, 2**-7), (1, 16, 2**-15), (1, 24, 2**-23), (1, 32, 1e-7), (3, 32, 0), (3, 64, 0)],
)
@pytest.mark.parametrize("extensible", [False, True])
def test_formats(kind, bits, step, extensible, tmp_path):
    content = wav_of(SOUND, 22050, kind, bits, extensible)
    (tmp_path / "x.wav").write_bytes(content)
    for source in (content, tmp_path / "x.wav", str(tmp_path / "x.wav")):
        samples, rate = read_wav(source)
        assert (rate, samples.dtype) == (22050, np.float32)
        # Rounding, and scales of 2^n - 1 in the files above.
        assert_close(samples, SOUND, 1.5 * step + 1e-7)


def test_a_file_of_the_standard_library(tmp_path):
    stereo = np.stack([SOUND, -0.5 * SOUND], axis=1)
    with wave.open(str(tmp_path / "x.wav"), "wb") as file:
        file.setparams((2, 2, RATE, 0, "NONE", None))
        file.writeframes(np.round(stereo * 32767).astype("<i2").tobytes())
    samples, rate = read_wav(tmp_path / "x.wav")
    assert rate == RATE
    assert_close(samples, 0.25 * SOUND, 5e-5)  # the average of both channels


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"ID3 an MP3 file", "is no WAV file: convert it, for instance with ffmpeg"),
        (b"", "is no WAV file"),
        (wav_of(SOUND)[:40], "is damaged: it has no samples"),
        (wav_of(SOUND, kind=6, bits=8), "got 8 bits of format 6"),
        (wav_of(SOUND, rate=0), "is damaged: it has 1 channels at 0 Hz"),
        (of_header(channels=0), "is damaged: it has 0 channels at 16000 Hz"),
        (b"RIFF\0\0\0\0WAVEdata\4\0\0\0abcd", "samples of an unknown format"),
    ],
)
def test_what_is_no_recording(content, message):
    with pytest.raises(ValueError, match=message):
        read_wav(content)
    with pytest.raises(FileNotFoundError, match="no such file: "):
        read_wav("missing.wav")


def test_a_file_that_was_cut_off_tells_what_is_missing():
    content = wav_of(SOUND)
    assert read_wav(content)[0].shape == SOUND.shape
    for missing in (1, 1001):
        message = rf"is damaged: {missing} of its {2 * len(SOUND)} bytes of samples are missing"
        with pytest.raises(ValueError, match=message):
            read_wav(content[:-missing])


def with_sizes(content, whole, size):
    """A WAV file whose header has these sizes of the file and of its samples."""
    place = content.index(b"data") + 4
    head = content[:4] + struct.pack("<I", whole) + content[8:place]
    return head + struct.pack("<I", size) + content[place + 4 :]


@pytest.mark.parametrize(
    ("whole", "size"),
    [
        (0xFFFFFFFF, 0xFFFFFFFF),  # ffmpeg
        (0x7FFFF024, 0x7FFFF000),  # sox
        (0x7FFFFFFF, 0x7FFFFFFF - 36),
        (0x80000024, 0x80000000),  # arecord
        (0, 0),
        (36, 0),
    ],
)
def test_a_file_from_a_pipe_has_samples_to_its_end(whole, size):
    samples, _ = read_wav(with_sizes(wav_of(SOUND), whole, size))
    assert_close(samples, SOUND, 5e-5)
    odd, _ = read_wav(with_sizes(wav_of(SOUND)[:-1], whole, size))
    np.testing.assert_array_equal(odd, samples[:-1])


def test_sizes_in_the_header_are_not_believed():
    """65,535 channels, of which the file has not one sample each; no samples, but other data."""
    samples, _ = read_wav(of_header(channels=65535))
    assert samples.shape == (0,)
    content = wav_of(SOUND[:0]) + b"LIST\4\0\0\0info"
    samples, _ = read_wav(with_sizes(content, len(content) - 8, 0))
    assert samples.shape == (0,)


def test_many_samples_are_converted_in_parts(monkeypatch):
    stereo = np.stack([SOUND, -0.5 * SOUND], axis=1)
    monkeypatch.setattr(wav, "_BLOCK", 300)
    for kind, bits in ((1, 8), (1, 24), (3, 64)):
        samples, _ = read_wav(wav_of(stereo, RATE, kind, bits))
        assert_close(samples, 0.25 * SOUND, 1e-2 if bits == 8 else 1e-6)


# Resampling


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000])
def test_a_tone_stays_a_tone(rate):
    tone = np.sin(2 * np.pi * 700 * np.arange(rate // 2) / rate).astype("float32")
    found = resample(tone, rate, RATE)
    assert len(found) == int(np.ceil(len(tone) * RATE / rate))
    expected = np.sin(2 * np.pi * 700 * np.arange(len(found)) / RATE)
    # A window of 32 zero crossings; the ends have no neighbours.
    assert_close(found[200:-200], expected[200:-200], 1e-3)


def test_what_the_lower_rate_cannot_hold_is_removed():
    """10 kHz would be heard as 6 kHz."""
    tone = np.sin(2 * np.pi * 10000 * np.arange(24000) / 48000).astype("float32")
    assert np.abs(resample(tone, 48000, RATE)[200:-200]).max() < 1e-3


@pytest.mark.parametrize(
    ("count", "rate", "new_rate"),
    [(1, 7, 5), (97, 11127, 16000), (300, 16000, 8001), (53, 3, 1000), (5000, 999983, 16000)],
)
def test_it_is_the_formula_for_any_two_rates(count, rate, new_rate, monkeypatch):
    """Also where the kernels are computed in several blocks."""
    monkeypatch.setattr(wav, "_BLOCK", 1 << 11)
    samples = np.random.default_rng(0).standard_normal(count).astype("float32")
    found = resample(samples, rate, new_rate)
    assert found.shape == (-(-count * new_rate // rate),) and found.dtype == np.float32
    times = np.arange(count) / rate - np.arange(len(found))[:, np.newaxis] / new_rate
    times *= 0.95 * min(rate, new_rate)
    window = np.where(np.abs(times) < 32, np.cos(times / 64 * np.pi) ** 2, 0)
    expected = np.sinc(times) * window @ samples * 0.95 * min(rate, new_rate) / rate
    assert_close(found, expected, 1e-6)  # rounding to float32


@pytest.mark.parametrize("rate", [11127, 44101, 383999, 4294967290])
def test_the_memory_does_not_depend_on_the_rates(rate):
    """A kernel for each pair of samples of the two rates took 5.5 GB for a file of 60 bytes."""
    with at_most(10e6):  # some blocks of 1 MB
        resample(SOUND, rate, RATE)


# Models


VOCABULARY = ["<pad>", "<start>", "<end>", "<en>", *" abcdefgh"]
SIZES = {"dim": 12, "num_layers": 1, "num_heads": 2, "intermediate_dim": 16, "num_mels": 8}


# Text is written, other than with random weights alone.
STRATEGY = Greedy([processors.SuppressTokens([0, 1, 3]), processors.MinNewTokens(3)])


def tokenizer():
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({x: i for i, x in enumerate(VOCABULARY)})
    )
    made.add_special_tokens(VOCABULARY[:4])
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    made.decoder = tokenizers.decoders.Fuse()
    return made


@pytest.fixture(scope="module")
def whisper():
    model = models.whisper(len(VOCABULARY), **SIZES, max_source_length=50, max_length=9, pad_id=0)
    return randomize(model)


@pytest.fixture(scope="module")
def file(whisper, tmp_path_factory):
    """One second of audio; prompts of up to two tokens."""
    from keras_tfm.export import export_tflite

    path = tmp_path_factory.mktemp("speech") / "x.tflite"
    export_tflite(
        whisper, path, ["generate"], max_length=9, prompt_length=3, default_prompt=[1, 3],
        end_id=2, tokenizer=tokenizer(), strategy=STRATEGY,
    )  # fmt: skip
    return runtime.load(path)


def text_of(whisper, samples, prompt=(1, 3)):
    inputs = {"audio": samples[np.newaxis], "target": [list(prompt)]}
    tokens = (
        generate(whisper, inputs, 9, end_id=2, strategy=STRATEGY).tokens[0, len(prompt) :].tolist()
    )
    tokens = tokens[: tokens.index(2)] if 2 in tokens else tokens
    return "".join(VOCABULARY[x] for x in tokens if x > 3)


@tensorflow_only
def test_a_file_writes_what_the_model_hears(file, whisper, tmp_path):
    assert file.sample_rates == {"audio": RATE}
    assert file.signatures["generate"]["inputs"]["audio"]["shape"] == [1, 16000]
    expected = text_of(whisper, SOUND)
    assert expected != text_of(whisper, np.flip(SOUND) ** 3)
    (tmp_path / "x.wav").write_bytes(wav_of(SOUND, kind=3, bits=32))
    stereo = np.stack([SOUND, SOUND], axis=1)
    for audio in (SOUND, stereo, SOUND.astype("float64"), str(tmp_path / "x.wav")):
        assert file.transcribe(audio) == expected
    assert file.transcribe(SOUND, prompt=[1, 3]) == expected
    expected = text_of(whisper, SOUND, [1, 3, 5])
    assert file.transcribe(SOUND, prompt=[1, 3, 5]) == expected
    expected = text_of(whisper, SOUND, [5, 7])  # a text, of a file without a start token
    assert file.transcribe(SOUND, prompt=VOCABULARY[5] + VOCABULARY[7]) == expected


@tensorflow_only
def test_other_rates_and_integers_sound_the_same(file):
    """Up to rounding: in features, which are compared in a file without a decoder, below."""
    integers = np.round(SOUND * 32768).astype("int16")
    assert file.transcribe(integers) == file.transcribe(integers / np.float32(32768))
    assert file.transcribe(SOUND, sample_rate=48000) == file.transcribe(
        resample(SOUND, 48000, RATE)
    )


@tensorflow_only
def test_silence_is_audio_like_any_other(file, whisper):
    assert file.transcribe(np.zeros(4000, "float32")) == text_of(whisper, np.zeros(4000, "float32"))


@tensorflow_only
@pytest.mark.parametrize(
    ("audio", "error", "message"),
    [
        (SOUND[:0], ValueError, "audio has no samples"),
        (np.zeros((0, 2)), ValueError, "has no samples"),
        (np.zeros(60 * RATE), ValueError, "60.00 seconds, but the file takes at most 16000, 1.00"),
        (
            np.where(TIME > 0.25, np.nan, SOUND),
            ValueError,
            "must be finite, got nan as sample 4001",
        ),
        (SOUND * 32768, ValueError, "from -1 to 1, got 16384: divide those of 16 bits by 32768"),
        (np.zeros(80, "int32"), TypeError, "must be floats from -1 to 1, or int16, got int32"),
        (np.zeros((2, 80)), ValueError, r"\(samples, channels\), got \(2, 80\): transpose it"),
        (np.zeros((1, 2, 3)), ValueError, r"got \(1, 2, 3\)"),
        (b"not a recording", ValueError, "the WAV file is no WAV file"),
        (wav_of(SOUND[:0]), ValueError, "the WAV file has no samples"),
        (wav_of(np.zeros(60 * RATE)), ValueError, "60.00 seconds, but the file takes at most"),
        (of_header(rate=4294967290), ValueError, "at most 10000000 Hz, got 4294967290 Hz"),
        # As 16 kHz it would take 0.5 GB.
        (wav_of(SOUND, rate=1), ValueError, "has 128000000 samples, 8000.00 seconds, but the file"),
        (
            wav_of(np.where(TIME > 0.25, np.nan, SOUND), kind=3, bits=32),
            ValueError,
            "the WAV file must be finite, got nan as sample 4001",
        ),
        ("missing.wav", FileNotFoundError, "missing.wav"),
    ],
)
def test_what_cannot_be_transcribed(audio, error, message, file):
    with pytest.raises(error, match=message):
        file.transcribe(audio)


@tensorflow_only
def test_bad_rates_and_files_without_audio(file, tmp_path):
    for rate in (0, 1.5, True):
        with pytest.raises(ValueError, match="sample_rate must be a positive integer, in Hz"):
            file.transcribe(SOUND, sample_rate=rate)
    with pytest.raises(ValueError, match="sample_rate is for arrays: a WAV file has its own"):
        file.transcribe(wav_of(SOUND), sample_rate=RATE)
    with pytest.raises(ValueError, match="audio has no samples"):
        file.generate({"audio": [[]], "target": [[1]]})
    from keras_tfm.export import export_tflite

    x = keras.Input((3,), name="x")
    export_tflite(keras.Model(x, keras.layers.Dense(2)(x)), tmp_path / "x.tflite")
    with pytest.raises(ValueError, match="has no input of audio"):
        runtime.load(tmp_path / "x.tflite").transcribe(SOUND)


@tensorflow_only
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"default_prompt": [1, 3]}, r"got 2 ids, prompt_length None and \['generate'\]"),
        ({"default_prompt": [1, 99], "prompt_length": 2}, r"must be ids in 0\.\.12, got \[1, 99\]"),
        ({"default_prompt": [], "prompt_length": 2}, "got 0 ids"),
    ],
)
def test_impossible_prompts(options, message, whisper, tmp_path):
    from keras_tfm.export import export_tflite

    with pytest.raises(ValueError, match=message):
        export_tflite(whisper, tmp_path / "x", ["generate"], max_length=9, start_id=1, **options)


@tensorflow_only
def test_a_classifier_of_sounds_and_the_command(file, tmp_path):
    from typer.testing import CliRunner

    from keras_tfm.cli import app
    from keras_tfm.export import export_tflite

    audio = keras.Input((RATE // 2,), name="audio")
    x = keras.layers.GlobalAveragePooling1D()(layers.LogMelSpectrogram(8)(audio))
    model = randomize(keras_tfm.Model(audio, keras.layers.Dense(3, name="class")(x)))
    path = tmp_path / "classes.tflite"
    export_tflite(model, path, labels=["hum", "beep", "hiss"])
    loaded = runtime.load(path)
    (found,) = loaded.predict_audio(SOUND).values()
    assert_close(found, model(SOUND[np.newaxis]), 1e-4)
    # One second at 32 kHz is half a second at 16 kHz: the same tone, twice as high.
    (other,) = loaded.predict_audio(np.repeat(SOUND, 2), sample_rate=2 * RATE).values()
    assert other.shape == (1, 3)
    with pytest.raises(ValueError, match="audio must have 8000 samples, got 4000"):
        loaded.predict_audio(SOUND[:4000])

    recording = tmp_path / "x.wav"
    recording.write_bytes(wav_of(SOUND, kind=3, bits=32))
    run = CliRunner().invoke(app, ["predict", str(path), str(recording)])
    assert run.exit_code == 0, run.output
    assert run.stdout.split()[0] == ["hum", "beep", "hiss"][int(np.argmax(found))]
    run = CliRunner().invoke(app, ["predict", str(file.path), str(recording), str(recording)])
    line = f"{recording}\t{file.transcribe(str(recording)).strip()}\n"
    assert (run.exit_code, run.stdout) == (0, 2 * line)
    run = CliRunner().invoke(app, ["predict", str(file.path), "missing.wav"])
    assert run.exit_code == 1
