"""What an exported file says of itself, and the checksum by which damage is seen.

The manifest is JSON in the metadata of the .tflite file (`Model.metadata` of the schema), under the
name "keras_tfm"; tokenizers are entries of their own beside it. A file with flipped bytes often
still runs, and answers wrongly; the checksum covers every byte of the file but its own 64 digits.
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
# Vectors of more bytes are not looked for among those already written.
_LONG = 1 << 20


def add(
    content: bytes, manifest: dict[str, Any], entries: Mapping[str, bytes] | None = None
) -> bytes:
    """The .tflite file `content` with `manifest` in its metadata, and its checksum in that.

    `entries` are other metadata, by name, which the checksum covers like all the rest.
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
    """The bytes of a file, in which what several tensors say alike stands once.

    Each signature lists all weights anew with their names and, in eight bits, a scale and a zero
    point for every row: of a file with three signatures that would be a tenth.
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
            if x.nbytes > _LONG:  # a weight: looked up, it would be held in memory
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
        ValueError: not a .tflite file, one that keras_tfm did not write, or a damaged one.
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
    except Exception as error:  # whatever damaged offsets or text make flatbuffers and json raise
        raise ValueError(f"{path} is damaged: its manifest cannot be read ({error})") from None
    if raw is None:
        raise ValueError(
            f"{path} has no keras_tfm manifest: keras_tfm.export did not write it, or it is damaged"
        )
    digest = hashlib.sha256()
    # Read by the block: mapped pages would count as the process's memory, all of them at once.
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
        if os.fstat(file.fileno()).st_size == 0:  # which cannot be mapped
            return b""
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _update(digest: Any, file: IO[bytes], count: int) -> None:
    while block := file.read(min(count, 1 << 20)):
        digest.update(block)
        count -= len(block)


def read_entries(path: Path, manifest: dict[str, Any], names: Iterable[str]) -> dict[str, bytes]:
    """Other metadata of a file whose manifest was read before, by name.

    Raises:
        ValueError: the file is no longer the one whose manifest that is, or lacks an entry.
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
    """Where the data of a metadata entry are, and the data; None: there is no such entry."""
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
