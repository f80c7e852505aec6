"""Checkpoint folders for tests: copies of the fixtures, changed; safetensors written by hand."""

import json
import shutil
import struct

import numpy as np
from huggingface_cases import FOLDER

NAMES = {"float32": "F32", "float16": "F16", "float64": "F64", "int64": "I64", "uint16": "BF16"}


def copied(tmp_path, case, fields=(), drop=()):
    """A copy of a fixture whose configuration has other fields."""
    folder = tmp_path / case
    shutil.copytree(FOLDER / case, folder)
    config = {**json.loads((folder / "config.json").read_text()), **dict(fields)}
    for name in drop:
        del config[name]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def tensors_of(folder):
    """Name -> array, float32: of a safetensors file as its specification says."""
    content = (folder / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    header.pop("__metadata__", None)
    data = content[8 + size :]
    return {
        name: np.frombuffer(data[slice(*x["data_offsets"])], "<f4").reshape(x["shape"])
        for name, x in header.items()
    }


def encoded(tensors, **changes):
    """The bytes of a file; `changes` are made to the header."""
    header, data = {}, b""
    for name, array in tensors.items():
        begin = len(data)
        data += np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": NAMES[str(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [begin, len(data)],
        }
    for name, change in changes.items():
        header[name].update(change)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def write(folder, tensors, name="model.safetensors"):
    (folder / name).write_bytes(encoded(tensors))
    return folder


def rewritten(tmp_path, case, change, **options):
    """A copy of a fixture with other tensors: what `change` makes of them."""
    folder = copied(tmp_path, case, **options)
    return write(folder, change(tensors_of(folder)))


def bfloat16(array):
    """The upper half of each number's bits, cut: (values as uint16, the float32 that they mean)."""
    bits = (array.view("uint32") >> 16).astype("uint16")
    return bits, (bits.astype("uint32") << 16).view("float32")
