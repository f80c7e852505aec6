"""The tensors of a folder of safetensors, in one file or several, read lazily.

Example:

>>> import tempfile
>>> from pathlib import Path
>>> import numpy as np
>>> from safetensors.numpy import save_file
>>> from keras_tfm.checkpoints.tensors import Tensors
>>> with tempfile.TemporaryDirectory() as folder:
...     save_file({"weight": np.ones((2, 3), "float16")}, Path(folder, "model.safetensors"))
...     tensors = Tensors(Path(folder))
...     tensors["weight"].shape, tensors.array("weight").dtype.name
((2, 3), 'float32')
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_tfm.optional_package import optional_package

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
# The dtypes that are converted to float32. NumPy has no bfloat16; its bits are the upper half of a
# float32.
FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


class Tensor(NamedTuple):
    """The location of a tensor in a file.

    Attributes:
        file: Path of the file.
        dtype: str, the dtype's name in safetensors, such as "F32" or "BF16".
        shape: tuple of int.
        begin, end: int, the range of its bytes in the file.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Tensors(Mapping[str, Tensor]):
    """Tensors by name. Their values are read by `array`.

    Args:
        folder: contains `model.safetensors`; or `model.safetensors.index.json` and the files that
            it lists; or a single file `*.safetensors`.

    Raises:
        FileNotFoundError: the folder has none of these.
        ValueError: a file is not a valid safetensors file (it is truncated, its tensors overlap or
            leave gaps, or its header is damaged or too large), or the index does not match the
            files.
        ModuleNotFoundError: safetensors is not installed.
    """

    def __init__(self, folder: Path):
        self._tensors: dict[str, Tensor] = {}
        for file, names in _files(folder).items():
            found = _read_header(file)
            if names is not None and set(names) != set(found):
                raise ValueError(
                    f"{folder / INDEX} does not match {file.name}: "
                    f"missing in the file: {sorted(set(names) - set(found))}, "
                    f"not in the index: {sorted(set(found) - set(names))}"
                )
            twice = sorted(set(found) & set(self._tensors))
            if twice:
                raise ValueError(f"{file} has tensors that are also in another file: {twice}")
            self._tensors.update(found)

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def array(self, name: str) -> np.ndarray:
        """The values of a tensor, float32."""
        tensor = self[name]
        if tensor.dtype not in FLOATS:
            raise ValueError(
                f"{tensor.file}: {name} must be one of {list(FLOATS)}, got {tensor.dtype}"
            )
        raw = np.fromfile(
            tensor.file,
            FLOATS[tensor.dtype],
            count=int(np.prod(tensor.shape)),
            offset=tensor.begin,
        )
        if tensor.dtype == "BF16":
            raw = (raw.astype("uint32") << 16).view("float32")
        return raw.astype("float32", copy=False).reshape(tensor.shape)


def _files(folder: Path) -> dict[Path, list[str] | None]:
    """The files, with the names of their tensors in the index; None without an index."""
    single, index = folder / SINGLE, folder / INDEX
    if single.is_file():
        return {single: None}
    if index.is_file():
        return _tensors_by_file(folder, index)
    others = sorted(folder.glob("*.safetensors"))
    if len(others) == 1:
        return {others[0]: None}
    if others:
        raise ValueError(
            f"{folder} has {[x.name for x in others]}: expected {SINGLE}, {INDEX} or only one file"
        )
    pickled = sorted(x.name for x in folder.glob("*.bin"))
    raise FileNotFoundError(
        f"{folder} has no {SINGLE}"
        + (
            f"; {pickled} are pickles, which can run code and are not supported: load them with "
            "transformers and call save_pretrained"
            if pickled
            else ""
        )
    )


def _tensors_by_file(folder: Path, index: Path) -> dict[Path, list[str] | None]:
    """The files of an index, each with the names of its tensors."""
    content = read_json(index)
    places = content.get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(x, str) for x in places.values()):
        raise ValueError(
            f'{index}: expected "weight_map", a dictionary of file names, got {places!r}'
        )
    files: dict[Path, list[str] | None] = {}
    for name, file in places.items():
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise ValueError(
                f"{index}: expected names of .safetensors files in the same folder, got {file!r}"
            )
        names = files.setdefault(folder / file, [])
        assert names is not None
        names.append(name)
    missing = sorted(x.name for x in files if not x.is_file())
    if missing:
        raise FileNotFoundError(f"{folder} lacks {missing}, which are in {INDEX}")
    return files


def _read_header(file: Path) -> dict[str, Tensor]:
    safetensors = import_safetensors()
    try:
        # Checks sizes, overlaps, gaps and trailing bytes.
        with safetensors.safe_open(file, framework="numpy"):
            pass
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{file} is not a safetensors file: {error}") from None
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(size))
    header.pop("__metadata__", None)
    return {
        name: Tensor(
            file,
            spec["dtype"],
            tuple(spec["shape"]),
            *(8 + size + offset for offset in spec["data_offsets"]),
        )
        for name, spec in header.items()
    }


def import_safetensors() -> Any:
    """Imports the package `safetensors`; the error names the extra to install."""
    return optional_package(
        "safetensors", "checkpoints need safetensors", "safetensors", extra="checkpoints"
    )


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
