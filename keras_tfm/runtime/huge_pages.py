"""Moves XNNPACK's packed weights in memory to huge pages, on Linux.

A decoding step reads every weight once. Linux maps a cache in memory in pages of 4 KiB, whose
addresses a processor looks up again and again: on a virtual machine a third of a step's time, see
benchmarks/NOTES.md. A huge page has 2 MiB.
"""

import contextlib
import ctypes
import mmap
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keras_tfm.runtime.memory import Mapping, advise, mappings

# The size of a huge page, of x86 and ARM with base pages of 4 KiB.
HUGE = 2 << 20
# Bytes that are moved at once: what the process needs beside the weights.
CHUNK = 4 * HUGE
# The name of the file in memory that has the packed weights.
NAME = "/memfd:keras_tfm packed weights"
_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
# Linux's numbers, the same on every processor.
_MREMAP_MAYMOVE, _MREMAP_FIXED = 1, 2
_FALLOC_FL_KEEP_SIZE, _FALLOC_FL_PUNCH_HOLE = 1, 2

_lock = threading.Lock()


@contextlib.contextmanager
def memory_file() -> Iterator[str | None]:
    """The path of an empty file in memory for packed weights; None where the system has none."""
    descriptor = None
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError, OSError):  # an old C library or system
            descriptor = os.memfd_create(NAME.removeprefix("/memfd:"))
    if descriptor is None:
        yield None
        return
    try:
        path = Path(f"/proc/self/fd/{descriptor}")
        yield str(path) if path.exists() else None
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def packed_weights_in_huge_pages() -> Iterator[None]:
    """Moves the weights that XNNPACK packs in memory within the block, at its end.

    XNNPACK must not pack more weights after the block: it would map their file again, whose pages
    are released here.

    Nothing is moved where the system does not offer huge pages, and after an error of the system
    the rest stays where it is: the content of the memory is the same at any time.
    """
    if not _are_offered():
        yield
        return
    with _lock:
        before = set(_mappings())
        yield
        with contextlib.suppress(OSError, AttributeError):
            new = [x for x in _mappings() if x not in before]
            for mapping in new:
                _move(mapping, [x for x in new if x.inode == mapping.inode and x != mapping])


def _are_offered() -> bool:
    try:
        return sys.platform == "linux" and "[never]" not in _SETTING.read_text()
    except OSError:
        return False


def _mappings() -> list[Mapping]:
    """The mapped caches in memory of this process."""
    return [x for x in mappings() if x.name.startswith(NAME)]


def _move(mapping: Mapping, others: list[Mapping]) -> None:
    """Replaces the pages of a mapping by huge ones with the same content.

    A chunk is copied and then takes the place of the old one in a single step of the system, so
    that no thread ever sees other content. Pages of the file that the other mappings of the file do
    not have are released at once.
    """
    if sys.platform != "linux":
        return
    library = _library()
    descriptor = _descriptor(mapping.inode)
    for first in range(mapping.start, mapping.start + mapping.size, CHUNK):
        size = min(CHUNK, mapping.start + mapping.size - first)
        # The copy begins at the same place of a huge page as the original.
        space = library.mmap(
            None,
            size + HUGE,
            mmap.PROT_READ | mmap.PROT_WRITE,
            mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
            -1,
            0,
        )
        if space in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), "mmap")
        copy = space + (first - space) % HUGE
        advise(space, size + HUGE, mmap.MADV_HUGEPAGE)
        ctypes.memmove(copy, first, size)
        # The system checks its limits before it drops the old pages.
        moved = library.mremap(copy, size, size, _MREMAP_MAYMOVE | _MREMAP_FIXED, first)
        for left, right in ((space, copy), (copy + size, space + size + HUGE)):
            if left < right:
                library.munmap(left, right - left)
        if moved != first:
            raise OSError(ctypes.get_errno(), "mremap")
        offset = mapping.offset + first - mapping.start
        left, right = _alone(offset, offset + size, others)
        if descriptor is not None and left < right:
            mode = _FALLOC_FL_KEEP_SIZE | _FALLOC_FL_PUNCH_HOLE
            library.fallocate(descriptor, mode, left, right - left)


def _alone(left: int, right: int, others: list[Mapping]) -> tuple[int, int]:
    """The part of a range of a file that no other mapping has: neighbours share a page.

    It is empty if another mapping begins and ends within the range.
    """
    for x in others:
        start, end = x.offset, x.offset + x.size
        if start <= left:
            left = max(left, end)
        elif end >= right:
            right = min(right, start)
        else:
            return left, left
    return left, right


def _descriptor(inode: int) -> int | None:
    """The open file of a cache in memory, whose pages are kept as long as it is open."""
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # a file that was closed meanwhile
            found = int(link.name)
            if str(link.readlink()).startswith(NAME) and os.fstat(found).st_ino == inode:
                return found
    return None


def _library() -> Any:
    """The C library, with the types of the functions that are called."""
    library: Any = ctypes.CDLL(None, use_errno=True)
    address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    for function, types in (
        (library.mmap, [address, size, number, number, number, ctypes.c_long]),
        (library.mremap, [address, size, size, number, address]),
        (library.munmap, [address, size]),
        (library.fallocate, [number, number, ctypes.c_long, ctypes.c_long]),
    ):
        function.argtypes = types
    library.mmap.restype = library.mremap.restype = address
    return library
