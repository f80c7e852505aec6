"""Time a token of a mixture of experts: beside all of its experts, and beside a dense model.

    pip install -e ".[edge,quantize]"
    python benchmarks/experts.py               # three minutes, one thread
    python benchmarks/experts.py --markdown    # the table for benchmarks/README.md

Four blocks of the sizes of Granite 3.0 1B-A400M, D=1024, 32 experts of 512, 8 of them for each
token; random weights in int8, batch 1, a row of 256 tokens. "All" gives each token to all experts.
"Dense" has one network of 8 x 512, as many parameters as a token reads. A step of "all" and "8 of
32" reads the same file but for the number 8.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

from hybrids import Step, show

from keras_tfm import export, layers, models, runtime

VOCABULARY, LENGTH, EXPERTS, CHOSEN, WIDTH = 8192, 256, 32, 8, 512
SIZE = {
    "dim": 1024, "num_heads": 16, "num_key_value_heads": 8, "tie_output": True,
    "logits_scaling": 6.0,
}  # fmt: skip
# The inner width, and how many experts of a block each token is given to.
CONTESTANTS = {
    f"{CHOSEN} of {EXPERTS} experts": (WIDTH, CHOSEN),
    "all experts": (WIDTH, EXPERTS),
    "dense": (CHOSEN * WIDTH, None),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    files, rows = {}, {"parameters": {}, "file": {}, "token": {}, "times 8 of 32": {}}
    for name, (width, chosen) in CONTESTANTS.items():
        experts = None if chosen is None else models.Experts(layers.Routing(EXPERTS, chosen))
        model = models.granite(
            VOCABULARY, **SIZE, num_layers=arguments.blocks, intermediate_dim=width, experts=experts
        )
        rows["parameters"][name] = f"{model.count_params() / 1e6:.0f} M"
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.tflite")
            export.export_tflite(
                model, path, ["decode"], max_length=LENGTH, quantization="int8", verify=False
            )
            rows["file"][name] = f"{path.stat().st_size / 1e6:.0f} MB"
            files[name] = Step(runtime.load(path, threads=1).file, LENGTH)
    times: dict[str, list[float]] = {name: [] for name in files}
    for _ in range(arguments.rounds):
        for name, step in files.items():
            times[name].append(step.seconds())
    medians = {name: statistics.median(x) for name, x in times.items()}
    first = medians[next(iter(medians))]
    for name, seconds in medians.items():
        rows["token"][name] = f"{1e3 * seconds:.2f} ms"
        rows["times 8 of 32"][name] = f"{seconds / first:.2f}"
    table = [[label, *cells.values()] for label, cells in rows.items()]
    show([["", *CONTESTANTS], *table], arguments)


if __name__ == "__main__":
    main()
