"""XNNPACK's packed weights in a file, which later processes map instead of packing.

XNNPACK copies each weight matrix into the order its kernels read. With a cache it writes the copy
to a file once; later processes map the file, whose pages the system may share and drop. Signatures
also share their packed weights, which XNNPACK otherwise packs for each.
"""

import contextlib
import errno
import hashlib
import os
import platform
import shutil
import sys
import warnings
import zlib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from keras_tfm.atomic_files import temporary_folder
from keras_tfm.runtime.compiled_model import (
    DTYPES,
    CompiledSignature,
    compile_file,
    signatures_of,
    unsupported_dtype,
)
from keras_tfm.runtime.manifest.manifest import Signature

if sys.platform == "win32":
    resource = None
else:
    import resource

# Packed, float16 becomes float32, and small matrices are filled up to the tiles of the kernels.
_LARGER, _TILES = 2, 1 << 20
# The size limit of a folder in bytes. Above it, the least recently used caches are deleted.
MAX_BYTES = 4 << 30


def cached_runners(
    source: Path | bytes,
    signatures: Mapping[str, Signature],
    checksum: str,
    threads: int,
    folder: str | Path,
) -> dict[str, CompiledSignature]:
    """The signatures of a file as functions of arrays, with its packed weights in `folder`.

    XNNPACK maps a cache without a check: it would accept that of another model with the same
    shapes, and silently return wrong results from a damaged one. So the name of a cache holds the
    checksums of the model and of the cache, LiteRT's version and the processor. A cache with
    another name is not used; a damaged one is rebuilt. Where the folder cannot be written, weights
    are packed in memory, with a warning.

    Args:
        source: Path or bytes, the .tflite file or its content.
        signatures: those of its manifest.
        checksum: str, that of its content.
        threads: int, number of threads that LiteRT uses.
        folder: the folder of the caches, created if it is missing. Together they take at most
            `MAX_BYTES`.

    Raises:
        ValueError: a signature has a dtype that LiteRT's `CompiledModel` cannot pass; `folder` is
            empty.
        OSError: `folder` is a file or cannot be created.
    """
    if not str(folder):
        raise ValueError("weight_cache must be the path of a folder, got an empty path")
    folder = Path(folder)
    if folder.is_file():
        raise NotADirectoryError(f"weight_cache must be a folder, got the file {folder}")
    if found := unsupported_dtype(signatures):
        name, key, dtype = found
        raise ValueError(
            f"with a weight_cache, inputs and outputs must be among {list(DTYPES)}, "
            f"got {dtype} for {key!r} of {name}"
        )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    key, cache = _key(checksum), None
    try:
        cache = _find(folder, key) or _build(source, folder, key, threads)
        _limit(folder, keep=cache)
    except OSError as error:
        warnings.warn(
            f"no weight cache can be written to {folder}: weights are packed in memory ({error})",
            stacklevel=4,  # the caller of `runtime.load`
        )
    return signatures_of(compile_file(source, threads, cache), signatures, source)


def _key(digest: str) -> str:
    """A hash of what packed weights depend on: file, LiteRT's version, processor features."""
    processor = {platform.machine(), platform.processor()}
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        kinds = ("flags", "Features", "model name", "CPU part")
        processor.update(line for line in lines if line.startswith(kinds))
    parts = [digest, version("ai-edge-litert"), *sorted(processor)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _find(folder: Path, key: str) -> Path | None:
    """The cache of a file, if it exists and is intact."""
    for found in folder.glob(f"{key}-*.xnnpack"):
        if found.name == _name(key, found):
            with contextlib.suppress(OSError):
                os.utime(found)  # the time of its last use
            return found
        found.unlink(missing_ok=True)
    return None


def _build(source: Path | bytes, folder: Path, key: str, threads: int) -> Path | None:
    """A new cache; None if XNNPACK packs no weights of the model.

    Raises:
        OSError: the folder cannot be written, or has too little space.
    """
    _check_space(folder, len(source) if isinstance(source, bytes) else source.stat().st_size)
    # In a temporary folder: another process may be building the same cache.
    with temporary_folder(folder) as inside:
        new = inside / "cache"
        compile_file(source, threads, new)
        if not new.is_file():
            return None
        kept = folder / _name(key, new)
        os.replace(new, kept)
        return kept


def _check_space(folder: Path, size: int) -> None:
    """Raises unless the cache of a file of `size` bytes fits: else XNNPACK ends the process."""
    needed, usage = size * _LARGER + _TILES, shutil.disk_usage(folder)
    free = usage.free if usage.total else needed  # some file systems do not tell
    if resource is not None:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        free = free if limit == resource.RLIM_INFINITY else min(free, limit)
    if free < needed:
        raise OSError(
            errno.ENOSPC, f"up to {needed:,} bytes are needed, {free:,} are free", str(folder)
        )


def _limit(folder: Path, keep: Path | None) -> None:
    """Deletes the least recently used caches until the folder is within `MAX_BYTES`."""
    found = []
    for cache in folder.glob("*.xnnpack"):
        with contextlib.suppress(OSError):  # another process deleted it
            found.append((cache.stat().st_mtime_ns, cache.stat().st_size, cache))
    total = sum(size for _, size, _ in found)
    for _, size, cache in sorted(found):
        if total <= MAX_BYTES:
            return
        if cache != keep:
            # A process that has mapped it keeps its pages. On Windows a mapped file cannot be
            # deleted; it stays.
            with contextlib.suppress(OSError):
                cache.unlink()
                total -= size


def _name(key: str, cache: Path) -> str:
    """The name of a cache: `_key` and the checksum of its own bytes."""
    checksum = 0
    with cache.open("rb") as file:
        while block := file.read(1 << 20):
            checksum = zlib.crc32(block, checksum)
    return f"{key}-{checksum:08x}.xnnpack"
