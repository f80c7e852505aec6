"""The manifest of an exported file, and the checksum that detects damage.

The manifest is JSON in the metadata of the .tflite file (`Model.metadata` of the schema), under the
name "keras_tfm"; each tokenizer is a metadata entry of its own. A file with flipped bytes often
still runs and returns wrong results, so the checksum covers every byte except its own 64 digits.
"""

import hashlib
import json
import mmap
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

METADATA_NAME = b"keras_tfm"
_IDENTIFIER = b"TFL3"
_NO_CHECKSUM = "0" * 64
# Larger vectors, in bytes, are not deduplicated.
_LONG = 1 << 20


def add(
    content: bytes, manifest: dict[str, Any], entries: Mapping[str, bytes] | None = None
) -> bytes:
    """The .tflite file `content` with `manifest` and a checksum in its metadata.

    `entries` are further metadata by name; the checksum covers them, too.
    """
    schema = import_litert("schema_py_generated")
    raw = json.dumps({**manifest, "sha256": _NO_CHECKSUM}, ensure_ascii=True).encode()
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(content, 0))
    model.metadata = list(model.metadata or [])
    for name, data in [*(entries or {}).items(), (METADATA_NAME.decode(), raw)]:
        entry, buffer = schema.MetadataT(), schema.BufferT()
        entry.name, entry.buffer = name, len(model.buffers)
        buffer.data = np.frombuffer(data, np.uint8)
        model.buffers.append(buffer)
        model.metadata.append(entry)
    unsigned = _packed(model)
    digest = hashlib.sha256(unsigned).hexdigest()
    start = unsigned.index(raw)
    signed = raw.replace(_NO_CHECKSUM.encode(), digest.encode())
    return unsigned[:start] + signed + unsigned[start + len(raw) :]


def _packed(model: Any) -> bytes:
    """The bytes of a file; equal names and small vectors are stored once.

    Every signature lists all weights again, with names and, in int8, scales and zero points per
    row: a tenth of a file with three signatures.
    """
    import flatbuffers

    class Builder(flatbuffers.Builder):
        def __init__(self) -> None:
            super().__init__(1 << 20)
            self.written: dict[Any, int] = {}

        def CreateString(self, s: Any, *arguments: Any) -> int:
            if s not in self.written:
                self.written[s] = super().CreateString(s, *arguments)
            return self.written[s]

        def CreateNumpyVector(self, x: np.ndarray) -> int:
            if x.nbytes > _LONG:  # a weight: a dictionary would keep it in memory
                return super().CreateNumpyVector(x)
            key = (x.dtype.str, x.tobytes())
            if key not in self.written:
                self.written[key] = super().CreateNumpyVector(x)
            return self.written[key]

    builder = Builder()
    builder.Finish(model.Pack(builder), file_identifier=_IDENTIFIER)
    return bytes(builder.Output())


def read(path: str | Path) -> dict[str, Any]:
    """The manifest of a file, after comparing its checksum.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, not a .tflite file, or not written by keras_tfm.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    content = _mapped(path)
    if content[4:8] != _IDENTIFIER:
        raise ValueError(
            f"{path} is not a .tflite file: expected the identifier {_IDENTIFIER!r} at byte 4, "
            f"got {content[4:8]!r} in {len(content)} bytes"
        )
    schema = import_litert("schema_py_generated")
    try:
        start, raw = _entry(content, schema, METADATA_NAME)
        manifest: dict[str, Any] = json.loads(raw or b"{}")
        expected = str(manifest.get("sha256", ""))
    except Exception as error:  # flatbuffers and json raise many types on damaged bytes
        raise ValueError(f"{path} is damaged: its manifest cannot be read ({error})") from None
    if raw is None:
        raise ValueError(
            f"{path} has no keras_tfm manifest: keras_tfm.export did not write it, or it is damaged"
        )
    digest = hashlib.sha256()
    # Read in blocks: mapped pages would count as memory of the process.
    with path.open("rb") as file:
        _update(digest, file, start)
        digest.update(raw.replace(expected.encode(), _NO_CHECKSUM.encode()))
        file.seek(len(raw), 1)
        _update(digest, file, len(content) - start - len(raw))
    if digest.hexdigest() != expected:
        raise ValueError(
            f"{path} is damaged: expected the checksum {expected}, got {digest.hexdigest()}"
        )
    return manifest


def _mapped(path: Path) -> Any:
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:  # an empty file cannot be mapped
            return b""
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _update(digest: Any, file: IO[bytes], count: int) -> None:
    while block := file.read(min(count, 1 << 20)):
        digest.update(block)
        count -= len(block)


def read_entries(path: Path, manifest: dict[str, Any], names: Iterable[str]) -> dict[str, bytes]:
    """Further metadata entries, by name, of a file whose manifest was read before.

    Raises:
        ValueError: the file was replaced since then, or an entry is missing.
    """
    schema = import_litert("schema_py_generated")
    content, entries = _mapped(path), {}
    try:
        _, raw = _entry(content, schema, METADATA_NAME)
        same = json.loads(raw or b"{}") == manifest
        for name in names if same else ():
            entries[name] = _entry(content, schema, name.encode())[1]
    except Exception as error:
        raise ValueError(f"{path} is damaged: its metadata cannot be read ({error})") from None
    if not same:
        raise ValueError(f"{path} was replaced by another file after it had been loaded")
    lacking = [name for name, data in entries.items() if data is None]
    if lacking:
        raise ValueError(f"{path} lacks the metadata {lacking}, which its manifest names")
    return {name: data for name, data in entries.items() if data is not None}


def _entry(content: Any, schema: Any, name: bytes) -> tuple[int, bytes | None]:
    """The offset and the data of a metadata entry; None if there is no such entry."""
    model = schema.Model.GetRootAsModel(content, 0)
    for i in range(model.MetadataLength()):
        entry = model.Metadata(i)
        if entry.Name() == name:
            data = model.Buffers(entry.Buffer()).DataAsNumpy()
            start = data.ctypes.data - np.frombuffer(content, np.uint8).ctypes.data
            return start, data.tobytes()
    return 0, None


def import_litert(module: str) -> Any:
    """A module of ai_edge_litert, or an error that names the extra."""
    import importlib

    try:
        return importlib.import_module(f"ai_edge_litert.{module}")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("ai_edge_litert"):
            raise
        raise ModuleNotFoundError(
            'running and writing .tflite files needs LiteRT: pip install "keras-tfm[edge]"',
            name=error.name,
        ) from None
