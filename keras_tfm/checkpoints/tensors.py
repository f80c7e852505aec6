"""The tensors of a folder: `*.safetensors`, in one file or several, read when asked for."""

import importlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
# What is widened to float32; bfloat16, which NumPy lacks, as the upper half of its bits.
FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


class Tensor(NamedTuple):
    """Where a tensor stands.

    Attributes:
        file: the file.
        dtype: in safetensors' own words: "F32", "BF16"...
        shape: of the tensor.
        begin, end: of its bytes in the file.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Tensors(Mapping[str, Tensor]):
    """Tensors by name. Nothing of their values is read before `array`.

    Args:
        folder: with `model.safetensors`, or `model.safetensors.index.json` and the files that it
            names, or one file of any name that ends in `.safetensors`.

    Raises:
        FileNotFoundError: there is none.
        ValueError: a file is no safetensors: cut off, with tensors that overlap, bytes that no
            tensor has, or a header that is damaged or too large; or the index does not fit the
            files.
        ModuleNotFoundError: safetensors is missing.
    """

    def __init__(self, folder: Path):
        self._tensors: dict[str, Tensor] = {}
        for file, names in _files(folder).items():
            found = _read_header(file)
            if names is not None and set(names) != set(found):
                raise ValueError(
                    f"{folder / INDEX} does not fit {file.name}: "
                    f"missing in the file: {sorted(set(names) - set(found))}, "
                    f"not in the index: {sorted(set(found) - set(names))}"
                )
            twice = sorted(set(found) & set(self._tensors))
            if twice:
                raise ValueError(f"{file} has tensors that another file has, too: {twice}")
            self._tensors.update(found)

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def array(self, name: str) -> np.ndarray:
        """The values, float32."""
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
    """The files, each with the names that an index says it has, or None where there is no index."""
    single, index = folder / SINGLE, folder / INDEX
    if single.is_file():
        return {single: None}
    if index.is_file():
        return _indexed(folder, index)
    others = sorted(folder.glob("*.safetensors"))
    if len(others) == 1:
        return {others[0]: None}
    if others:
        raise ValueError(
            f"{folder} has {[x.name for x in others]}, and neither {SINGLE} nor {INDEX} "
            "says which of them to read"
        )
    pickled = sorted(x.name for x in folder.glob("*.bin"))
    raise FileNotFoundError(
        f"{folder} has no {SINGLE}"
        + (
            f"; {pickled} are pickles, which are programs and are not read: load them with "
            "transformers, and save_pretrained"
            if pickled
            else ""
        )
    )


def _indexed(folder: Path, index: Path) -> dict[Path, list[str] | None]:
    content = read_json(index)
    places = content.get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(x, str) for x in places.values()):
        raise ValueError(f'{index}: expected "weight_map", a file name by tensor, got {places!r}')
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
        raise FileNotFoundError(f"{folder} lacks {missing}, which {INDEX} names")
    return files


def _read_header(file: Path) -> dict[str, Tensor]:
    safetensors = import_safetensors()
    try:
        # Checks it all: sizes, overlaps, gaps, and that no byte is left over.
        with safetensors.safe_open(file, framework="numpy"):
            pass
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{file} is no safetensors file: {error}") from None
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
    """The package `safetensors`."""
    try:
        return importlib.import_module("safetensors")
    except ModuleNotFoundError as error:
        if error.name != "safetensors":
            raise
        raise ModuleNotFoundError(
            'checkpoints need safetensors: pip install "keras-tfm[checkpoints]"',
            name="safetensors",
        ) from None


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        ValueError: there is none in it.
    """
    try:
        content = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is no JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{file} must hold an object, got {type(content).__name__}")
    return content
