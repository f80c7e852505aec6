"""Files of arrays that someone else has written."""

import io
import re
import struct
import zipfile

import numpy as np
import pytest
from traced_memory import at_most

from keras_tfm.runtime.npz_file import NpzError, NpzFile


def file_of(members, compression=zipfile.ZIP_DEFLATED):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return content


def array_of(header, values=b""):
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + values


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_those_of_numpy(save):
    arrays = {
        "a/b": np.arange(6.0).reshape(2, 3),
        "fortran": np.asfortranarray(np.arange(6, dtype="int16").reshape(2, 3)),
        "text": np.array("é東"),
        "empty": np.zeros((0, 3), "float16"),
        "scalar": np.array(True),
    }
    content = io.BytesIO()
    save(content, **arrays)
    file = NpzFile(content)
    assert list(file.headers) == list(arrays)
    for name, expected in arrays.items():
        found, header = file.read(name), file.headers[name]
        for x in (found, header):
            assert (x.shape, x.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_array_equal(found, expected)


FLOATS = "{'descr': '<f4', 'fortran_order': False, 'shape': (%s), }"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (io.BytesIO(b"text"), "not a zip file"),
        (file_of([("x.txt", b"")]), "member 'x.txt', twice or not an array"),
        (file_of([("x.npy", array_of(FLOATS % "2,", bytes(8)))], zipfile.ZIP_BZIP2), "in another"),
        (file_of([("x.npy", array_of(FLOATS % "2,", bytes(8)))], zipfile.ZIP_LZMA), "in another"),
        (file_of([("x.npy", array_of(FLOATS % "2,", bytes(7)))]), "135 bytes, its header says 136"),
        (file_of([("x.npy", array_of(FLOATS % "1 << 40,"))]), "malformed"),
        (
            file_of([("x.npy", array_of(FLOATS % "1099511627776,"))]),
            "says 4398046511232",
        ),
        (file_of([("x.npy", array_of(FLOATS % "-2,", bytes(8)))]), "negative size"),
        (file_of([("x.npy", array_of((FLOATS % "1,").replace("<f4", "|O"), bytes(8)))]), "objects"),
        (file_of([("x.npy", b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(1 << 24))]), "version"),
        (file_of([("x.npy", b"no array")]), "magic"),
    ],
)
def test_what_numpy_did_not_write(content, message):
    with at_most(1e6), pytest.raises(NpzError, match=re.escape(message)) as caught:
        NpzFile(content)
    assert "\n" not in str(caught.value)


def test_a_flipped_bit_is_found():
    content = io.BytesIO()
    np.savez(content, x=np.arange(100))
    damaged = bytearray(content.getvalue())
    damaged[len(damaged) // 2] ^= 1
    with pytest.raises(NpzError, match="CRC"):
        NpzFile(io.BytesIO(damaged)).read("x")
