"""Data of examples/integration.py: integrals and first-order equations, generated from answers.

    python examples/integration_data.py          # prints statistics and examples, a minute

After "Deep Learning for Symbolic Mathematics" (arXiv:1912.01412), in three ways:

- backward: a random function is differentiated; the derivative is the question;
- forward: SymPy integrates 400 small functions in worker processes with a time limit; x is replaced
  in them (f(3x + 1) has the integral F(3x + 1)/3), and multiples of such are added;
- equations y' = f(x, y): a family of functions with a constant c, linear (y = A(x) (c + D(x))) or
  separable (such as y = tan(P(x) + c)), is differentiated and c eliminated.

Two test sets, of which no question is in training, not even times a number: `FUNCTIONS` has new
functions; `FORMS` has new forms, that is functions which differ from all in training by more than
numbers. Questions are compared, not answers: so two answers that differ by a constant, or by a
trigonometric identity, count as the same function.
"""

import concurrent.futures
import functools
import hashlib
import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

import symbolic
from integration_answers import TASKS, Problem, in_time, solves
from symbolic import ONE, C, Expression, X, Y, collected, function, number, tidy

SOURCE_LENGTH, TARGET_LENGTH = 64, 56  # tokens, with the task; with start and end
TRAINING, FUNCTIONS, FORMS = range(3)
# Per thousand that are held out.
NEW_FUNCTIONS, NEW_FORMS = 30, 30
ATTEMPTS = 20_000  # of finding one more problem
SHORT_FORM = 12  # forms with fewer tokens are always in training
PADDING, START, END = 0, 1, 2
SPECIAL = ("<padding>", "<start>", "<end>", "<unknown>")
TOKENS = (
    *SPECIAL, *TASKS.values(), *symbolic.SYMBOLS, *symbolic.FUNCTIONS, "add", "mul", "div", "pow",
    "neg", "sqrt", *(sign + digit for sign in "+-" for digit in "0123456789"), *"0123456789",
)  # fmt: skip


# Random functions


def whole(chance: random.Random, largest: int = 4) -> int:
    """A small number, mostly 1, 2 or 3."""
    return min(chance.randint(1, largest), chance.randint(1, largest))


def signed(chance: random.Random, largest: int = 4) -> int:
    return whole(chance, largest) * chance.choice((1, -1))


def linear(chance: random.Random, shift: float = 0.4) -> Expression:
    a = whole(chance) if chance.random() < 0.5 else 1
    return X.times(a) + number(signed(chance) if chance.random() < shift else 0)


def inner(chance: random.Random, nested: float = 0.08) -> Expression:
    """What a function is applied to: mostly x, 3*x, 2*x - 1, sometimes x**2 + 3 or sin(x)."""
    draw = chance.random()
    if draw < nested:
        return function(chance.choice(("exp", "sin", "cos", "log")), X)
    if draw < nested + 0.15:
        return (X * X).times(signed(chance, 2)) + number(chance.choice((0, 0, signed(chance))))
    return linear(chance).times(chance.choice((1, 1, 1, -1)))


def base(chance: random.Random) -> Expression:
    """What a logarithm or a power is taken of, without a common factor."""
    draw = chance.random()
    if draw < 0.45:
        return X + number(signed(chance))
    if draw < 0.75:
        return X * X + number(signed(chance))
    if draw < 0.9:
        return X.times(1 + whole(chance, 4)) + number(chance.choice((1, -1)))
    return function(chance.choice(("exp", "sin", "cos")), X) + number(chance.randint(0, 3))


def factor(chance: random.Random) -> Expression:
    draw = chance.random()
    if draw < 0.30:
        return X ** chance.choice((1, 1, 1, 2, 2, 3, 4, -1, -2, Fraction(1, 2)))
    if draw < 0.45:
        return function("exp", inner(chance))
    if draw < 0.70:
        return function(chance.choice(("sin", "cos")), inner(chance))
    if draw < 0.82:
        return function("log", X if chance.random() < 0.5 else base(chance))
    if draw < 0.92:
        return base(chance) ** chance.choice((-1, -1, -2, Fraction(1, 2), Fraction(-1, 2), 3))
    return function(chance.choice(("tan", "atan")), linear(chance, shift=0.2))


def term(chance: random.Random) -> Expression:
    factors = chance.choices((1, 2, 3), (47, 50, 3))[0]
    return functools.reduce(lambda a, b: a * b, (factor(chance) for _ in range(factors)))


def coefficient(chance: random.Random) -> Fraction | int:
    if chance.random() < 0.4:
        return chance.choice((1, 1, -1))
    return tidy(Fraction(signed(chance, 8), chance.choice((1, 1, 1, 2, 3))))


def some_function(chance: random.Random, weights=(60, 33, 7)) -> Expression:
    count = chance.choices((1, 2, 3), weights)[0]
    terms = (term(chance).times(coefficient(chance)) for _ in range(count))
    return functools.reduce(lambda a, b: a + b, terms)


