"""Returns memory that this process does not need to the system; on Linux."""

import contextlib
import ctypes
import mmap
import os
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Mapping(NamedTuple):
    """A range of this process's addresses, and the file that is mapped there.

    Attributes:
        start: int, the first address.
        size: int, in bytes.
        permissions: str, such as "r--p".
        offset: int, where the range begins in the file.
        inode: int, that of the file.
        name: str, the path of the file.
    """

    start: int
    size: int
    permissions: str
    offset: int
    inode: int
    name: str


def mappings() -> list[Mapping]:
    """The files that are mapped in this process.

    Raises:
        OSError: the system does not say.
    """
    found = []
    # In a name, any bytes but a newline.
    for line in os.fsdecode(Path("/proc/self/maps").read_bytes()).split("\n")[:-1]:
        addresses, permissions, offset, _, inode, *name = line.split(maxsplit=5)
        if name:
            start, end = (int(x, 16) for x in addresses.split("-"))
            place = Mapping(start, end - start, permissions, int(offset, 16), int(inode), name[0])
            found.append(place)
    return found


def return_freed_memory() -> None:
    """Returns memory that was freed to the system, which glibc otherwise keeps for later use."""
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)


def clear(array: np.ndarray) -> None:
    """Sets an array to zeros.

    On Linux, zeros take no memory until something else is written to their page, not even if they
    are read.

    Args:
        array: contiguous array, in memory of this process alone.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.runtime.memory import clear
    >>> array = np.full((3, 1000), np.nan)
    >>> clear(array)
    >>> int(array.sum())
    0
    """
    assert array.flags.c_contiguous
    data = array.reshape(-1).view(np.uint8)
    start, size, page = data.ctypes.data, data.size, mmap.PAGESIZE
    first, last = -start % page, size - (start + size) % page
    if sys.platform == "linux" and first < last:
        data[:first] = data[last:] = 0
        _drop(start + first, last - first)
        # Pages that the system cannot drop, such as locked ones, are as they were.
        if not data[first:last].view(np.uint64).any():
            return
    data[...] = 0


def drop_pages(path: Path) -> None:
    """Drops the pages of a mapped file that were read; the next reader gets them from the file.

    Of what can be written to, such as a copy of NumPy's `memmap`, none are dropped.
    """
    with contextlib.suppress(OSError):  # where the system does not tell what is mapped
        name = str(path.resolve())
        for x in mappings():
            if x.name == name and "w" not in x.permissions:
                _drop(x.start, x.size)


def _drop(start: int, size: int) -> None:
    """Drops the pages of a range: they are zeros then, or are read from their file again."""
    if sys.platform == "linux":
        advise(start, size, mmap.MADV_DONTNEED)


def advise(start: int, size: int, advice: int) -> None:
    """Tells the system how a range of memory will be used: `madvise` of the C library."""
    function = ctypes.CDLL(None).madvise
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    function(start, size, advice)
