"""Data of examples/word_problems.py: problems in words, and the equation that solves each.

    python examples/word_problems_data.py        # prints statistics and examples, a minute

Two sources:

- the generators of `mathematics-dataset` (PyPI): sums, differences, products, quotients, times of
  day. They return a question and a number; the equation is the only one with the numbers of the
  question that gives this number.
- stories that are composed here (word_problems_stories.py): 16 kinds of equations with 5 or 6
  phrasings each, sometimes with numbers in words or a number that does not matter.

A text is in one of four parts: `TRAINING`; `NEW`, the same phrasings and ranges of numbers, but
other texts; `PHRASINGS`, the last phrasing of each kind, which training does not have; `NUMBERS`,
larger numbers than in training.
"""

import functools
import importlib
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from typing import NamedTuple

import spoken_numbers_data
from word_problems_stories import STORIES

TRAINING, NEW, PHRASINGS, NUMBERS = range(4)
PADDING, START, END, UNKNOWN = range(4)
SPECIAL = ("<padding>", "<start>", "<end>", "<unknown>")
EQUATION = (*SPECIAL, *"0123456789+-*/()")
GENERATED = 0.1
SOURCE_LENGTH, TARGET_LENGTH = 64, 32  # tokens; the target with start and end
WORDS = r"[a-z]+|\d|[^\sa-z\d]"

THINGS = (
    *(
        "apples",
        "books",
        "cards",
        "stamps",
        "eggs",
        "pens",
        "coins",
        "flowers",
        "bottles",
        "tickets",
    ),
    *("bricks", "cakes", "chairs", "letters", "marbles", "oranges", "photos", "plates", "shells"),
)
PEOPLE = (
    *("farmer", "teacher", "baker", "gardener", "librarian", "shopkeeper", "student", "cook"),
    *("collector", "neighbour", "driver", "carpenter", "nurse", "painter"),
)
BOXES = ("boxes", "bags", "crates", "baskets", "shelves", "rows", "packets", "drawers")
GETS = ("buys", "finds", "gets", "receives", "collects")
LOSES = ("sells", "loses", "gives away", "throws away", "uses")
ASIDE = (
    "The {who} is {n} years old.", "It is {n} degrees outside.", "The {who} lives at number {n}.",
    "It is a sunny day.", "The {who} is in a hurry.", "It takes {n} minutes.",
)  # fmt: skip


class Problem(NamedTuple):
    """A text, the equation that solves it, and its kind, such as "a+b" or "time"."""

    kind: str
    text: str
    equation: str


# Equations


def value(equation: str) -> Fraction:
    """The number that an equation is, with + - * / and parentheses.

    Raises:
        ValueError: it is no equation.
        ZeroDivisionError: it divides by zero.
    """
    tokens = re.findall(r"\d+|\S", equation)
    found, rest = _sum(tokens)
    if rest:
        raise ValueError(f"expected the end of the equation, received {' '.join(rest)!r}")
    return found


def _sum(tokens: list[str]) -> tuple[Fraction, list[str]]:
    total, rest = _product(tokens)
    while rest and rest[0] in "+-":
        sign = 1 if rest[0] == "+" else -1
        right, rest = _product(rest[1:])
        total += sign * right
    return total, rest


def _product(tokens: list[str]) -> tuple[Fraction, list[str]]:
    total, rest = _number(tokens)
    while rest and rest[0] in "*/":
        operator = rest[0]
        right, rest = _number(rest[1:])
        total = total * right if operator == "*" else total / right
    return total, rest


def _number(tokens: list[str]) -> tuple[Fraction, list[str]]:
    if not tokens:
        raise ValueError("expected a number, received the end of the equation")
    first, *rest = tokens
    if first.isdigit():
        return Fraction(int(first)), rest
    if first == "-":
        found, rest = _number(rest)
        return -found, rest
    if first == "(":
        found, rest = _sum(rest)
        if rest[:1] == [")"]:
            return found, rest[1:]
    raise ValueError(f"expected a number, received {first!r}")


def answer_of(equation: str) -> Fraction | str | None:
    """The value, "division by zero", or None if it is no equation."""
    try:
        return value(equation)
    except ZeroDivisionError:
        return "division by zero"
    except ValueError:
        return None


# Stories


