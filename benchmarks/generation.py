"""Generation of one sequence: our .tflite file in LiteRT against CTranslate2, one thread.

    pip install -e ".[benchmarks]"
    python benchmarks/generation.py                      # four minutes
    python benchmarks/generation.py --markdown           # the table for benchmarks/README.md
    python benchmarks/generation.py --record             # also appends to processors.jsonl
    python benchmarks/generation.py --caches             # KV caches in float32 and in int8

4+4 layers, D=256, H=8, F=1024, V=8000 (tied embeddings), 32 source ids, 64 tokens, batch 1. Both
sides have the same random weights: float32 tokens must be equal, or the run fails. The loops of
greedy search and of beam search (width 4) are inside our file; "host loop" is greedy search with
the loop in Python, over the file's "encode" and "decode". The contestants take turns, each round
with another source, so that other work on the machine affects all of them. Results are medians, and
ratios of medians within one run. A time is that of a whole call, from ids to ids, including the
encoder. In int8 CTranslate2 quantises embeddings and output too, as we do.

`--caches` compares files whose KV caches are in float32 and in int8, at several lengths: tokens a
second; the ratio of both in each round, its median and quartiles; the mean number of tokens until
the first that differs; the caches of the host's loop; and the peak memory of a process that
generates once, beyond its imports. Random weights have many nearly equal logits, so their tokens
differ sooner than those of a trained model.
"""

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections import defaultdict
from functools import partial
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import processors

from keras_tfm import runtime
from keras_tfm.runtime import native_log

SIZE = {"dim": 256, "num_layers": 4, "num_heads": 8, "intermediate_dim": 1024}
VOCABULARY, SOURCE, TOKENS, START, BEAM = 8000, 32, 64, 1, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument(
        "--record", action="store_true", help="appends the ratios to benchmarks/processors.jsonl"
    )
    parser.add_argument("--caches", action="store_true", help="caches in float32 and in int8")
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=[64, 256, 1024], help="tokens, for --caches"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.caches:
            import caches

            caches.compare(Path(folder), arguments.lengths, arguments.rounds, arguments.markdown)
            return
        contestants = make_contestants(Path(folder))
        seconds = race(contestants, arguments.rounds)
    print_results(seconds, arguments.markdown)
    if arguments.record:
        processors.record(processors.FILE, arguments.rounds, ratios(seconds))


def ratios(seconds: dict) -> dict[str, float]:
    """How many times as fast as CTranslate2 we are, by search and precision."""
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    return {
        f"{search}, {precision}": medians[search, precision, "CTranslate2"] / ours
        for (search, precision, contestant), ours in medians.items()
        if contestant == "keras_tfm"
    }


def made_model():
    """A model with random weights."""
    with native_log.remove():
        import keras

        keras.utils.set_random_seed(0)
    from keras_tfm.models import transformer

    model = transformer(VOCABULARY, **SIZE)
    randomise(model)
    return model


def exported(model, path, precision: str, beam: int, tokens: int = TOKENS, **options) -> Path:
    """The path of the model's file."""
    from keras_tfm.export import export_tflite
    from keras_tfm.generation import Beam

    export_tflite(
        model,
        path,
        ["generate"] if beam > 1 else ["generate", "encode", "decode"],
        quantization=precision,
        source_length=SOURCE,
        max_length=tokens + 1,
        start_id=START,
        strategy=Beam(BEAM, length_penalty=0.0) if beam > 1 else None,
        verify=False,
        **options,
    )
    return path


def write_peer(model, folder: Path) -> None:
    """Writes the model's weights for CTranslate2."""
    import ctranslate2_peer as peer

    weights = peer.weights_of(model)
    peer.write_model(weights, folder, num_heads=8, normalize_first=False, start_id=START)


def peer_decoder(folder: Path, precision: str, beam: int):
    """CTranslate2 with those weights."""
    import ctranslate2_peer as peer

    return peer.CTranslate2Decoder(folder, precision, beam=beam)


