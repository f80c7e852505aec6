"""The time and memory of loading a file, measured in a separate process.

`python -m keras_tfm.runtime.inspection.footprint model.tflite [threads [cache folder]]` prints both
as JSON.
"""

import json
import sys
import time
from pathlib import Path

from keras_tfm.runtime.inspection.random_inputs import random_inputs
from keras_tfm.runtime.loaded_file import LoadedFile
from keras_tfm.runtime.manifest.storage import import_litert


def measure(
    path: str, threads: int = 1, weight_cache: str | None = None
) -> dict[str, float | None]:
    """Loads a file in this process, runs each signature once, and measures time and memory.

    Returns:
        A dictionary. "load_ms": time to open, check and allocate; "first_ms": time of the first run
        of each signature, summed; "peak_bytes": growth of peak resident memory; "private_bytes":
        growth of private memory, without pages of files, which the system may share and drop.
        Memory is None without /proc (outside Linux).
    """
    import_litert("compiled_model" if weight_cache else "interpreter")
    import_litert("schema_py_generated")
    before = _memory()
    start = time.perf_counter()
    file = LoadedFile(path, threads, weight_cache)
    loaded = time.perf_counter()
    inputs = {name: random_inputs(x.inputs) for name, x in file.signatures.items()}
    ready = time.perf_counter()
    for name, arrays in inputs.items():
        file.run(name, arrays)
    end, after = time.perf_counter(), _memory()
    peak = private = None
    if before and after:
        peak = after["VmHWM"] - before["VmRSS"]
        private = after["RssAnon"] - before["RssAnon"]
    return {
        "load_ms": 1e3 * (loaded - start),
        "first_ms": 1e3 * (end - ready),
        "peak_bytes": peak,
        "private_bytes": private,
    }


def _memory() -> dict[str, int] | None:
    """The memory of the process in bytes, by the kernel's names."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return None
    pairs = (line.split(":", 1) for line in status.read_text().splitlines())
    sizes = {name: value.split() for name, value in pairs if name in ("VmHWM", "VmRSS", "RssAnon")}
    return {name: 1024 * int(value[0]) for name, value in sizes.items()}


if __name__ == "__main__":
    given = iter(sys.argv[1:])
    print(json.dumps(measure(next(given), int(next(given, "1")), next(given, None))))
