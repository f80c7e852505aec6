"""Generation with drafts beside greedy search: the same tokens, in fewer steps.

    pip install -e ".[examples]"
    python examples/dates.py               # the trained model, five minutes
    python benchmarks/drafts.py            # three minutes

On examples/dates.py's trained model, the heads of `models.with_draft_heads` are trained on the
model as it is. Then each contestant answers the same unseen questions from an int8 and a float32
file, one at a time on one thread, in turns; medians of the rounds. "tokens a step" is the mean
number of tokens that a step adds, "equal" the share of answers that are greedy search's.
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
    questions = {
        name: [data.question(x.text, x.tag) for x in test[:: len(test) // QUESTIONS][:QUESTIONS]]
        for name, test in tests.items()
    }
    drafted = {n: trained(base, n) for n in arguments.heads}
    with tempfile.TemporaryDirectory() as folder:
        for quantization in ("float32", "int8"):
            files = {"greedy": exported(base, None, quantization, Path(folder))}
            for n, model in drafted.items():
                strategy = Drafted(DraftHeads(), length=n)
                files[f"{n} heads"] = exported(model, strategy, quantization, Path(folder))
            compare(quantization, files, questions, drafted, arguments.rounds)


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


def exported(model: keras.Model, strategy, quantization: str, folder: Path) -> runtime.Model:
    path = (
        folder / f"{model.name}_{quantization}_{0 if strategy is None else strategy.length}.tflite"
    )
    export_tflite(
        model,
        path,
        ["generate"],
        quantization=quantization,
        strategy=strategy,
        source_length=data.SOURCE_LENGTH,
        max_length=data.TARGET_LENGTH,
        start_id=data.START,
        end_id=data.END,
    )
    return runtime.load(path, threads=1)


def compare(quantization: str, files, questions, drafted, rounds: int) -> None:
    tokenizer = data.source_tokenizer()
    header = f"{'questions':>10}{'ms':>9}{'times greedy':>14}{'tokens a step':>15}{'equal':>9}"
    print(f"\n{quantization:10}{header}")
    for kind, texts in questions.items():
        rows = data.padded([tokenizer.encode(x).ids for x in texts], data.SOURCE_LENGTH)
        seconds: dict[str, list[float]] = {name: [] for name in files}
        answers = {}
        for _ in range(rounds + 1):  # the first one warms up
            for name, file in files.items():
                start = time.perf_counter()
                answers[name] = [file.generate(row[None]).tokens[0].tolist() for row in rows]
                seconds[name].append(time.perf_counter() - start)
        median = {name: float(np.median(x[1:])) for name, x in seconds.items()}
        for name in files:
            heads = int(name.split()[0]) if name != "greedy" else 0
            a_step = 1.0 if not heads else tokens_a_step(drafted[heads], rows)
            equal = np.mean([a == b for a, b in zip(answers[name], answers["greedy"], strict=True)])
            print(
                f"{name:10}{kind:>10}{1e3 * median[name] / len(rows):>9.3f}"
                f"{median['greedy'] / median[name]:>14.2f}{a_step:>15.2f}{equal:>9.1%}",
                flush=True,
            )


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
