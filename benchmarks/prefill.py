"""The time and memory before the first token: long prompts and long sources, one thread.

    pip install -e ".[benchmarks]"
    python benchmarks/prefill.py                          # 512 and 2,048 tokens
    python benchmarks/prefill.py --rounds 1 --lengths 64  # whether it runs

The sizes of `benchmarks/generation.py`: 4 (+ 4) layers, D=256, H=8, F=1024, V=8000, random weights,
batch 1. "source": an encoder-decoder reads a source and generates one token. "prompt": a
decoder-only model reads a prompt and generates one token. Ours reads it with "prefill", in chunks
of 128 or 512 tokens, and then with "decode"; CTranslate2 reads it at once. The contestants take
turns, each round with other tokens; both sides have the same weights. Times are medians of a whole
call; a ratio is that of medians within the run. Memory is the peak of a process that loads the
model and reads one text, beyond its imports.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import generation
import numpy as np

from keras_tfm import runtime
from keras_tfm.runtime.manifest.storage import import_litert

CHUNKS = (128, 512)
PEER = "CTranslate2"
Run = Callable[[np.ndarray], int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--precision", nargs="+", default=["float32", "int8"])
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--peak", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak:
        print_peak(*arguments.peak)
        return
    rows = [("", "contestant", "ms", "times CTranslate2's", "peak, MB")]
    with tempfile.TemporaryDirectory() as folder:
        for kind, model in (("source", generation.made_model()), ("prompt", decoder_only())):
            made = Path(folder) / kind
            write_peer(kind, model, made / "ct2")
            for length in arguments.lengths:
                for precision in arguments.precision:
                    paths = files(kind, model, made, length, precision)
                    paths[PEER] = made / "ct2"
                    seconds = race(kind, precision, paths, length, arguments.rounds)
                    for name, times in seconds.items():
                        middle, theirs = map(statistics.median, (times, seconds[PEER]))
                        peak = measured_peak(kind, precision, paths[name], length)
                        cells = f"{1e3 * middle:.1f}", f"{middle / theirs:.2f}", peak
                        rows.append((f"{kind} of {length}, {precision}", name, *cells))
    generation.print_rows(rows, arguments.markdown, "milliseconds until the first token (median)")


def decoder_only():
    """The decoder of `generation.made_model`, without cross-attention."""
    import keras

    from keras_tfm import layers

    keras.utils.set_random_seed(0)
    size = generation.SIZE
    ids = keras.Input((None,), dtype="int32", name="target")
    embedding = layers.TokenEmbedding(
        generation.VOCABULARY, size["dim"], scale=True, name="embedding"
    )
    x = layers.PositionalEncoding()(embedding(ids))
    for i in range(size["num_layers"]):
        x = layers.TransformerDecoderBlock(
            size["intermediate_dim"], size["num_heads"], cross_attention=False, name=f"decoder_{i}"
        )(x)
    model = keras.Model(ids, embedding(x, reverse=True))
    generation.randomise(model)
    return model


def write_peer(kind: str, model, folder: Path) -> None:
    import ctranslate2_peer as peer

    if kind == "source":
        generation.write_peer(model, folder)
    else:
        peer.write_decoder(peer.weights_of(model), folder, num_heads=8)


def files(kind: str, model, folder: Path, length: int, precision: str) -> dict[str, Path]:
    """The files of a text's length, by the name of the contestant."""
    from keras_tfm.export import export_tflite

    result = {}
    for cache in ("float32", "int8"):
        options = {"quantization": precision, "cache": cache, "verify": False, "start_id": 1}
        if kind == "source":
            name = f"{cache} caches"
            result[name] = folder / f"{length}-{precision}-{cache}.tflite"
            export_tflite(
                model, result[name], ["generate"], source_length=length, max_length=2, **options
            )
            continue
        for chunk in (x for x in CHUNKS if x <= length):
            name = f"{cache} caches, chunks of {chunk}"
            result[name] = folder / f"{length}-{precision}-{cache}-{chunk}.tflite"
            export_tflite(
                model, result[name], ["prefill", "decode"], prompt_length=chunk,
                max_length=length + 1, **options,
            )  # fmt: skip
    return result


def contestant(kind: str, precision: str, path: Path) -> Run:
    """A function that reads a text and returns the first token."""
    if path.suffix != ".tflite":
        import ctranslate2_peer as peer

        if kind == "prompt":
            return peer.CTranslate2Generator(path, precision)
        decoder = peer.CTranslate2Decoder(path, precision)
        return lambda ids: decoder(ids.tolist(), 1)[0]
    model = runtime.load(path)
    if kind == "source":
        return lambda ids: int(model.generate(ids).tokens[0, 1])
    return lambda ids: int(next(iter(model.stream([ids])))[0])


def race(kind: str, precision: str, paths: dict, length: int, rounds: int) -> dict:
    contestants = {name: contestant(kind, precision, path) for name, path in paths.items()}
    generator = np.random.default_rng(1)
    seconds = {name: [] for name in contestants}
    for number in range(rounds + 1):
        ids, found = generator.integers(1, generation.VOCABULARY, length), {}
        for name, run in contestants.items():
            start = time.perf_counter()
            found[name] = run(ids)
            if number:  # round 0 is the warm-up
                seconds[name].append(time.perf_counter() - start)
        exact = {x for name, x in found.items() if name == PEER or name.startswith("float32")}
        if precision == "float32" and len(exact) > 1:
            raise SystemExit(f"the first tokens after {kind}s of {length} differ: {found}")
    return seconds


def measured_peak(kind: str, precision: str, path: Path, length: int) -> str:
    command = [sys.executable, __file__, "--peak", kind, precision, path, str(length)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def print_peak(kind: str, precision: str, path: str, length: str) -> None:
    """Prints by how many MB the memory of this process grew at most."""
    if path.endswith(".tflite"):
        for name in ("interpreter", "schema_py_generated"):
            import_litert(name)
    else:
        import ctranslate2_peer  # noqa: F401
    before = generation.memory("VmRSS")
    contestant(kind, precision, Path(path))(np.arange(1, 1 + int(length)))
    print(f"{generation.memory('VmHWM') - before:.0f}")


if __name__ == "__main__":
    main()
