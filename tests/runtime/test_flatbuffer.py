"""A .tflite file as objects: read without a copy, written one constant at a time."""

import mmap
import resource
import signal
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from small_exports import small_file
from traced_memory import at_most

from keras_tfm import runtime
from keras_tfm.runtime import flatbuffer
from keras_tfm.runtime.flatbuffer import LazyBytes
from keras_tfm.runtime.inspection import inspect_file, inspection
from keras_tfm.runtime.manifest import storage

MEGABYTES = 1 << 20
INPUTS = {"source": np.int32([[3, 4, 5]]), "target": np.int32([[1, 2]])}


@pytest.fixture(scope="module")
def path():
    return Path(small_file(num_layers=2).path)


@pytest.fixture
def manifest(path):
    return storage.read(path)


def plain(path):
    """The file as objects, without metadata."""
    model = flatbuffer.read(path.read_bytes())
    model.metadata = []
    return model


def constant(model, data):
    """Adds a constant, which no tensor refers to."""
    buffer = schema.BufferT()
    buffer.data = data
    model.buffers.append(buffer)


def constants(content):
    """The constants as arrays that share the memory of `content`, by the number of the buffer."""
    file = schema.Model.GetRootAsModel(content, 0)
    found = [file.Buffers(i).DataAsNumpy() for i in range(file.BuffersLength())]
    return {i: x for i, x in enumerate(found) if isinstance(x, np.ndarray)}


def offsets(content):
    start = np.frombuffer(content, np.uint8).ctypes.data
    return {i: x.ctypes.data - start for i, x in constants(content).items()}


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, "map"])
def test_constants_are_views_of_what_is_read(kind, path):
    if kind == "map":
        content = storage.map_content(path)
        assert isinstance(content, mmap.mmap)
    else:
        content = kind(path.read_bytes())
    model, memory = flatbuffer.read(content), np.frombuffer(content, np.uint8)
    datas = [x.data for x in model.buffers if x.data is not None and len(x.data)]
    assert len(datas) > 10 and all(np.shares_memory(x, memory) for x in datas)
    weights = flatbuffer.float_weights(model)
    assert weights and all(np.shares_memory(x, memory) for x in weights.values())


def test_what_is_written_is_what_was_read(path, manifest, tmp_path):
    model = plain(path)
    new = tmp_path / "new.tflite"
    flatbuffer.save(new, model, manifest, {"other": b"entry"})
    assert new.read_bytes() == flatbuffer.write(model, manifest, {"other": b"entry"})
    assert model.metadata == []  # as it was
    before, after = constants(path.read_bytes()), constants(new.read_bytes())
    assert all(np.array_equal(after[i], x.data) for i, x in enumerate(model.buffers) if i in before)
    assert all(offset % 16 == 0 for offset in offsets(new.read_bytes()).values())
    found, wanted = (runtime.load(x) for x in (new, path))
    np.testing.assert_array_equal(found.predict(INPUTS)["output"], wanted.predict(INPUTS)["output"])
    with pytest.raises(FileExistsError):
        flatbuffer.save(new, model)
    assert runtime.load(new)


def test_arguments_are_renamed_in_the_file_only(path):
    model = plain(path)
    (signature,) = (x for x in model.signatureDefs if x.signatureKey == b"predict")
    before = [x.name for x in signature.inputs]
    renamed = flatbuffer.read(flatbuffer.write(model, arguments={"predict": {"source": "text"}}))
    (changed,) = (x for x in renamed.signatureDefs if x.signatureKey == b"predict")
    assert [x.name for x in changed.inputs] == [x.replace(b"source", b"text") for x in before]
    assert [x.name for x in signature.inputs] == before


def test_equal_constants_are_stored_once(path):
    """Small ones by their bytes, large ones and lazy ones only as the same object."""
    model, rng = plain(path), np.random.default_rng(0)
    count = len(model.buffers)
    small, large = (rng.integers(0, 256, n).astype("uint8") for n in (1000, 3 * MEGABYTES))
    lazy = [LazyBytes(1000, lambda: [small]) for _ in range(2)]
    for data in (small, small.copy(), large, large, large.copy(), lazy[0], lazy[0], lazy[1]):
        constant(model, data)
    content = flatbuffer.write(model)
    found, places = constants(content), offsets(content)
    for number in range(count, count + 8):
        np.testing.assert_array_equal(found[number], large if 2 <= number - count < 5 else small)
    names = [places[number] for number in range(count, count + 8)]
    same = [(i, j) for i in range(8) for j in range(i) if names[i] == names[j]]
    assert same == [(1, 0), (3, 2), (6, 5)]


@pytest.mark.default
def test_lazy_constants_are_never_in_memory_as_a_whole(path, manifest, tmp_path):
    model, whole = plain(path), 64 * MEGABYTES
    constant(model, LazyBytes(whole, lambda: (np.full(MEGABYTES, i, "uint8") for i in range(64))))
    new = tmp_path / "new.tflite"
    flatbuffer.save(new, model, manifest)  # imports what it needs
    new.unlink()
    with at_most(whole // 8):
        flatbuffer.save(new, model, manifest)
    # The manifest follows.
    data = constants(new.read_bytes())[len(model.buffers) - 1]
    np.testing.assert_array_equal(data.reshape(64, -1).mean(axis=1), np.arange(64))
    assert runtime.load(new)  # the checksum is right


@pytest.mark.parametrize("size", [7, 9])
def test_a_lazy_constant_of_another_size_is_an_error(size, path, tmp_path):
    model = plain(path)
    constant(model, LazyBytes(8, lambda: [bytes(size)]))
    with pytest.raises(ValueError, match=f"expected a constant of 8 bytes, got {size}"):
        flatbuffer.save(tmp_path / "new.tflite", model)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_nothing(path, manifest, tmp_path):
    """A limit on the size of files: what a disk without room answers."""
    new, (soft, hard) = tmp_path / "new.tflite", resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size // 2, hard))
        with pytest.raises(OSError, match=f"{new}") as caught:
            flatbuffer.save(new, plain(path), manifest)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def test_partitions_do_not_depend_on_weights(path, monkeypatch):
    wanted = inspect_file(path)
    monkeypatch.setattr(flatbuffer, "_SMALL", 100)
    model = flatbuffer.read(path.read_bytes())
    small = flatbuffer.without_weights(model)
    assert len(small) < path.stat().st_size
    file = schema.Model.GetRootAsModel(small, 0)
    moved = [x for x in map(file.Buffers, range(file.BuffersLength())) if x.Offset() > 1]
    assert len(moved) > 10 and len({x.Offset() for x in moved}) == 1
    assert flatbuffer.write(model) == flatbuffer.write(flatbuffer.read(path.read_bytes()))
    assert inspect_file(path) == wanted


def test_tables_have_the_sizes_of_constants(path):
    content = path.read_bytes()
    tables = flatbuffer.tables(flatbuffer.read(content))
    assert len(tables) < len(content)
    assert inspection.bytes_by_scopes(tables) == inspection.bytes_by_scopes(content)


def test_a_file_system_without_memory_maps(path, monkeypatch):
    """The file is read, and LiteRT, which would map it, gets its bytes."""
    wanted = runtime.load(path).predict(INPUTS)["output"]

    def refuse(*arguments, **options):
        raise OSError(19, "No such device")

    monkeypatch.setattr(storage.mmap, "mmap", refuse)
    assert isinstance(storage.loadable(path), bytes)
    file = runtime.load(path)
    np.testing.assert_array_equal(file.predict(INPUTS)["output"], wanted)
    assert file.path == path and inspect_file(path).bytes == path.stat().st_size
