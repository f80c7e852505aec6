"""The arrays of an .npz file, read one by one, after a look at their names, shapes and dtypes.

`np.load` unpacks whatever a file holds: 3 MB can become 3 GB.

Example:

>>> import io
>>> import numpy as np
>>> from keras_tfm.runtime.npz_file import NpzFile
>>> content = io.BytesIO()
>>> np.savez(content, x=np.ones((2, 3), "float32"))
>>> file = NpzFile(content)
>>> file.headers["x"].shape, file.read("x").sum().item()
((2, 3), 6.0)
"""

import math
import zipfile
from collections.abc import Callable
from typing import IO, Any, NamedTuple, TypeVar

import numpy as np

T = TypeVar("T")


class NpzError(ValueError):
    """A file is no .npz file, is damaged, or holds Python objects; the message is the reason."""


class Header(NamedTuple):
    """What an .npz file says of an array.

    Attributes:
        shape: tuple of int.
        dtype: `np.dtype`.
        fortran_order: bool.
        offset: int, number of bytes before its values.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran_order: bool
    offset: int

    @property
    def nbytes(self) -> int:
        """The number of bytes of its values."""
        return math.prod(self.shape) * self.dtype.itemsize


class NpzFile:
    """An .npz file. Nothing but the headers of its arrays is unpacked before `read`.

    Args:
        source: the file, open for reading.

    Attributes:
        headers: dict of `Header` by name.

    Raises:
        NpzError: the file is not one that `np.savez` or `np.savez_compressed` could have written
            for arrays of numbers and texts.
    """

    def __init__(self, source: IO[bytes]):
        self._archive, self._members = _as_value_error(lambda: _members(source))
        self.headers = _as_value_error(lambda: {name: self._header(name) for name in self._members})

    def read(self, name: str) -> np.ndarray:
        """The array of a name, which cannot be written to."""
        return _as_value_error(lambda: self._read(name))

    def _header(self, name: str) -> Header:
        member = self._members[name]
        with self._archive.open(member) as stream:
            # Others have headers of more than 64 kB, or names of fields that are not Latin.
            if np.lib.format.read_magic(stream) != (1, 0):
                raise ValueError(f"{name!r} has a header of another version than 1.0")
            shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(stream)
            header = Header(shape, dtype, is_fortran, stream.tell())
        if dtype.hasobject or min(shape, default=0) < 0:
            raise ValueError(f"{name!r} holds Python objects, or has a negative size")
        if header.offset + header.nbytes != member.file_size:
            raise ValueError(
                f"{name!r} has {member.file_size} bytes, its header says "
                f"{header.offset + header.nbytes}"
            )
        return header

    def _read(self, name: str) -> np.ndarray:
        header = self.headers[name]
        with self._archive.open(self._members[name]) as stream:
            stream.read(header.offset)
            content = stream.read(header.nbytes)
            if len(content) != header.nbytes or stream.read(1):  # which compares the checksum
                raise ValueError(f"{name!r} has another number of bytes than its header says")
        return np.ndarray(
            header.shape, header.dtype, content, order="F" if header.fortran_order else "C"
        )


def _members(source: IO[bytes]) -> tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]:
    archive, members = zipfile.ZipFile(source), {}
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        if name == member.filename or name in members:
            raise ValueError(f"it has the member {member.filename!r}, twice or not an array")
        # The others unpack a whole block, of any size, to return its first bytes.
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{name!r} is compressed in another way than NumPy does")
        members[name] = member
    return archive, members


def _as_value_error(call: Callable[[], T]) -> T:
    """The result of a call whose many types of errors become one."""
    try:
        return call()
    except Exception as error:  # of zip files, zlib, NumPy's headers, and our own
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise NpzError(reason[:200]) from None
