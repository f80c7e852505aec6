"""Sessions as files: tokens, KV caches and the checksum of the .tflite file, in one .npz file."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_tfm.atomic_files import replaced
from keras_tfm.runtime.manifest_fields import column_axes, of_kind

if TYPE_CHECKING:
    from keras_tfm.runtime.steps import Steps

_VERSION = 1
# The prefixes of the arrays' names.
_ENTRY, _KNOWN = "entry/", "known/"


def write(
    path: str | Path, sha256: str, tokens: list[int], owed: int | None, steps: "Steps"
) -> None:
    """Writes a session; the file is complete or unchanged.

    Args:
        path: the file. Unlike `np.savez`, nothing is appended to its name.
        sha256: str, the checksum of the .tflite file.
        tokens: list of int, all tokens.
        owed: int, as of `GivenText`; None if all of their text was given.
        steps: their KV caches.
    """
    arrays: dict[str, Any] = {
        "version": np.array(_VERSION),
        "sha256": np.array(sha256),
        "tokens": np.array(tokens, "int32"),
        **({} if owed is None else {"owed": np.array(owed)}),
        **{_ENTRY + key: x for key, x in steps.kept().items()},
        **{_KNOWN + key: x for key, x in steps.known.items()},
    }
    with replaced(path) as new, new.open("xb") as file:
        np.savez(file, **arrays)


def read(
    path: str | Path, sha256: str, decode: dict[str, Any]
) -> tuple[list[int], int | None, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The tokens, the characters owed, the known arguments and the cache entries of a file.

    Args:
        path: the file.
        sha256: str, the checksum of the .tflite file.
        decode: dict, its decode signature with the smallest caches.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is damaged, no saved session, or one of another .tflite file.
    """
    arrays = _arrays(Path(path))
    if arrays.get("version") != _VERSION or not {"sha256", "tokens"} <= arrays.keys():
        raise ValueError(f"{path} is not a session that this version of keras_tfm saved")
    found = str(arrays["sha256"])
    if found != sha256:
        raise ValueError(
            f"{path} was saved with another file: expected the checksum {sha256}, got {found[:64]}"
        )
    tokens, owed = arrays["tokens"], arrays.get("owed")
    entries, known = (
        {key.removeprefix(kind): x for key, x in arrays.items() if key.startswith(kind)}
        for kind in (_ENTRY, _KNOWN)
    )
    axes = column_axes(decode)
    growing = list(axes)
    others = {*of_kind(decode, "cache"), *of_kind(decode, "encoded"), *of_kind(decode, "input")}
    others -= {*growing, decode["target"]}
    size = decode["inputs"][decode["target"]].get("vocabulary_size", 1 << 31)
    widths = {x.shape[axes[key]] for key, x in entries.items() if x.ndim > axes.get(key, x.ndim)}
    fits = (
        tokens.ndim == 1
        and tokens.dtype == np.int32
        and len(tokens) <= decode["max_length"]
        and bool(np.all((tokens >= 0) & (tokens < size)))
        and (owed is None or (owed.ndim == 0 and owed.dtype.kind == "i"))
        and entries.keys() == {*growing}
        and others <= known.keys()
        and len(widths) <= 1
        and decode.get("prefix", 0) <= min(widths, default=decode.get("prefix", 0))
        and max(widths, default=0) <= decode.get("prefix", 0) + len(tokens)
        and all(_fits(x, decode["inputs"][key], axes[key]) for key, x in entries.items())
        and all(_fits(known[key], decode["inputs"][key]) for key in others)
    )
    if not fits:
        raise ValueError(f"{path} is damaged: its tokens and caches are not those of a session")
    return tokens.tolist(), None if owed is None else int(owed), known, entries


def _fits(x: np.ndarray, spec: dict[str, Any], columns: int | None = None) -> bool:
    """Whether an array is one row of an argument, with any size of the axis `columns`."""
    shape = list(spec["shape"])
    if columns is not None and x.ndim == len(shape):
        shape[columns] = x.shape[columns]
    return [1, *shape[1:]] == list(x.shape) and x.dtype == np.dtype(spec["dtype"])


def _arrays(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as loaded:
            return {name: np.asarray(loaded[name]) for name in loaded.files}
    except Exception as error:  # several types: not a zip file, damaged, pickled objects
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path} is not a saved session ({reason[:200]})") from None
