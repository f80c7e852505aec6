"""The manifest and its checksum: a damaged file, or another's, is refused."""

import copy
import functools
import hashlib
import json
import os
import random
import re
import sys
from pathlib import Path

import flatbuffers
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert import schema_py_generated as schema
from small_exports import new_path, small, small_file, small_tokens, with_manifest

from keras_tfm import runtime
from keras_tfm.export import export_tflite
from keras_tfm.runtime import flatbuffer
from keras_tfm.runtime.manifest import storage as manifests
from keras_tfm.runtime.manifest.checks import check_manifest, read_graphs
from keras_tfm.runtime.manifest.manifest import FORMAT, ROLES, Manifest, check_format
from keras_tfm.version import __version__


@pytest.fixture(scope="module")
def content():
    return Path(small_file(num_layers=2).path).read_bytes()


@pytest.fixture(scope="module")
def foreign():
    """A .tflite file that keras_tfm did not write."""
    double = tf.function(lambda x: {"y": 2.0 * x}, input_signature=[tf.TensorSpec((1, 3))])
    converter = tf.lite.TFLiteConverter.from_concrete_functions([double.get_concrete_function()])
    return converter.convert()


@pytest.fixture
def refusal(tmp_path):
    """Why a file of some bytes is not loaded."""

    def refuse(content):
        path = tmp_path / "model.tflite"
        path.write_bytes(content)
        with pytest.raises(ValueError, match=re.escape(str(path))) as caught:
            runtime.load(path)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return refuse


def test_any_flipped_byte_is_noticed(content, refusal):
    generator = random.Random(13)
    for offset in generator.sample(range(len(content)), 60):
        damaged = bytearray(content)
        damaged[offset] ^= generator.randrange(1, 256)
        refusal(bytes(damaged))


@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.slow)])
def test_every_byte_of_the_manifest_is_noticed(content, refusal, step):
    """The checksum, its quotes and its name among them; one bit of each."""
    start = content.index(b'{"keras_tfm"')
    end = content.index(b'"}', content.index(b'"sha256"')) + 2
    assert end - start > 300
    for offset in [*range(start, end, step), *range(end - 80, end)]:
        damaged = bytearray(content)
        damaged[offset] ^= 1 << offset % 7
        refusal(bytes(damaged))


def test_the_structure_of_the_file_is_noticed(content, refusal):
    """Offsets and sizes, at the beginning, which every reader follows."""
    for offset in range(64):
        damaged = bytearray(content)
        damaged[offset] ^= 0x41
        refusal(bytes(damaged))


@pytest.mark.parametrize("length", [0, 1, 4, 7, 8, 9, 100, 0.1, 0.5, 0.9, 0.999, -1])
def test_truncated(content, refusal, length):
    end = int(length * len(content)) if isinstance(length, float) else length
    message = refusal(content[:end])
    if length == 0.5:
        assert f"is damaged or truncated: its manifest is not in its {end:,} bytes" in message


def test_longer_than_it_was(content, refusal):
    assert "is damaged" in refusal(content + b"\0")


def test_text(refusal):
    message = refusal(b"Dear Sir or Madam,\n")
    assert (
        "is not a .tflite file: expected the identifier b'TFL3' at byte 4, got b' Sir'" in message
    )


def test_empty(refusal):
    assert "got b'' in 0 bytes" in refusal(b"")


def test_random_bytes_after_the_identifier(refusal):
    generator = np.random.default_rng(0)
    for _ in range(20):
        refusal(generator.bytes(4) + b"TFL3" + generator.bytes(int(generator.integers(0, 2000))))


def test_anothers_file(foreign, refusal):
    message = refusal(foreign)
    assert "has no keras_tfm manifest" in message