def numbers_for(kind: str, chance: random.Random, large: bool) -> dict[str, int]:
    """Numbers with which a story makes sense: quotients are whole, nothing falls below zero."""

    def addend() -> int:
        return (
            chance.randint(1000, 99_999)
            if large
            else chance.randint(1, 10 ** chance.randint(1, 3) - 1)
        )

    def times() -> int:
        return chance.randint(21, 99) if large else chance.randint(2, 20)

    def each() -> int:
        return chance.randint(100, 999) if large else chance.randint(2, 99)

    a, b, c, d = addend(), addend(), addend(), each()
    if kind in ("a-b", "a+b-c", "a-b+c") and a < b:
        a, b = b, a
    if kind == "a+b-c":
        c = chance.randint(0, a + b)
    if kind in ("a*b", "a*b+c", "a*b-c", "a*b+c*d"):
        a, b = times(), each()
        c = {"a*b-c": chance.randint(0, a * b), "a*b+c*d": times()}.get(kind, c)
    if kind == "a/b":
        b = times()
        a = b * each()
    if kind == "(a-b)/c":
        c = times()
        a = b + c * each()
    if kind == "(a+b)/c":
        c = times()
        a = c * each() + (-b) % c
    if kind == "a+a*b":
        b = times()
    if kind == "a-b*c":
        b, c = times(), each()
        a = b * c + addend()
    if kind == "(a+b+c)/3":
        c += (-a - b - c) % 3
    if kind == "a*b/100":
        a, b = 20 * (each() if large else times()), 5 * chance.randint(1, 19)
    if kind == "a/b" and chance.random() < 0.03:
        b = 0
    return {"a": a, "b": b, "c": c, "d": d}


def story(chance: random.Random, phrasing: bool = False, large: bool = False) -> Problem:
    """A random story.

    Args:
        phrasing: bool, with the last phrasing of its kind.
        large: bool, with larger numbers than in training.
    """
    kind = chance.choice(list(STORIES))
    *known, last = STORIES[kind]
    numbers = numbers_for(kind, chance, large)
    who, other = chance.sample(PEOPLE, 2)
    names = {
        "who": who, "other": other, "things": chance.choice(THINGS), "boxes": chance.choice(BOXES),
        "gets": chance.choice(GETS), "loses": chance.choice(LOSES),
    }  # fmt: skip
    in_words = not large and chance.random() < 0.3
    written = {name: _written(n, chance, in_words) for name, n in numbers.items()}
    text = (last if phrasing else chance.choice(known)).format(**names, **written)
    if chance.random() < 0.15:
        aside = chance.choice(ASIDE).format(**names, n=chance.randint(2, 60))
        text = f"{aside} {text}"
    equation = re.sub("[abcd]", lambda name: str(numbers[name[0]]), kind)
    return Problem(kind, text[0].upper() + text[1:], equation)


def _written(number: int, chance: random.Random, in_words: bool) -> str:
    if in_words and number <= 999 and chance.random() < 0.6:
        return " ".join(spoken_numbers_data.words_of(number, with_and=chance.random() < 0.5))
    return str(number)


# The generators of mathematics-dataset


@functools.cache
def generators(entropy: tuple[float, float]) -> dict[str, Callable]:
    """Functions that draw a problem; entropy is about the number of digits in it."""
    # A name that mathematics-dataset 1.0.1 imports from where SymPy had it in 2019.
    moved = importlib.import_module("sympy.solvers.diophantine.diophantine")
    package = sys.modules["sympy.solvers.diophantine"]
    package.base_solution_linear = moved.base_solution_linear  # type: ignore[attr-defined]
    from mathematics_dataset.modules import arithmetic, measurement

    def entropies(_):
        return entropy

    found = arithmetic.train(entropies) | measurement.train(entropies)
    return {name: found[name] for name in ("add_or_sub", "mul", "div", "time")}


