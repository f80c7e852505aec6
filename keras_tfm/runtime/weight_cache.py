"""XNNPACK's packed weights in a file, which later processes map instead of packing.

XNNPACK copies each weight matrix into the order its kernels read. With a cache it writes the copy
to a file once; later processes map the file, whose pages the system may share and drop. Signatures
also share their packed weights, which XNNPACK otherwise packs for each. In Python only LiteRT's
`CompiledModel` supports this: `Interpreter` creates its delegate itself, without options.
"""

import os
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from keras_tfm.runtime import native_log
from keras_tfm.runtime.manifest import import_litert

Runner = Callable[..., dict[str, np.ndarray]]
# The dtypes that LiteRT's TensorBuffer supports.
DTYPES = ("float32", "float16", "int32", "int8", "uint8", "bool")


def cached_runners(
    path: Path, manifest: dict[str, Any], threads: int, folder: str | Path
) -> dict[str, Runner]:
    """The signatures of a file as functions of arrays, with its packed weights in `folder`.

    A cache belongs to one file and is named by its checksum, since XNNPACK would accept the cache
    of another model with the same shapes. The name also holds the cache's own checksum; a damaged
    cache is rebuilt, since XNNPACK would silently return wrong results.

    Args:
        path: the .tflite file.
        manifest: its manifest.
        threads: the number of threads LiteRT uses.
        folder: the folder of the caches, created if it is missing.

    Raises:
        ValueError: a signature has a dtype that LiteRT's `CompiledModel` cannot pass.
        OSError: the folder cannot be written.
    """
    for name, signature in manifest["signatures"].items():
        for kind in ("inputs", "outputs"):
            for key, spec in signature[kind].items():
                if spec["dtype"] not in DTYPES:
                    raise ValueError(
                        f"with a weight_cache, inputs and outputs must be among {list(DTYPES)}, "
                        f"got {spec['dtype']} for {key!r} of {name}"
                    )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    cache = _valid(folder, manifest["sha256"]) or _built(path, folder, manifest["sha256"], threads)
    with native_log.captured():
        model = _compiled(path, threads, cache)
        return {
            name: _runner(model, name, signature)
            for name, signature in manifest["signatures"].items()
        }


def _valid(folder: Path, digest: str) -> Path | None:
    """The cache of a file, if it exists and is intact."""
    for found in folder.glob(f"{digest}-*.xnnpack"):
        if found.name == _name(digest, found):
            return found
        found.unlink(missing_ok=True)
    return None


def _built(path: Path, folder: Path, digest: str, threads: int) -> Path | None:
    """A new cache; None if XNNPACK packs no weights of the model."""
    # In a temporary folder: another process may be building the same cache.
    with tempfile.TemporaryDirectory(prefix=f".{digest[:8]}-", dir=folder) as inside:
        new = Path(inside) / "cache"
        with native_log.captured():
            _compiled(path, threads, new)
        if not new.is_file():
            return None
        kept = folder / _name(digest, new)
        os.replace(new, kept)
        return kept


def _name(digest: str, cache: Path) -> str:
    """The name of a cache: the checksums of the model file and of its own bytes."""
    checksum = 0
    with cache.open("rb") as file:
        while block := file.read(1 << 20):
            checksum = zlib.crc32(block, checksum)
    return f"{digest}-{checksum:08x}.xnnpack"


def _compiled(path: Path, threads: int, cache: Path | None) -> Any:
    options = import_litert("options")
    cpu = options.CpuOptions(
        num_threads=threads, xnnpack_weight_cache_path="" if cache is None else str(cache)
    )
    compiled_model = import_litert("compiled_model")
    return compiled_model.CompiledModel.from_file(
        str(path), options=options.Options(cpu_options=cpu)
    )


def _runner(model: Any, name: str, signature: dict[str, Any]) -> Runner:
    inputs = {key: model.create_input_buffer_by_name(name, key) for key in signature["inputs"]}
    outputs = {key: model.create_output_buffer_by_name(name, key) for key in signature["outputs"]}
    for key, spec in signature["inputs"].items():
        # The first write logs LiteRT's devices, which is captured here.
        inputs[key].write(np.zeros(spec["shape"], spec["dtype"]))

    def run(**arrays: np.ndarray) -> dict[str, np.ndarray]:
        for key, array in arrays.items():
            inputs[key].write(array)
        model.run_by_name(name, inputs, outputs)
        results = {}
        for key, spec in signature["outputs"].items():
            flat = outputs[key].read(
                int(np.prod(spec["shape"], dtype=int)), np.dtype(spec["dtype"])
            )
            results[key] = flat.reshape(spec["shape"])
        return results

    return run
