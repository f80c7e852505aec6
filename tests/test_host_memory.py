"""What is said before an action that needs more memory than there is."""

import subprocess
import sys

import pytest

from keras_tfm import host_memory
from keras_tfm.host_memory import available_memory, check_memory, memory_limit

GB = 10**9
MEMINFO = """MemTotal:        8000000 kB
MemFree:          100000 kB
MemAvailable:    3000000 kB
SwapTotal:       1000000 kB
SwapFree:         500000 kB
HugePages_Total:       0
"""


@pytest.fixture
def system(monkeypatch, tmp_path):
    """The root of a file system with a /proc of 8.192 GB of memory and 1.024 GB of swap."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(MEMINFO)
    monkeypatch.setattr(host_memory, "_SYSTEM", tmp_path)
    return tmp_path


def test_numbers_of_the_machine(system):
    assert memory_limit() == 9_216_000_000
    assert available_memory() == 3_584_000_000


def test_what_fits_is_not_mentioned(system, recwarn):
    check_memory("it", 3 * GB)
    assert not recwarn


def test_what_is_not_free_is_a_warning(system):
    with pytest.warns(
        UserWarning, match=r"^it needs 4.0 GB of memory, and 3.6 GB are free: it may"
    ):
        check_memory("it", 4 * GB)


def test_what_the_machine_does_not_have_is_an_error(system):
    with pytest.raises(MemoryError, match=r"^it needs 9.3 GB of memory, .* can have 9.2 GB$"):
        check_memory("it", 9_300_000_000)


@pytest.mark.parametrize("name", ["memory.max", "memory/memory.limit_in_bytes"])
def test_a_container_has_less(name, system):
    file = system / "sys/fs/cgroup" / name
    file.parent.mkdir(parents=True)
    file.write_text(f"{2 * GB}\n")
    assert memory_limit() == 3_024_000_000
    file.write_text("max\n")
    assert memory_limit() == 9_216_000_000


@pytest.mark.parametrize(
    ("limit", "used", "pages"),
    [
        ("memory.max", "memory.current", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ],
)
def test_a_container_has_less_available(limit, used, pages, system):
    """Its pages of files can be dropped, so they are available."""
    group = system / "sys/fs/cgroup"
    (group / limit).parent.mkdir(parents=True)
    (group / limit).write_text(f"{2 * GB}\n")
    (group / used).write_text(f"{GB + GB // 2}\n")
    (group / limit).with_name("memory.stat").write_text(f"anon 7\n{pages} {GB // 4}\n")
    assert available_memory() == 750_000_000 + 512_000_000


def test_the_memory_of_this_machine():
    assert 0 < available_memory() <= memory_limit()


def test_a_system_that_tells_nothing(monkeypatch, tmp_path, recwarn):
    monkeypatch.setattr(host_memory, "_SYSTEM", tmp_path)
    assert available_memory() is None
    check_memory("it", 2**60)
    assert not recwarn


LIMITED = """
import resource
from keras_tfm.host_memory import check_memory
resource.setrlimit(resource.RLIMIT_AS, (400_000_000, 400_000_000))
check_memory("small", 100_000_000)
try:
    check_memory("large", 400_000_000)
except MemoryError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS and /proc/self/statm")
def test_the_limit_of_a_process():
    """400 MB, of which the interpreter has some: 100 MB fit, and 400 MB cannot."""
    run = subprocess.run(
        [sys.executable, "-c", LIMITED], capture_output=True, text=True, check=True
    )
    assert run.stdout.startswith("large needs 0.4 GB of memory, and this process can have 0.")
