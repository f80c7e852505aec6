"""Audio in a file of Moonshine's size and in one of Whisper's, on the same clips.

`taskset -c 0 python benchmarks/speech.py --rounds 7` (two minutes). Random weights: the times are
those of the shapes, and each file writes the same number of tokens, whatever the clip.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from keras_tfm import models, runtime
from keras_tfm.export import export_tflite
from keras_tfm.models.encoder_decoders import moonshine, whisper

RATE, SECONDS = 16000, (2, 4, 10, 30)


def files(folder, quantization, tokens):
    """The loaded files, by name."""
    loop = {"max_length": tokens + 1, "start_id": 1, "end_id": None}
    lengths = {"source_length": [seconds * RATE for seconds in SECONDS[1:]]}
    result = {}
    for name, model, options in (
        ("moonshine", models.moonshine(**moonshine.SIZES["tiny"]), lengths),
        ("whisper", models.whisper(**whisper.SIZES["tiny"]), {}),
    ):
        path = folder / f"{name}.tflite"
        export_tflite(
            model, path, ["generate"], quantization=quantization, verify=False, **loop, **options
        )
        print(f"{name}-tiny, {quantization}: {path.stat().st_size / 1e6:.1f} MB")
        result[name] = runtime.load(path, threads=1)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--quantization", default="int8")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        contestants = files(Path(folder), given.quantization, given.tokens)
        for seconds in SECONDS:
            clip = np.random.default_rng(0).normal(scale=0.1, size=(1, seconds * RATE))
            inputs = {"audio": clip.astype("float32")}
            times = {name: [] for name in contestants}
            for _ in range(given.rounds + 1):
                for name, file in contestants.items():
                    start = time.perf_counter()
                    file.generate(inputs)
                    times[name].append(time.perf_counter() - start)
            medians = {name: 1000 * np.median(x[1:]) for name, x in times.items()}
            shown = ", ".join(f"{name} {x:.0f} ms" for name, x in medians.items())
            print(f"{seconds} seconds of audio: {shown}")


if __name__ == "__main__":
    main()
