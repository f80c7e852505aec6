"""The manifest of an exported file, and the checksum that detects damage.

The manifest is JSON in the metadata of the .tflite file (`Model.metadata` of the schema), under the
name "keras_tfm"; each tokenizer is a metadata entry of its own. A file with flipped bytes often
still runs and returns wrong results, so the checksum covers every byte except its own 64 digits.
"""

import hashlib
import io
import json
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import numpy as np

from keras_tfm.arguments import check_file
from keras_tfm.optional_package import install_command, optional_package
from keras_tfm.runtime.manifest.checks import check_manifest, read_graphs
from keras_tfm.runtime.manifest.manifest import Manifest, check_format
from keras_tfm.runtime.manifest.records import Json

METADATA_NAME = b"keras_tfm"
IDENTIFIER = b"TFL3"
# The first bytes of a .litertlm file. Its header ends at the offset in bytes 24 to 31.
LITERTLM = b"LITERTLM"
NO_CHECKSUM = "0" * 64


# What `read` and `runtime.load` take: a path, bytes, or something with their content.
File = str | os.PathLike[str] | bytes | bytearray | memoryview | IO[bytes] | Any


def source_of(file: File) -> tuple[Path | bytes, Path]:
    """The absolute path or the bytes of a file, and its name for messages.

    >>> import io
    >>> from keras_tfm.runtime.manifest.storage import source_of
    >>> source_of(io.BytesIO(b"abc"))[0]
    b'abc'

    Raises:
        TypeError: neither a path, bytes, nor an object with `read_bytes` or `read`.
    """
    if isinstance(file, str | os.PathLike):
        # Another folder may be the current one when the file is read again.
        return Path(file).absolute(), Path(file)
    if isinstance(file, bytes | bytearray | memoryview):
        return bytes(file), Path("<bytes>")
    for name in ("read_bytes", "read"):  # `zipfile.Path` and others; open files
        if callable(getattr(file, name, None)):
            content = getattr(file, name)()
            if isinstance(content, bytes):
                return content, Path(str(file) if name == "read_bytes" else "<bytes>")
    raise TypeError(
        f"expected the path of a .tflite file, its bytes, or a binary file, "
        f"got {type(file).__name__}"
    )


def read_content(source: Path | bytes) -> bytes:
    """The bytes of a source."""
    return source if isinstance(source, bytes) else source.read_bytes()


def map_content(source: Path | bytes) -> bytes | mmap.mmap:
    """The content of a source, in memory only as far as it is read.

    A file on a file system without memory maps is read as a whole.
    """
    if isinstance(source, bytes):
        return source
    with source.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:  # an empty file cannot be mapped
            return b""
        try:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError:
            return file.read()


def loadable(source: Path | bytes) -> Path | bytes:
    """The source, or its bytes if LiteRT, which maps files, cannot map this one."""
    content = map_content(source)
    return content if isinstance(content, bytes) else source