def without_constant(found: Expression) -> Expression:
    """A function without what its derivative loses: numbers, and log(3) of log(3*x + 3)."""
    result = []
    for monomial, factor in found.terms:
        if len(monomial) == 1:
            ((atom, exponent),) = monomial
            if atom[0] == "log" and exponent == 1:
                content = atom[1].content()
                primitive = atom[1].times(Fraction(1) / abs(content))
                result += function("log", primitive).times(factor).terms
                continue
        if monomial:
            result.append((monomial, factor))
    return collected(result)


def backward(chance: random.Random) -> Problem:
    answer = some_function(chance)
    answer = without_constant(answer)
    return Problem("integral", backward_kind(answer), answer.derivative(), answer)


def backward_kind(answer: Expression) -> str:
    if len(answer.terms) > 1:
        return "backward, a sum"
    ((monomial, _),) = answer.terms or ((frozenset(), 1),)
    if len(monomial) > 1:
        return "backward, a product"
    return "backward, one function"


def equation(chance: random.Random) -> Problem:
    if chance.random() < 0.5:
        a = chance.choice(
            (
                lambda: function("exp", without_constant(inner(chance, nested=0.15))),
                lambda: X ** chance.choice((1, 2, 3, -1, -2)),
                lambda: base(chance) ** chance.choice((-1, 1)),
                lambda: function(chance.choice(("sin", "cos")), linear(chance, shift=0.2)),
            )
        )()
        d = number(0) if chance.random() < 0.3 else some_function(chance, (85, 15, 0))
        d = without_constant(d)
        rate = a.derivative() * a**-1
        return Problem("equation", "equation, linear", rate * Y + a * d.derivative(), a * C + a * d)
    p = without_constant(some_function(chance, (80, 20, 0)))
    slope, shifted = p.derivative(), p + C
    question, answer = chance.choice(
        (
            lambda: (slope * function("exp", Y.times(-1)), function("log", shifted)),
            lambda: (slope * (Y * Y + ONE), function("tan", shifted)),
            lambda: (slope.times(-1) * Y**2, shifted**-1),
            lambda: (slope.times(Fraction(1, 2)) * Y**-1, shifted ** Fraction(1, 2)),
            lambda: (slope.times(Fraction(-1, 2)) * Y**3, shifted ** Fraction(-1, 2)),
        )
    )()
    return Problem("equation", "equation, separable", question, answer)


# Forward


def small_functions() -> list[Expression]:
    """Functions for SymPy, by their schoolbook kinds."""
    exp, log, sin, cos = (
        functools.partial(function, name) for name in ("exp", "log", "sin", "cos")
    )
    atan, tan = functools.partial(function, "atan"), functools.partial(function, "tan")
    two, three = X.times(2), X.times(3)
    result = []
    for n in range(5):
        result += [X**n * f for f in (exp(X), sin(X), cos(X), log(X), log(X) ** 2)]
        result += [X**n * f for f in (exp(X * X), exp((X * X).times(-1)), sin(X * X), cos(X * X))]
        result += [X**n * f for f in (atan(X), sin(X) ** 2, cos(X) ** 2, exp(X) * sin(X))]
        for k in (1, 2, 3, 4, -1, -2, -3):
            u = X + number(k)
            result += [X**n * f for f in (u**-1, u**-2, u ** Fraction(1, 2), log(u))]
            v = X * X + number(k)
            result += [X**n * f for f in (v**-1, v**-2, v ** Fraction(1, 2), log(v))]
            result.append(X**n * v ** Fraction(-1, 2))
        result += [X ** (-n) * log(X), X ** (-n) * log(X) ** 2, X**n * cos(X) * exp(X)]
        result += [sin(X) ** n * cos(X), sin(X) ** 3 * cos(X) ** n, cos(X) ** n * sin(X)]
    for u in (X, two, three):
        for v in (X, two, three):
            result += [sin(u) * cos(v), sin(u) * sin(v), cos(u) * cos(v)]
            result += [exp(u) * sin(v), exp(u) * cos(v), exp(u.times(-1)) * sin(v)]
    result += [
        (X + number(a)) ** -1 * (X + number(b)) ** -1 for a in range(4) for b in range(-4, a)
    ]
    result += [tan(X), tan(X) ** 2, tan(X) ** 3, X * tan(X) ** 2, sin(log(X)), cos(log(X))]
    result += [exp(X) * (exp(X) + ONE) ** n for n in (-1, -2, Fraction(1, 2), 3)]
    result += [(exp(X) + ONE) ** -1, exp(X ** Fraction(1, 2)), sin(X ** Fraction(1, 2))]
    result += [X ** Fraction(n, 2) * log(X) for n in (-3, -1, 1, 3)]
    result += [sin(X) * (cos(X) + number(k)) ** -1 for k in range(4)]
    return list(dict.fromkeys(f for f in result if f.symbols()))


def integrated(some: list[Expression], seconds: int = 5, workers: int = 2) -> list[tuple]:
    """Pairs (f, F) of those that SymPy integrates in time, and of which F' = f."""
    context = multiprocessing.get_context("spawn")  # TensorFlow's threads do not survive a fork
    with concurrent.futures.ProcessPoolExecutor(workers, context) as pool:
        found = pool.map(functools.partial(_integral, seconds=seconds), map(str, some), chunksize=8)
        pairs = list(zip(some, found, strict=True))
    return [(f, F) for f, F in pairs if F is not None and solves(Problem("integral", "", f, F), F)]


