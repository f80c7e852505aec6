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
from typing import Any, NamedTuple, NoReturn

import numpy as np

from keras_tfm.arguments import check_file
from keras_tfm.atomic_files import check_earlier, replacement
from keras_tfm.runtime.litert_internals import Table
from keras_tfm.runtime.manifest.manifest import AdaptedLayer, Adapters
from keras_tfm.runtime.manifest.storage import import_litert
from keras_tfm.runtime.npz_file import NpzError, NpzFile

_VERSION = 1
# The entry with everything but the matrices, and the endings of their names.
_HEADER, _A, _B = "keras_tfm", "/a", "/b"
# In bytes: it names the projections, 100 bytes each.
_LARGEST_HEADER = 1 << 24


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
    """Writes an adapter file, completely or not at all; an earlier adapter is replaced.

    Raises:
        FileExistsError: `path` is another file.

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
    check_earlier(path, "an adapter file", _is_adapter)
    with replacement(path) as new, new.open("xb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def _is_adapter(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return _HEADER in NpzFile(file).headers
    except NpzError:
        return False


def read(path: str | Path, file: Path | None = None, places: Adapters | None = None) -> Adapter:
    """The content of an adapter file.

    Args:
        path: the adapter file.
        file: Path of the base file that it is for. Its shapes are then compared with those of
            `places` before the matrices are read.
        places: `Adapters`, of the manifest of the base file; None if it takes none.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is damaged, `save_adapter` did not write it, or it does not fit `file`.
    """
    path = Path(path)
    check_file(path)
    content = path.read_bytes()
    try:
        opened = NpzFile(io.BytesIO(content))
        version, base, headers = _read_header(opened)
        if version != _VERSION:
            raise ValueError(
                f"{path} is an adapter of version {version}, and this version of keras_tfm reads "
                f"version {_VERSION}: update keras_tfm"
            )
        for name, layer in headers.items():
            _check_matrices(path, name, layer)
        if file is not None:
            _check(file, places, Adapter(path, base, headers, ""))
        layers = {
            name: LowRank(opened.read(name + _A), opened.read(name + _B), x.alpha)
            for name, x in headers.items()
        }
    except NpzError as error:
        raise ValueError(f"{path} is not an adapter file, or damaged ({error})") from None
    for name, layer in layers.items():
        if not all(np.all(np.isfinite(x)) for x in layer[:2]):
            _refuse_matrices(path, name, layer)
    return Adapter(path, base, layers, hashlib.sha256(content).hexdigest())


def _read_header(opened: NpzFile) -> tuple[int, str, dict[str, Any]]:
    """Version, fingerprint of the base, and layers whose matrices are `Header`s."""
    headers: dict[str, Any] = dict(opened.headers)
    try:
        first = headers.pop(_HEADER)
        if first.dtype != np.uint8 or len(first.shape) != 1 or first.nbytes > _LARGEST_HEADER:
            raise ValueError(f"its entry {_HEADER} is {first.dtype} {first.shape}")
        header = json.loads(opened.read(_HEADER).tobytes())
        layers: dict[str, Any] = {
            name: LowRank(headers.pop(name + _A), headers.pop(name + _B), float(alpha))
            for name, alpha in header["alpha"].items()
        }
        return header["version"], str(header["base"]), layers
    except NpzError:
        raise
    except Exception as error:  # many types: damaged JSON, other keys
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise NpzError(reason[:200]) from None


def _check_matrices(path: Path, name: str, layer: LowRank) -> None:
    matrices = layer.a, layer.b
    if not (
        all(len(x.shape) == 2 and x.dtype == np.float32 for x in matrices)
        and layer.a.shape[1] == layer.b.shape[0] > 0
        and np.isfinite(layer.alpha)
    ):
        _refuse_matrices(path, name, layer)


def _refuse_matrices(path: Path, name: str, layer: LowRank) -> NoReturn:
    raise ValueError(
        f"{path} is damaged: {name!r} needs finite float32 matrices (D, rank) and (rank, F), got "
        f"{layer.a.dtype} {layer.a.shape} and {layer.b.dtype} {layer.b.shape}"
    )


def patch(content: bytes, places: Adapters, adapter: Adapter) -> bytes:
    """The bytes of a base file with an adapter, read for it, as its constants.

    Layers that the adapter lacks stay without one. A rank below the file's is padded with zeros.

    Args:
        content: the bytes of the base file.
        places: those of its manifest, whose checksum was verified.
        adapter: the adapter.
    """
    result = bytearray(content)
    write_constants(result, {name: places.layers[name] for name in adapter.layers}, adapter)
    return bytes(result)


def write_constants(
    content: bytearray, layers: Mapping[str, AdaptedLayer], adapter: Adapter | None
) -> None:
    """Overwrites A and B of `layers`, the manifest's, in a file; with zeros without an adapter."""
    schema = import_litert("schema_py_generated")
    model = schema.Model.GetRootAsModel(content, 0)
    for name, where in layers.items():
        # Matrix products store their weights transposed.
        layer = None if adapter is None else adapter.layers[name]
        a, b = (where.a, (where.rank, where.depth)), (where.b, (where.width, where.rank))
        for key, (numbers, shape) in (("a", a), ("b", b)):
            # First: the sizes of the manifest are those of buffers, or nothing is allocated.
            views = [_constant(content, model, number, shape, name) for number in numbers]
            if not views:
                continue
            values = np.zeros(shape, "float32")
            if layer is not None:
                matrix = layer.a.T if key == "a" else layer.scaled.T
                rows, columns = matrix.shape
                values[:rows, :columns] = matrix
            for view in views:
                view[...] = np.frombuffer(values.tobytes(), np.uint8)


