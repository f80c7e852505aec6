"""The manifest and its checksum: a damaged file, or another's, is refused."""

import hashlib
import json
import random
import re
import sys
from pathlib import Path

import flatbuffers
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert import schema_py_generated as schema
from small_exports import small_file, small_tokens

from keras_tfm import runtime
from keras_tfm.runtime import flatbuffer
from keras_tfm.runtime import manifest as manifests
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


def test_every_byte_of_the_manifest_is_noticed(content, refusal):
    """The checksum, its quotes and its name among them; one bit of each."""
    start = content.index(b'{"keras_tfm"')
    end = content.index(b'"}', content.index(b'"sha256"')) + 2
    assert end - start > 300
    for offset in range(start, end):
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
    refusal(content[:end])


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
    for path in (tmp_path / "missing.tflite", tmp_path, str(tmp_path / "missing.tflite")):
        with pytest.raises(FileNotFoundError, match=f"no such file: {re.escape(str(path))}"):
            runtime.load(path)


def test_any_path_will_do(content, tmp_path):
    path = tmp_path / "mein Modell ä.tflite"
    path.write_bytes(content)
    for one in (path, str(path)):
        tokens = runtime.load(one).generate([3, 4, 5, 6, 7]).tokens
        np.testing.assert_array_equal(tokens, small_tokens(num_layers=2)[:1])


def test_what_is_added_is_read(foreign, tmp_path):
    given = {"signatures": {"ä": [1, None]}, "text": 'quotes "" and \\'}
    path = tmp_path / "model.tflite"
    path.write_bytes(flatbuffer.add_manifest(foreign, given))
    read = manifests.read(path)
    assert {key: read[key] for key in given} == given


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

    assert names(foreign)
    assert names(flatbuffer.add_manifest(foreign, {})) == [*names(foreign), b"keras_tfm"]


@pytest.mark.parametrize("module", ["ai_edge_litert.schema_py_generated", "ai_edge_litert"])
def test_a_missing_extra_is_named(monkeypatch, module):
    for name in [name for name in sys.modules if name.startswith(module)]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "keras-tfm\[edge\]"') as caught:
        runtime.load(small_file(num_layers=2).path)
    assert "\n" not in str(caught.value)
