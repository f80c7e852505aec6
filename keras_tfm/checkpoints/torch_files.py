"""Where the tensors are in a file that `torch.save` wrote, such as `pytorch_model.bin`.

Such a file is a zip of a pickle and of one uncompressed file for each storage; before PyTorch 1.6,
of pickles with the storages behind them. A pickle can run any code. Here it is unpickled by a
class that knows `OrderedDict` and the functions that make tensors, and raises an error for anything
else; in place of tensors it makes descriptions of them. PyTorch is not needed.
"""

import math
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple

from keras_tfm.checkpoints.stored_tensor import Tensor

# The dtypes in safetensors, and bytes, by the classes of storages.
_STORAGES = {
    "DoubleStorage": ("F64", 8),
    "FloatStorage": ("F32", 4),
    "HalfStorage": ("F16", 2),
    "BFloat16Storage": ("BF16", 2),
    "LongStorage": ("I64", 8),
    "IntStorage": ("I32", 4),
    "ShortStorage": ("I16", 2),
    "CharStorage": ("I8", 1),
    "ByteStorage": ("U8", 1),
    "BoolStorage": ("BOOL", 1),
}
# The first two objects of a file that is no zip.
_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_ZIP = b"PK\x03\x04"
_PICKLE = b"\x80"
_LOCAL_HEADER = 30  # bytes of a file's header in a zip, before its name
# The longest pickle that is read: descriptions, of perhaps 200 bytes for each tensor.
_LONGEST_PICKLE = 100_000_000


class _Storage(NamedTuple):
    """A storage that a pickle mentions; `offset` is where a view of it begins, in elements."""

    key: str
    dtype: str
    itemsize: int
    offset: int


class _View(NamedTuple):
    """A tensor that a pickle describes."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


# Where a storage is: its first byte in the file, and its length.
_Place = Callable[[_Storage], tuple[int, int]]


def read_torch_file(path: Path, file: BinaryIO) -> dict[str, Tensor]:
    """The tensors of a file, by name.

    Args:
        path: Path of the file.
        file: the file, open for reading.

    Raises:
        ValueError: it is damaged, has other objects than tensors by name, or a dtype of no number.
    """
    is_zip = file.read(len(_ZIP)) == _ZIP
    file.seek(0)
    try:
        content, place = (_read_zip if is_zip else _read_pickles)(file)
        return _locate(path, content, place, file.seek(0, 2))
    except ValueError:
        raise
    except Exception as error:  # a damaged pickle raises any
        raise ValueError(f"{type(error).__name__}: {error}"[:120]) from None


def _read_zip(file: BinaryIO) -> tuple[object, _Place]:
    """The object in the pickle of a zip, and where its storages are."""
    archive = zipfile.ZipFile(file)
    members = {member.filename: member for member in archive.infolist()}
    pickles = [name for name in members if name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise ValueError("a zip without the pickle of torch.save")
    folder = pickles[0].removesuffix("data.pkl")
    order = members.get(f"{folder}byteorder")
    if order is not None and order.file_size < 10 and archive.read(order) != b"little":
        raise ValueError("written by a big-endian machine")
    if members[pickles[0]].file_size > _LONGEST_PICKLE:
        raise ValueError(f"a pickle of {members[pickles[0]].file_size} bytes")

    def place(storage: _Storage) -> tuple[int, int]:
        member = members[f"{folder}data/{storage.key}"]
        if member.compress_type != zipfile.ZIP_STORED:
            raise ValueError("compressed")
        file.seek(member.header_offset)
        header = file.read(_LOCAL_HEADER)
        # The central directory has another extra field than the header before the data.
        lengths = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        return member.header_offset + _LOCAL_HEADER + lengths, member.file_size

    with archive.open(pickles[0]) as opened:
        return _Unpickler(opened).load(), place


def _read_pickles(file: BinaryIO) -> tuple[object, _Place]:
    """The same of a file of PyTorch before 1.6."""
    if file.read(1) != _PICKLE:
        raise ValueError("it is no zip and no pickle")
    file.seek(0)
    if _Unpickler(file).load() != _MAGIC:
        raise ValueError("it is a pickle of something else")
    protocol, system = _Unpickler(file).load(), _Unpickler(file).load()
    if protocol != _PROTOCOL or not system["little_endian"]:
        raise ValueError(f"of protocol {protocol}, {system}")
    unpickler = _Unpickler(file)
    content = unpickler.load()
    places = {}
    for key in _Unpickler(file).load():
        # The number of elements, and the elements.
        count = file.read(8)
        if len(count) < 8:
            raise ValueError("it ends before the last storage")
        length = int.from_bytes(count, "little") * unpickler.storages[key].itemsize
        places[key] = (file.tell(), length)
        file.seek(length, 1)
    return content, lambda storage: places[storage.key]


class _Unpickler(pickle.Unpickler):
    """Reads descriptions of tensors, and runs nothing else.

    Attributes:
        storages: dict, the storages that were mentioned, by key.
    """

    def __init__(self, file: IO[bytes]):
        super().__init__(file)
        self.storages: dict[str, _Storage] = {}

    def find_class(self, module: str, name: str) -> object:
        """The function or class of a name in a pickle; raises for all but those of tensors."""
        if (module, name) in _KNOWN:
            return _KNOWN[module, name]
        if module == "torch" and name in _STORAGES:
            return name
        raise ValueError(f"it has an object of {module}.{name}, which is no tensor of numbers")

    def persistent_load(self, pid: Any) -> _Storage:
        """The description of a storage."""
        _, kind, key, _, _, *views = pid
        dtype, itemsize = _STORAGES[kind]
        offset = views[0][1] if views and views[0] else 0
        storage = _Storage(key, dtype, itemsize, offset)
        self.storages[key] = storage
        return storage


def _rebuild_tensor(
    storage: _Storage, offset: int, shape: Iterable[int], strides: Iterable[int], *others: object
) -> _View:
    """In place of torch's function of this name; the others are gradients and hooks."""
    return _View(storage, storage.offset + offset, tuple(shape), tuple(strides))


def _rebuild_parameter(data: _View, *others: object) -> _View:
    return data


_KNOWN = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch", "Size"): tuple,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
}


def _locate(path: Path, content: object, place: _Place, size: int) -> dict[str, Tensor]:
    """The tensors of an object in a file of `size` bytes."""
    if not isinstance(content, dict):
        raise ValueError(f"it has an object of type {type(content).__name__}, not a state_dict")
    tensors = {}
    for name, view in content.items():
        if not isinstance(name, str) or not isinstance(view, _View):
            raise ValueError(f"{name!r} in it is of type {type(view).__name__}, not a tensor")
        numbers = (*view.shape, *view.strides, view.offset)
        if len(view.shape) != len(view.strides) or not all(
            type(x) is int and x >= 0 for x in numbers
        ):
            raise ValueError(f"{name} has the shape {view.shape} and the strides {view.strides}")
        itemsize = view.storage.itemsize
        start, length = place(view.storage)
        span = 1 + sum((n - 1) * step for n, step in zip(view.shape, view.strides, strict=True))
        begin = view.offset * itemsize
        end = begin if 0 in view.shape else begin + span * itemsize
        if end > length or start + length > size:
            raise ValueError(
                f"{name} ends at byte {end} of a storage of {length}, which begins at byte {start} "
                f"of {size}"
            )
        strides = None if view.strides == _steps(view.shape) else view.strides
        tensors[name] = Tensor(
            path, view.storage.dtype, view.shape, start + begin, start + end, strides
        )
    return tensors


def _steps(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of elements in the order of their indices."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
