"""LoRA adapters as files of their own, which `load` writes into the constants of a base file.

A base file computes y = x W + (x A) B in each adapted projection; its A and B are float32 constants
of zeros. An adapter is an .npz file with A, B and alpha of each projection, and the fingerprint of
the base's weights.
"""

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_tfm.atomic_files import replaced

_VERSION = 1
# The entry with everything but the matrices, and the endings of their names.
_HEADER, _A, _B = "keras_tfm", "/a", "/b"


class LowRank(NamedTuple):
    """The adapter of one projection from D to F features: W + (alpha / rank) A B.

    Attributes:
        a: (D, rank), float32.
        b: (rank, F), float32.
        alpha: float.
    """

    a: np.ndarray
    b: np.ndarray
    alpha: float

    @property
    def scaled(self) -> np.ndarray:
        """(rank, F), float32: B with the scale in it."""
        scaled: np.ndarray = self.b * np.float32(self.alpha / self.b.shape[0])
        return scaled


class Adapter(NamedTuple):
    """The content of an adapter file.

    Attributes:
        path: the file.
        base: str, the fingerprint of the base's weights.
        layers: `LowRank` by the path of its projection.
        checksum: str, the SHA-256 of the file.
    """

    path: Path
    base: str
    layers: dict[str, LowRank]
    checksum: str