def make_contestants(folder: Path) -> dict:
    model = made_model()
    write_peer(model, folder / "ct2")
    contestants = {}
    for precision in ("float32", "int8"):
        for beam in (1, BEAM):
            path = exported(model, folder / f"{precision}-{beam}.tflite", precision, beam)
            ours = runtime.load(path)
            theirs = peer_decoder(folder / "ct2", precision, beam)
            search = "greedy" if beam == 1 else f"beam {beam}"
            contestants |= {
                (search, precision, "keras_tfm"): partial(in_the_file, ours),
                (search, precision, "CTranslate2"): partial(by_peer, theirs),
            }
            if beam == 1:
                contestants[search, precision, "host loop"] = partial(by_host, ours)
    return contestants


def in_the_file(model, ids) -> list[int]:
    return model.generate(ids).tokens[0, 1:].tolist()


def by_host(model, ids) -> list[int]:
    return [int(tokens[0]) for tokens in model.stream(ids)]


def by_peer(decoder, ids, tokens: int = TOKENS) -> list[int]:
    return decoder(ids.tolist(), tokens)


def randomise(model) -> None:
    """Moves biases and norms away from 0 and 1; scales the decoder so that tokens vary."""
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
    agreed, different = defaultdict(list), set()
    for round_number in range(rounds + 1):
        ids = generator.integers(1, VOCABULARY, SOURCE)
        tokens = {}
        for name, run in contestants.items():
            start = time.perf_counter()
            tokens[name] = run(ids)
            if round_number:  # round 0 is the warm-up
                seconds[name].append(time.perf_counter() - start)
        for search, precision, contestant in contestants:
            ours = tokens[search, precision, "keras_tfm"]
            different.update(ours)
            agreed[search, precision, contestant].append(
                ours == tokens[search, precision, contestant]
            )
    for contestant in ("CTranslate2", "host loop"):
        if not all(agreed["greedy", "float32", contestant]):
            raise SystemExit(f"the greedy float32 tokens of {contestant} differ from ours")
    print(f"{len(different)} different tokens; rounds with the same tokens as our file's loop:")
    for name, same in agreed.items():
        if name[-1] != "keras_tfm":
            print(f"  {', '.join(name)}: {sum(same)} of {len(same)}")
    return seconds


def print_results(seconds: dict, markdown: bool) -> None:
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    rows = [("", "keras_tfm", "CTranslate2", "ratio", "host loop", "ratio")]
    for search, precision in dict.fromkeys(name[:2] for name in seconds):
        ours, theirs = (medians[search, precision, x] for x in ("keras_tfm", "CTranslate2"))
        host = medians.get((search, precision, "host loop"))
        row = [f"{search}, {precision}"]
        row += [f"{TOKENS / ours:.0f}", f"{TOKENS / theirs:.0f}", f"{theirs / ours:.2f}"]
        rows.append((*row, *([f"{TOKENS / host:.0f}", f"{host / ours:.2f}"] if host else "  ")))
    print_rows(rows, markdown)


def memory(field: str) -> float:
    """MB of this process: "VmRSS" now, "VmHWM" at most. getrusage has the parent's, too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1e3


def print_rows(rows: list, markdown: bool, unit: str = "tokens/s (median)") -> None:
    print(f"{platform.processor() or platform.machine()}, one thread, {unit}")
    widths = [max(12, *(len(row[i].strip()) for row in rows)) for i in range(len(rows[0]))]
    for number, row in enumerate(rows):
        cells = [f"{row[0]:{max(16, widths[0])}}"]
        cells += [f"{x.strip():>{width}}" for x, width in zip(row[1:], widths[1:], strict=True)]
        print(f"| {' | '.join(cells)} |" if markdown else " ".join(cells))
        if markdown and not number:
            print("|---|" + "---:|" * (len(row) - 1))


if __name__ == "__main__":
    main()
