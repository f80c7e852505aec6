"""Integrals and first-order differential equations by a Transformer, each answer checked.

    pip install -e ".[examples]"
    python examples/integration.py                          # trains, exports, evaluates
    python examples/integration.py --ask "x*cos(x)"         # with the exported int8 file
    python examples/integration.py --ask "y' = 2*x*y"

Data: random functions and their derivatives, SymPy's integrals, and equations with their solutions
(integration_data.py); nothing is downloaded.

An answer counts if its derivative is the question. Where none does, the coefficients of the terms
are solved for (integration_answers.py); then the model answers each term of the question alone,
and the terms of all answers are combined.

Minutes: 46 on 2 cores with four other programs beside, 30 of them training (200,000 examples,
12,498 steps; alone, its first 600 took 1.1 minutes); a call of the file takes 2 ms greedily and
13 ms with beam search.
Expected, problems solved (`--score` prints all three ways by kind):

                                   Keras, beam 10   Keras, greedy    int8, greedy   int8, beam 10
new functions (1,000), as written           76.4%           51.9%           51.9%           76.5%
coefficients solved for                     94.5%           80.5%           80.5%           94.5%
asked term by term, too                     98.5%           91.2%           91.3%           98.5%
  backward, a product          134          99.3%           96.3%           97.0%          100.0%
  backward, a sum              404          99.3%           95.0%           95.0%           99.3%
  backward, one function        12         100.0%           91.7%           91.7%          100.0%
  equation, linear             106          98.1%           79.2%           78.3%           98.1%
  equation, separable           94         100.0%           92.6%           92.6%          100.0%
  forward, a sum               162         100.0%           92.6%           93.2%          100.0%
  forward, one term             88          89.8%           76.1%           76.1%           88.6%
new forms (500)                             99.2%           94.4%           93.8%           99.0%

What it does not solve are mainly single functions whose integral has many terms, such as
x**4*cos(x) or x**2*sqrt(2 + x).
An interrupted run continues with the same command.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from fractions import Fraction
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow: only its errors

import integration_answers as answers
import integration_data as data
import progress
import symbolic

from keras_tfm import runtime
from keras_tfm.runtime import native_log

FOLDER = Path("artifacts/integration")
SIZE = {"dim": 128, "num_layers": 3, "num_heads": 4, "intermediate_dim": 512}
SMOKE = {"dim": 16, "num_layers": 1, "num_heads": 2, "intermediate_dim": 32}
EXAMPLES, TESTED = 200_000, (1000, 500)
BATCH, PEAK, WARMUP = 16, 1.2e-3, 500
BOUNDARIES = (8, 12, 16, 20, 24, 28, 34, 40, 48, data.SOURCE_LENGTH)
LENGTHS = [32, data.SOURCE_LENGTH]  # of sources in the files
BEAM = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ask", metavar="TEXT", help="f(x), or an equation y' = f(x, y)")
    parser.add_argument(
        "--folder", type=Path, help=f"default: {FOLDER}, with --smoke {FOLDER / 'smoke'}"
    )
    parser.add_argument("--examples", type=int, default=EXAMPLES, help="number of problems")
    parser.add_argument("--score", action="store_true", help="evaluates a model trained before")
    parser.add_argument("--smoke", action="store_true", help="a short test run, a minute")
    arguments = parser.parse_args()
    arguments.folder = arguments.folder or (FOLDER / "smoke" if arguments.smoke else FOLDER)
    if arguments.examples < BATCH:
        parser.error(f"--examples must be at least {BATCH}, one batch, got {arguments.examples}")
    problem = None if arguments.ask is None else problem_of(arguments.ask)  # bad input fails first
    if not (problem and (arguments.folder / "beam.tflite").exists()):
        start = time.perf_counter()
        if not arguments.score:
            train(arguments)
        score(arguments)
        print(f"\n{(time.perf_counter() - start) / 60:.1f} minutes in total")
    if problem:
        print(answer_text(problem, arguments.folder / "beam.tflite"))


# Asking


def problem_of(text: str) -> answers.Problem:
    """The problem that a person wrote; what it cannot be ends the program with a line."""
    name, equals, right = text.partition("=")
    task = "equation" if equals else "integral"
    try:
        if equals and name.replace(" ", "") not in ("y'", "dy/dx"):
            raise ValueError(f"cannot read {text!r}: an equation is y' = f(x, y)")
        question = symbolic.parse(right if equals else text, ("x", "y") if equals else ("x",))
    except ValueError as error:
        sys.exit(str(error))
    problem = answers.Problem(task, "", question, symbolic.ZERO)
    length = len(problem.source.split())
    if length > data.SOURCE_LENGTH:
        sys.exit(f"too long: {length} tokens, at most {data.SOURCE_LENGTH}")
    return problem


def answer_text(problem: answers.Problem, path: Path) -> str:
    """The first right answer of the file; without one the program ends."""
    file = runtime.load(path)

    def ask(one: answers.Problem) -> list[str]:
        return [x.text for x in file.generate_text(one.source)]

    found = ask(problem)
    for rank, text in enumerate(found, 1):
        answer, whose = written(problem, [text]), f"hypothesis {rank}"
        if answer is not None:
            break
    else:
        answer, whose = solved(problem, found), "terms of the model, coefficients solved for"
    if answer is None:
        more = [text for part in answers.parts(problem) for text in ask(part)]
        answer, whose = solved(problem, found + more), "asked term by term, coefficients solved for"
    if answer is None:
        sys.exit(
            f"no answer: the derivative of none of the {len(found)} hypotheses is "
            f"{problem.question}; it may have no elementary integral"
        )
    how = "proved by algebra" if answers.proved(problem, answer) else "compared at 6 points"
    left = "y" if problem.task == "equation" else f"integral of {problem.question}"
    constant = "" if problem.task == "equation" else " + C"
    return f"{left} = {answer}{constant}   ({whose}, {how})"


def written(problem: answers.Problem, texts: list[str]) -> symbolic.Expression | None:
    """The first of the model's answers that is right as it stands."""
    return next((x for x in read(problem, texts) if answers.solves(problem, x)), None)