def with_metadata(content, raw):
    """The file with `raw` where a manifest would be."""
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(content, 0))
    entry, buffer = schema.MetadataT(), schema.BufferT()
    entry.name, entry.buffer, buffer.data = b"keras_tfm", len(model.buffers), list(raw)
    model.buffers.append(buffer)
    model.metadata = [entry]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'"text"',
        b"3",
        b"{",
        b"\xff\xfe",
        b'{"sha256": 5}',
        b'{"sha256": null}',
        b'{"sha256": ""}',
        b'{"sha256": []}',
        b'{"signatures": {}}',
        b'{"sha256": "' + b"0" * 64 + b'"}',
    ],
)
def test_a_manifest_of_another_kind(foreign, refusal, raw):
    refusal(with_metadata(foreign, raw))


def test_no_file(tmp_path):
    for path in (tmp_path / "missing.tflite", str(tmp_path / "missing.tflite")):
        with pytest.raises(FileNotFoundError, match=f"no such file: {re.escape(str(path))}"):
            runtime.load(path)
    with pytest.raises(IsADirectoryError, match=r"is a folder, expected a \.tflite file"):
        runtime.load(tmp_path)
    for path in ("/dev/null", tmp_path / "pipe"):
        if path != "/dev/null":
            os.mkfifo(path)
        with pytest.raises(ValueError, match=f"{path} is a device, a pipe or a socket, expected"):
            runtime.load(path)


def test_any_path_will_do(content, tmp_path):
    path = tmp_path / "mein Modell ä.tflite"
    path.write_bytes(content)
    for one in (path, str(path)):
        tokens = runtime.load(one).generate([3, 4, 5, 6, 7]).tokens
        np.testing.assert_array_equal(tokens, small_tokens(num_layers=2)[:1])


def test_what_is_added_is_read(content, tmp_path):
    given = {"text": 'quotes "" and \\', "ä": [1, None]}
    path = tmp_path / "model.tflite"
    path.write_bytes(with_manifest(content, lambda manifest: manifest.update(given)))
    read = manifests.read(path).to_json()
    assert {key: read[key] for key in given} == given


def test_a_newer_format_is_named(content, refusal):
    def newer(manifest):
        manifest.update(format=FORMAT + 1, keras_tfm="9.0")

    message = refusal(with_manifest(content, newer))
    assert message.endswith(
        f"keras_tfm 9.0 wrote it in format {FORMAT + 1}, and this version reads "
        f"formats up to {FORMAT}: update keras_tfm"
    )


@pytest.fixture(scope="module")
def whole():
    """A file of every role, with a prompt."""
    sizes = {"source_length": 5, "max_length": 7, "start_id": 1, "prompt_length": 3}
    roles = [x for x in ROLES if x != "stream"]
    report = export_tflite(small(), new_path(), roles, verify=False, **sizes)
    return Path(report.path).read_bytes()


def places(manifest):
    """Every field that the runtime reads, as keys from the manifest down."""
    yield from ((key,) for key in ("format", "keras_tfm", "quantization", "layers", "model"))
    yield ("signatures",)
    for name, signature in manifest["signatures"].items():
        yield from (("signatures", name, key) for key in signature if key != "prompt")
        for kind in ("inputs", "outputs"):
            for key, tensor in list(signature[kind].items())[:3]:
                yield ("signatures", name, kind, key)
                required = [x for x in tensor if x not in ("pad_id", "vocabulary_size")]
                yield from (("signatures", name, kind, key, field) for field in required)


def test_a_missing_or_odd_field_is_one_error(whole):
    text = whole[whole.index(b'{"keras_tfm"') :].decode("latin-1")  # the manifest is ASCII
    manifest, _ = json.JSONDecoder().raw_decode(text)
    checked = list(places(manifest))
    assert len(checked) > 100
    odd = [None, -1, 1.5, True, "x", [], [[]], {}, {"x": 1}]
    for number, keys in enumerate(checked):

        def remove(manifest, keys=keys):
            owner = functools.reduce(lambda x, key: x[key], keys[:-1], manifest)
            del owner[keys[-1]]

        def change(manifest, keys=keys, number=number):
            owner = functools.reduce(lambda x, key: x[key], keys[:-1], manifest)
            owner[keys[-1]] = odd[number % len(odd)]

        graphs = graphs_of(whole)
        for damage in (remove, change):
            damaged = copy.deepcopy(manifest)
            damage(damaged)
            try:
                check_format(damaged)
                check_manifest(Manifest.from_json(damaged), graphs)
            except ValueError as error:
                assert "\n" not in str(error) and len(str(error)) < 300
            else:  # another value that the field may hold
                assert damage is change and keys[-1] in MAY_HOLD_IT


