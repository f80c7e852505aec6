"""Peak memory of a training step of Evoformer by residues and sequences, in separate processes.

    python benchmarks/evoformer_memory.py                         # the table of docs/proteins.md
    python benchmarks/evoformer_memory.py --cases 32x8 --small    # a test run

The model has the widths of AlphaFold 2 and few blocks: each further block adds the results that
`rematerialize=True` keeps for the backward pass, its weights, gradients and Adam's moments,
so the memory of 48 blocks follows from that of one and of three.
"""

import argparse
import json
import os
import resource
import subprocess
import sys

SMALL = {"dim": 16, "pair_dim": 8, "num_heads": 2, "num_pair_heads": 2, "outer_dim": 4}


def measure(residues: int, sequences: int, layers: int, scope: str, small: bool) -> None:
    """Prints the peak of this process in GiB after a step, as JSON."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras
    import numpy as np

    from keras_tfm import models

    model = models.evoformer(
        **(SMALL if small else {}), num_layers=layers, num_sequences=sequences,
        num_residues=residues, rematerialize=scope == "remat",
    )  # fmt: skip
    model.compile(keras.optimizers.Adam(), "mse", jit_compile=False)
    tokens = np.random.default_rng(0).integers(1, 23, (1, sequences, residues)).astype("int32")
    answers = {name: np.zeros((1, *x.shape[1:]), "float32") for name, x in model.output.items()}
    model.train_on_batch({"tokens": tokens}, answers)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"peak": peak}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", default=["64x32", "128x64", "128x128", "256x128"])
    parser.add_argument("--layers", nargs=2, type=int, default=[1, 3])
    parser.add_argument("--scopes", nargs="+", default=["remat"], choices=["remat", "none"])
    parser.add_argument("--small", action="store_true", help="narrow widths, for a test run")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        residues, sequences, layers, scope = arguments.one
        measure(int(residues), int(sequences), int(layers), scope, arguments.small)
        return
    few, more = arguments.layers
    print(
        f"residues x sequences, scope: {few} and {more} blocks, each further block, 48 blocks (GiB)"
    )
    for case in arguments.cases:
        for scope in arguments.scopes:
            peaks = []
            for layers in (few, more):
                command = [sys.executable, __file__, "--one", *case.split("x"), str(layers), scope]
                command += ["--small"] * arguments.small
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                peaks.append(json.loads(done.stdout.splitlines()[-1])["peak"])
            each = (peaks[1] - peaks[0]) / (more - few)
            whole = peaks[0] + (48 - few) * each
            print(
                f"{case}, {scope}: {peaks[0]:.2f} {peaks[1]:.2f} {each:.3f} {whole:.1f}", flush=True
            )


if __name__ == "__main__":
    main()
