"""Data of examples/word_problems.py: problems in words, and the equation that solves each.

    python examples/word_problems_data.py        # prints statistics and examples, a minute

Two sources:

- the generators of `mathematics-dataset` (PyPI): sums, differences, products, quotients and times of
  day. They return a question and a number; the equation is the only one with the numbers of the
  question that gives this number.
- stories that are composed here: 16 kinds of equations with 5 or 6 phrasings each, things, people
  and places, sometimes with numbers in words or with a number that does not matter.

A text is put into one of four parts: `TRAINING`; `NEW`, the same phrasings and ranges of numbers, but
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

# Kind: equation, then phrasings, of which training does not have the last.
STORIES = {
    "a+b": (
        "The {who} has {a} {things} and {gets} {b} more. How many {things} does the {who} have now?",
        "There are {a} {things} on the table. The {who} puts {b} more there. How many are there now?",
        "In the morning the {who} {gets} {a} {things}, in the afternoon {b}. How many is that in all?",
        "A shop has {a} {things} in the window and {b} in the store. How many {things} does it have?",
        "One of the {boxes} holds {a} {things}, another {b}. What is the total number of {things}?",
        "After {a} {things} came on Monday, {b} others came on Tuesday. How many {things} came in all?",
    ),
    "a-b": (
        "The {who} has {a} {things} and {loses} {b}. How many {things} are left?",
        "Of {a} {things}, the {who} {loses} {b}. How many does the {who} still have?",
        "There were {a} {things}. Then {b} were taken away. How many {things} remain?",
        "A {who} wants {a} {things} and has {b}. How many are missing?",
        "The {who} has {a} {things}, the {other} has {b}. How many more does the {who} have?",
        "How many of the {a} {things} remain with the {who} if {b} are missing?",
    ),
    "a+b-c": (
        "The {who} has {a} {things}, {gets} {b} more and {loses} {c}. How many {things} are left?",
        "There are {a} {things} in a shop. It {gets} {b}, and then sells {c}. How many remain?",
        "A bus has {a} people in it. At a stop {b} get on and {c} get off. How many are in the bus?",
        "The {who} {gets} {a} {things} on Monday and {b} on Tuesday, and {loses} {c}. "
        "How many does the {who} still have?",
        "After it got {b} more {things}, a shop that had {a} sold {c}. How many are left?",
    ),
    "a-b+c": (
        "The {who} has {a} {things}, {loses} {b} and then {gets} {c}. How many {things} is that?",
        "There were {a} {things} on the table. {b} fell down, and {c} were put back. "
        "How many are on the table?",
        "A shop has {a} {things}. It sells {b} and then gets {c} more. How many does it have now?",
        "Of {a} {things} the {who} {loses} {b}, and later {gets} {c}. How many are there now?",
        "The {who}, who had {a} {things}, first {loses} {b} and later {gets} {c}. How many remain?",
    ),
    "a*b": (
        "There are {a} {boxes} with {b} {things} in each. How many {things} are there?",
        "Each of {a} {boxes} has {b} {things}. How many {things} are there in all?",
        "The {who} buys {a} {things} that cost {b} coins each. How much does the {who} pay?",
        "The {who} reads {b} pages a day. How many pages is that in {a} days?",
        "A train drives {a} hours at {b} miles an hour. How far does it go?",
        "How many {things} fill {a} {boxes} if {b} fit into one?",
    ),
    "a/b": (
        "The {who} shares {a} {things} equally among {b} children. How many does each child get?",
        "{a} {things} are put into {b} {boxes}, equally many in each. How many are in each?",
        "{b} {things} cost {a} coins. How much is one of them?",
        "The {who} puts {b} {things} into each box. How many boxes does the {who} need for {a} {things}?",
        "A train drives {a} miles in {b} hours. How many miles does it go in an hour?",
        "How many {things} does each of {b} people get if the {who} divides {a} equally?",
    ),
    "a*b+c": (
        "The {who} has {a} {boxes} with {b} {things} in each, and {c} more. How many {things} is that?",
        "There are {a} {boxes} of {b} {things} and {c} single {things}. How many are there in all?",
        "The {who} buys {a} {things} for {b} coins each and a bag for {c} coins. What is the price?",
        "The {who} earns {b} coins an hour, works {a} hours and gets {c} coins more. "
        "How many coins is that?",
        "How many {things} does the {who} have with {c} on the table and {a} {boxes} of {b}?",
    ),
    "a*b-c": (
        "The {who} has {a} {boxes} with {b} {things} in each and {loses} {c}. How many are left?",
        "There are {a} {boxes} of {b} {things}. The {who} takes {c} out. How many {things} remain?",
        "Each of {a} {boxes} had {b} {things}, but {c} of the {things} are broken. How many are good?",
        "The {who} earns {b} coins an hour, works {a} hours and spends {c} coins. How many are left?",
        "If {c} are missing from {a} {boxes} of {b} {things} each, how many are there?",
    ),
    "(a-b)/c": (
        "The {who} has {a} {things}, keeps {b} and shares the rest equally among {c} children. "
        "How many does each get?",
        "Of {a} {things}, {b} are broken. The others are put into {c} {boxes}, equally many in each. "
        "How many are in each?",
        "After the {who} {loses} {b} of {a} {things}, {c} people share the rest. How many does each get?",
        "The {who} has {a} coins, spends {b} and divides the rest into {c} equal parts. "
        "How large is a part?",
        "How many does each of {c} children get of {a} {things}, of which the {who} keeps {b}?",
    ),
    "(a+b)/c": (
        "The {who} has {a} {things}, {gets} {b} more and shares all equally among {c} children. "
        "How many does each get?",
        "{a} red and {b} blue {things} are put into {c} {boxes}, equally many in each. "
        "How many are in each?",
        "The {who} and the {other} have {a} and {b} {things}. Together they fill {c} {boxes} equally. "
        "How many {things} are in each?",
        "A shop gets {a} {things} and then {b}. It puts them into {c} {boxes}. How many are in each?",
        "If {c} people share {a} {things} and {b} more equally, how many does each of them get?",
    ),
    "a*b+c*d": (
        "There are {a} {boxes} with {b} {things} and {c} {boxes} with {d} {things}. "
        "How many {things} are there?",
        "The {who} buys {a} {things} for {b} coins each and {c} tickets for {d} coins each. "
        "How much does the {who} pay?",
        "The {who} works {a} hours for {b} coins an hour and {c} hours for {d} coins an hour. "
        "How many coins is that?",
        "A train drives {a} hours at {b} miles an hour and {c} hours at {d}. How far does it go?",
        "How much do {a} {things} at {b} coins and {c} others at {d} coins cost together?",
    ),
    "a+(a+b)": (
        "The {who} has {a} {things}, the {other} has {b} more than the {who}. "
        "How many do they have together?",
        "One of the {boxes} holds {a} {things}, another {b} more than this. How many is that in all?",
        "On Monday {a} {things} are sold, on Tuesday {b} more than on Monday. "
        "How many are sold on both days?",
        "The {who} {gets} {a} {things}, the {other} {b} more than that. What is the total?",
        "How many {things} are there with the {who}, who has {a}, and the {other}, who has {b} more?",
    ),
    "a+a*b": (
        "The {who} has {a} {things}, the {other} has {b} times as many. How many do they have together?",
        "One of the {boxes} holds {a} {things}, another {b} times as many. How many is that in all?",
        "On Monday {a} {things} are sold, on Tuesday {b} times as many. How many are sold on both days?",
        "The {who} {gets} {a} {things}, the {other} {b} times that number. What is the total?",
        "How many {things} are there with the {who}, who has {a}, and the {other}, who has {b} times that?",
    ),
    "a-b*c": (
        "The {who} has {a} coins and buys {b} {things} for {c} coins each. How many coins are left?",
        "From {a} {things} the {who} fills {b} {boxes} with {c} in each. How many {things} remain?",
        "A {who} with {a} {things} gives {c} to each of {b} children. How many are left?",
        "A book has {a} pages. The {who} reads {c} pages a day for {b} days. How many pages remain?",
        "How many of {a} coins remain if the {who} spends {c} coins on each of {b} days?",
    ),
    "(a+b+c)/3": (
        "The {who} {gets} {a}, {b} and {c} {things} on three days. What is the average of a day?",
        "Three {boxes} hold {a}, {b} and {c} {things}. What is the average?",
        "The {who} has three {boxes} with {a}, {b} and {c} {things} and makes them equal. "
        "How many are in each?",
        "What is the average of {a}, {b} and {c} {things}?",
        "On average, how many {things} are in three {boxes} of {a}, {b} and {c}?",
    ),
    "a*b/100": (
        "The {who} has {a} {things}, and {b} percent of them are red. How many are red?",
        "Of {a} {things}, the {who} {loses} {b} percent. How many {things} is that?",
        "A price of {a} coins grows by {b} percent. How many coins are added?",
        "What is {b} percent of {a} {things}?",
        "How many of {a} {things} are broken if {b} percent are?",
    ),
}  # fmt: skip


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
        return None  # asks for a time of day, which is no number
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
