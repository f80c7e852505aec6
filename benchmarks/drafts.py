"""Drafts and int8 KV caches beside greedy search, on a trained model.

    pip install -e ".[examples]"
    python examples/dates.py               # the trained model, five minutes
    python benchmarks/drafts.py            # five minutes

On examples/dates.py's trained model, the heads of `models.with_draft_heads` are trained on the
model as it is. Then each contestant answers the same unseen questions from an int8 and a float32
file, one at a time on one thread, in turns; medians of the rounds. "tokens a step" is the mean
number of tokens that a step adds. On all unseen dates and formats, "equal" is the share of answers
that are greedy search's, "prefix" the mean number of tokens until the first difference, "right" the
share of correct answers.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow: only its errors
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))

import dates  # noqa: E402
import dates_data as data  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402

from keras_tfm import models, runtime, training  # noqa: E402
from keras_tfm.export import export_tflite  # noqa: E402
from keras_tfm.generation import Drafted, DraftHeads  # noqa: E402
from keras_tfm.generation.loop import GenerationLoop  # noqa: E402

EXAMPLES, QUESTIONS = 40_000, 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heads", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--model", type=Path, default=dates.FOLDER / "dates.keras")
    arguments = parser.parse_args()
    if not arguments.model.exists():
        parser.error(f"no {arguments.model}: run examples/dates.py first")
    base = keras.models.load_model(arguments.model)
    tests = {"dates": data.test_dates(), "formats": data.test_formats()}
    drafted = {n: trained(base, n) for n in arguments.heads}
    with tempfile.TemporaryDirectory() as folder:
        for quantization in ("float32", "int8"):
            path = Path(folder)
            files = {
                "greedy": exported(base, path / f"{quantization}.tflite", quantization),
                "int8 caches": exported(
                    base, path / f"{quantization}_caches.tflite", quantization, cache="int8"
                ),
            }
            for n, model in drafted.items():
                files[f"{n} heads"] = exported(
                    model,
                    path / f"{quantization}_{n}.tflite",
                    quantization,
                    strategy=Drafted(DraftHeads(), length=n),
                )
            for kind, test in tests.items():
                compare(quantization, kind, test, files, drafted, arguments.rounds)


def trained(base: keras.Model, heads: int) -> keras.Model:
    """The model with heads, trained on examples that the model was trained on, and no others."""
    model = models.with_draft_heads(base, heads)
    for layer in base.layers:
        layer.trainable = False
    batches, steps = dates.batches_of(*data.arrays(data.training_examples(EXAMPLES)), 64)
    rate = keras.optimizers.schedules.CosineDecay(2e-3, steps)
    model.compile(keras.optimizers.Adam(rate), loss=[None, training.DraftLoss()])
    start = time.perf_counter()
    both = batches.map(lambda x, y: (x, (y, y)))
    history = model.fit(both, steps_per_epoch=steps, shuffle=False, verbose=0)
    seconds = time.perf_counter() - start
    print(f"{heads} heads: loss {history.history['loss'][-1]:.3f}, {seconds:.0f} s of training")
    return model


def exported(model: keras.Model, path: Path, quantization: str, **options) -> runtime.Model:
    export_tflite(
        model,
        path,
        ["generate"],
        quantization=quantization,
        source_length=data.SOURCE_LENGTH,
        max_length=data.TARGET_LENGTH,
        start_id=data.START,
        end_id=data.END,
        **options,
    )
    return runtime.load(path, threads=1)


def compare(quantization: str, kind: str, test: list, files: dict, drafted: dict, rounds: int):
    """Prints the milliseconds of an answer, and whose answers are equal and right."""
    rows, expected = data.arrays(test)
    seconds: dict[str, list[float]] = {name: [] for name in files}
    timed = rows[:: max(1, len(rows) // QUESTIONS)][:QUESTIONS]
    for _ in range(rounds + 1):  # the first one warms up
        for name, file in files.items():
            start = time.perf_counter()
            answered(file, timed)
            seconds[name].append(time.perf_counter() - start)
    median = {name: float(np.median(x[1:])) for name, x in seconds.items()}
    answers = {name: answered(file, rows) for name, file in files.items()}
    columns = ("ms", "times greedy", "tokens a step", "equal", "prefix", "right")
    print(f"\n{f'{quantization}, {kind}':18}" + "".join(f"{x:>14}" for x in columns))
    for name in files:
        a_step = 1.0
        if name.endswith("heads"):
            a_step = tokens_a_step(drafted[int(name.split()[0])], timed)
        same = answers[name] == answers["greedy"]
        cells = (
            f"{1e3 * median[name] / len(timed):.3f}",
            f"{median['greedy'] / median[name]:.2f}",
            f"{a_step:.2f}",
            f"{same.all(1).mean():.2%}",
            f"{same.cumprod(1).sum(1).mean():.2f}",
            f"{(answers[name] == expected).all(1).mean():.2%}",
        )
        print(f"{name:18}" + "".join(f"{x:>14}" for x in cells), flush=True)


def answered(file: runtime.Model, rows: np.ndarray) -> np.ndarray:
    """The tokens (N, TARGET_LENGTH) of rows one at a time."""
    return data.padded([file.generate(row[None]).tokens[0] for row in rows], data.TARGET_LENGTH)


def tokens_a_step(model: keras.Model, rows: np.ndarray) -> float:
    """The mean number of tokens that a step of the model in Keras adds, rows one at a time."""
    strategy = Drafted(DraftHeads(), length=model.outputs[1].shape[2])
    tokens = steps = 0
    for row in rows[:30]:
        loop = GenerationLoop(
            model,
            {"source": row[None]},
            "target",
            np.array([[data.START]], "int32"),
            data.TARGET_LENGTH,
            (data.END,),
            strategy,
        )
        found = loop.run()
        tokens += int(np.count_nonzero(found["tokens"])) - 1
        steps += int(found["passes"])
    return tokens / steps


if __name__ == "__main__":
    main()
