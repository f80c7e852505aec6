"""Answers of examples/integration.py: the check, and coefficients that are solved for.

An answer is right if its derivative is the question. Where that fails, the model's terms may still
be right and only the numbers in front of them wrong. The derivative of a sum is linear in those
numbers, so `completed` solves for them by least squares, rounds them to fractions, and checks the
result as any other answer: the method of undetermined coefficients, as in the parallel integration
of Norman and Moore (1977), with a Transformer's terms in place of a rule's.
"""

import functools
import random
import signal
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import symbolic
from symbolic import ONE, Expression, Number, collected, function

TASKS = {"integral": "integrate", "equation": "solve"}
# Coefficients that are solved for are fractions with at most this denominator.
LARGEST_DENOMINATOR = 5000


class Problem(NamedTuple):
    """A question and one right answer.

    Attributes:
        task: "integral": question f(x), answer an F with F' = f; or "equation": question f(x, y),
            answer y(x, c) with y' = f(x, y).
        kind: str, for tables of results.
    """

    task: str
    kind: str
    question: Expression
    answer: Expression

    @property
    def factor(self) -> Number:
        """What an integral's question is divided by, so that its numbers are small."""
        return self.question.content() if self.task == "integral" and self.question else 1

    @property
    def source(self) -> str:
        question = self.question.times(Fraction(1) / self.factor)
        return " ".join([TASKS[self.task], *question.tokens()])

    @property
    def target(self) -> str:
        return " ".join(self.answer.times(Fraction(1) / self.factor).tokens())

    def answer_of(self, tokens: Sequence[str]) -> Expression:
        """The answer that the tokens of a target are.

        Raises:
            ValueError: they are no expression.
        """
        return symbolic.expression(tokens).times(self.factor)


def solves(problem: Problem, answer: Expression, points: int = 6) -> bool:
    """Whether an answer is right: differentiated, and compared at complex points.

    Points where a side is not finite or too large for the tolerance, or where a solution does not
    depend on c, are drawn again.
    """
    wanted = {"x"} if problem.task == "integral" else {"x", "c"}
    if not answer.symbols() <= wanted or (
        problem.task == "equation" and "c" not in answer.symbols()
    ):
        return False
    difference = answer.derivative() - problem.question
    if problem.task == "integral" and not difference:
        return True  # equal as expressions
    slope, family = answer.derivative(), answer.derivative("c")
    chance, good = random.Random(0), 0
    for attempt in range(8 * points):
        # Then nearer to 0: with exp(x) in it, all that is left of a tangent may be 1j.
        x = _point(chance, largest=1.7 if attempt < 4 * points else 0.5)
        c = complex(chance.uniform(0.3, 2.0), chance.uniform(-0.8, -0.1))
        left = slope.value(x=x, c=c)
        right = problem.question.value(x=x, y=answer.value(x=x, c=c))
        size = max(abs(left), abs(right))
        if not size < 1e8:  # NaN, too
            continue
        # Double precision loses a few digits; another function differs by far more.
        if abs(left - right) > 1e-7 * max(1.0, size):
            terms = [*slope.terms, *problem.question.terms]
            at = {"x": x, "c": c, "y": answer.value(x=x, c=c)}
            # 1 + tan(z)**2 of a large imaginary z: nothing is left of the digits.
            if abs(left - right) < 1e-9 * sum(abs(Expression([t]).value(**at)) for t in terms):
                continue
            return False
        # Where y does not depend on c, a point says nothing: tan(c + 40j) is 1j for any c.
        good += problem.task == "integral" or abs(family.value(x=x, c=c)) > 1e-9
        if good == points:
            return True
    return False


def _point(chance: random.Random, largest: float) -> complex:
    """A point off the real axis, where roots and logarithms of negative numbers are no trouble."""
    return complex(chance.uniform(0.12, 1), chance.uniform(0.06, 0.47)) * largest


def proved(problem: Problem, answer: Expression, seconds: int = 10) -> bool:
    """Whether algebra finds the difference zero: `Expression`, else SymPy in this time."""
    question = problem.question
    if problem.task == "equation":
        try:
            question = question.replace("y", answer)
        except ZeroDivisionError:
            return False
    difference = answer.derivative() - question
    return not difference or bool(in_time(_is_zero, seconds, str(difference)))


def _is_zero(text: str) -> bool:
    import sympy

    positive = {name: sympy.Symbol(name, positive=True) for name in ("x", "c")}
    return sympy.simplify(sympy.sympify(text, locals=positive)) == 0


# Coefficients


def completed(problem: Problem, answers: Sequence[Expression]) -> Expression | None:
    """A right answer made of the terms of other answers; None if they do not suffice.

    Args:
        problem: `Problem`.
        answers: expressions whose terms may occur in the answer; their own terms are tried first,
            then those of all together. Of linear equations the terms without c are changed, of
            separable ones, such as y = tan(P(x) + c), those of P.
    """
    question = problem.question
    groups = [_terms([answer]) for answer in answers] + [_terms(answers)]
    if problem.task == "integral":
        attempts = [_integral(question, terms) for terms in groups]
    else:
        *own, of_all = (_linear(question, terms) for terms in groups)
        attempts = []
        for answer, particular in zip(answers, own, strict=True):
            attempts += [_with_c(answer) + x for x in (particular, of_all) if x is not None]
            attempts.append(_separable(question, answer))
    return next((x for x in attempts if x is not None and solves(problem, x)), None)


