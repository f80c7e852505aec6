"""Writes files completely or not at all, through temporary folders.

Temporary folders are named `.keras_tfm-*` and locked while their process writes. SIGTERM and SIGHUP
remove them. A folder that `kill -9` leaves behind is no longer locked, and the next write to the
same place removes it.

Example:

>>> import tempfile
>>> from pathlib import Path
>>> from keras_tfm.atomic_files import replacement
>>> with tempfile.TemporaryDirectory() as folder:
...     path = Path(folder, "a.txt")
...     _ = path.write_text("old")
...     with replacement(path) as new:
...         _ = new.write_text("new")
...         path.read_text()
...     path.read_text(), len(list(Path(folder).iterdir()))
'old'
('new', 1)
"""

import contextlib
import errno
import os
import shutil
import signal
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

if sys.platform != "win32":
    import fcntl

_PREFIX = ".keras_tfm-"
# The open temporary folders, each with the id of the process that created it.
_open: dict[Path, int] = {}


@contextmanager
def replacement(path: str | Path) -> Iterator[Path]:
    """The path of a new file, which replaces `path` at the end of the block.

    After an error `path` is as it was. A symbolic link stays, and its file is replaced. The mode is
    that of the earlier file, or of the umask.

    Raises:
        FileNotFoundError: there is no folder for the file.
        PermissionError: the folder is not writable.
        IsADirectoryError: `path` is a folder.
        FileExistsError: `path` is a device, a FIFO or a socket.
    """
    path = Path(path)
    check_target(path)
    with temporary_folder(real(path).parent) as folder:
        new = folder / path.name
        yield new
        flush(new)
        replace(new, path)


def check_earlier(path: str | Path, kind: str, is_one: Callable[[Path], bool]) -> None:
    """Raises unless `path` is missing, empty, or a file of the kind that is written there.

    A model whose path is given by mistake would be lost.

    Args:
        path: the file.
        kind: str, with its article, for the message.
        is_one: called with the path: whether a file is of that kind.

    Raises:
        FileExistsError: the file is another one.
    """
    path = Path(path)
    if path.is_file() and path.stat().st_size and not is_one(path):
        raise FileExistsError(f"cannot write {path}: it exists and is not {kind}")


def check_target(path: Path) -> None:
    """Raises unless `path` is a file that may be replaced, or one can be created there."""
    check_parent(path)
    if path.is_dir():
        raise IsADirectoryError(f"cannot write {path}: it is a folder")
    if path.exists() and not path.is_file():
        raise FileExistsError(f"cannot write {path}: it is a device, a FIFO or a socket")


def check_parent(path: Path) -> None:
    """Raises unless the folder of `path` exists and is writable."""
    parent = real(path).parent
    if not parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: there is no folder {parent}")
    if not os.access(parent, os.W_OK):
        raise PermissionError(f"cannot write {path}: the folder {parent} is not writable")


def real(path: Path) -> Path:
    """The absolute path to write to; symbolic links are resolved."""
    return Path(os.path.realpath(path))


def flush(path: Path) -> None:
    """Flushes a file to disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def replace(new: Path, path: Path) -> None:
    """Renames `new` to `path` atomically. Keeps the mode of an earlier file, and links to it."""
    target = real(path)
    keep_mode(new, target)
    try:
        os.replace(new, target)
    except OSError as error:
        if error.errno != errno.EXDEV:  # a link to another file system
            raise
        with temporary_folder(target.parent) as folder:
            copy = folder / target.name
            shutil.copy2(new, copy)
            flush(copy)
            os.replace(copy, target)


def keep_mode(new: Path, earlier: Path) -> None:
    """Gives `new` the mode of what it replaces, if there is something."""
    if earlier.exists():
        new.chmod(stat.S_IMODE(earlier.stat().st_mode) & 0o777)


@contextmanager
def temporary_folder(parent: Path | None = None) -> Iterator[Path]:
    """A temporary folder, removed at the end of the block.

    First removes the folders that killed processes left behind in the same place.

    Args:
        parent: the folder to create it in; default: that of `tempfile`.
    """
    parent = Path(tempfile.gettempdir()) if parent is None else parent
    for found in parent.glob(f"{_PREFIX}*"):
        _remove_if_stale(found)
    folder, lock = _lock_new_folder(parent)
    _open[folder] = os.getpid()
    try:
        with _remove_on_termination():
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _open.pop(folder)
        if lock is not None:
            os.close(lock)


def _lock_new_folder(parent: Path) -> tuple[Path, int | None]:
    """A new folder, and the file descriptor that locks it while this process lives."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        lock = None
        # On Windows, and where the file system has no locks, stale folders are never removed.
        if sys.platform != "win32":
            with contextlib.suppress(OSError):
                lock = os.open(folder, os.O_RDONLY)
                fcntl.flock(lock, fcntl.LOCK_EX)
        # Another process may have removed the folder as stale before it was locked.
        if folder.exists():
            return folder, lock
        if lock is not None:
            os.close(lock)


def _remove_if_stale(folder: Path) -> None:
    """Removes a temporary folder unless a process has it locked."""
    # Killed between the two renames of `replace_folder`: it holds both SavedModels, complete.
    if (folder / "old").exists() and (folder / "new").exists():
        return
    if sys.platform != "win32":
        with contextlib.suppress(OSError):  # another user's, not a folder, or in use
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


@contextmanager
def _remove_on_termination() -> Iterator[None]:
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


def _terminate(number: int, _: object) -> None:
    for folder, process in list(_open.items()):
        if process == os.getpid():  # a forked child must not remove its parent's folders
            shutil.rmtree(folder, ignore_errors=True)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