def solved(problem: answers.Problem, texts: list[str]) -> symbolic.Expression | None:
    """The same; if there is none, a right answer of their terms with other coefficients."""
    found = written(problem, texts)
    if found is not None:
        return found
    try:
        return answers.completed(problem, read(problem, texts))
    except (ArithmeticError, RecursionError):
        return None


def read(problem: answers.Problem, texts: list[str]) -> list[symbolic.Expression]:
    """The answers that are expressions and have a derivative."""
    found = []
    for text in texts:
        try:
            answer = problem.answer_of(text.split())
            answer.derivative()
            found.append(answer)
        except (ValueError, ArithmeticError, RecursionError):
            continue
    return found


# Training


def problems(arguments) -> tuple[list, list, list]:
    """Problems for training and both tests, kept in the folder between runs."""
    count, tested = (2_000, (40, 20)) if arguments.smoke else (arguments.examples, TESTED)
    path = arguments.folder / f"problems-{count}.json"
    if not path.exists():
        start = time.perf_counter()
        some = data.small_functions()
        pairs = data.integrated(some[::60] if arguments.smoke else some)
        print(f"SymPy integrated {len(pairs)} functions in {time.perf_counter() - start:.0f} s")
        parts = [
            [
                (p.task, p.kind, p.source, p.target, str(p.factor))
                for p in data.problems(n, part, pairs, seed=part)
            ]
            for part, n in (
                (data.TRAINING, count),
                (data.FUNCTIONS, tested[0]),
                (data.FORMS, tested[1]),
            )
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(parts))
        print(f"{count:,} problems in {time.perf_counter() - start:.0f} s", flush=True)
    return tuple(json.loads(path.read_text()))


