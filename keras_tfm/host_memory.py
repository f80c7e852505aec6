"""Whether the memory of this machine suffices for what is about to be done.

Example:

>>> from keras_tfm.host_memory import check_memory
>>> check_memory("loading a small model", 2**20)
"""

import mmap
import sys
import warnings
from pathlib import Path

_SYSTEM = Path("/")


def check_memory(action: str, needed: int) -> None:
    """Raises if an action cannot succeed; warns if it needs more memory than is free now.

    Only Linux tells its memory in /proc/meminfo; elsewhere only `RLIMIT_AS` counts.

    Args:
        action: str, the start of the message, such as "loading model.safetensors".
        needed: int, the bytes that it will hold at once. An upper bound would refuse what fits.

    Raises:
        MemoryError: `needed` exceeds the memory and the swap of the machine, or the limit of its
            container (cgroup) or of the process (`RLIMIT_AS`).
    """
    limit, available = memory_limit(), available_memory()
    if limit is not None and needed > limit:
        raise MemoryError(
            f"{action} needs {_gigabytes(needed)} of memory, and this process can have "
            f"{_gigabytes(limit)}"
        )
    if available is not None and needed > available:
        warnings.warn(
            f"{action} needs {_gigabytes(needed)} of memory, and {_gigabytes(available)} are free: "
            "it may be slow, or the system may end the process",
            stacklevel=3,
        )


def memory_limit() -> int | None:
    """The most bytes that this process can still be given; None if the system does not tell."""
    limits = []
    known = _meminfo()
    if "MemTotal" in known:
        swap = known.get("SwapTotal", 0)
        limits.append(known["MemTotal"] + swap)
        # Of version 2 and of version 1, as a container sees its own.
        for name in ("memory.max", "memory/memory.limit_in_bytes"):
            limit = _integer(_SYSTEM / "sys/fs/cgroup" / name)
            limits += [] if limit is None else [limit + swap]
    if sys.platform != "win32":
        import resource

        allowed = resource.getrlimit(resource.RLIMIT_AS)[0]
        if allowed != resource.RLIM_INFINITY:
            limits.append(max(0, allowed - _address_space()))
    return min(limits, default=None)


def available_memory() -> int | None:
    """The bytes that can be had without ending or swapping out others; None if unknown.

    Those of the machine, or of the container (cgroup), whichever are less.
    """
    known, group = _meminfo(), _SYSTEM / "sys/fs/cgroup"
    if "MemAvailable" not in known:
        return None
    found = [known["MemAvailable"]]
    for limit, used, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ):
        most, now = _integer(group / limit), _integer(group / used)
        if most is not None and now is not None:
            # The system drops pages of files when memory is needed.
            pages = _fields((group / limit).with_name("memory.stat")).get(cache, 0)
            found.append(most - now + pages)
    return min(found) + known.get("SwapFree", 0)


def _meminfo() -> dict[str, int]:
    """The numbers of /proc/meminfo, in bytes; {} on other systems than Linux."""
    return {key: 1024 * x for key, x in _fields(_SYSTEM / "proc/meminfo").items()}


def _fields(file: Path) -> dict[str, int]:
    """The integers of a file of lines with a name and a number; {} if there is no such file."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return {}
    fields = (line.replace(":", " ").split() for line in lines)
    return {x[0]: int(x[1]) for x in fields if len(x) > 1 and x[1].isdigit()}


def _address_space() -> int:
    """The bytes of this process's address space in use; 0 if unknown."""
    try:
        pages = (_SYSTEM / "proc/self/statm").read_text().split()[0]
    except OSError:
        return 0
    return int(pages) * mmap.PAGESIZE


def _integer(file: Path) -> int | None:
    """The integer in a file; None if there is no such file, or another word, such as "max"."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
