"""One GPU, four minutes: training, padded and long batches, generation, attention, GPU files.

    pip install -e . "jax[cuda12]" torch transformers      # no TensorFlow; skips what is missing
    python benchmarks/gpu.py                               # four minutes, a table in Markdown
    python benchmarks/gpu.py --cases dropout,generate_32 --minutes 10
    python benchmarks/gpu.py --files FOLDER                # .tflite files for the GPU delegate, too
    python benchmarks/gpu.py --smoke                       # tiny sizes, on the CPU, a minute or two

The model is a GPT of 12 layers, D=768, H=12, F=3072, V=32000, tied, in mixed_bfloat16 with AdamW.
"train", "dropout" (0.1 everywhere) and "padded" (rows of 256 to 1024 tokens) have B=16 and T=1024,
"long" B=2 and T=8192; PyTorch's model attends causally, which needs no mask where padding comes
last. "generate_1" and "generate_32" are greedy, batch 1 and 32, a prompt of 128 tokens and 128 new
ones, in bfloat16; transformers has a static cache. Keras contestants are named with their backend:
TensorFlow takes no part.

Each contestant of a case runs in a separate process: its peak memory is that of the framework's
allocator. Contestants of a case compile at the same time, then take turns of a few
steps in random order, until the case's share of the time is up; medians. The rate of a step counts
matrix products alone (attention's half above the diagonal is not counted), relative to that of a
product of two bfloat16 matrices 8192 x 8192, measured first. "of time" is a contestant's time
divided by that of "PyTorch compiled" or of transformers. The numbers of --smoke mean nothing, and
PyTorch does not compile there.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import queue
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Batch, length, dropout, padded; of generation: rows, prompt, new tokens.
TRAINING = {
    "train": (16, 1024, 0.0, False),
    "dropout": (16, 1024, 0.1, False),
    "padded": (16, 1024, 0.0, True),
    "long": (2, 8192, 0.0, False),
}
GENERATION = {"generate_1": (1, 128, 128), "generate_32": (32, 128, 128)}
SIZES = {
    "layers": 12,
    "dim": 768,
    "heads": 12,
    "inner": 3072,
    "vocabulary": 32_000,
    "product": 8192,
}
SMOKE = {"layers": 1, "dim": 32, "heads": 2, "inner": 64, "vocabulary": 50, "product": 64}
CASES = ("train", "dropout", "generate_1", "generate_32", "padded", "long")
SMOKE_CASES = ("padded", "generate_1")
# The longest that a contestant may take to start, in seconds, whatever the time.
START = 240.0
LEAST_ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", help=f"of {', '.join(CASES)}; default: all")
    parser.add_argument("--backends", help="jax,torch; default: those with a GPU")
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--files", type=Path, help="a folder of .tflite files for the delegate")
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    cases = (arguments.cases or ",".join(SMOKE_CASES if arguments.smoke else CASES)).split(",")
    if set(cases) - set(CASES):
        parser.error(f"--cases: expected some of {', '.join(CASES)}, got {arguments.cases}")
    deadline = time.monotonic() + 60 * arguments.minutes
    cards = {x: card(x, arguments.smoke) for x in backends(arguments.backends)}
    found = {x: y for x, y in cards.items() if arguments.smoke or y["device"] != "CPU"}
    if not found:
        sys.exit("no GPU: --smoke runs it on the CPU" + reasons(cards))
    rate = max(x["rate"] for x in found.values())
    name = next(iter(found.values()))["device"]
    product = (
        "" if arguments.smoke else f", a product of bfloat16 matrices {rate / 1e12:.0f} TFLOP/s"
    )
    print(f"\n{name}{product}; {time.strftime('%Y-%m-%d')}\n")
    for number, case in enumerate(cases):
        share = (deadline - time.monotonic()) / (len(cases) - number)
        if share < 10 and not arguments.smoke:
            print(f"{case}: not run, the {arguments.minutes:g} minutes are up (--minutes)\n")
            continue
        run_case(case, list(found), share, rate, arguments.smoke)
    for backend in found:
        fused_attention(backend)
    if arguments.files is not None:
        delegate(arguments.files)


def backends(chosen: str | None) -> list[str]:
    """The backends that are installed, or those that were chosen."""
    if chosen:
        return chosen.split(",")
    return [x for x in ("jax", "torch") if importlib.util.find_spec(x)]


def card(backend: str, smoke: bool) -> dict:
    """The device of a backend, and its rate of bfloat16 products."""
    worker = Worker("product", backend, "product", smoke)
    try:
        return worker.answer(START)
    except RuntimeError as error:
        return {"device": "CPU", "rate": 0.0, "reason": str(error)}
    finally:
        worker.end()


def reasons(cards: dict[str, dict]) -> str:
    lines = [f"\n{x}: {y['reason']}" for x, y in cards.items() if "reason" in y]
    return "".join(lines) or "".join(f"\n{x}: finds no GPU" for x in cards)


# The comparison.


def contestants(case: str, found: list[str]) -> list[tuple[str, str]]:
    """Names and backends."""
    pairs = [("keras_tfm", x) for x in found]
    if case in TRAINING:
        pairs.append(("Keras MHA", found[0]))
        if importlib.util.find_spec("keras_hub"):
            pairs.append(("KerasHub", found[0]))
        if "torch" in found:
            pairs.append(("PyTorch compiled", "torch"))
    elif "torch" in found and importlib.util.find_spec("transformers"):
        pairs.append(("transformers, static cache", "torch"))
    return pairs


class Worker:
    """A contestant in a separate process, which runs a turn on request and answers in JSON."""

    def __init__(self, name: str, backend: str, case: str, smoke: bool):
        self.name = f"{name}, {backend}" if name not in ("PyTorch compiled",) else name
        self.seconds: list[float] = []
        self.memory = 0.0
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (open as long as the process)
        job = {"name": name, "case": case, "smoke": smoke}
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "gpu_contestants.py"), json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env={
                **os.environ,
                "KERAS_BACKEND": backend,
                # Several processes share the card.
                "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
                "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")]),
            },
        )
        self.lines: queue.Queue[str] = queue.Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            if line.startswith("{"):  # frameworks print, too
                self.lines.put(line)
        self.lines.put("")

    def answer(self, seconds: float) -> dict:
        """The next answer.

        Raises:
            RuntimeError: the process ended, or took longer.
        """
        try:
            line = self.lines.get(timeout=max(1.0, seconds))
        except queue.Empty:
            raise RuntimeError(f"not ready within {seconds:.0f} seconds") from None
        if line:
            return json.loads(line)
        self.process.wait()
        self.errors.seek(0)
        last = (self.errors.read().strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"ended early: {last[:300]}")

    def turn(self) -> None:
        """Runs and times a few steps."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        found = self.answer(START)
        self.seconds.append(found["seconds"])
        self.memory = found["memory"]

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.reader.join()
        with contextlib.suppress(BrokenPipeError):  # it may have ended before it read all
            self.process.stdin.close()
        self.process.stdout.close()
        self.errors.close()