def parts(problem: Problem) -> list[Problem]:
    """The same problem with one term at a time: an integral is the sum of theirs.

    Of a linear equation y' = p(x) y + q(x), the terms of q. Other equations have no parts.
    """
    terms = [Expression([term]) for term in problem.question.terms]
    with_y = [x for x in terms if "y" in x.symbols()]
    if any(dict(m).get(("y",)) != 1 for x in with_y for m, _ in x.terms):
        return []
    same = collected(term for x in with_y for term in x.terms)
    some = [same + x for x in terms if x not in with_y]
    return [problem._replace(question=x) for x in some if x != problem.question]


def _terms(answers: Iterable[Expression]) -> list[Expression]:
    """The terms of the answers without their coefficients, of x alone, short ones first."""
    whole = Expression((m, 1) for answer in answers for m, _ in answer.terms)
    terms = [Expression([(m, 1)]) for m, _ in whole.ordered()]
    return [x for x in terms if x.symbols() <= {"x"}]


def _integral(question: Expression, terms: list[Expression]) -> Expression | None:
    terms = [x for x in terms if x.symbols()]
    return _combination(terms, [x.derivative().value for x in terms], question.value)


def _with_c(answer: Expression) -> Expression:
    return Expression((m, k) for m, k in answer.terms if "c" in Expression([(m, 1)]).symbols())


def _linear(question: Expression, terms: list[Expression]) -> Expression | None:
    """D(x), of these terms and a number, where y = c A(x) + D(x) solves y' = p(x) y + q(x)."""
    terms = [ONE, *(x for x in terms if x != ONE)]

    @functools.cache  # one point serves all terms
    def constant(x: complex) -> complex:  # q
        return question.value(x=x, y=0)

    @functools.cache
    def rate(x: complex) -> complex:  # p
        return question.value(x=x, y=1) - constant(x)

    def left(term: Expression) -> Callable:
        slope = term.derivative()
        return lambda x: slope.value(x=x) - rate(x) * term.value(x=x)

    return _combination(terms, [left(term) for term in terms], constant)


def _separable(question: Expression, answer: Expression) -> Expression | None:
    """y = G(P(x) + k c), with other coefficients of P."""
    if len(answer.terms) != 1:
        return None
    ((monomial, factor),) = answer.terms
    with_c = [(atom, e) for atom, e in monomial if len(atom) == 2 and "c" in atom[1].symbols()]
    if len(with_c) != 1:
        return None
    ((kind, inner), exponent), constant = with_c[0], frozenset([(("c",), 1)])
    k = dict(inner.terms).get(constant)
    if k is None:
        return None
    terms = [Expression([(m, 1)]) for m, _ in inner.terms if m and m != constant]
    family, c = answer.derivative("c"), 0.7 - 0.3j

    def wanted(x: complex) -> complex:  # P' = k y' / (dy/dc)
        slope, y = family.value(x=x, c=c), answer.value(x=x, c=c)
        return complex(k) * question.value(x=x, y=y) / slope if slope else complex("nan")

    found = _combination(terms, [x.derivative().value for x in terms], wanted)
    if found is None:
        return None
    inner = found + Expression([(constant, k)])
    outer = inner if kind == "sum" else function(kind, inner)
    others = Expression([(monomial - {with_c[0]}, factor)])
    return others * outer**exponent


def _combination(
    terms: list[Expression], parts: list[Callable], wanted: Callable
) -> Expression | None:
    """The sum of the terms with the coefficients for which the parts add up to `wanted`.

    Args:
        terms: list of `Expression`.
        parts: functions of a complex x, one for each term.
        wanted: function of a complex x.

    Returns:
        `Expression`; None if there are no such fractions.
    """
    chance, rows = random.Random(0), []
    attempts = 6 * len(terms) + 20
    for attempt in range(2 * attempts):
        x = _point(chance, largest=1.7 if attempt < attempts else 0.5)
        row = np.array([*(part(x=x) for part in parts), wanted(x=x)])
        size = np.abs(row).max()
        if 1e-12 < size < 1e8:
            rows.append(row / size)
        if len(rows) == 2 * len(terms) + 4:
            break
    if not terms or len(rows) <= len(terms):
        return None
    table = np.concatenate([np.real(rows), np.imag(rows)])
    kept = _independent(table[:, :-1])
    left, right = table[:, kept], table[:, -1]
    solution = np.linalg.lstsq(left, right, rcond=None)[0]
    if np.abs(left @ solution - right).max() > 1e-6:
        return None
    found = ((terms[i], Fraction(x)) for i, x in zip(kept, solution.tolist(), strict=True))
    return collected(
        (m, factor * x.limit_denominator(LARGEST_DENOMINATOR))
        for term, x in found
        for m, factor in term.terms
    )


def _independent(columns: np.ndarray) -> list[int]:
    """The numbers of columns of which none is a sum of multiples of earlier ones."""
    kept, basis = [], np.zeros((len(columns), 0))
    for i, column in enumerate(columns.T):
        size = np.linalg.norm(column)
        rest = column - basis @ (basis.T @ column)
        rest -= basis @ (basis.T @ rest)  # a second time, against rounding
        if np.linalg.norm(rest) > 1e-9 * size > 0:
            kept.append(i)
            basis = np.column_stack([basis, rest / np.linalg.norm(rest)])
    return kept


# SymPy


def in_time(call: Callable, seconds: int, *arguments):
    """The result of a call of SymPy, None if it fails or takes longer; only in the main thread.

    The seconds are the process's own, so the result does not depend on what else runs. Windows has
    no such clock: there the call has no limit.
    """
    if not hasattr(signal, "setitimer"):
        return call(*arguments)

    def late(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return call(*arguments)
    except Exception:  # SymPy fails in many ways; what it cannot is left out
        return None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
