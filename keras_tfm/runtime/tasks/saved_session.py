"""Sessions as files: tokens, KV caches and the checksum of the .tflite file, in one .npz file."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_tfm.arguments import check_file
from keras_tfm.atomic_files import check_earlier, replacement
from keras_tfm.runtime.decoding.steps import Steps
from keras_tfm.runtime.manifest.manifest import Decode, Prefill, Signature, Tensor
from keras_tfm.runtime.npz_file import Header, NpzError, NpzFile

_VERSION = 1
# The prefixes of the arrays' names.
_ENTRY, _KNOWN, _STATE = "entry/", "known/", "state/"


class Saved(NamedTuple):
    """What a session file holds.

    Attributes:
        tokens: all tokens.
        owed: as of `GivenText`; None if all of their text was given.
        known: the arguments that all steps share.
        entries: the cache entries, up to `position`.
        states: the recurrent states at `position`.
        position: int, number of tokens that were read.
    """

    tokens: list[int]
    owed: int | None
    known: dict[str, np.ndarray]
    entries: dict[str, np.ndarray]
    states: dict[str, np.ndarray]
    position: int


def write(path: str | Path, sha256: str, tokens: list[int], owed: int | None, steps: Steps) -> None:
    """Writes a session; the file is complete or unchanged. An earlier session is replaced.

    Args:
        path: the file. Unlike `np.savez`, nothing is appended to its name.
        sha256: str, the checksum of the .tflite file.
        tokens: list of int, all tokens.
        owed: int, as of `GivenText`; None if all of their text was given.
        steps: their KV caches.

    Raises:
        FileExistsError: `path` is another file.
    """
    arrays: dict[str, np.ndarray] = {
        "version": np.array(_VERSION),
        "sha256": np.array(sha256),
        "tokens": np.array(tokens, "int32"),
        **({} if owed is None else {"owed": np.array(owed)}),
        **{_ENTRY + key: x for key, x in steps.read_entries().items()},
        **{_KNOWN + key: x for key, x in steps.known.items()},
        **{_STATE + key: x for key, x in steps.states.items()},
        **({"position": np.array(steps.position)} if steps.states else {}),
    }
    check_earlier(path, "a saved session", _is_session)
    with replacement(path) as new, new.open("xb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def _is_session(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return _has_session(NpzFile(file).headers)
    except NpzError:
        return False


def _has_session(headers: Mapping[str, Header]) -> bool:
    """Whether the arrays of a file are those of a session, of any version."""
    scalars = {"version": "i", "sha256": "U"}
    return "tokens" in headers and all(
        name in headers and _is_scalar(headers[name], kind) for name, kind in scalars.items()
    )


def read(
    path: str | Path, sha256: str, signatures: Mapping[str, Signature], decode: Decode
) -> Saved:
    """What a file holds.

    Arrays are read after their names, shapes and dtypes were compared with those of the .tflite
    file.

    Args:
        path: the file.
        sha256: str, the checksum of the .tflite file.
        signatures: its signatures.
        decode: its decode signature with the smallest caches.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is damaged, no saved session, or one of another .tflite file; or its caches
            have values that are not finite.
    """
    path = Path(path)
    check_file(path)
    try:
        with path.open("rb") as file:
            return _read(path, NpzFile(file), sha256, signatures, decode)
    except NpzError as error:
        raise ValueError(f"{path} is not a saved session ({error})") from None


def _read(
    path: Path,
    file: NpzFile,
    sha256: str,
    signatures: Mapping[str, Signature],
    decode: Decode,
) -> Saved:
    headers = file.headers
    if not _has_session(headers) or file.read("version") != _VERSION:
        raise ValueError(f"{path} is not a session that this version of keras_tfm saved")
    found = str(file.read("sha256"))
    if found != sha256:
        raise ValueError(
            f"{path} was saved with another file: expected the checksum {sha256}, got {found[:64]}"
        )
    entries, known, states = (
        {key.removeprefix(kind): x for key, x in headers.items() if key.startswith(kind)}
        for kind in (_ENTRY, _KNOWN, _STATE)
    )
    tokens, owed, axes = headers["tokens"], headers.get("owed"), decode.column_axes
    others = {name for name, x in decode.inputs.items() if x.kind in ("cache", "encoded", "input")}
    others -= {*axes, *decode.states, decode.target}
    # Also what only a longer file of the caches, or a prompt, reads; "encode" may return more.
    steps = [x.inputs for x in signatures.values() if isinstance(x, Decode | Prefill)]
    readers = {key: [x[key] for x in steps if key in x] for key in known}
    known = {key: x for key, x in known.items() if readers[key]}
    widths = {
        x.shape[axes[key]] for key, x in entries.items() if len(x.shape) > axes.get(key, 1 << 31)
    }
    fits = (
        len(tokens.shape) == 1
        and tokens.dtype == np.int32
        and tokens.shape[0] <= decode.max_length
        and (owed is None or _is_scalar(owed, "i"))
        and entries.keys() == axes.keys()
        and others <= known.keys()
        and states.keys() == {*decode.states}
        and len(widths) <= 1
        and decode.prefix <= min(widths, default=decode.prefix)
        and max(widths, default=0) <= decode.prefix + tokens.shape[0]
        and all(_fits(x, decode.inputs[key], axes[key]) for key, x in entries.items())
        and all(_fits(known[key], decode.inputs[key]) for key in others)
        and all(_fits(x, decode.inputs[key]) for key, x in states.items())
        and all(any(_fits(x, y) for y in readers[key]) for key, x in known.items())
    )
    damaged = f"{path} is damaged: its tokens and caches are not those of a session"
    if not fits:
        raise ValueError(damaged)
    ids = file.read("tokens")
    size = decode.inputs[decode.target].vocabulary_size or 1 << 31
    position = max(widths, default=decode.prefix) - decode.prefix
    if states:
        stored = headers.get("position")
        read = file.read("position") if stored is not None and _is_scalar(stored, "i") else -1
        fits = bool(0 <= read <= len(ids) and (not widths or read == position))
        position = int(read)
    if not fits or not np.all((ids >= 0) & (ids < size)):
        raise ValueError(damaged)
    caches = {key: file.read(_ENTRY + key) for key in entries}
    given = {key: file.read(_KNOWN + key) for key in known}
    kept = {key: file.read(_STATE + key) for key in states}
    for kind, arrays, allowed in (
        (_ENTRY, caches, np.isfinite),
        (_KNOWN, given, _is_number),
        (_STATE, kept, _is_number),
    ):
        for key, x in arrays.items():
            if x.dtype.kind == "f" and not np.all(allowed(x)):
                raise ValueError(
                    f"{path} cannot be continued: {kind}{key} has values that are not finite"
                )
    owed_characters = None if owed is None else int(file.read("owed"))
    return Saved(ids.tolist(), owed_characters, given, caches, kept, position)


def _is_number(x: np.ndarray) -> np.ndarray:
    """Whether values are no NaN; a mask may be -inf."""
    return ~np.isnan(x)


def _is_scalar(x: Header, kind: str) -> bool:
    """Whether an array is one integer ("i") or short text ("U")."""
    return x.shape == () and x.dtype.kind == kind and x.nbytes <= 1024


def _fits(x: Header, argument: Tensor, columns: int | None = None) -> bool:
    """Whether an array is one row of an argument, with any size of the axis `columns`."""
    shape = list(argument.shape)
    if columns is not None and len(x.shape) == len(shape):
        shape[columns] = x.shape[columns]
    return [1, *shape[1:]] == list(x.shape) and x.dtype == np.dtype(argument.dtype)
