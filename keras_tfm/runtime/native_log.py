"""Captures what TensorFlow and LiteRT write to standard error from C++."""

import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO


class NativeLog:
    """The captured text; set when the `captured` block ends."""

    text: str = ""


class _Redirection:
    """The redirection of standard error to one file, shared by all open blocks."""

    lock = threading.Lock()
    blocks = 0
    saved = -1
    file: IO[bytes]


@contextmanager
def captured() -> Iterator[NativeLog]:
    """Captures what is written to file descriptor 2, and prints it if the block fails.

    TensorFlow and LiteRT log from C++, bypassing `sys.stderr`: banners at import, hundreds of lines
    during a conversion. `TF_CPP_MIN_LOG_LEVEL` does not stop all of them. Blocks may overlap, in
    one thread or in several; standard error is restored when the last one ends.

    >>> import os
    >>> from keras_tfm.runtime import native_log
    >>> with native_log.captured() as log:
    ...     _ = os.write(2, b"a banner")
    >>> log.text
    'a banner'
    """
    log = NativeLog()
    start = _begin()
    if start is None:
        yield log
        return
    failed = True
    try:
        yield log
        failed = False
    finally:
        _end(log, start, failed)


def _begin() -> int | None:
    """The position in the shared file where this block begins; None without standard error."""
    with _Redirection.lock:
        if sys.stderr is not None:
            sys.stderr.flush()
        if _Redirection.blocks == 0:
            try:
                _Redirection.saved = os.dup(2)
            except OSError:
                return None
            _Redirection.file = tempfile.TemporaryFile()  # noqa: SIM115 (closed by _end)
            os.dup2(_Redirection.file.fileno(), 2)
        _Redirection.blocks += 1
        return os.fstat(_Redirection.file.fileno()).st_size


def _end(log: NativeLog, start: int, failed: bool) -> None:
    with _Redirection.lock:
        _Redirection.blocks -= 1
        if _Redirection.blocks == 0:
            os.dup2(_Redirection.saved, 2)
        text = os.pread(_Redirection.file.fileno(), 1 << 24, start)
        log.text = text.decode("utf-8", "replace")
        if failed:
            os.write(_Redirection.saved, text)
        if _Redirection.blocks == 0:
            os.close(_Redirection.saved)
            _Redirection.file.close()
