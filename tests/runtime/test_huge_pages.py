"""Packed weights in huge pages: the same bytes at the same addresses."""

import ctypes
import mmap
import os
import sys

import numpy as np
import pytest

from keras_tfm.runtime import huge_pages
from keras_tfm.runtime.huge_pages import CHUNK, HUGE, packed_weights_in_huge_pages

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux's huge pages")


@pytest.fixture
def offered(tmp_path, monkeypatch):
    """A system that offers huge pages, whatever this one does."""
    setting = tmp_path / "enabled"
    setting.write_text("always [madvise] never\n")
    monkeypatch.setattr(huge_pages, "_SETTING", setting)
    return setting


class Cache:
    """What XNNPACK's delegate creates: a file in memory, mapped for reading, in one or more parts.

    A part begins at the page in which the one before it ends.
    """

    def __init__(self, size, name=huge_pages.NAME, begins=(0,)):
        self.content = np.random.default_rng(0).integers(0, 256, size, "uint8")
        self.file = os.memfd_create(name.removeprefix("/memfd:"))
        os.write(self.file, self.content.tobytes())
        ends = [*(begin + 4096 for begin in begins[1:]), size]
        self.parts = [slice(*ends) for ends in zip(begins, ends, strict=True)]
        self.mappings = [
            mmap.mmap(self.file, x.stop - x.start, mmap.MAP_SHARED, mmap.PROT_READ, offset=x.start)
            for x in self.parts
        ]
        self.arrays = [np.frombuffer(x, "uint8") for x in self.mappings]

    def check(self):
        for array, part in zip(self.arrays, self.parts, strict=True):
            np.testing.assert_array_equal(array, self.content[part])

    @property
    def is_mapped(self):
        """Whether its memory is still that of the file."""
        starts = {x.start for x in huge_pages._mappings()}
        return bool(starts & {x.ctypes.data for x in self.arrays})

    @property
    def bytes_of_the_file(self):
        return 512 * os.fstat(self.file).st_blocks


@pytest.mark.parametrize("size", [4096, HUGE, 3 * HUGE + 4096, CHUNK + 5 * HUGE + 3 * 4096])
def test_the_content_stays_at_its_address(offered, size):
    with packed_weights_in_huge_pages():
        cache = Cache(size)
        assert cache.is_mapped
        assert cache.bytes_of_the_file == size
    assert not cache.is_mapped
    cache.check()
    assert cache.bytes_of_the_file == 0
    cache.arrays.clear()
    cache.mappings[0].close()  # as XNNPACK does at the end


@pytest.mark.parametrize("begins", [(0, 4096), (0, 8192, 3 * HUGE), (0, HUGE, HUGE + 4096)])
def test_parts_that_share_a_page(offered, begins):
    with packed_weights_in_huge_pages():
        cache = Cache(5 * HUGE, begins=begins)
    assert not cache.is_mapped
    cache.check()
    assert cache.bytes_of_the_file <= 4096 * 2 * len(begins)  # the shared pages at most


def test_only_caches_of_the_block_are_moved(offered):
    before = Cache(HUGE)
    with packed_weights_in_huge_pages():
        other = Cache(HUGE, "/memfd:something else")
    after = Cache(HUGE)
    for cache in (before, other, after):
        assert cache.bytes_of_the_file == HUGE
        cache.check()
    assert before.is_mapped and after.is_mapped


@pytest.mark.parametrize("setting", ["always madvise [never]", None])
def test_nothing_moves_where_huge_pages_are_not_offered(offered, setting):
    offered.write_text(setting) if setting else offered.unlink()
    with packed_weights_in_huge_pages():
        cache = Cache(HUGE)
    assert cache.is_mapped


def test_after_an_error_of_the_system_the_weights_are_where_they_were(offered, monkeypatch):
    class WithoutMemory:
        def mmap(self, *arguments):
            return ctypes.c_void_p(-1).value

    monkeypatch.setattr(huge_pages, "_library", WithoutMemory)
    with packed_weights_in_huge_pages():
        cache = Cache(HUGE)
    assert cache.is_mapped
    cache.check()