def write(path: str | Path, base: str, layers: Mapping[str, LowRank]) -> None:
    """Writes an adapter file, completely or not at all; an earlier file is replaced.

    >>> import tempfile
    >>> import numpy as np
    >>> from keras_tfm.runtime import adapters
    >>> layer = adapters.LowRank(np.ones((3, 1), "float32"), np.ones((1, 2), "float32"), 2.0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     adapters.write(folder + "/a.npz", "1234", {"block/query": layer})
    ...     adapters.read(folder + "/a.npz").layers["block/query"].scaled.tolist()
    [[2.0, 2.0]]
    """
    header = {
        "version": _VERSION,
        "base": base,
        "alpha": {name: layer.alpha for name, layer in layers.items()},
    }
    arrays = {_HEADER: np.frombuffer(json.dumps(header).encode(), np.uint8)}
    for name, layer in layers.items():
        arrays |= {name + _A: layer.a, name + _B: layer.b}
    with replaced(path) as new, new.open("xb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def read(path: str | Path) -> Adapter:
    """The content of an adapter file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is damaged, or `save_adapter` did not write it.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    content = path.read_bytes()
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as loaded:
            arrays = {name: np.asarray(loaded[name]) for name in loaded.files}
        header = json.loads(arrays.pop(_HEADER).tobytes())
        version, base, alphas = header["version"], header["base"], header["alpha"]
        layers = {
            name: LowRank(arrays.pop(name + _A), arrays.pop(name + _B), float(alpha))
            for name, alpha in alphas.items()
        }
    except Exception as error:  # many types: not a zip file, damaged, pickled objects, other keys
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path} is not an adapter file, or damaged ({reason[:200]})") from None
    if version != _VERSION:
        raise ValueError(
            f"{path} is an adapter of version {version}, and this version of keras_tfm reads "
            f"version {_VERSION}: update keras_tfm"
        )
    for name, layer in layers.items():
        if not _is_low_rank(layer):
            raise ValueError(
                f"{path} is damaged: {name!r} needs finite float32 matrices (D, rank) and "
                f"(rank, F), got {layer.a.dtype} {layer.a.shape} and {layer.b.dtype} "
                f"{layer.b.shape}"
            )
    return Adapter(path, str(base), layers, hashlib.sha256(content).hexdigest())


def _is_low_rank(layer: LowRank) -> bool:
    matrices = layer.a, layer.b
    return (
        all(x.ndim == 2 and x.dtype == np.float32 and np.all(np.isfinite(x)) for x in matrices)
        and layer.a.shape[1] == layer.b.shape[0] > 0
        and bool(np.isfinite(layer.alpha))
    )


def buffers(manifest: Mapping[str, Any]) -> list[int]:
    """The indices of the buffers that hold A and B in a file with this manifest."""
    layers = manifest.get("adapters", {}).get("layers", {})
    return [number for x in layers.values() for number in (*x["a"], *x["b"])]


def patched(path: Path, manifest: Mapping[str, Any], adapter: Adapter) -> bytes:
    """The bytes of a base file with an adapter as its constants; the file is not changed.

    Layers that the adapter lacks stay without one. A rank below the file's is padded with zeros.

    Args:
        path: the base file.
        manifest: its manifest, whose checksum was verified.
        adapter: the adapter.

    Raises:
        ValueError: the file has no separate adapters, or the adapter does not fit it.
    """
    described = manifest.get("adapters")
    if described is None:
        raise ValueError(
            f"{path} takes no adapter: export it with export_tflite(..., separate_adapters=True)"
        )
    _check(path, described, adapter)
    content = bytearray(path.read_bytes())
    write_constants(content, {name: described["layers"][name] for name in adapter.layers}, adapter)
    return bytes(content)


def write_constants(content: bytearray, layers: Mapping[str, Any], adapter: Adapter | None) -> None:
    """Overwrites A and B of `layers`, the manifest's, in a file; with zeros without an adapter."""
    from keras_tfm.runtime.manifest import import_litert

    schema = import_litert("schema_py_generated")
    model = schema.Model.GetRootAsModel(content, 0)
    for name, where in layers.items():
        # Matrix products store their weights transposed.
        depth, width, rank = where["depth"], where["width"], where["rank"]
        layer = None if adapter is None else adapter.layers[name]
        for key, shape in (("a", (rank, depth)), ("b", (width, rank))):
            # First: the sizes of the manifest are those of buffers, or nothing is allocated.
            views = [_constant(content, model, number, shape, name) for number in where[key]]
            values = np.zeros(shape if views else 0, "float32")
            if layer is not None and views:
                own = layer.a.shape[1]
                matrix = layer.a.T if key == "a" else layer.scaled.T
                values[(slice(own),) if key == "a" else (slice(None), slice(own))] = matrix
            for view in views:
                view[...] = np.frombuffer(values.tobytes(), np.uint8)


def _constant(
    content: bytearray, model: Any, number: int, shape: tuple[int, int], name: str
) -> np.ndarray:
    """The bytes of a buffer that holds a matrix of this shape, float32."""
    view, size = _view(content, model, number), 4 * shape[0] * shape[1]
    if view.size != size:
        raise ValueError(
            f"the adapter of {name!r} needs a constant of {size} bytes, "
            f"buffer {number} of the file has {view.size}"
        )
    return view


def _view(content: bytearray, model: Any, number: int) -> np.ndarray:
    """The bytes of a buffer, writable."""
    if number >= model.BuffersLength():
        return np.zeros(0, np.uint8)
    buffer = model.Buffers(number)
    if buffer.Offset() > 1:  # behind the flatbuffer
        return np.frombuffer(content, np.uint8, buffer.Size(), buffer.Offset())
    data: np.ndarray = buffer.DataAsNumpy()
    return data if isinstance(data, np.ndarray) else np.zeros(0, np.uint8)


def _check(path: Path, described: Mapping[str, Any], adapter: Adapter) -> None:
    """Raises ValueError unless an adapter fits a file."""
    if adapter.base != described["base"]:
        raise ValueError(
            f"{adapter.path} is an adapter of another base than {path}: expected the fingerprint "
            f"{described['base']}, got {adapter.base[:64]}"
        )
    for name, layer in adapter.layers.items():
        where = described["layers"].get(name)
        if where is None:
            known = ", ".join(described["layers"])
            raise ValueError(
                f"{path} has no adapter in {name!r}, which {adapter.path} adapts; it has {known}"
            )
        (depth, rank), width = layer.a.shape, layer.b.shape[1]
        if (depth, width) != (where["depth"], where["width"]):
            raise ValueError(
                f"{adapter.path}: {name!r} must adapt a kernel {(where['depth'], where['width'])}, "
                f"got {(depth, width)}"
            )
        if rank > where["rank"]:
            raise ValueError(
                f"{path} was exported for adapters of rank {where['rank']} at most in {name!r}, "
                f"{adapter.path} has rank {rank}"
            )
