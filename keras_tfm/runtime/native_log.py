"""Removes the C++ log of TensorFlow and LiteRT from a program's standard error.

Only for programs that own their process: commands, examples, benchmarks. The library itself never
redirects standard error, since other threads of the process write to it, too.
"""

import contextlib
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

# Lines of severity info and warning, in the formats of absl and of LiteRT's two loggers.
_LOG_LINE = re.compile(
    rb"[IW]\d{4} [\d:.]+ +\d+ [\w./-]+:\d+\] "
    rb"|WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR"
    rb"|To enable the following instructions: .*rebuild TensorFlow with"
    rb"|INFO: Created TensorFlow Lite \w+ delegate for "
    rb"|(INFO|WARNING): \[[\w./]+:\d+\] "
    rb"|\xe2\x94\x94 Could not load shared library "
)
# An incomplete line with another first character, such as a progress bar, is forwarded at once.
_MAY_BE_LOG = re.compile(rb"[IWT\xe2]")


class _Redirection:
    """The redirection of standard error to one file, shared by all open blocks."""

    lock = threading.Lock()
    blocks = 0
    saved = -1
    path: Path
    reader: IO[bytes]
    stop: threading.Event
    thread: threading.Thread


@contextlib.contextmanager
def remove() -> Iterator[None]:
    """Removes TensorFlow's and LiteRT's info and warning lines from file descriptor 2.

    Both log from C++, bypassing `sys.stderr`: banners at import, a dozen lines per conversion.
    `TF_CPP_MIN_LOG_LEVEL` does not stop all of them, and LiteRT has no setting. Every other line,
    errors included, is forwarded within a tenth of a second. Blocks may overlap, in one thread or
    in several. A process started in a block must end in it: its later lines are not forwarded.

    >>> from keras_tfm.runtime import native_log
    >>> with native_log.remove():
    ...     import tensorflow
    """
    if not _begin():
        yield
        return
    try:
        yield
    finally:
        _end()


def _begin() -> bool:
    """Redirects file descriptor 2 to a file; False without standard error."""
    with _Redirection.lock:
        if sys.stderr is not None:
            sys.stderr.flush()
        if _Redirection.blocks == 0:
            try:
                _Redirection.saved = os.dup(2)
            except OSError:
                return False
            # Not a pipe: C++ may fill it while it holds the lock that the reader needs (the GIL).
            written, name = tempfile.mkstemp(prefix="keras_tfm-log-")
            _Redirection.path = Path(name)
            _Redirection.reader = _Redirection.path.open("rb", buffering=0)
            _remove_file()
            os.dup2(written, 2)
            os.close(written)
            _Redirection.stop = threading.Event()
            arguments = _Redirection.reader, _Redirection.saved, _Redirection.stop
            _Redirection.thread = threading.Thread(target=_forward, args=arguments, daemon=True)
            _Redirection.thread.start()
        _Redirection.blocks += 1
        return True


def _end() -> None:
    with _Redirection.lock:
        if sys.stderr is not None:
            sys.stderr.flush()
        _Redirection.blocks -= 1
        if _Redirection.blocks == 0:
            os.dup2(_Redirection.saved, 2)
            _Redirection.stop.set()
            _Redirection.thread.join()
            os.close(_Redirection.saved)
            _Redirection.reader.close()
            _remove_file()


def _remove_file() -> None:
    """Removes the file's name; Windows removes no open file, other systems do."""
    with contextlib.suppress(PermissionError):
        _Redirection.path.unlink(missing_ok=True)


def _forward(source: IO[bytes], target: int, stop: threading.Event) -> None:
    """Writes what is appended to the file `source`, without log lines, to `target`."""
    waiting, is_inside = b"", False  # is_inside: the line's start was forwarded
    stopped = False
    while not stopped:
        stopped = stop.wait(0.05)
        while block := source.read(1 << 16):
            *lines, waiting = (waiting + block).split(b"\n")
            for line in lines:
                if is_inside or not _LOG_LINE.match(line):
                    _write(target, line + b"\n")
                is_inside = False
        if waiting and (stopped or is_inside or not _MAY_BE_LOG.match(waiting)):
            _write(target, waiting)
            waiting, is_inside = b"", True


def _write(target: int, text: bytes) -> None:
    while text:
        text = text[os.write(target, text) :]