def drawn(chance: random.Random, large: bool = False) -> Problem | None:
    """A problem of a generator, or None: not of whole numbers, of another range, or ambiguous."""
    import numpy as np

    # Minutes of a day have no other range.
    kind = chance.choice(("add_or_sub", "mul", "div", "div" if large else "time"))
    random.seed(chance.getrandbits(32))  # the generators use the global ones
    np.random.seed(chance.getrandbits(32))  # noqa: NPY002
    # Of a quotient, entropy is that of its result.
    problem = generators((6.0, 9.0) if large else (2.0, 5.0))[kind]()
    text = str(problem.question)
    if kind == "time":
        return _time_of_day(text, str(problem.answer))
    spaced = re.sub(r"(?<=\d) ?- ?(?=\d)", " - ", text)  # "5-3" is not 5 and -3
    found = [int(x) for x in re.findall(r"(?<![\d.])-?\d+(?![\d.]*[.\d])", spaced)]
    if len(found) != 2 or "." in re.sub(r"\.$", "", text) or "base" in text:
        return None
    if (max(map(abs, found)) > 999) != large or max(map(abs, found)) > 99_999:
        return None
    a, b = (f"({x})" if x < 0 else str(x) for x in found)
    candidates = {
        "add_or_sub": (f"{a}+{b}", f"{a}-{b}", f"{b}-{a}"), "mul": (f"{a}*{b}",),
        "div": (f"{a}/{b}", f"{b}/{a}"),
    }[kind]  # fmt: skip
    right = [x for x in candidates if answer_of(x) == Fraction(str(problem.answer))]
    if len(right) != 1:
        return None
    return Problem(f"generator, {kind}", text, right[0])


def _time_of_day(text: str, answer: str) -> Problem | None:
    times = re.findall(r"(\d+):(\d\d) (AM|PM)", text)
    if len(times) != 2:
        return None  # asks for a time of day
    first, last = (f"{int(h) % 12 + 12 * (half == 'PM')}*60+{int(m)}" for h, m, half in times)
    equation = f"{last}-({first})"
    return Problem("generator, time", text, equation) if str(value(equation)) == answer else None


# Parts


def problems(count: int, part: int, seed: int = 0, without: Iterable[str] = ()) -> list[Problem]:
    """Different problems of a part, a tenth of them of the generators where the part has these."""
    chance, found, known = random.Random(f"{seed} {part}"), {}, set(without)
    large = part == NUMBERS
    while len(found) < count:
        if part != PHRASINGS and chance.random() < GENERATED:
            tries = (drawn(chance, large) for _ in range(20))
            problem = next((x for x in tries if x is not None), None)
        else:
            problem = story(chance, part == PHRASINGS, large)
        if problem is None or problem.text in known or not _fits(problem):
            continue
        found.setdefault(problem.text, problem)
    return list(found.values())


def _fits(problem: Problem) -> bool:
    words = len(re.findall(WORDS, problem.text.lower()))
    return words <= SOURCE_LENGTH and len(problem.equation) <= TARGET_LENGTH - 2


def source_tokenizer(texts: Iterable[str]):
    """A token per word, digit or sign of the texts, in lower case."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    words = sorted(
        {word for text in texts for word in re.findall(WORDS, text.lower())} | {*"0123456789"}
    )
    result = Tokenizer(
        models.WordLevel({x: i for i, x in enumerate([*SPECIAL, *words])}, unk_token="<unknown>")
    )
    result.add_special_tokens(list(SPECIAL))
    result.normalizer = normalizers.Lowercase()
    result.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex(WORDS), "isolated")]
    )
    return result


def target_tokenizer():
    """A token per character of an equation, with start and end."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors

    result = Tokenizer(
        models.WordLevel({x: i for i, x in enumerate(EQUATION)}, unk_token="<unknown>")
    )
    result.add_special_tokens(list(SPECIAL))
    result.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    result.decoder = decoders.Fuse()
    result.post_processor = processors.TemplateProcessing(
        single="<start> $A <end>", special_tokens=[("<start>", START), ("<end>", END)]
    )
    return result


def examples(some: list[Problem], per_kind: int = 2) -> Iterator[Problem]:
    seen: Counter = Counter()
    for problem in some:
        seen[problem.kind] += 1
        if seen[problem.kind] <= per_kind:
            yield problem


def main() -> None:
    start = time.perf_counter()
    for name, part in (("training", TRAINING), ("phrasings", PHRASINGS), ("numbers", NUMBERS)):
        some = problems(1000, part)
        print(f"\n{name}: 1,000 in {time.perf_counter() - start:.0f} s")
        print(Counter(problem.kind for problem in some).most_common())
        print("divisions by zero:", sum(isinstance(answer_of(x.equation), str) for x in some))
        print("longest:", max(len(re.findall(WORDS, x.text.lower())) for x in some), "tokens")
        for problem in examples(some):
            print(f"  {problem.text}\n    {problem.equation} = {answer_of(problem.equation)}")


if __name__ == "__main__":
    main()