def _constant(
    content: bytearray, model: Table, number: int, shape: tuple[int, int], name: str
) -> np.ndarray:
    """The bytes of a buffer that holds a matrix of this shape, float32."""
    view, size = _view(content, model, number), 4 * shape[0] * shape[1]
    if view.size != size:
        raise ValueError(
            f"the adapter of {name!r} needs a constant of {size} bytes, "
            f"buffer {number} of the file has {view.size}"
        )
    return view


def _view(content: bytearray, model: Table, number: int) -> np.ndarray:
    """The bytes of a buffer, writable."""
    if number >= model.BuffersLength():
        return np.zeros(0, np.uint8)
    buffer = model.Buffers(number)
    if buffer.Offset() > 1:  # behind the flatbuffer
        return np.frombuffer(content, np.uint8, buffer.Size(), buffer.Offset())
    data: np.ndarray = buffer.DataAsNumpy()
    return data if isinstance(data, np.ndarray) else np.zeros(0, np.uint8)


def _check(path: Path, places: Adapters | None, adapter: Adapter) -> None:
    """Raises ValueError unless the file has separate adapters, and an adapter fits it."""
    if places is None:
        raise ValueError(
            f"{path} takes no adapter: export it with export_tflite(..., separate_adapters=True)"
        )
    if adapter.base != places.base:
        raise ValueError(
            f"{adapter.path} is an adapter of another base than {path}: expected the fingerprint "
            f"{places.base}, got {adapter.base[:64]}"
        )
    for name, layer in adapter.layers.items():
        where = places.layers.get(name)
        if where is None:
            known = ", ".join(places.layers)
            raise ValueError(
                f"{path} has no adapter in {name!r}, which {adapter.path} adapts; it has {known}"
            )
        (depth, rank), width = layer.a.shape, layer.b.shape[1]
        if (depth, width) != (where.depth, where.width):
            raise ValueError(
                f"{adapter.path}: {name!r} must adapt a kernel {(where.depth, where.width)}, "
                f"got {(depth, width)}"
            )
        if rank > where.rank:
            raise ValueError(
                f"{path} was exported for adapters of rank {where.rank} at most in {name!r}, "
                f"{adapter.path} has rank {rank}"
            )