def train(arguments) -> None:
    with native_log.remove():
        import keras
    from keras_tfm import layers, models, text, training

    keras.utils.set_random_seed(0)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    known, *_ = problems(arguments)
    sources = data.tokenizer().encode_batch([x[2] for x in known])
    targets = data.tokenizer(target=True).encode_batch([x[3] for x in known])
    inputs, labels = text.teacher_forcing([x.ids for x in sources], [x.ids for x in targets])
    del known, sources, targets
    batches = text.BucketedBatches(
        inputs, labels, boundaries=BOUNDARIES, batch_size=BATCH, drop_remainder=True
    )
    model = models.transformer(
        len(data.TOKENS),
        dropout=0.0,  # each example is seen once
        normalize_first=True,
        position=layers.RotaryEmbedding(),
        **(SMOKE if arguments.smoke else SIZE),
    )
    warmup = min(WARMUP, batches.steps // 4)
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, batches.steps - warmup, alpha=0.01, warmup_target=PEAK, warmup_steps=warmup
    )
    model.compile(
        keras.optimizers.Adam(rate, beta_2=0.98, epsilon=1e-9, global_clipnorm=1.0),
        training.LabelSmoothedCrossEntropy(0.0),
        metrics=[training.MaskedAccuracy(name="accuracy")],
    )
    print(f"training {model.count_params():,} parameters for {batches.steps:,} steps", flush=True)
    model.fit(
        batches.dataset(epochs=1),
        steps_per_epoch=batches.steps,
        shuffle=False,
        verbose=0,
        callbacks=[
            training.Resume(
                arguments.folder / ("smoke" if arguments.smoke else "checkpoints"),
                every_minutes=3,
                configuration={"examples": arguments.examples},
            ),
            keras.callbacks.LambdaCallback(on_train_batch_end=progress.every(100)),
        ],
    )
    model.save(arguments.folder / "integration.keras")


# Scores


def score(arguments) -> None:
    """Exports both files and prints which share of each kind of problems they solve."""
    with native_log.remove():
        import keras_tfm
    from keras_tfm.export import export_tflite
    from keras_tfm.generation import Beam, Generator, Greedy

    model = keras_tfm.load_model(arguments.folder / "integration.keras", compile=False)
    _, *tests = problems(arguments)
    tests = [[problem_from(*x) for x in test] for test in tests]
    short = [p.source for p in tests[0] if len(p.source.split()) <= 16][:4]
    beam = Beam(BEAM, hypotheses=BEAM)
    for name, strategy in (("greedy", Greedy()), ("beam", beam)):
        report = export_tflite(
            model, arguments.folder / f"{name}.tflite", quantization="int8",
            source_length=LENGTHS[arguments.smoke :], max_length=data.TARGET_LENGTH,
            start_id=data.START, end_id=data.END, strategy=strategy, tokenizer=data.tokenizer(),
            verify_inputs={"source": padded(short, 16)}, verify=not arguments.smoke,
        )  # fmt: skip
        print(report)
    files = {name: runtime.load(arguments.folder / f"{name}.tflite") for name in ("greedy", "beam")}

    def by_file(name, sources):
        start = time.perf_counter()
        found = [files[name].generate_text(source) for source in sources]
        print(f"{name}: {1000 * (time.perf_counter() - start) / len(sources):.0f} ms an answer")
        return [[x] if isinstance(x, str) else [h.text for h in x] for x in found]

    by_beam, greedily = (
        Generator(model, data.TARGET_LENGTH, data.START, data.END, strategy=strategy)
        for strategy in (beam, Greedy())
    )
    contestants = {
        f"Keras, beam {BEAM}": lambda sources: generated(by_beam, sources),
        "Keras, greedy": lambda sources: generated(greedily, sources),
        "int8, greedy": lambda sources: by_file("greedy", sources),
        f"int8, beam {BEAM}": lambda sources: by_file("beam", sources),
    }
    for title, test in zip(("new functions", "new forms"), tests, strict=True):
        print_tables(title, test, contestants)


