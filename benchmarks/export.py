"""An exported encoder on one thread against its peers; sizes, load times and memory of our files.

    pip install -e ".[benchmarks]" keras-hub torch onnx onnxscript onnxruntime
    python benchmarks/export.py                      # four minutes; lists engines not installed
    python benchmarks/export.py --markdown --rounds 60 \\
        --python-executorch venv1/bin/python --python-litert-torch venv2/bin/python
    python benchmarks/export.py --presets            # our file in every quantisation, a minute

ExecuTorch (`pip install executorch torch`) and litert-torch (`pip install litert-torch`) pin the
versions of their dependencies, so each may be installed in a separate environment.

4 layers, D=256, H=8, F=1024, post-norm, relu, S=128, batch 1; a float input (1, 128, 256). Every
contestant has the same weights, and its float32 output must agree with a NumPy float64 reference
within 1e-4, or the run fails. int8 is each engine's own dynamic quantisation of the weights, and
"error" is the root mean square difference from the reference, relative to that of the output. Each
contestant runs in a separate process, on one thread. They take turns in a new order each round; a
turn is the median of ten calls after a warm-up, and a row is the median of its turns. "speedup" is
the engine's time divided by ours at the same precision. CTranslate2 takes ids: it also looks up the
rows of the input in a table, which the others do not.
"""

import argparse
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import export_peers as peers
import numpy as np

