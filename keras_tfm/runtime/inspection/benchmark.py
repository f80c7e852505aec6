"""Latency, load time and memory of an exported file on this machine."""

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from keras_tfm.arguments import check_positive
from keras_tfm.atomic_files import check_earlier, replacement, temporary_folder
from keras_tfm.runtime.inspection.inspection import Subgraph, bytes_by_kind, inspect_subgraphs
from keras_tfm.runtime.inspection.random_inputs import random_inputs
from keras_tfm.runtime.inspection.subprocesses import run_module
from keras_tfm.runtime.loaded_file import LoadedFile
from keras_tfm.runtime.manifest.manifest import Generate
from keras_tfm.runtime.manifest.records import Json

LEAST_RUNS = 5


@dataclass
class Latency:
    """One signature with one number of threads.

    Attributes:
        signature: str, its name.
        threads: int, number of threads that LiteRT used.
        runs: int, number of timed calls, after one untimed call.
        median_ms: float, median latency of a call.
        p90_ms: float, 90th percentile of the latency.
        tokens: int, number of tokens generated per call, over all rows; None if none are generated.
    """

    signature: str
    threads: int
    runs: int
    median_ms: float
    p90_ms: float
    tokens: int | None = None

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second of the median call."""
        return None if self.tokens is None else 1e3 * self.tokens / self.median_ms


@dataclass
class Footprint:
    """Load time and memory in a process that imports NumPy, LiteRT and `keras_tfm.runtime` only.

    Attributes:
        weights: str, "packed" in memory, or mapped from a "cache" that an earlier process filled.
        threads: int, number of threads that LiteRT used.
        load_ms: float, time to read, verify the checksum, pack the weights and allocate.
        first_ms: float, time of the first run of every signature, summed.
        peak_bytes: int, growth of peak resident memory; with a cache this includes the pages of the
            cache file that were read. None outside Linux.
        private_bytes: int, growth of private memory, which the system can neither share nor drop.
            None outside Linux.
    """

    weights: str
    threads: int
    load_ms: float
    first_ms: float
    peak_bytes: int | None
    private_bytes: int | None


@dataclass
class Benchmark:
    """The measurements of a file; `print` them, take `asdict()`, or `write_json`."""

    path: str
    bytes: int
    quantization: str
    processor: str
    latencies: list[Latency]
    footprints: list[Footprint]
    subgraphs: list[Subgraph]
    bytes_by_kind: dict[str, int]

    def asdict(self) -> Json:
        """Everything, as dictionaries, lists and numbers for JSON."""
        result = asdict(self)
        for entry, latency in zip(result["latencies"], self.latencies, strict=True):
            entry["tokens_per_second"] = latency.tokens_per_second
        return result

    def write_json(self, path: str | Path) -> None:
        """Writes `asdict()` to a file.

        Raises:
            FileExistsError: `path` is no earlier file of this kind.
        """
        check_earlier(path, "a benchmark in JSON", _is_benchmark)
        with replacement(path) as new:
            new.write_text(json.dumps(self.asdict(), indent=2) + "\n")

    def __str__(self) -> str:
        """The measurements as a text table."""
        sizes = ", ".join(f"{kind} {_size(n)}" for kind, n in self.bytes_by_kind.items())
        lines = [
            f"{self.path}: {_size(self.bytes)}, {self.quantization}",
            f"  {sizes}",
            f"  on {self.processor}",
            f"  {'signature':16} {'threads':>7} {'runs':>6} {'median ms':>10} {'p90 ms':>10} "
            f"{'tokens':>7} {'tokens/s':>9}",
        ]
        for x in self.latencies:
            line = (
                f"  {x.signature:16} {x.threads:7} {x.runs:6} {x.median_ms:10.3f} {x.p90_ms:10.3f}"
            )
            if x.tokens is not None:
                line += f" {x.tokens:7} {x.tokens_per_second:9.0f}"
            lines.append(line)
        lines.append(
            f"  {'weights':16} {'threads':>7} {'load ms':>9} {'first ms':>9} "
            f"{'peak memory':>12} {'private':>12}"
        )
        for y in self.footprints:
            lines.append(
                f"  {y.weights:16} {y.threads:7} {y.load_ms:9.1f} {y.first_ms:9.1f} "
                f"{_size(y.peak_bytes):>12} {_size(y.private_bytes):>12}"
            )
        lines.append(
            f"  {'graph':24} {'nodes':>6} {'on XNNPACK':>11} {'partitions':>11}  operators"
        )
        for graph in self.subgraphs:
            most = [f"{name} {count}" for name, count in list(graph.operators.items())[:3]]
            lines.append(
                f"  {graph.name[:24]:24} {graph.nodes:6} {graph.delegated:11} "
                f"{graph.partitions:11}  {', '.join(most)}"
            )
        return "\n".join(lines)


def _is_benchmark(path: Path) -> bool:
    try:
        return "latencies" in json.loads(path.read_bytes())
    except (ValueError, TypeError):
        return False


def benchmark(
    path: str | Path,
    threads: Sequence[int] = (1, 2),
    *,
    seconds: float = 1.0,
    weight_cache: bool = False,
    seed: int = 0,
) -> Benchmark:
    """Measures a file that `export_tflite` wrote, on this machine, with random inputs.

    A device without Keras imports it from `keras_tfm.runtime.inspection.benchmark`.

    Every signature is called for `seconds` with each number of threads. Ids have the exported
    length, without padding. With an `end_id`, rows may end early: only tokens up to and including
    the end are counted. A call whose rows end early still reads its whole source.

    Args:
        path: str or Path, the .tflite file.
        threads: list of int, the numbers of threads to measure with.
        seconds: float, the measuring time per signature and number of threads; at least five calls.
        weight_cache: bool, whether to also measure the footprint with
            `runtime.load(..., weight_cache=...)`, from a filled cache in a temporary folder.
        seed: int, seed of the inputs.

    Raises:
        FileNotFoundError, ValueError: as in `runtime.load`; or an argument is out of range.
        TypeError: `path` is no path, but bytes.

    Example:

    >>> import tempfile, keras
    >>> from keras_tfm.export import benchmark, export_tflite
    >>> x = keras.Input((2,), name="x")
    >>> model = keras.Model(x, keras.layers.Dense(1)(x))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = export_tflite(model, folder + "/dense.tflite")
    ...     measured = benchmark(report.path, threads=[1], seconds=0.01)
    >>> [(x.signature, x.threads, x.median_ms > 0) for x in measured.latencies]
    [('predict', 1, True)]
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(
            f"path must be that of a file, which other processes load, too, got "
            f"{type(path).__name__}"
        )
    threads = list(threads)
    if not threads or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in threads):
        raise ValueError(f"threads must be integers of at least 1, got {threads}")
    check_positive("seconds", seconds)
    latencies = []
    for count in threads:
        file = LoadedFile(path, count)
        latencies += [_latency(file, name, count, seconds, seed) for name in file.signatures]
    footprints = [_footprint(path, "packed", count) for count in threads]
    if weight_cache:
        with temporary_folder() as folder:
            _footprint(path, "cache", threads[0], folder)
            footprints += [_footprint(path, "cache", count, folder) for count in threads]
    content = Path(path).read_bytes()
    return Benchmark(
        path=str(path),
        bytes=len(content),
        quantization=file.manifest.quantization,
        processor=_processor(),
        latencies=sorted(latencies, key=lambda x: list(file.signatures).index(x.signature)),
        footprints=footprints,
        subgraphs=inspect_subgraphs(content),
        bytes_by_kind=bytes_by_kind(content),
    )


