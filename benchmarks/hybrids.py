"""Time a token by length: files of LFM2 and Qwen3.5 beside one of Llama with as many parameters.

    pip install -e ".[edge,quantize]"
    python benchmarks/hybrids.py               # two minutes, one thread
    python benchmarks/hybrids.py --markdown    # the table for benchmarks/README.md

Twelve blocks, D=384, random weights in int8, batch 1. All blocks of Llama have attention, every
third of LFM2, every fourth of Qwen3.5; the last column is Qwen3.5 without attention. Files for rows
of 64, 512 and 2,048 tokens decode the last token: the caches have as many columns. The contestants
take turns, ten calls each, and a time is the median of the rounds, in seconds of the processor. The
state is what a step reads of the steps before, in float32.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

from keras_tfm import export, models, runtime
from keras_tfm.runtime.loaded_file import LoadedFile
from keras_tfm.runtime.manifest.manifest import Decode

VOCABULARY, LAYERS = 4096, 12
SIZE = {"dim": 384, "num_layers": LAYERS, "num_heads": 6, "num_key_value_heads": 2}
DELTA = {
    "head_dim": 64, "rotary_dim": 16, "delta_heads": 6, "delta_key_heads": 6,
    "delta_head_dim": 64, "delta_value_dim": 64, "tie_output": True,
}  # fmt: skip
# The inner widths give all as many parameters, within a percent.
CONTESTANTS = {
    "Llama": lambda: models.llama(
        VOCABULARY, **SIZE, intermediate_dim=1152, query_key_norm=True, tie_output=True
    ),
    "LFM2": lambda: models.lfm2(VOCABULARY, **SIZE, intermediate_dim=1040),
    "Qwen3.5": lambda: models.qwen3_5(VOCABULARY, **SIZE, **DELTA, intermediate_dim=888),
    "Qwen3.5, no attention": lambda: models.qwen3_5(
        VOCABULARY, **SIZE, **DELTA, intermediate_dim=848, attends=[False] * LAYERS
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 512, 2048])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    rows: dict[str, dict[str, str]] = {"parameters": {}}
    for length in arguments.lengths:
        files = {}
        for name, make in CONTESTANTS.items():
            model = make()
            rows["parameters"][name] = f"{model.count_params() / 1e6:.1f} M"
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "model.tflite")
                export.export_tflite(
                    model, path, ["decode"], max_length=length, quantization="int8", verify=False
                )
                files[name] = Step(runtime.load(path, threads=1).file, length)
        times: dict[str, list[float]] = {name: [] for name in files}
        for _ in range(arguments.rounds):
            for name, step in files.items():
                times[name].append(step.seconds())
        rows[f"{length} positions"] = {
            name: f"{1e3 * statistics.median(x):.2f} ms" for name, x in times.items()
        }
        rows[f"state, {length} positions"] = {
            name: f"{step.bytes / 1e6:.2f} MB" for name, step in files.items()
        }
    order = sorted(rows, key=lambda x: (x != "parameters", x.startswith("state")))
    names = list(CONTESTANTS)
    show([["", *names], *([x, *(rows[x][name] for name in names)] for x in order)], arguments)


class Step:
    """The signature "decode" of a file, for the last token of a row.

    Attributes:
        bytes: int, what a step reads of the steps before.
    """

    def __init__(self, file: LoadedFile, length: int):
        steps = {x: y for x, y in file.signatures.items() if isinstance(y, Decode)}
        self.name, decode = max(steps.items(), key=lambda x: x[1].capacity)
        self.file = file
        self.inputs = {x: np.zeros(spec.shape, spec.dtype) for x, spec in decode.inputs.items()}
        for x in decode.of_kind("position"):
            self.inputs[x] += length - 1
        self.bytes = sum(self.inputs[x].nbytes for x in (*decode.caches, *decode.states))

    def seconds(self, calls: int = 10) -> float:
        """The processor's time of a call, of which other programs take nothing."""
        start = time.process_time()
        for _ in range(calls):
            self.file.run(self.name, self.inputs)
        return (time.process_time() - start) / calls


def show(table: list[list[str]], arguments: argparse.Namespace) -> None:
    if arguments.markdown:
        table.insert(1, ["---"] * len(table[0]))
        print("\n".join(f"| {' | '.join(row)} |" for row in table))
        return
    widths = [max(len(x) for x in column) for column in zip(*table, strict=True)]
    for row in table:
        print("  ".join(x.rjust(width) for x, width in zip(row, widths, strict=True)))


if __name__ == "__main__":
    main()
