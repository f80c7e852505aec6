"""The tensors of a folder, in one file or several, read and written one at a time.

Files are read, not mapped to memory: a mapped file that is truncated meanwhile ends the process
with a bus error, mapped pages count as memory in use, and some file systems cannot map files.

Example:

>>> import tempfile
>>> from pathlib import Path
>>> import numpy as np
>>> from keras_tfm.checkpoints.tensors import TensorKind, Tensors, write_tensors
>>> with tempfile.TemporaryDirectory() as folder:
...     kinds = {"weight": TensorKind(np.dtype("float16"), (2, 3))}
...     arrays = [("weight", np.ones((2, 3), "float16"))]
...     write_tensors(Path(folder, "model.safetensors"), kinds, arrays)
...     tensors = Tensors(Path(folder))
...     tensors["weight"].shape, tensors.array("weight").dtype.name
((2, 3), 'float16')
"""

import json
import math
import os
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import ml_dtypes
import numpy as np
from numpy.lib.stride_tricks import as_strided

from keras_tfm.checkpoints.stored_tensor import Tensor
from keras_tfm.checkpoints.tensorflow_files import as_torch, read_h5_file
from keras_tfm.checkpoints.torch_files import read_torch_file

SINGLE = "model.safetensors"
# Files of weights, in the order in which they are looked for; an index has such a name and this.
_SINGLES = (SINGLE, "pytorch_model.bin", "tf_model.h5")
_INDEX = ".index.json"
INDEX = SINGLE + _INDEX
# The first bytes of what `git clone` writes in place of a large file without Git LFS.
_POINTER = b"version https://git-lfs"
# The dtypes of weights.
FLOATS = {
    "F64": np.dtype("float64"),
    "F32": np.dtype("float32"),
    "F16": np.dtype("float16"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
INTEGERS: dict[str, np.dtype] = {
    "I8": np.dtype("int8"),
    "I32": np.dtype("int32"),
    "I64": np.dtype("int64"),
}
# The longest header that safetensors reads.
_LONGEST_HEADER = 100_000_000


class AnyTensors(Mapping[str, Tensor]):
    """Tensors by name, of a folder or of a file in another format."""

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def unstack(self, pattern: str) -> None:
        """Replaces each tensor whose name matches by its parts along axis 0, "name[0]" ..."""
        for name in [x for x in self if re.fullmatch(pattern, x) and self[x].shape]:
            tensor = self._tensors.pop(name)
            self._tensors |= {f"{name}[{i}]": x for i, x in enumerate(tensor.parts())}

    @abstractmethod
    def array(self, name: str) -> np.ndarray:
        """The values of a tensor, in one of the dtypes of `FLOATS`."""

    @abstractmethod
    def check_unchanged(self) -> None:
        """Raises a ValueError if a file was changed since it was opened."""


class Tensors(AnyTensors):
    """Tensors by name. Their values are read by `array`.

    Args:
        folder: contains `model.safetensors`; or `model.safetensors.index.json` and the files that
            it lists; or a single file `*.safetensors`; or else `pytorch_model.bin`, or
            `tf_model.h5`, or their indices and files.
        singles: names of the files that are looked for.

    Attributes:
        metadata: dict of texts, those in the headers of all files.

    Raises:
        FileNotFoundError: the folder has none of these.
        ValueError: a file is not a valid safetensors file (it is truncated, its tensors overlap or
            leave gaps, or its header is damaged or too large), a file of another format is damaged,
            or the index does not match the files.
    """

    def __init__(self, folder: Path, singles: tuple[str, ...] = _SINGLES):
        super().__init__()
        self._stamps: dict[Path, Stamp] = {}
        self.metadata: dict[str, str] = {}
        for file, names in _files(folder, singles).items():
            self._stamps[file], found, metadata = _read_header(file)
            self.metadata.update(metadata)
            # Those of TensorFlow have other names in an index.
            known = None if metadata.get("format") == "tf" else names
            if known is not None and set(known) != set(found):
                raise ValueError(
                    f"the index in {folder} does not match {file.name}: "
                    f"missing in the file: {sorted(set(known) - set(found))}, "
                    f"not in the index: {sorted(set(found) - set(known))}"
                )
            twice = sorted(set(found) & set(self._tensors))
            if twice:
                raise ValueError(f"{file} has tensors that are also in another file: {twice}")
            self._tensors.update(found)

    def array(self, name: str) -> np.ndarray:
        """The values of a tensor in the dtype of the file, but float32 for float64.

        Raises:
            ValueError: the tensor's dtype is not one of `FLOATS`, or the file changed.
        """
        values = self._read(name, FLOATS)
        return values.astype("float32") if values.dtype == np.float64 else values

    def integers(self, name: str) -> np.ndarray:
        """The values of a tensor of integers.

        Raises:
            ValueError: the tensor's dtype is not one of `INTEGERS`, or the file changed.
        """
        return self._read(name, INTEGERS)

    def _read(self, name: str, dtypes: Mapping[str, np.dtype]) -> np.ndarray:
        tensor = self[name]
        if tensor.dtype not in dtypes:
            raise ValueError(
                f"{tensor.file}: {name} must be one of {list(dtypes)}, got {tensor.dtype}"
            )
        size = tensor.end - tensor.begin
        try:
            raw = np.fromfile(tensor.file, "uint8", size, offset=tensor.begin)
        except FileNotFoundError:
            raise change_error(tensor.file) from None
        if len(raw) != size:
            raise change_error(tensor.file)
        values = raw.view(dtypes[tensor.dtype])
        if tensor.strides is None:
            return values.reshape(tensor.shape)
        steps = [step * values.itemsize for step in tensor.strides]
        return np.ascontiguousarray(as_strided(values, tensor.shape, steps))

    def check_unchanged(self) -> None:
        """Raises a ValueError if a file was changed, replaced or removed since it was opened."""
        for file, stamp in self._stamps.items():
            stamp.check(file)


class Stamp(NamedTuple):
    """What tells two versions of a file apart."""

    device: int
    inode: int
    size: int
    modified: int

    @classmethod
    def of(cls, status: os.stat_result) -> "Stamp":
        """The version that the status of an open file, or of a path, shows."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def check(self, file: Path) -> None:
        """Raises a ValueError if the file was changed, replaced or removed."""
        try:
            now = Stamp.of(file.stat())
        except FileNotFoundError:
            raise change_error(file) from None
        if now != self:
            raise change_error(file)


def change_error(file: Path) -> ValueError:
    """The error for a file that was changed while it was read."""
    return ValueError(f"{file} was changed while it was read: load it again")


def _files(folder: Path, singles: tuple[str, ...]) -> dict[Path, list[str] | None]:
    """The files, with the names of their tensors in the index; None without an index."""
    for single in singles:
        if (folder / single).is_file():
            return {folder / single: None}
        if (folder / f"{single}{_INDEX}").is_file():
            return _tensors_by_file(folder, folder / f"{single}{_INDEX}")
        others = sorted(folder.glob("*.safetensors")) if single == SINGLE else []
        others = [x for x in others if x.stem != "adapter_model"]  # of PEFT
        if len(others) == 1:
            return {others[0]: None}
        if others:
            raise ValueError(
                f"{folder} has {[x.name for x in others]}: expected {SINGLE}, {INDEX} or only one "
                "file"
            )
    raise FileNotFoundError(f"{folder} has no {', '.join(singles[:-1])} or {singles[-1]}")


def _tensors_by_file(folder: Path, index: Path) -> dict[Path, list[str] | None]:
    """The files of an index, each with the names of its tensors."""
    content = read_json(index)
    places = content.get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(x, str) for x in places.values()):
        raise ValueError(
            f'{index}: expected "weight_map", a dictionary of file names, got {places!r}'
        )
    suffix = Path(index.name.removesuffix(_INDEX)).suffix
    files: dict[Path, list[str] | None] = {}
    for name, file in places.items():
        if Path(file).name != file or not file.endswith(suffix):
            raise ValueError(
                f"{index}: expected names of {suffix} files in the same folder, got {file!r}"
            )
        names = files.setdefault(folder / file, None if suffix == ".h5" else [])
        if names is not None:  # those of TensorFlow have other names in the files
            names.append(name)
    missing = sorted(x.name for x in files if not x.is_file())
    if missing:
        raise FileNotFoundError(f"{folder} lacks {missing}, which are in {index.name}")
    return files


def _read_header(file: Path) -> tuple[Stamp, dict[str, Tensor], dict[str, str]]:
    """The version of a file, its tensors by name, and its metadata."""
    with file.open("rb") as opened:
        if opened.read(len(_POINTER)) == _POINTER:
            raise ValueError(f"{file} is a pointer of Git LFS, not the file: run `git lfs pull`")
    if file.suffix in _READERS:
        return *_read_foreign(file), {}
    try:
        with file.open("rb") as opened:
            stamp = Stamp.of(os.fstat(opened.fileno()))
            length = int.from_bytes(opened.read(8), "little")
            if not 0 < length <= min(stamp.size - 8, _LONGEST_HEADER):
                raise ValueError(f"a header of {length} bytes in a file of {stamp.size}")
            header = json.loads(opened.read(length))
        if not isinstance(header, dict):
            raise ValueError(f"its header must be a dictionary, got {type(header).__name__}")
        metadata = header.pop("__metadata__", None)
        texts = metadata if isinstance(metadata, dict) else {}
        tensors = {name: _tensor(file, 8 + length, name, x) for name, x in header.items()}
        end = 8 + length
        for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
            if tensor.begin != end:
                raise ValueError(f"{name} must begin at byte {end}, got {tensor.begin}")
            end = tensor.end
        if end != stamp.size:
            raise ValueError(f"its tensors end at byte {end}, and the file at {stamp.size}")
    except (ValueError, RecursionError, OSError) as error:
        raise ValueError(f"{file} is not a safetensors file: {error}") from None
    if texts.get("format") == "tf":
        tensors = as_torch(tensors.items())
    return stamp, tensors, {name: x for name, x in texts.items() if isinstance(x, str)}


# How files of other formats are read, and what they must be.
_READERS: dict[str, tuple[Callable[[Path, BinaryIO], dict[str, Tensor]], str]] = {
    ".bin": (read_torch_file, "a state_dict of torch.save"),
    ".h5": (read_h5_file, "weights of a TensorFlow class of transformers"),
}


def _read_foreign(file: Path) -> tuple[Stamp, dict[str, Tensor]]:
    """The version of a file of another format, and its tensors by name."""
    read, expected = _READERS[file.suffix]
    try:
        with file.open("rb") as opened:
            return Stamp.of(os.fstat(opened.fileno())), read(file, opened)
    except (ValueError, OSError) as error:
        raise ValueError(f"{file} is not {expected}: {error}") from None


def _tensor(file: Path, start: int, name: str, spec: Any) -> Tensor:
    """A tensor of a header; `start` is the position of the first tensor in the file."""
    fields: dict[str, Any] = spec if isinstance(spec, dict) else {}
    dtype, shape, offsets = (fields.get(key, "") for key in ("dtype", "shape", "data_offsets"))
    if not (_are_sizes(shape) and _are_sizes(offsets) and len(offsets) == 2):
        raise ValueError(f"{name} must have a dtype, a shape and data_offsets, got {spec!r:.200}")
    # F32, BF16, I64, U8, F8_E4M3, C64.
    found = re.fullmatch(r"[A-Z]+([0-9]+)(_\w+)?", str(dtype))
    bits = 8 if dtype == "BOOL" else int(found[1]) if found else 0
    begin, end = offsets
    if not bits or math.prod(shape) * bits != 8 * (end - begin):
        raise ValueError(
            f"{name}, {dtype} of shape {tuple(shape)}, cannot have {end - begin} bytes"
        )
    return Tensor(file, dtype, tuple(shape), start + begin, start + end)


def _are_sizes(value: object) -> bool:
    return isinstance(value, list) and all(type(x) is int and x >= 0 for x in value)


class TensorKind(NamedTuple):
    """The dtype and shape of a tensor that will be written."""

    dtype: np.dtype
    shape: tuple[int, ...]


def write_tensors(
    file: Path, kinds: Mapping[str, TensorKind], arrays: Iterable[tuple[str, np.ndarray]]
) -> None:
    """Writes a safetensors file, an array at a time.

    Args:
        file: Path of the new file.
        kinds: the dtype and shape of each tensor, by name. Those of larger numbers come first, so
            that all are aligned. "name[0]", "name[1]" ..., one after the other, are the parts of
            one tensor along its first axis.
        arrays: the names and values, in the same order.

    Raises:
        ValueError: an array is not the next one, or of another dtype or shape.
        OSError: the file cannot be written, for instance because the disk is full.
    """
    names = {dtype: name for name, dtype in FLOATS.items()} | {np.dtype("int64"): "I64"}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, kind in kinds.items():
        begin, end = end, end + math.prod(kind.shape) * kind.dtype.itemsize
        stacked, _, index = name.partition("[")
        if index and stacked in header:
            header[stacked]["shape"][0] += 1
            header[stacked]["data_offsets"][1] = end
            continue
        header[stacked] = {
            "dtype": names[kind.dtype],
            "shape": [1, *kind.shape] if index else list(kind.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("xb") as opened:
        opened.write(len(text).to_bytes(8, "little") + text)
        for (name, kind), (found, array) in zip(kinds.items(), arrays, strict=True):
            if (found, array.dtype, array.shape) != (name, *kind):
                raise ValueError(
                    f"expected {name}, {kind.dtype} {kind.shape}, "
                    f"got {found}, {array.dtype} {array.shape}"
                )
            opened.write(np.ascontiguousarray(array).reshape(-1).view("uint8").data)


def read_json(file: Path, kind: type = dict) -> Any:
    """The dictionary in a JSON file, or the object of another kind.

    Raises:
        ValueError: the file is not JSON, or does not hold an object of this kind.
    """
    try:
        content = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON: {error}") from None
    if not isinstance(content, kind):
        name = "a list" if kind is list else "a dictionary"
        raise ValueError(f"{file} must hold {name}, got {type(content).__name__}")
    return content
