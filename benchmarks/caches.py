"""Part of benchmarks/generation.py: KV caches in float32 and in int8, by the length of the text."""

import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import generation
import numpy as np

from keras_tfm import runtime
from keras_tfm.runtime.manifest.manifest import Decode, of_role
from keras_tfm.runtime.manifest.storage import import_litert, read

CACHES = ("float32", "int8")


def compare(folder: Path, lengths: list[int], rounds: int, markdown: bool) -> None:
    """Prints tokens a second and memory for each length, search and precision of the weights."""
    rows = [("", *(f"{cache} caches" for cache in CACHES), "ratio", "half of the rounds",
             "CTranslate2", "equal tokens", "caches, MB", "peak, MB")]  # fmt: skip
    model = generation.made_model()
    generation.write_peer(model, folder / "ct2")
    for tokens in lengths:
        for search, beam in (("greedy", 1), (f"beam {generation.BEAM}", generation.BEAM)):
            for precision in ("float32", "int8") if beam == 1 else ("int8",):
                files = {
                    cache: generation.exported(
                        model, folder / f"{tokens}-{beam}-{precision}-{cache}.tflite",
                        precision, beam, tokens, cache=cache,
                    )
                    for cache in CACHES
                }  # fmt: skip
                peer = generation.peer_decoder(folder / "ct2", precision, beam)
                seconds, equal = race(
                    files, partial(generation.by_peer, peer, tokens=tokens), rounds
                )
                rows.append((f"{search}, {precision}, {tokens} tokens", *cells(seconds, tokens),
                             f"{equal:.0f}", *memory(files, beam)))  # fmt: skip
    generation.print_rows(rows, markdown)


def race(files: dict, peer, rounds: int) -> tuple[dict, float]:
    """The seconds of each contestant by round, in turns; the mean length of the equal prefix."""
    models = {cache: runtime.load(path) for cache, path in files.items()}
    contestants = {cache: partial(generation.in_the_file, x) for cache, x in models.items()}
    contestants["CTranslate2"] = peer
    generator = np.random.default_rng(1)
    seconds = {name: [] for name in contestants}
    equal = []
    for number in range(rounds + 1):
        ids, found = generator.integers(1, generation.VOCABULARY, generation.SOURCE), {}
        for name, run in contestants.items():
            start = time.perf_counter()
            found[name] = run(ids)
            if number:  # round 0 is the warm-up
                seconds[name].append(time.perf_counter() - start)
        equal.append(np.cumprod(np.equal(found["float32"], found["int8"])).sum())
    return seconds, float(np.mean(equal))


def cells(seconds: dict, tokens: int) -> list[str]:
    """Tokens a second, the median ratio of both caches in a round, and its quartiles."""
    rates = {name: tokens / statistics.median(times) for name, times in seconds.items()}
    ratios = np.divide(seconds["float32"], seconds["int8"])
    low, middle, high = np.percentile(ratios, [25, 50, 75])
    return [
        *(f"{rates[cache]:.0f}" for cache in CACHES),
        f"{middle:.2f}",
        f"{low:.2f} to {high:.2f}",
        f"{rates['CTranslate2']:.0f}",
    ]


def memory(files: dict, beam: int) -> list[str]:
    """Bytes of the caches of a host's loop, and the peak of a process that generates once."""
    sizes = ["-" if beam > 1 else f"{cache_bytes(path) / 1e6:.2f}" for path in files.values()]
    peaks = [
        subprocess.run(
            [sys.executable, __file__, path], capture_output=True, text=True, check=True
        ).stdout.strip()
        for path in files.values()
    ]
    return [" / ".join(sizes), " / ".join(peaks)]


def cache_bytes(path: Path) -> int:
    """The bytes of the largest caches that "decode" takes."""
    *_, decode = of_role(read(path).signatures, Decode).values()
    caches = [decode.inputs[name] for name in decode.of_kind("cache")]
    return sum(int(np.prod(x.shape)) * np.dtype(x.dtype).itemsize for x in caches)


def print_peak(path: str) -> None:
    """Prints by how many MB the memory of this process grew at most."""
    for name in ("interpreter", "schema_py_generated"):
        import_litert(name)
    before = generation.memory("VmRSS")
    runtime.load(path).generate(np.arange(1, 1 + generation.SOURCE))
    print(f"{generation.memory('VmHWM') - before:.0f}")


if __name__ == "__main__":
    print_peak(sys.argv[1])
