"""Greedy generation of one sequence: our .tflite file in LiteRT against CTranslate2, one thread.

    pip install -e ".[benchmarks]"
    python benchmarks/generation.py                      # two minutes
    python benchmarks/generation.py --markdown           # the table for benchmarks/README.md

4+4 layers, D=256, H=8, F=1024, V=8000 (tied embeddings), 32 source ids, 64 tokens, batch 1, random
weights, and the same ones on both sides: float32 tokens must be equal, or the run fails. The
contestants take turns, each round with another source, so that what else the machine does hits all
of them; medians, and ratios of medians within this run. A time is of the whole call from ids to
ids, the encoder included. In int8 CTranslate2 quantises embeddings and output too, as we do.
"""

import argparse
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

from keras_tfm import runtime
from keras_tfm.runtime import native_log

SIZE = {"dim": 256, "num_layers": 4, "num_heads": 8, "intermediate_dim": 1024}
VOCABULARY, SOURCE, TOKENS, START = 8000, 32, 64, 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        contestants = make_contestants(Path(folder))
        seconds = race(contestants, arguments.rounds)
    print_results(seconds, arguments.markdown)


def make_contestants(folder: Path) -> dict:
    with native_log.captured():
        import keras

        keras.utils.set_random_seed(0)
    import ctranslate2_peer as peer

    from keras_tfm.export import export_tflite
    from keras_tfm.models import transformer

    model = transformer(VOCABULARY, **SIZE)
    randomise(model)
    peer.write_model(
        peer.weights_of(model), folder / "ct2", num_heads=8, normalize_first=False, start_id=START
    )
    contestants = {}
    for precision in ("float32", "int8"):
        path = folder / f"{precision}.tflite"
        export_tflite(
            model,
            path,
            quantization=precision,
            source_length=SOURCE,
            max_length=TOKENS + 1,
            start_id=START,
        )
        ours = runtime.load(path)
        theirs = peer.CTranslate2Decoder(folder / "ct2", precision)
        contestants["keras_tfm", precision] = lambda ids, ours=ours: ours.generate(ids).tokens[
            0, 1:
        ]
        contestants["CTranslate2", precision] = lambda ids, theirs=theirs: theirs(
            ids.tolist(), TOKENS
        )
    return contestants


def randomise(model) -> None:
    """Biases and norms off 0 and 1, and a decoder strong enough not to repeat its input."""
    generator = np.random.default_rng(0)
    for variable in model.trainable_variables:
        values = variable.numpy()
        if variable.path.endswith(("bias", "beta", "gamma")):
            variable.assign(values + generator.normal(0.0, 0.02, values.shape))
        elif "decoder" in variable.path and "feed_forward" in variable.path:
            variable.assign(10.0 * values)


def race(contestants: dict, rounds: int) -> dict:
    generator = np.random.default_rng(1)
    seconds = {name: [] for name in contestants}
    agreed, different = [], set()
    for round_number in range(rounds + 1):
        ids = generator.integers(1, VOCABULARY, SOURCE)
        tokens = {}
        for name, run in contestants.items():
            start = time.perf_counter()
            tokens[name] = run(ids)
            if round_number:  # the first warms up
                seconds[name].append(time.perf_counter() - start)
        different.update(tokens["keras_tfm", "float32"].tolist())
        agreed.append(
            np.array_equal(tokens["keras_tfm", "float32"], tokens["CTranslate2", "float32"])
        )
    if not all(agreed):
        raise SystemExit(f"float32 tokens differ in {agreed.count(False)} of {len(agreed)} rounds")
    print(f"float32 tokens equal in all {len(agreed)} rounds ({len(different)} different ones)")
    return seconds


def print_results(seconds: dict, markdown: bool) -> None:
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    bar = "| " if markdown else ""
    print(f"{platform.processor() or platform.machine()}, one thread, tokens/s (median)")
    print(f"{bar}{'':10}{bar}{'keras_tfm':>12}{bar}{'CTranslate2':>12}{bar}{'ratio':>8}{bar}")
    if markdown:
        print("|---|---:|---:|---:|")
    for precision in ("float32", "int8"):
        ours, theirs = (medians[name, precision] for name in ("keras_tfm", "CTranslate2"))
        print(
            f"{bar}{precision:10}{bar}{TOKENS / ours:12.0f}{bar}{TOKENS / theirs:12.0f}"
            f"{bar}{theirs / ours:8.2f}{bar}"
        )


if __name__ == "__main__":
    main()
