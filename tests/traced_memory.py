"""The memory that Python and NumPy allocate in a block."""

import tracemalloc
from contextlib import contextmanager


@contextmanager
def at_most(count):
    """Fails if a block ever has more than `count` bytes allocated at once."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= count, f"{peak:,} bytes were allocated"