def run_case(case: str, found: list[str], share: float, rate: float, smoke: bool) -> None:
    """Measures a case within `share` seconds, and prints its table."""
    end = time.monotonic() + share
    workers = [Worker(name, x, case, smoke) for name, x in contestants(case, found)]
    failed = {}
    try:
        for worker in list(workers):
            try:
                worker.answer(START if smoke else share)
            except RuntimeError as error:
                failed[worker.name] = str(error)
                workers.remove(worker)
                worker.end()
        rounds = 0
        while workers and (rounds < LEAST_ROUNDS or (time.monotonic() < end and not smoke)):
            for worker in random.sample(workers, len(workers)):
                worker.turn()
            rounds += 1
            line = f"\r{case}: round {rounds}, {max(0.0, end - time.monotonic()):.0f} s left "
            print(line, end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
    finally:
        for worker in workers:
            worker.end()
    print_table(case, workers, rate, smoke)
    for name, reason in failed.items():
        print(f"{name}: {reason}")
    print(flush=True)


def print_table(case: str, workers: list[Worker], rate: float, smoke: bool) -> None:
    medians = {worker.name: statistics.median(worker.seconds) for worker in workers}
    peers = [x for x in medians if x.startswith(("PyTorch", "transformers"))]
    peer = medians[peers[0]] if peers else None
    heading = "ms a step | of the card's rate" if case in TRAINING else "tokens/s"
    print(f"| {describe(case, smoke)} | {heading} | of time | peak GiB |")
    print("|---|" + "---:|" * (heading.count("|") + 3))
    for worker in sorted(workers, key=lambda worker: medians[worker.name]):
        seconds = medians[worker.name]
        if case in TRAINING:
            cells = f"{1e3 * seconds:.1f} | {step_flops(case, smoke) / seconds / rate:.0%}"
        else:
            rows, _, new = sizes_of(case, smoke)
            cells = f"{rows * new / seconds:,.0f}"
        ratio = "" if peer is None else f"{seconds / peer:.2f}"
        print(f"| {worker.name} | {cells} | {ratio} | {worker.memory / 2**30:.2f} |")


def sizes_of(case: str, smoke: bool) -> tuple:
    """The sizes of a case."""
    if case in TRAINING:
        batch, length, dropout, padded = TRAINING[case]
        return (2, 16, dropout, padded) if smoke else (batch, length, dropout, padded)
    rows, prompt, new = GENERATION[case]
    return (min(rows, 2), 4, 4) if smoke else (rows, prompt, new)


def describe(case: str, smoke: bool) -> str:
    one, two, three, *padded = sizes_of(case, smoke)
    if case in TRAINING:
        words = f"B={one}, T={two}" + (f", dropout {three:g}" if three else "")
        return f"training, {words}" + (", padded" if padded[0] else "")
    return f"generation, batch {one}, {two} + {three} tokens"


def step_flops(case: str, smoke: bool) -> float:
    """The operations of the matrix products of a training step: three times the forward ones."""
    batch, length, *_ = sizes_of(case, smoke)
    size = SMOKE if smoke else SIZES
    dim = size["dim"]
    weights = size["layers"] * (4 * dim**2 + 2 * dim * size["inner"]) + dim * size["vocabulary"]
    attention = size["layers"] * 2 * dim * length / 2  # a token attends to half of them
    return 3 * 2 * batch * length * (weights + attention)


def fused_attention(backend: str) -> None:
    """The table of benchmarks/gpu_attention.py: which kinds of attention run fused."""
    paths = [str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, str(HERE / "gpu_attention.py")],
        capture_output=True,
        text=True,
        env={**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": os.pathsep.join(paths)},
    )
    shown = done.stdout if done.returncode == 0 else done.stderr.strip().splitlines()[-1]
    print(f"fused attention, {backend}:\n\n{shown}")


def delegate(folder: Path) -> None:
    """Whether LiteRT's GPU delegate runs each file, its time, and that of one thread."""
    paths = sorted(folder.glob("*.tflite"))
    print("| file | on the GPU delegate | ms | one CPU thread, ms |\n|---|---|---:|---:|")
    for path in paths:
        done = subprocess.run(
            [sys.executable, str(HERE / "gpu_contestants.py"), json.dumps({"file": str(path)})],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(HERE.parent)},
        )
        lines = [x for x in done.stdout.splitlines() if x.startswith("| ")]
        failure = f"| | ended with exit code {done.returncode} | | |"
        print(*([f"| {path.stem} {x}" for x in lines] or [f"| {path.stem} {failure}"]), sep="\n")
    if not paths:
        print(f"| no .tflite files in {folder} | | | |")


if __name__ == "__main__":
    main()
