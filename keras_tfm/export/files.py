"""Writes an export in a temporary folder, then renames it to its path.

Temporary folders are named `.keras_tfm-*` and locked while their export runs. SIGTERM and SIGHUP
remove them. A folder that `kill -9` leaves behind is no longer locked, and the next export removes
it.

Example:

>>> from pathlib import Path
>>> from keras_tfm.export.files import check_file
>>> check_file(Path("/"), overwrite=True)
Traceback (most recent call last):
IsADirectoryError: cannot write /: it is a folder
"""

import contextlib
import json
import os
import shutil
import signal
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from keras_tfm.runtime.manifest import is_export
from keras_tfm.version import __version__

if sys.platform != "win32":
    import fcntl

_PREFIX = ".keras_tfm-"
# TensorFlow reserves the folder `assets.extra` of a SavedModel for other programs.
_MARK = Path("assets.extra", "keras_tfm.json")
# The temporary folders of running exports, each with the id of the process that created it.
_open: dict[Path, int] = {}


def check_file(path: Path, overwrite: bool) -> None:
    """Raises unless a .tflite or .litertlm file may be written to `path`.

    `path` may be an earlier export, an empty file (`tempfile` creates those), or missing.
    `overwrite` allows any other file, but never a folder, a device, a FIFO or a socket.
    """
    _check_parent(path)
    if path.is_dir():
        raise IsADirectoryError(f"cannot write {path}: it is a folder")
    if not path.exists():
        return
    if not path.is_file():
        raise FileExistsError(f"cannot write {path}: it is a device, a FIFO or a socket")
    if not (overwrite or path.stat().st_size == 0 or is_export(path)):
        raise FileExistsError(
            f"cannot write {path}: it exists and is not an export of keras_tfm; "
            "overwrite=True replaces it"
        )


def check_folder(path: Path, overwrite: bool) -> None:
    """Raises unless a SavedModel may be written to `path`.

    `path` may be an earlier export, an empty folder, or missing. `overwrite` allows any other
    SavedModel, but no other folder and no file.
    """
    _check_parent(path)
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not (path / "saved_model.pb").is_file():
        raise FileExistsError(f"cannot write {path}: it exists and is not a SavedModel")
    if not (overwrite or (path / _MARK).is_file()):
        raise FileExistsError(
            f"cannot write {path}: keras_tfm did not write the SavedModel there; "
            "overwrite=True replaces it"
        )


def _check_parent(path: Path) -> None:
    parent = real(path).parent
    if not parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: there is no folder {parent}")
    if not os.access(parent, os.W_OK):
        raise PermissionError(f"cannot write {path}: the folder {parent} is not writable")


def real(path: Path) -> Path:
    """The absolute path to write to; symbolic links are resolved."""
    return Path(os.path.realpath(path))


def write(path: Path, content: bytes) -> None:
    """Writes a new file and flushes it to disk; its mode is that of the umask."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_file(new: Path, path: Path, overwrite: bool) -> None:
    """Renames `new` to `path` atomically. Keeps the mode of an earlier file, and links to it."""
    check_file(path, overwrite)  # again: it may have changed during the verification
    target = real(path)
    _keep_mode(new, target)
    os.replace(new, target)


def replace_folder(new: Path, path: Path, overwrite: bool) -> None:
    """Renames `new` to `path`, after moving an earlier folder next to `new`."""
    extra = (new / _MARK).parent
    extra.mkdir()
    for folder in (new, *(path for path in new.iterdir() if path.is_dir())):
        folder.chmod(stat.S_IMODE(extra.stat().st_mode))  # the umask's; TensorFlow makes 0o755
    (new / _MARK).write_text(json.dumps({"keras_tfm": __version__}) + "\n", encoding="utf-8")
    check_folder(path, overwrite)
    target, old = real(path), new.with_name("old")
    earlier = target.exists()
    if earlier:
        _keep_mode(new, target)
        os.replace(target, old)
    try:
        os.replace(new, target)
    except BaseException:
        if earlier:
            os.replace(old, target)
        raise


def _keep_mode(new: Path, earlier: Path) -> None:
    if earlier.exists():
        new.chmod(stat.S_IMODE(earlier.stat().st_mode) & 0o777)


@contextmanager
def temporary_folder(parent: Path | None = None) -> Iterator[Path]:
    """A temporary folder for an export, removed at the end of the block.

    First removes the folders that killed exports left behind.

    Args:
        parent: the folder to create it in; default: that of `tempfile`.
    """
    parent = Path(tempfile.gettempdir()) if parent is None else parent
    for found in parent.glob(f"{_PREFIX}*"):
        _remove_if_stale(found)
    folder, lock = _locked(parent)
    _open[folder] = os.getpid()
    try:
        with _removed_on_termination():
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _open.pop(folder)
        if lock is not None:
            os.close(lock)


def _locked(parent: Path) -> tuple[Path, int | None]:
    """A new folder, and the file descriptor that locks it while this process lives."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        if sys.platform == "win32":
            return folder, None
        lock = None
        with contextlib.suppress(OSError):
            lock = os.open(folder, os.O_RDONLY)
            # Where the file system has no locks, stale folders are never removed.
            fcntl.flock(lock, fcntl.LOCK_EX)
        # Another export may have removed the folder as stale before it was locked.
        if folder.exists():
            return folder, lock
        if lock is not None:
            os.close(lock)


def _remove_if_stale(folder: Path) -> None:
    """Removes a temporary folder unless a process has it locked."""
    # Killed between the two renames of `replace_folder`: it holds both SavedModels, complete.
    if sys.platform == "win32" or ((folder / "old").exists() and (folder / "new").exists()):
        return
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # another user's, or not a folder
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # in use
        pass
    finally:
        os.close(lock)


@contextmanager
def _removed_on_termination() -> Iterator[None]:
    """Removes the temporary folders if SIGTERM or SIGHUP ends the process.

    The exit status is that of the signal. A program's own handler is kept. Only the main thread can
    set handlers.
    """
    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    numbers = [getattr(signal, name) for name in names]
    numbers = [x for x in numbers if signal.getsignal(x) is signal.SIG_DFL]
    try:
        for number in numbers:
            signal.signal(number, _terminate)
    except ValueError:  # not the main thread
        numbers = []
    try:
        yield
    finally:
        for number in numbers:
            if signal.getsignal(number) is _terminate:
                signal.signal(number, signal.SIG_DFL)


def _terminate(number: int, _: Any) -> None:
    for folder, process in list(_open.items()):
        if process == os.getpid():  # a forked child must not remove its parent's folders
            shutil.rmtree(folder, ignore_errors=True)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