def _integral(text: str, seconds: int) -> Expression | None:
    return in_time(_integrated_by_sympy, seconds, text)


def _integrated_by_sympy(text: str) -> Expression:
    import sympy

    found = sympy.integrate(sympy.sympify(text), sympy.Symbol("x"))
    return without_constant(symbolic.from_sympy(sympy.expand(found)))


@functools.lru_cache(4096)
def substituted(f: Expression, F: Expression, a: int, b: int) -> tuple[Expression, Expression]:
    """f(a x + b) and its integral, F(a x + b) / a."""
    if (a, b) == (1, 0):
        return f, F
    inside = X.times(a) + number(b)
    return f.replace("x", inside), F.replace("x", inside).times(Fraction(1, a))


def forward(chance: random.Random, pairs: list[tuple[Expression, Expression]]) -> Problem:
    question = answer = number(0)
    count = chance.choices((1, 2), (65, 35))[0]
    for _ in range(count):
        f, F = chance.choice(pairs)
        a = whole(chance, 3) if chance.random() < 0.5 else 1
        b = signed(chance, 3) if chance.random() < 0.25 else 0
        (f, F), k = substituted(f, F, a, b), coefficient(chance)
        question, answer = question + f.times(k), answer + F.times(k)
    answer = without_constant(answer)
    kind = "forward, a sum" if count > 1 else "forward, one term"
    return Problem("integral", kind, question, answer)


# Training and test


def part_of(question: Expression) -> int:
    """TRAINING, FUNCTIONS or FORMS, by hashes of the form and of the question up to a factor."""
    first = question.ordered()[0][1]
    tokens = question.times(Fraction(1) / first).tokens()
    form = [x for x in tokens if not x.lstrip("+-").isdigit() and x not in ("neg", "div")]
    if len(form) >= SHORT_FORM and _thousandth(form) < NEW_FORMS:
        return FORMS
    return FUNCTIONS if _thousandth(tokens) < NEW_FUNCTIONS else TRAINING


def _thousandth(tokens: list[str]) -> int:
    return int.from_bytes(hashlib.blake2b(" ".join(tokens).encode()).digest()[:4], "big") % 1000


def is_small(problem: Problem) -> bool:
    source, target = problem.source.split(), problem.target.split()
    if not problem.question or len(source) > SOURCE_LENGTH or len(target) > TARGET_LENGTH - 2:
        return False
    return all(len(run) <= 4 for run in _digits(source + target))


def _digits(tokens: list[str]) -> Iterator[str]:
    run = ""
    for token in [*tokens, ""]:
        if token.isdigit():
            run += token
        else:
            yield run
            run = token[1:] if token[:1] in ("+", "-") else ""


def problems(count: int, part: int, pairs: list, seed: int) -> list[Problem]:
    """Different problems of a part: 55 % backward, 25 % forward, 20 % equations."""
    chance, found = random.Random(seed), {}
    shares = {backward: 0.55, functools.partial(forward, pairs=pairs): 0.25, equation: 0.20}
    makers = [maker for maker, share in shares.items() for _ in range(round(share * count))]
    chance.shuffle(makers)
    for maker in makers:
        for _ in range(ATTEMPTS):
            try:
                problem = maker(chance)
            except ZeroDivisionError:
                continue
            fits = is_small(problem) and part_of(problem.question) == part
            if fits and found.setdefault(problem.source, problem) is problem:
                break
        else:
            raise ValueError(f"no new problem of part {part} in {ATTEMPTS} attempts by {maker}")
    return list(found.values())


def tokenizer(target: bool = False):
    """A token per word of the prefix notation; the target's adds start and end."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    result = Tokenizer(
        models.WordLevel({x: i for i, x in enumerate(TOKENS)}, unk_token="<unknown>")
    )
    result.add_special_tokens(list(SPECIAL))
    result.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if target:
        result.post_processor = processors.TemplateProcessing(
            single="<start> $A <end>", special_tokens=[("<start>", START), ("<end>", END)]
        )
    return result


def main() -> None:
    start = time.perf_counter()
    some = small_functions()
    pairs = integrated(some)
    print(f"SymPy: {len(pairs)} of {len(some)} in {time.perf_counter() - start:.0f} s")
    start = time.perf_counter()
    drawn = problems(5_000, TRAINING, pairs, seed=0)
    print(f"5,000 problems in {time.perf_counter() - start:.1f} s")
    lengths = [(len(p.source.split()), len(p.target.split())) for p in drawn]
    print("mean lengths", [sum(x) / len(x) for x in zip(*lengths, strict=True)])
    print("kinds", Counter(p.kind for p in drawn).most_common())
    print("wrong", sum(not solves(p, p.answer) for p in drawn))
    for p in drawn[:60]:
        print(f"{p.kind:24} {p.question}   ->   {p.answer}")


if __name__ == "__main__":
    main()
