"""Files that read a source in pieces."""

import keras
import numpy as np
import pytest
from keras_weights import randomize
from manifest_lies import read_manifest, with_manifest
from small_exports import new_path, once_a_run

from keras_tfm import layers
from keras_tfm.export import export_tflite
from keras_tfm.generation import ModelStream, StepRule, register_step
from keras_tfm.runtime import load
from keras_tfm.runtime.manifest.manifest import WITH_STREAMS

K = keras.layers
D = 6


def encoder():
    """Two convolutions, attention that looks ahead, and a recurrent layer."""
    x = source = keras.Input((None, D), name="readings")
    for _ in range(2):
        x = K.Conv1D(12, 3, strides=2, padding="causal", activation="silu")(x)
    attention = layers.MultiHeadSelfAttention(3, window=(5, 3), position=layers.RotaryEmbedding())
    x = layers.TransformerEncoderBlock(20, self_attention=attention, normalize_first=True)(x)
    x = K.GRU(7, return_sequences=True)(x)
    return randomize(keras.Model(source, x, name="encoder"))


@once_a_run
def encoder_file(path, quantization):
    rows = [readings(40, seed) for seed in range(4)]
    return export_tflite(
        encoder(), path, ["stream", "predict"], quantization, source_length=40, piece_length=8,
        verify_inputs={"readings": rows},
    )  # fmt: skip


def readings(length, seed=0):
    return np.random.default_rng(seed).normal(size=(length, D)).astype("float32")


def read(stream, values, sizes=(11, 3, 0, 9)):
    parts, i, turn = [], 0, 0
    while i < len(values):
        size = sizes[turn % len(sizes)]
        parts.append(stream.append(values[i : i + size])["output"])
        i, turn = i + size, turn + 1
    return np.concatenate([*parts, stream.finish()["output"]])


def test_the_streamed_file_gives_what_the_model_gives():
    report, model = encoder_file("float32"), encoder()
    file = load(report.path)
    assert file.manifest["format"] == WITH_STREAMS
    for length in (37, 3):
        values = readings(length, seed=9)
        whole = np.array(model(values[np.newaxis]))[0]
        for stream in (file.open_stream(), ModelStream(model, 8)):
            assert (stream.delay, stream.stride, stream.piece_length) == (8, 4, 8)
            np.testing.assert_allclose(read(stream, values), whole, atol=1e-5)
    values = readings(40)
    whole = file.predict(values[np.newaxis])["output"][0]
    np.testing.assert_allclose(read(file.open_stream(), values), whole, atol=1e-5)


def test_a_rounded_file_streams_within_its_tolerance():
    report = encoder_file("int8")
    (check,) = [x for x in report.verification.checks if x.signature == "stream"]
    assert check.relative_error <= check.tolerance < 0.1
    values = readings(40)
    whole = load(report.path).predict(values[np.newaxis])["output"][0]
    found = read(load(report.path).open_stream(), values)
    error = np.sqrt(np.mean((found - whole) ** 2) / np.mean(whole**2))
    assert error <= 2 * check.tolerance  # one scale for each piece, or for all


def test_streams_do_not_disturb_each_other():
    file = load(encoder_file("float32").path)
    values = readings(32), readings(32, 1)
    alone = [read(file.open_stream(), x) for x in values]
    streams = [file.open_stream() for _ in values]
    parts = [[], []]
    for i in range(0, 32, 8):
        for stream, x, found in zip(streams, values, parts, strict=True):
            found.append(stream.append(x[i : i + 8])["output"])
    for stream, found, expected in zip(streams, parts, alone, strict=True):
        found.append(stream.finish()["output"])
        np.testing.assert_array_equal(np.concatenate(found), expected)


def test_the_report_tells_the_delay_and_the_size_of_the_states():
    report = encoder_file("float32")
    states = report.manifest["signatures"]["stream"]["states"]
    inputs = report.manifest["signatures"]["stream"]["inputs"]
    # Two convolutions, three tensors of attention and the block's input, and the recurrent state.
    assert len(states) == 7
    count = sum(np.prod(inputs[name]["shape"]) for name in states)
    assert f"stream: 8 positions late, keeps {count} numbers" in str(report)


