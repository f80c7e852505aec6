"""Drafts and int8 KV caches beside greedy search, on a trained model.

    pip install -e ".[examples,benchmarks]"
    python examples/dates.py                                # the trained model, five minutes
    python benchmarks/drafts.py                             # five minutes
    python examples/translation.py                          # an hour
    python benchmarks/drafts.py --task translation --heads 3

The heads of `models.with_draft_heads` are trained on the trained model of an example, which stays
as it is. Then each contestant answers the same unseen questions from an int8 and a float32 file,
one at a time on one thread, in turns; medians of the rounds. "lookup" (`PromptLookup`) drafts what
followed the last two tokens before, in the source too if that has the same vocabulary. "tokens a
step" is the mean number of tokens that a step adds. On all questions, "equal" is the share of
answers that are greedy search's, "prefix" the mean number of tokens, padding included, until the
first difference, and "score" the share of correct dates, or BLEU of the translations. CTranslate2
translates with the same weights.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow: only its errors
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))

import dates  # noqa: E402
import dates_data  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402
import translation  # noqa: E402
import translation_data  # noqa: E402

from keras_tfm import models, runtime, training  # noqa: E402
from keras_tfm.export import export_tflite  # noqa: E402
from keras_tfm.generation import Drafted, DraftHeads, PromptLookup  # noqa: E402
from keras_tfm.generation.loop import GenerationLoop  # noqa: E402

EXAMPLES, QUESTIONS, COUNTED = 40_000, 100, 30
NGRAM = 2


class Task(NamedTuple):
    """What an example has trained, and how its answers are judged.

    Attributes:
        model: the trained model, from "source" and "target" to logits.
        batches: dataset of inputs and labels for the draft heads.
        steps: int, batches for training the heads.
        tests: dict of lists of source ids, by the name of the test.
        score: function of a test's name and the answers' tokens (N, T), padded with 0.
        settings: arguments of `export_tflite`.
        lookup: tuple of str, inputs with the ids of the answers' vocabulary.
        peer: function of a folder, which writes the weights there for CTranslate2, if it can run
            the model.
    """

    model: keras.Model
    batches: Any
    steps: int
    tests: dict[str, list[list[int]]]
    score: Callable[[str, np.ndarray], float]
    settings: dict[str, Any]
    lookup: tuple[str, ...] = ()
    peer: Callable[[Path], None] | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=["dates", "translation"], default="dates")
    parser.add_argument("--heads", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="of the example's files")
    arguments = parser.parse_args()
    example = {"dates": dates, "translation": translation}[arguments.task]
    folder = arguments.folder or example.FOLDER
    file = folder / f"{arguments.task}.keras"
    if not file.exists():
        parser.error(f"no {file}: run examples/{arguments.task}.py first")
    task = {"dates": of_dates, "translation": of_translation}[arguments.task](file)
    heads = {n: trained(task, n) for n in arguments.heads}
    with tempfile.TemporaryDirectory() as temporary:
        for quantization in ("float32", "int8"):
            contestants = contest(task, heads, quantization, Path(temporary) / quantization)
            for test in task.tests:
                compare(task, f"{quantization}, {test}", test, contestants, arguments.rounds)


def of_dates(file: Path) -> Task:
    tests = {"dates": dates_data.test_dates(), "formats": dates_data.test_formats()}
    arrays = {name: dates_data.arrays(test) for name, test in tests.items()}
    batches, steps = dates.batches_of(
        *dates_data.arrays(dates_data.training_examples(EXAMPLES)), 64
    )
    length = dates_data.TARGET_LENGTH

    def score(test: str, answers: np.ndarray) -> float:
        return float((answers == arrays[test][1]).all(1).mean())

    return Task(
        keras.models.load_model(file),
        batches,
        steps,
        {name: rows.tolist() for name, (rows, _) in arrays.items()},
        score,
        {
            "source_length": dates_data.SOURCE_LENGTH,
            "max_length": length,
            "start_id": dates_data.START,
            "end_id": dates_data.END,
        },
    )


def of_translation(file: Path) -> Task:
    from sacrebleu.metrics import BLEU

    pairs = translation_data.read(translation_data.fetch(file.parent))
    vocabulary = translation.VOCABULARY
    corpus = translation.Corpus(pairs, vocabulary, file.parent / "tokenizer.json")
    test = corpus.test()
    sources = [x.ids for x in corpus.tokenizer.encode_batch([pair.source for pair in test])]
    model = keras.models.load_model(file, compile=False)

    def score(_: str, answers: np.ndarray) -> float:
        texts = corpus.tokenizer.decode_batch(answers.tolist())
        return BLEU().corpus_score(texts, [[pair.target for pair in test]]).score / 100

    def peer(folder: Path) -> None:
        import ctranslate2_peer

        ctranslate2_peer.write_model(
            ctranslate2_peer.weights_of(model),
            folder,
            num_heads=translation.SIZE["num_heads"],
            normalize_first=True,
            start_id=translation.START,
            rotary=True,
        )

    return Task(
        model,
        corpus.training.dataset(epochs=1),
        corpus.training.steps,
        {"held-out pages": sources},
        score,
        {
            "source_length": translation.LENGTHS,
            "max_length": translation.LONGEST + 1,
            "start_id": translation.START,
            "end_id": translation.END,
        },
        ("source",),
        peer,
    )


def trained(task: Task, heads: int) -> keras.Model:
    """The model with heads, trained on examples that the model was trained on, and no others."""
    model = models.with_draft_heads(task.model, heads)
    for layer in task.model.layers:
        layer.trainable = False
    rate = keras.optimizers.schedules.CosineDecay(2e-3, task.steps)
    model.compile(keras.optimizers.Adam(rate), loss=[None, training.DraftLoss()])
    start = time.perf_counter()
    both = task.batches.map(lambda x, y: (x, (y, y)))
    history = model.fit(both, steps_per_epoch=task.steps, shuffle=False, verbose=0)
    seconds = time.perf_counter() - start
    print(f"{heads} heads: loss {history.history['loss'][-1]:.3f}, {seconds:.0f} s of training")
    return model


class Contestant(NamedTuple):
    """One way to answer.

    Attributes:
        answer: function from source ids to the answer's tokens, start token first.
        drafted: the model and the strategy with which steps are counted. None if each step adds
            one token.
    """

    answer: Callable[[list[int]], np.ndarray]
    drafted: tuple[keras.Model, Drafted] | None = None


def contest(task: Task, heads: dict, quantization: str, folder: Path) -> dict[str, Contestant]:
    """Writes a file for each contestant; all answer one question at a time on one thread."""
    folder.mkdir()

    def exported(name: str, model: keras.Model, **options) -> Callable:
        path = folder / f"{name}.tflite"
        settings = task.settings | options
        export_tflite(
            model, path, ["generate"], quantization=quantization, verify=False, **settings
        )
        file = runtime.load(path, threads=1)
        return lambda source: file.generate(np.array([source], "int32")).tokens[0]

    contestants = {
        "greedy": Contestant(exported("greedy", task.model)),
        "int8 caches": Contestant(exported("caches", task.model, cache="int8")),
    }
    strategy = Drafted(PromptLookup(NGRAM, task.lookup), length=3)
    contestants["lookup"] = Contestant(
        exported("lookup", task.model, strategy=strategy), (task.model, strategy)
    )
    for n, model in heads.items():
        strategy = Drafted(DraftHeads(), length=n)
        contestants[f"{n} heads"] = Contestant(
            exported(f"heads_{n}", model, strategy=strategy), (model, strategy)
        )
    if task.peer:
        import ctranslate2_peer

        task.peer(folder / "ctranslate2")
        decoder = ctranslate2_peer.CTranslate2Decoder(folder / "ctranslate2", quantization)
        start, end, length = (task.settings[x] for x in ("start_id", "end_id", "max_length"))
        contestants["CTranslate2"] = Contestant(
            lambda source: np.array([start, *decoder(source, length - 1, end), end][:length])
        )
    return contestants


def compare(task: Task, title: str, test: str, contestants: dict, rounds: int) -> None:
    """Prints the milliseconds of an answer, and whose answers are equal and right."""
    sources = task.tests[test]
    stride = max(1, len(sources) // QUESTIONS)
    timed = sources[::stride][:QUESTIONS]
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds + 1):  # the first one warms up
        for name, one in contestants.items():
            start = time.perf_counter()
            for source in timed:
                one.answer(source)
            seconds[name].append(time.perf_counter() - start)
    median = {name: float(np.median(x[1:])) for name, x in seconds.items()}
    answers = {name: answered(task, one, sources) for name, one in contestants.items()}
    columns = ("ms", "times greedy", "tokens/s", "tokens a step", "equal", "prefix", "score")
    print(f"\n{title:24}" + "".join(f"{x:>14}" for x in columns))
    for name, one in contestants.items():
        a_step = 1.0 if one.drafted is None else tokens_a_step(task, *one.drafted, timed)
        same = answers[name] == answers["greedy"]
        tokens = np.count_nonzero(answers[name][::stride][:QUESTIONS]) - len(timed)
        cells = (
            f"{1e3 * median[name] / len(timed):.3f}",
            f"{median['greedy'] / median[name]:.2f}",
            f"{tokens / median[name]:.0f}",
            f"{a_step:.2f}",
            f"{same.all(1).mean():.2%}",
            f"{same.cumprod(1).sum(1).mean():.2f}",
            f"{task.score(test, answers[name]):.2%}",
        )
        print(f"{name:24}" + "".join(f"{x:>14}" for x in cells), flush=True)


def answered(task: Task, contestant: Contestant, sources: list[list[int]]) -> np.ndarray:
    """The tokens (N, max_length) of each answer, padded with 0."""
    rows = np.zeros((len(sources), task.settings["max_length"]), "int32")
    for row, source in zip(rows, sources, strict=True):
        tokens = contestant.answer(source)
        row[: len(tokens)] = tokens
    return rows


def tokens_a_step(task: Task, model: keras.Model, strategy: Drafted, sources: list) -> float:
    """The mean number of tokens that a step of the model in Keras adds, rows one at a time."""
    tokens = steps = 0
    for source in sources[:COUNTED]:
        loop = GenerationLoop(
            model,
            {"source": np.array([source], "int32")},
            "target",
            np.array([[task.settings["start_id"]]], "int32"),
            task.settings["max_length"],
            (task.settings["end_id"],),
            strategy,
        )
        found = loop.run()
        tokens += int(np.count_nonzero(found["tokens"])) - 1
        steps += int(found["passes"])
    return tokens / steps


if __name__ == "__main__":
    main()