def _latency(file: LoadedFile, name: str, threads: int, seconds: float, seed: int) -> Latency:
    signature = file.signatures[name]
    inputs = random_inputs(signature.inputs, seed)
    for key in signature.of_kind("padding"):
        inputs[key][:] = 0  # prompts of full length
    outputs = file.run(name, inputs)
    times: list[float] = []
    while len(times) < LEAST_RUNS or sum(times) < seconds:
        start = time.perf_counter()
        file.run(name, inputs)
        times.append(time.perf_counter() - start)
    tokens = None
    if isinstance(signature, Generate):
        # Columns from max_length on are used only by rows with padded prompts.
        prompt = 1 if signature.prompt is None else inputs[signature.prompt].shape[1]
        whole = outputs["tokens"][..., : signature.max_length]
        tokens = count_tokens(whole, signature.end_id, prompt)
    median, p90 = (1e3 * float(np.quantile(times, q)) for q in (0.5, 0.9))
    return Latency(name, threads, len(times), median, p90, tokens)


def count_tokens(
    tokens: np.ndarray, end_id: int | Sequence[int] | None, prompt_length: int = 1
) -> int:
    """The number of generated tokens: after the start token or prompt, up to and including the end.

    >>> import numpy as np
    >>> from keras_tfm.runtime.inspection.benchmark import count_tokens
    >>> count_tokens(np.array([[1, 5, 2, 0], [1, 5, 6, 7]]), end_id=2)
    5
    """
    generated = tokens.reshape(-1, tokens.shape[-1])[:, prompt_length:]
    ended = np.isin(generated, [] if end_id is None else end_id)
    ended_before: np.ndarray = np.cumsum(ended, axis=1) - ended
    return int((ended_before == 0).sum())


def _footprint(
    path: str | Path, weights: str, threads: int, folder: Path | None = None
) -> Footprint:
    """Runs `keras_tfm.runtime.inspection.footprint` in a separate process."""
    found = run_module(
        f"loading {path}",
        "keras_tfm.runtime.inspection.footprint",
        str(path),
        str(threads),
        *([] if folder is None else [str(folder)]),
    )
    return Footprint(weights, threads, **found)


def _processor() -> str:
    """The processor's name, if the system provides it, and the number of processors."""
    name, information = "", Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text().splitlines():
            if line.startswith(("model name", "Model")):
                name = line.partition(":")[2].strip()
                break
    return f"{name or sys.platform}, {os.cpu_count()} processors"


def _size(size: int | None) -> str:
    if size is None:
        return "unknown"
    return f"{size / 1e6:.2f} MB" if size >= 1e5 else f"{size / 1e3:.2f} kB"