def test_values_of_a_stream_are_checked():
    stream = load(encoder_file("float32").path).open_stream()
    with pytest.raises(ValueError, match=r"readings must have shape \(T, 6\), got \(3, 5\)"):
        stream.append(np.ones((3, 5)))
    with pytest.raises(TypeError, match="readings must be numbers, got str"):
        stream.append("readings.csv")
    with pytest.raises(TypeError, match="readings must be numbers, got <U1"):
        stream.append(np.full((3, D), "a"))
    stream.append(readings(9))
    stream.finish()
    with pytest.raises(ValueError, match="readings: the stream has ended: begin another one"):
        stream.append(readings(1))


@pytest.mark.parametrize(
    ("roles", "arguments", "message"),
    [
        (["stream"], {}, "'stream' and piece_length need each other, got"),
        (["predict"], {"piece_length": 4, "source_length": 8}, "need each other, got"),
        (["stream"], {"piece_length": 8, "batch_size": 2}, "batch_size=1, got 'cpu' and 2"),
        (["stream"], {"piece_length": 8, "accelerator": "gpu"}, "accelerator='cpu'"),
        (["stream"], {"piece_length": 6}, "its strides of 2 must divide"),
    ],
)
def test_arguments_of_the_export(tmp_path, roles, arguments, message):
    with pytest.raises(ValueError, match=message):
        export_tflite(encoder(), tmp_path / "x.tflite", roles, **arguments)
    assert not list(tmp_path.iterdir())


def test_a_file_without_the_signature_says_so():
    source = keras.Input((None, D))
    model = keras.Model(source, K.Dense(2)(source))
    file = load(export_tflite(model, new_path(), source_length=3, verify=False).path)
    with pytest.raises(ValueError, match="has no signature 'stream', it has"):
        file.open_stream()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"delay": -1}, "delay must be an integer of at least 0, got -1"),
        ({"delay": 2**31}, "delay must be less than 524288"),
        ({"stride": 3}, "stride must divide 8, got 3"),
        ({"stride": 2}, r"outputs.output must begin with \[1, 4\]"),
        ({"final": "output"}, r"outputs.output must be \[1, 2\] int32"),
        ({"states": []}, "stream.states must be"),
        ({"states": ["readings"]}, "lacks 'readings'"),
    ],
)
def test_a_manifest_that_lies_is_refused(tmp_path, change, message):
    content = load(encoder_file("float32").path).content()
    manifest = read_manifest(content)
    manifest["signatures"]["stream"].update(change)
    path = tmp_path / "lie.tflite"
    path.write_bytes(with_manifest(content, manifest))
    with pytest.raises(ValueError, match=message) as caught:
        load(path)
    assert "\n" not in str(caught.value)


class Position(K.Layer):
    """(B, T, D) -> (B, T, D): each vector times its position, counted from 1."""

    def call(self, x):
        return x * keras.ops.arange(1.0, keras.ops.shape(x)[1] + 1)[:, None]


class PositionRule(StepRule):
    def begin(self, layer, x, rows):
        return keras.ops.zeros((rows,), "int32")

    def token(self, layer, x, state):
        return x * keras.ops.cast(state + 1, x.dtype)[:, None], state + 1


def test_a_state_of_one_number_for_each_row(tmp_path):
    register_step(Position, PositionRule())
    source = keras.Input((None, D), name="readings")
    late = K.Conv1D(D, 3, padding="same")(source)  # so that a piece begins before the sequence
    model = randomize(keras.Model(source, Position()(late)))
    report = export_tflite(model, tmp_path / "m.tflite", ["stream"], piece_length=4)
    assert report.verification.failures == []
    values = readings(11)
    whole = np.array(model(values[np.newaxis]))[0]
    found = read(load(report.path).open_stream(), values)
    np.testing.assert_allclose(found, whole, atol=1e-5 * np.abs(whole).max())