def read(file: File, name: Path | None = None) -> Manifest:
    """The manifest of a file, after verifying its checksum.

    Args:
        file: path or bytes, as in `source_of`.
        name: its name for messages; default: that of `source_of`.

    Raises:
        FileNotFoundError: there is no such file.
        IsADirectoryError: it is a folder.
        ValueError: the file is damaged, not a .tflite file, not written by keras_tfm, or written by
            a newer version; or its manifest lacks a field or does not describe its signatures.
    """
    source, path = source_of(file)
    path = path if name is None else name
    if isinstance(source, Path) and source.is_dir():
        raise IsADirectoryError(f"{path} is a folder, expected a .tflite file")
    if isinstance(source, Path):
        check_file(source, path)
    content = map_content(source)
    if content[:8] == LITERTLM:
        command = install_command("litert-lm-api")
        raise ValueError(
            f"{path} is a .litertlm file, which LiteRT-LM runs: {command}, and "
            f"litert_lm.Engine({str(path)!r}); for this runtime use export_tflite"
        )
    if content[4:8] != IDENTIFIER:
        raise ValueError(
            f"{path} is not a .tflite file: expected the identifier {IDENTIFIER!r} at byte 4, "
            f"got {content[4:8]!r} in {len(content)} bytes"
        )
    schema = import_litert("schema_py_generated")
    try:
        start, raw = _entry(content, schema, METADATA_NAME)
    except Exception:  # flatbuffers raises many types on damaged bytes
        raise ValueError(
            f"{path} is damaged or truncated: its manifest is not in its {len(content):,} bytes"
        ) from None
    try:
        stored: Json = json.loads(raw or b"{}")
        expected = str(stored.get("sha256", ""))
    except Exception as error:  # json raises several types on damaged bytes
        raise ValueError(f"{path} is damaged: its manifest cannot be read ({error})") from None
    if raw is None:
        raise ValueError(
            f"{path} has no keras_tfm manifest: keras_tfm.export did not write it, or it is damaged"
        )
    # First: another format may compute the checksum differently.
    with _readable(path):
        check_format(stored)
    digest = hashlib.sha256()
    # Read in blocks: mapped pages would count as memory of the process.
    with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as stream:
        _update(digest, stream, start)
        digest.update(raw.replace(expected.encode(), NO_CHECKSUM.encode()))
        stream.seek(len(raw), 1)
        _update(digest, stream, len(content) - start - len(raw))
    if digest.hexdigest() != expected:
        raise ValueError(
            f"{path} is damaged: expected the checksum {expected}, got {digest.hexdigest()}"
        )
    with _readable(path):
        manifest = Manifest.from_json(stored)
        check_manifest(manifest, read_graphs(schema, schema.Model.GetRootAsModel(content, 0)))
    return manifest


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Names the file in the error of a manifest that cannot be read."""
    try:
        yield
    except ValueError as error:
        # One line, whatever the names and values in the manifest are.
        reason = " ".join(str(error).splitlines())
        reason = reason if len(reason) <= 500 else f"{reason[:500]}..."
        raise ValueError(f"{path} has a manifest that cannot be read: {reason}") from None


def is_export(path: Path) -> bool:
    """Whether keras_tfm wrote the file, even if it is damaged."""
    try:
        schema = import_litert("schema_py_generated")
        content = map_content(path)
        if content[:8] == LITERTLM:
            return METADATA_NAME in content[: int.from_bytes(content[24:32], "little")]
        return content[4:8] == IDENTIFIER and _entry(content, schema, METADATA_NAME)[1] is not None
    except (OSError, ModuleNotFoundError):
        raise
    except Exception:  # flatbuffers raises many types on damaged bytes
        return False


def _update(digest: "hashlib._Hash", file: IO[bytes], count: int) -> None:
    while block := file.read(min(count, 1 << 20)):
        digest.update(block)
        count -= len(block)


def read_entries(source: Path | bytes, sha256: str, names: Iterable[str]) -> dict[str, bytes]:
    """Further metadata entries of a file whose manifest was read before, by name.

    Args:
        source: the file.
        sha256: str, the checksum in its manifest.
        names: the names of the entries.

    Raises:
        ValueError: the file was replaced since then, or an entry is missing.
    """
    schema = import_litert("schema_py_generated")
    path = source_of(source)[1]
    content, entries = map_content(source), {}
    try:
        _, raw = _entry(content, schema, METADATA_NAME)
        same = json.loads(raw or b"{}").get("sha256") == sha256
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


def _entry(content: bytes | mmap.mmap, schema: ModuleType, name: bytes) -> tuple[int, bytes | None]:
    """The offset and the data of a metadata entry; None if there is no such entry."""
    model = schema.Model.GetRootAsModel(content, 0)
    for i in range(model.MetadataLength()):
        entry = model.Metadata(i)
        if entry.Name() == name:
            data = model.Buffers(entry.Buffer()).DataAsNumpy()
            start = data.ctypes.data - np.frombuffer(content, np.uint8).ctypes.data
            return start, data.tobytes()
    return 0, None


def import_litert(module: str) -> ModuleType:
    """A module of ai_edge_litert, or an error that names the extra."""
    need = "running and writing .tflite files needs LiteRT"
    return optional_package(f"ai_edge_litert.{module}", need, "ai-edge-litert", extra="edge")