def print_tables(title: str, test: list[answers.Problem], contestants: dict) -> None:
    """The share of problems with a right answer, by kind, and what was not solved."""
    sources = [p.source for p in test]
    found = {name: ask(sources) for name, ask in contestants.items()}
    right: dict[str, list] = {}

    def judge(how: str, one) -> None:
        for name, all_texts in found.items():
            right[name] = [one(p, texts) for p, texts in zip(test, all_texts, strict=True)]
        print_table(f"{title}, {how}", test, right)

    judge("as written", written)
    judge("coefficients solved for", solved)
    for name, ask in contestants.items():
        in_parts(test, right[name], found[name], ask)
    judge("asked term by term, too", solved)
    first = next(iter(right.values()))
    some = [(p, a) for p, a in zip(test, first, strict=True) if a is not None]
    algebra = sum(answers.proved(p, a, seconds=3) for p, a in some)
    print(f"of {len(some)} answers of the first column, algebra proves {algebra}")
    print("not solved, in the first column, such as")
    for p in [p for p, a in zip(test, first, strict=True) if a is None][:8]:
        print(f"  {p.kind}: {p.question}   (expected {p.answer})")


def in_parts(test: list[answers.Problem], right: list, found: list[list[str]], ask) -> None:
    """Adds to what was found for unsolved problems the answers to their parts."""
    some = {
        i: [p.source for p in answers.parts(test[i]) if len(p.source.split()) <= LENGTHS[-1]]
        for i, answer in enumerate(right)
        if answer is None
    }
    sources = list(dict.fromkeys(source for part in some.values() for source in part))
    texts = dict(zip(sources, ask(sources), strict=True))
    for i, part in some.items():
        found[i] = found[i] + [text for source in part for text in texts[source]]


def print_table(title: str, test: list[answers.Problem], right: dict[str, list]) -> None:
    counts = Counter(p.kind for p in test)
    print(f"\n{title:40}" + "".join(f"{name:>16}" for name in right))
    for kind in [*sorted(counts), "all"]:
        chosen = [i for i, p in enumerate(test) if kind in (p.kind, "all")]
        shares = (sum(x[i] is not None for i in chosen) / len(chosen) for x in right.values())
        cells = "".join(f"{share:>16.1%}" for share in shares)
        print(f"  {kind:30}{len(chosen):>8}{cells}")


def problem_from(task: str, kind: str, source: str, target: str, factor: str) -> answers.Problem:
    """A problem as it is kept in the folder."""
    question, answer = (
        symbolic.expression(x.split()).times(Fraction(factor))
        for x in (source.partition(" ")[2], target)
    )
    return answers.Problem(task, kind, question, answer)


def padded(sources: list[str], length: int):
    from keras_tfm.text import Rows

    rows = Rows.of([x.ids for x in data.tokenizer().encode_batch(sources)])
    return rows.to_padded(range(len(sources)), length)


def generated(generator, sources: list[str], rows: int = 100) -> list[list[str]]:
    """The hypotheses of Keras for each source, in batches of the file's lengths."""
    tokenizer, result = data.tokenizer(), {}
    for shortest, longest in zip((0, *LENGTHS), LENGTHS, strict=False):
        some = [i for i, x in enumerate(sources) if shortest < len(x.split()) <= longest]
        for first in range(0, len(some), rows):
            chosen = some[first : first + rows]
            tokens = generator(padded([sources[i] for i in chosen], longest)).tokens
            found = tokens.reshape(len(chosen), -1, tokens.shape[-1])
            for i, hypotheses in zip(chosen, found.tolist(), strict=True):
                result[i] = tokenizer.decode_batch(hypotheses)
    return [result[i] for i in range(len(sources))]


if __name__ == "__main__":
    main()