TOLERANCE = 1e-4  # float32 sums in another order: 2e-6 was measured
# The modules that a contestant imports, and the packages to install.
NEEDS = {
    "keras_tfm": ("tensorflow ai_edge_litert", "keras-tfm[edge]"),
    "Keras export": ("keras_hub tensorflow ai_edge_litert", "keras-hub ai-edge-litert"),
    "litert-torch": ("litert_torch ai_edge_quantizer", "litert-torch"),
    "ONNX Runtime": ("torch onnx onnxscript onnxruntime", "torch onnx onnxscript onnxruntime"),
    "ExecuTorch": ("executorch torchao torch", "executorch torch"),
    "CTranslate2": ("ctranslate2", "ctranslate2"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--presets", action="store_true", help="only keras_tfm, in every preset")
    parser.add_argument("--only", help="comma-separated contestants")
    parser.add_argument("--python-executorch", default=sys.executable, help="ExecuTorch's Python")
    parser.add_argument("--python-litert-torch", default=sys.executable, help="litert-torch's")
    parser.add_argument("--folder", type=Path, help="keeps the compared files in this folder")
    arguments = parser.parse_args()
    pythons = {
        "ExecuTorch": arguments.python_executorch,
        "litert-torch": arguments.python_litert_torch,
    }
    names = arguments.only.split(",") if arguments.only else list(peers.ENGINES)
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        expected = write_task(folder)
        if arguments.presets:
            print_presets(folder, expected, arguments)
            return
        failures = build(names, folder, pythons)
        rows = race([x for x in names if x not in failures], folder, pythons, arguments.rounds)
        print_race(rows, failures, expected, folder, arguments)
        files = write_transformer(folder)
        if "keras_tfm" in names:
            files |= {("encoder", p): folder / f"keras_tfm-{p}.tflite" for p in peers.PRECISIONS}
        print_files(files, arguments.markdown)


def write_task(folder: Path) -> np.ndarray:
    """Writes the weights and the input; returns the expected output."""
    weights = peers.random_weights()
    shape = (1, peers.LENGTH, peers.DIM)
    x = np.random.default_rng(1).normal(size=shape).astype("float32")
    np.savez(folder / "weights.npz", **weights)
    np.save(folder / "x.npy", x)
    return peers.reference(weights, x)


# The comparison.


def build(names: list[str], folder: Path, pythons: dict[str, str]) -> dict[str, str]:
    """Builds the contestants' files; returns the reason for each one that failed."""
    failures = {}
    for name in names:
        python = pythons.get(name, sys.executable)
        modules, packages = NEEDS[name]
        missing = lacking(python, modules.split())
        if missing:
            failures[name] = f"not installed ({missing}): pip install {packages}"
            continue
        done = subprocess.run(
            [python, peers.__file__, "build", name, str(folder)], capture_output=True, text=True
        )
        if done.returncode:
            failures[name] = "failed: " + last_line(done.stderr)
    return failures


def lacking(python: str, modules: list[str]) -> str:
    """The modules that are not installed for a Python."""
    if python == sys.executable:
        return ", ".join(x for x in modules if importlib.util.find_spec(x) is None)
    code = (
        "import importlib.util, sys\n"
        "print(', '.join(x for x in sys.argv[1:] if importlib.util.find_spec(x) is None))"
    )
    done = subprocess.run([python, "-c", code, *modules], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else last_line(done.stderr)


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines or ["no output"])[-1][:120]


class Worker:
    """A contestant in a separate process; it answers with the seconds of a call."""

    def __init__(self, name: str, precision: str, folder: Path, python: str):
        self.seconds: list[float] = []
        self.failure = ""
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (read after the process has ended)
        self.process = subprocess.Popen(
            [python, peers.__file__, "run", name, precision, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        while (line := self.process.stdout.readline()) and line.strip() != "ready":
            pass  # an engine's banner
        if not line:
            self._ended()

    def turn(self) -> None:
        if self.failure:
            return
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if line:
            self.seconds.append(float(line))
        else:
            self._ended()

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()
        self.log.close()

    def _ended(self) -> None:
        self.process.wait()
        self.log.seek(0)
        self.failure = "failed: " + last_line(self.log.read())


def race(names: list[str], folder: Path, pythons: dict[str, str], rounds: int) -> dict:
    workers = {}
    for name in names:
        python = pythons[name] if name == "ExecuTorch" else sys.executable
        for precision in peers.PRECISIONS:
            workers[name, precision] = Worker(name, precision, folder, python)
    order = list(workers.values())
    for _ in range(rounds):
        random.shuffle(order)  # so that no contestant always runs after the same one
        for worker in order:
            worker.turn()
    for worker in order:
        worker.close()
    return workers


def print_race(workers: dict, failures: dict, expected, folder: Path, arguments) -> None:
    medians = {key: statistics.median(x.seconds) for key, x in workers.items() if x.seconds}
    bar = "| " if arguments.markdown else ""
    print(f"\nencoder, one thread, {arguments.rounds} rounds")
    print(
        f"{bar}{'':14}{bar}{'':8}{bar}{'ms':>8}{bar}{'speedup':>9}{bar}{'error':>9}"
        f"{bar}{'MB':>7}{bar}".rstrip()
    )
    if arguments.markdown:
        print("|---|---|---:|---:|---:|---:|")
    wrong = []
    for precision in peers.PRECISIONS:
        ours = medians.get(("keras_tfm", precision), float("nan"))
        keys = sorted((key for key in medians if key[1] == precision), key=medians.get)
        for name, _ in keys:
            y = np.load(folder / f"{name}-{precision}-y.npy")
            off = y - expected
            if precision == "float32" and not np.abs(off).max() <= TOLERANCE:
                wrong.append(f"{name} is off by {np.abs(off).max():.1e}")
            seconds = medians[name, precision]
            print(
                f"{bar}{name:14}{bar}{precision:8}{bar}{1e3 * seconds:8.2f}"
                f"{bar}{seconds / ours:8.2f}x{bar}{off.std() / expected.std():9.1e}"
                f"{bar}{file_size(name, precision, folder):>7}{bar}".rstrip()
            )
    for (name, precision), worker in workers.items():
        if worker.failure:
            print(f"{name}, {precision}: {worker.failure}")
    for name, reason in failures.items():
        print(f"{name}: {reason}")
    if wrong:
        raise SystemExit("float32 outputs differ from the reference: " + "; ".join(wrong))


def file_size(name: str, precision: str, folder: Path) -> str:
    path = folder / f"{name}-{precision}{peers.ENGINES[name][1]}"
    # CTranslate2 has one float32 file and converts it when it loads it.
    return f"{path.stat().st_size / 1e6:.2f}" if path.is_file() else "-"


# Our files: presets, sizes, loading, memory.


def print_presets(folder: Path, expected: np.ndarray, arguments) -> None:
    """Compares the encoder in every quantisation, taking turns in one process."""
    from keras_tfm.export import export_tflite

    weights, x = np.load(folder / "weights.npz"), np.load(folder / "x.npy")
    model, generator = peers.keras_tfm_encoder(weights), np.random.default_rng(2)
    data = [{"x": generator.normal(size=x.shape).astype("float32")} for _ in range(100)]
    reports, calls, seconds = {}, {}, {}
    for preset in ("float32", "float16", "int8", "int8_full", "int4"):
        options = {"representative_data": data} if preset == "int8_full" else {}
        path = folder / f"{preset}.tflite"
        reports[preset] = export_tflite(model, path, quantization=preset, verify=False, **options)
        calls[preset] = peers.run_litert(path, x)
        seconds[preset] = []
    outputs = {preset: call() for preset, call in calls.items()}
    for _ in range(arguments.rounds):
        for preset, call in random.sample(list(calls.items()), len(calls)):
            times = []
            for _ in range(5):
                start = time.perf_counter()
                call()
                times.append(time.perf_counter() - start)
            seconds[preset].append(statistics.median(times))
    bar = "| " if arguments.markdown else ""
    print(f"\nencoder, one thread, {arguments.rounds} rounds")
    print(
        f"{bar}{'':10}{bar}{'MB':>7}{bar}{'ms':>8}{bar}{'error':>9}{bar}{'partitions':>11}{bar}".rstrip()
    )
    if arguments.markdown:
        print("|---|---:|---:|---:|---:|")
    for preset, report in reports.items():
        off = outputs[preset] - expected
        print(
            f"{bar}{preset:10}{bar}{report.bytes / 1e6:7.2f}"
            f"{bar}{1e3 * statistics.median(seconds[preset]):8.2f}"
            f"{bar}{off.std() / expected.std():9.1e}{bar}{report.subgraphs[0].partitions:11}"
            f"{bar}".rstrip()
        )


def write_transformer(folder: Path) -> dict[tuple[str, str], Path]:
    """Exports the encoder-decoder of benchmarks/generation.py, with tied embeddings."""
    from keras_tfm.runtime import native_log

    with native_log.remove():
        import keras

        keras.utils.set_random_seed(0)
    from keras_tfm.export import export_tflite
    from keras_tfm.models import transformer

    model = transformer(
        8000,
        dim=peers.DIM,
        num_layers=peers.LAYERS,
        num_heads=peers.HEADS,
        intermediate_dim=peers.INNER,
    )
    files = {}
    for precision in peers.PRECISIONS:
        path = files["transformer", precision] = folder / f"transformer-{precision}.tflite"
        export_tflite(
            model, path, quantization=precision, source_length=32, max_length=65, start_id=1
        )
    return files


def load_and_memory(path: Path) -> dict[str, float]:
    """Seconds until the tensors are allocated, and megabytes of memory, in a new process."""
    done = subprocess.run(
        [sys.executable, peers.__file__, "load", str(path)], capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"loading {path} failed: {last_line(done.stderr)}")
    return json.loads(done.stdout.splitlines()[-1])


def print_files(files: dict[tuple[str, str], Path], markdown: bool) -> None:
    bar = "| " if markdown else ""
    print("\nour files; memory: growth of the process by loading and one call, and its peak")
    print(
        f"{bar}{'':12}{bar}{'':8}{bar}{'MB':>8}{bar}{'of float32':>11}{bar}{'load ms':>9}"
        f"{bar}{'memory MB':>10}{bar}{'peak MB':>9}{bar}".rstrip()
    )
    if markdown:
        print("|---|---|---:|---:|---:|---:|---:|")
    for (name, precision), path in sorted(files.items()):
        if not path.is_file():
            continue
        size = path.stat().st_size
        whole = files[name, "float32"].stat().st_size
        loads = [load_and_memory(path) for _ in range(5)]
        seconds, grown, peak = (
            statistics.median(x[key] for x in loads) for key in ("seconds", "grown", "peak")
        )
        print(
            f"{bar}{name:12}{bar}{precision:8}{bar}{size / 1e6:8.2f}{bar}{size / whole:11.2f}"
            f"{bar}{1e3 * seconds:9.1f}{bar}{grown:10.1f}{bar}{peak:9.1f}{bar}".rstrip()
        )


if __name__ == "__main__":
    main()
