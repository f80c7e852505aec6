"""Memory that is returned to the system: what is in it afterwards, and that it is returned."""

import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from keras_tfm.runtime import memory
from keras_tfm.runtime.memory import clear, drop_pages

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux's pages")
SIZE = 32 << 20


def resident(kind):
    """MB of this process: "RssAnon", or "RssFile" of mapped files."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{kind}:\s+(\d+) kB", status)[1]) / 1024


@pytest.mark.parametrize("size", [0, 1, 7, 4095, 4096, 4097, 8191, 8192, 12288, 40001])
@pytest.mark.parametrize("start", [0, 1, 64, 4095])
def test_an_array_is_cleared_and_nothing_beside_it(start, size):
    around = np.full(60_000, 7, np.uint8)
    clear(around[start : start + size])
    expected = np.full(60_000, 7, np.uint8)
    expected[start : start + size] = 0
    np.testing.assert_array_equal(around, expected)


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "float64"])
def test_arrays_of_several_axes(dtype):
    array = np.ones((3, 5, 1001), dtype)
    clear(array)
    assert not array.any()


@on_linux
def test_zeros_take_no_memory_until_they_are_written():
    array = np.ones(SIZE, np.uint8)
    before = resident("RssAnon")
    clear(array)
    assert not array.any()  # reads each page
    assert resident("RssAnon") < before - 28
    array[...] = 1
    assert resident("RssAnon") > before - 4


def test_where_the_system_drops_nothing(monkeypatch):
    """Locked pages, for instance: they are written."""
    monkeypatch.setattr(memory, "_drop", lambda start, size: None)
    array = np.ones(50_000)
    clear(array)
    assert not array.any()


@on_linux
@pytest.mark.parametrize("name", ["model.tflite", "a name with  spaces", os.fsdecode(b"a\xff\x0c")])
def test_pages_of_a_file_are_dropped_and_read_again(tmp_path, name):
    content = np.random.default_rng(0).integers(0, 256, SIZE, "uint8")
    content.tofile(tmp_path / name)
    mapped = np.memmap(tmp_path / name, mode="r")
    total = int(mapped.sum())
    before = resident("RssFile")
    drop_pages(tmp_path / name)
    assert resident("RssFile") < before - 28
    assert int(mapped.sum()) == total


@on_linux
@pytest.mark.parametrize("mode", ["c", "r+"])
def test_what_somebody_wrote_to_a_mapped_file_stays(tmp_path, mode):
    np.zeros(100_000, np.uint8).tofile(tmp_path / "file")
    mapped = np.memmap(tmp_path / "file", mode=mode)
    mapped[50_000:] = 3
    drop_pages(tmp_path / "file")
    assert int(mapped.sum()) == 150_000


@on_linux
def test_other_mapped_files_have_any_name(tmp_path):
    for name in (b"\xff", "\u2028".encode(), b"a\x0cb", b"a\nb", b"\r", b" "):
        path = tmp_path / os.fsdecode(name)
        path.write_bytes(b"x" * 5000)
        mapped = np.memmap(path, mode="r")
        found = [x for x in memory.mappings() if x.start == mapped.ctypes.data]
        assert len(found) == 1 and found[0].size >= 5000


def test_a_system_that_does_not_tell_its_mappings(monkeypatch, tmp_path):
    def fail():
        raise PermissionError

    monkeypatch.setattr(memory, "mappings", fail)
    drop_pages(tmp_path / "file")