# The fields that may hold one of the odd values.
MAY_HOLD_IT = ("model", "start_id", "end_id", "strategy", "keras_tfm", "layers", "padded")


def graphs_of(content):
    return read_graphs(schema, schema.Model.GetRootAsModel(content, 0))


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("quantization",), "int7", r'quantization must be one of float32, .*, got "int7"'),
        (("signatures",), [], "signatures must be an object of signatures, got "),
        (("signatures", "decode", "target"), "x", r"signatures\.decode\.inputs lacks 'x'"),
        (("signatures", "decode", "role"), "x", r"signatures\.decode\.role must be one of predict"),
        (
            ("signatures", "predict", "inputs", "source", "shape"),
            [1, 6],
            r"predict\.inputs\.source is int32 \(1, 6\), in the file int32 \(1, 5\)",
        ),
        (
            ("signatures", "predict", "outputs", "output", "dtype"),
            "int32",
            r"predict\.outputs\.output is int32 \(1, 7, 13\), in the file float32 \(1, 7, 13\)",
        ),
        (
            ("signatures", "predict", "outputs", "other"),
            {"shape": [1], "dtype": "int32"},
            r"predict\.outputs\.other is int32 \(1,\), in the file missing",
        ),
        (("signatures", "decode", "inputs", "position", "kind"), "cache", "one of kind 'position'"),
    ],
)
def test_the_error_names_the_field(whole, refusal, keys, value, message):
    def change(manifest):
        functools.reduce(lambda x, key: x[key], keys[:-1], manifest)[keys[-1]] = value

    assert re.search(message, refusal(with_manifest(whole, change)))


def test_a_signature_that_the_file_lacks(whole, refusal):
    def change(manifest):
        manifest["signatures"]["again"] = manifest["signatures"]["predict"]

    message = refusal(with_manifest(whole, change))
    assert message.endswith("signatures.again is not among the signatures of the file")


def test_an_input_that_the_manifest_lacks(whole, refusal):
    def change(manifest):
        del manifest["signatures"]["predict"]["inputs"]["target"]

    message = refusal(with_manifest(whole, change))
    assert message.endswith("predict.inputs.target is missing, in the file int32 (1, 7)")


def test_the_checksum_is_of_the_file_without_it(content):
    """So that another reader, in another language, can check it with this sentence."""
    found = re.search(rb'"sha256": "([0-9a-f]{64})"', content)
    blank = content[: found.start(1)] + b"0" * 64 + content[found.end(1) :]
    assert hashlib.sha256(blank).hexdigest() == found[1].decode()


def test_the_manifest_is_json_that_names_its_writer(content):
    start = content.index(b'{"keras_tfm"')
    manifest, _ = json.JSONDecoder().raw_decode(content[start:].decode("latin-1"))
    assert manifest["keras_tfm"] == __version__


def test_other_metadata_is_kept(foreign):
    """The converter's own is there, and the smallest runtime version."""

    def names(content):
        model = schema.Model.GetRootAsModel(content, 0)
        return [model.Metadata(i).Name() for i in range(model.MetadataLength())]

    empty = Manifest(
        keras_tfm="0.1", format=1, quantization="float32", signatures={}, layers={}, model=None
    )
    assert names(foreign)
    described = flatbuffer.write(flatbuffer.read(foreign), empty)
    assert names(described) == [
        *names(foreign),
        b"keras_tfm",
    ]


@pytest.mark.parametrize("module", ["ai_edge_litert.schema_py_generated", "ai_edge_litert"])
def test_a_missing_extra_is_named(monkeypatch, module):
    for name in [name for name in sys.modules if name.startswith(module)]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ModuleNotFoundError, match=r"pip install .*ai-edge-litert.*extra .edge"
    ) as caught:
        runtime.load(small_file(num_layers=2).path)
    assert "\n" not in str(caught.value)
