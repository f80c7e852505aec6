"""What TensorFlow and LiteRT write to the process's standard error from C++."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


class NativeLog:
    """The text that was held back; filled when the `captured` block ends."""

    text: str = ""


@contextmanager
def captured() -> Iterator[NativeLog]:
    """Holds back what is written to file descriptor 2, and prints it if the block fails.

    TensorFlow and LiteRT log through C++, past `sys.stderr`: banners at import, hundreds of lines
    in a conversion. `TF_CPP_MIN_LOG_LEVEL` does not reach all of them.

    >>> import os
    >>> from keras_tfm.runtime import native_log
    >>> with native_log.captured() as log:
    ...     _ = os.write(2, b"a banner")
    >>> log.text
    'a banner'
    """
    log = NativeLog()
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield log
        except BaseException:
            os.dup2(saved, 2)
            file.seek(0)
            os.write(2, file.read())
            raise
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            log.text = file.read().decode("utf-8", "replace")
