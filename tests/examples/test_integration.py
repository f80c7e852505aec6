"""Expressions, data and checks of examples/integration.py."""

import random
from fractions import Fraction

import integration
import integration_answers as answers
import integration_data as data
import numpy as np
import pytest
import symbolic
from symbolic import ONE, C, X, Y, function, number


@pytest.fixture(scope="module")
def drawn():
    pairs = [(X * function("exp", X), X * function("exp", X) - function("exp", X))]
    return data.problems(150, data.TRAINING, pairs, seed=3)


def test_prefix_notation_by_hand():
    found = function("sin", X.times(12)).times(Fraction(-37, 2)) * X**2 + number(5)
    tokens = "add +5 mul div -3 7 +2 mul pow x +2 sin mul +1 2 x"
    assert " ".join(found.tokens()) == tokens
    assert symbolic.expression(tokens.split()) == found
    assert str(found) == "5 - 37/2*x**2*sin(12*x)"


def test_tokens_are_read_back(drawn):
    for problem in drawn:
        for some in (problem.question, problem.answer):
            assert symbolic.expression(some.tokens()) == some
        assert {*problem.source.split(), *problem.target.split()} <= {*data.TOKENS}


@pytest.mark.parametrize(
    "tokens", ["", "add x", "x x", "mul +2", "y +", "pow x x", "sin", "pow x +1 0 0", "7", "foo x"]
)
def test_what_is_no_expression(tokens):
    with pytest.raises(ValueError, match=r"expected|unknown token"):
        symbolic.expression(tokens.split())
    assert integration.solved(drawn_problem(), [tokens]) is None


def drawn_problem():
    return answers.Problem("integral", "", X * function("cos", X), number(0))


def test_division_by_zero_is_no_answer():
    with pytest.raises(ZeroDivisionError):
        symbolic.expression(["div", "x", "+0"])
    assert integration.solved(drawn_problem(), ["div x +0"]) is None


def test_equal_expressions_are_equal_objects():
    exp = function("exp", X)
    assert (X + ONE) * (X - ONE) == X**2 - ONE
    assert exp * exp**-1 == ONE
    assert (X * exp) ** 3 == X**3 * function("exp", X.times(3))
    assert function("sin", number(3) - X) == function("sin", X - number(3)).times(-1)
    assert (X.times(4) + number(6)) ** -1 == (X.times(2) + number(3)) ** -1 * number(Fraction(1, 2))
    assert X ** Fraction(1, 2) * X ** Fraction(1, 2) == X
    assert function("exp", function("log", X).times(2) + X) == X**2 * exp


def test_derivatives_against_differences(drawn):
    """Central differences of step h in double precision: errors of h**2 and 1e-16 / h."""
    z, h, compared = 0.7 + 0.4j, 1e-4, 0
    for problem in drawn:
        answer = problem.answer
        high, low = (answer.value(x=z + s, c=1.3 - 0.2j) for s in (h, -h))
        found = answer.derivative().value(x=z, c=1.3 - 0.2j)
        # The third derivative, at most some thousand times the values, is what the step leaves.
        size = max(1.0, abs(high), abs(found))
        if np.isfinite(size) and size < 1e3:
            assert abs((high - low) / (2 * h) - found) < 1e-4 * size, problem
            compared += 1
    assert compared > 120


def test_derivatives_are_those_of_sympy(drawn):
    sympy = pytest.importorskip("sympy")
    x, z = sympy.Symbol("x"), 0.6 + 0.3j
    for problem in [p for p in drawn if p.task == "integral"][:12]:
        expected = complex(sympy.diff(sympy.sympify(str(problem.answer)), x).evalf(subs={x: z}))
        # 15 digits on both sides, of which sums may lose some.
        assert problem.question.value(x=z) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_every_problem_is_solved_by_its_answer(drawn):
    kinds = {problem.kind for problem in drawn}
    assert len(kinds) == 7
    for problem in drawn:
        assert answers.solves(problem, problem.answer), problem


def test_another_answer_is_refused(drawn):
    """A little beside the right answer, in every kind of problem."""
    for problem in drawn:
        beside = function("atan", X.times(Fraction(1, 7))).times(Fraction(1, 100))
        assert not answers.solves(problem, problem.answer + beside), problem
        if problem.task == "integral":  # y' = p(x) y has each multiple of a solution
            assert answers.solves(problem, problem.answer + number(7))
            assert not answers.solves(problem, problem.answer + C)
            assert not answers.solves(problem, problem.answer.times(Fraction(1001, 1000))), problem
        assert not answers.solves(problem, number(0)), problem


def test_a_solution_has_to_be_a_family():
    problem = answers.Problem("equation", "", X.times(2) * Y, C * function("exp", X**2))
    assert answers.solves(problem, problem.answer)
    assert answers.solves(problem, problem.answer.times(3))
    assert not answers.solves(problem, function("exp", X**2))
    assert not answers.solves(problem, C + function("exp", X**2))


def test_a_trigonometric_identity_is_compared_at_points():
    problem = answers.Problem("integral", "", function("sin", X.times(2)), number(0))
    answer = function("sin", X) ** 2
    assert answer.derivative() != problem.question
    assert answers.solves(problem, answer)
    assert not answers.solves(problem, answer.times(2))
    pytest.importorskip("sympy")
    assert answers.proved(problem, answer)
    assert not answers.proved(problem, answer.times(2))


WRONG_NUMBERS = {
    "an integral": ("x*cos(x)", "add mul +3 cos x mul div +1 +2 mul x sin x"),
    "terms that are not needed": ("x*cos(x)", "add x add neg cos x add mul x sin x sin x"),
    "terms that depend on each other": (
        "sin(2*x)", "add pow sin x +2 add cos mul +2 x pow cos x +2",
    ),
    "fractions": ("x^4*log(x)", "add pow x +5 mul pow x +5 log x"),
    "a linear equation": ("y' = y + x", "add mul c exp x add mul +5 x +3"),
    "a linear equation with a number": ("y' = 2*x*y + x", "mul c exp pow x +2"),
    "a separable equation": ("y' = 2*x*(1 + y^2)", "tan add c mul +7 pow x +2"),
    "a power": ("y' = -cos(x)*y^2", "pow add c mul div +1 +2 sin x -1"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "tokens"), WRONG_NUMBERS.values(), ids=WRONG_NUMBERS)
def test_coefficients_are_solved_for(text, tokens):
    pytest.importorskip("sympy")
    problem = integration.problem_of(text)
    assert integration.written(problem, [tokens]) is None
    found = integration.solved(problem, ["add mul", tokens])
    assert answers.solves(problem, found) and answers.proved(problem, found)


def test_a_problem_is_the_sum_of_its_parts():
    pytest.importorskip("sympy")
    problem = integration.problem_of("3*x*cos(x) - 2*exp(2*x)")
    parts = answers.parts(problem)
    assert {str(x.question) for x in parts} == {"3*x*cos(x)", "-2*exp(2*x)"}
    texts = ["add cos x mul x sin x", "exp mul +2 x"]
    assert integration.solved(problem, texts[:1]) is None
    assert answers.proved(problem, integration.solved(problem, texts))
    problem = integration.problem_of("y' = y + y/x + x + exp(x)")
    parts = answers.parts(problem)
    assert {str(x.question) for x in parts} == {"x + y + y*x**(-1)", "y + exp(x) + y*x**(-1)"}
    for text in ("x", "y' = x*y^2 + x", "y' = x*y"):
        assert answers.parts(integration.problem_of(text)) == []


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("x*cos(x)", "add cos x sin x"),  # a term is missing
        ("x*cos(x)", "+3"),
        ("x*cos(x)", "mul y sin x"),
        ("exp(x^2)", "exp pow x +2"),  # no elementary integral
        ("y' = y + x^2", "mul c exp x"),
        ("y' = y + x", "add c x"),
        ("y' = 2*x*(1 + y^2)", "tan add c sin x"),
        ("y' = 2*x*(1 + y^2)", "tan pow x +2"),  # no constant
    ],
)
def test_terms_that_cannot_be_right_have_no_coefficients(text, tokens):
    pytest.importorskip("sympy")
    assert integration.solved(integration.problem_of(text), [tokens]) is None


def test_nearly_right_answers_of_every_kind_are_completed(drawn):
    """Each coefficient that the question determines is changed; c stays where it is."""
    chance, tried, completed = random.Random(1), 0, 0
    for problem in drawn:
        terms, nested = [], problem.kind == "equation, separable"
        if nested:
            ((monomial, outer),) = problem.answer.terms
            ((atom, exponent),) = [x for x in monomial if len(x[0]) == 2]
            terms = atom[1].terms
        else:
            terms = problem.answer.terms
        changed = symbolic.Expression(
            (m, k if ("c",) in {atom for atom, _ in m} else k * chance.choice((2, -3)))
            for m, k in terms
        )
        if nested:
            inside = changed if atom[0] == "sum" else function(atom[0], changed)
            changed = symbolic.Expression([(monomial - {(atom, exponent)}, outer)])
            changed = changed * inside**exponent
        if not answers.solves(problem, changed):
            tried += 1
            completed += answers.completed(problem, [changed]) is not None
    # Not in double precision: tan of a number with a large imaginary part.
    assert tried > 100 and completed > 0.97 * tried


def test_an_integrals_question_has_small_numbers():
    """Multiples of a question are the same question; the answer is multiplied in the end."""
    question = (X.times(12) - number(18)) * function("exp", X)
    tokens = ["add", "mul", "+5", "exp", "x", "mul", "-2", "mul", "x", "exp", "x"]
    for factor in (1, Fraction(-5, 7)):
        problem = answers.Problem("integral", "", question.times(factor), number(0))
        assert problem.source == "integrate add mul +3 exp x mul -2 mul x exp x"
        found = problem.answer_of(tokens)
        assert answers.solves(problem, found)
    equation = answers.Problem("equation", "", Y.times(12), C)
    assert (equation.factor, equation.source) == (1, "solve mul +1 2 y")


def test_parts_are_disjoint_and_ignore_factors():
    exp = function("exp", X)
    pairs = [(X**2, X**3 * number(Fraction(1, 3))), (X**2 * exp, (X**2 - X.times(2) + ONE) * exp)]
    functions = data.problems(12, data.FUNCTIONS, pairs, seed=1)
    forms = data.problems(8, data.FORMS, pairs, seed=1)
    for part, some in ((data.FUNCTIONS, functions), (data.FORMS, forms)):
        for problem in some:
            for factor in (1, -3, Fraction(2, 7)):
                assert data.part_of(problem.question.times(factor)) == part
    # A form is held out with any other numbers in it.
    question = forms[0].question
    assert data.part_of(question + question.times(Fraction(1, 2))) == data.FORMS


def test_constants_are_left_out():
    found = function("log", X.times(3) + number(3)).times(2) + number(9) + X * function("log", X)
    expected = function("log", X + ONE).times(2) + X * function("log", X)
    assert data.without_constant(found) == expected


def test_integrals_of_sympy():
    pytest.importorskip("sympy")
    found = data._integral("x*cos(x)", seconds=20)
    assert found == X * function("sin", X) + function("cos", X)
    assert data._integral("x**x", seconds=20) is None
    chance = random.Random(0)
    for _ in range(20):
        problem = data.forward(chance, [(X * function("cos", X), found)])
        assert answers.solves(problem, problem.answer)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x^2 cos(3x)", X**2 * function("cos", X.times(3))),
        ("ln(x)/x", function("log", X) * X**-1),
        ("0.5*sqrt(x + 1)", (X + ONE) ** Fraction(1, 2) * number(Fraction(1, 2))),
        ("arctan(x) - 1/x", function("atan", X) - X**-1),
    ],
)
def test_what_people_write(text, expected):
    pytest.importorskip("sympy")
    assert symbolic.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x*cos(x", "cannot read 'x.cos.x': not an expression"),
        ("", "cannot read '': not an expression"),
        ("1/0", "division by zero"),
        ("1/(x - x)", "division by zero"),
        ("x + foo(x)", "unknown 'foo'"),
        ("().__class__", "unknown"),
        ("x^x", "unsupported exponent x"),
        ("x^(9^9^9)", "unsupported exponent"),
        ("sqrt(2)*x", "not rational"),
        ("y' = 2*z", "unknown 'z'"),
        ("z = 2*x", "an equation is y' = f"),
        ("+".join(f"cos({n}*x)^2*x^{n}" for n in range(2, 9)), "too long"),
    ],
)
def test_bad_input_is_one_line(text, message):
    pytest.importorskip("sympy")
    with pytest.raises(SystemExit, match=message) as error:
        integration.problem_of(text)
    assert "\n" not in str(error.value)


def test_an_answer_without_a_check_is_none(monkeypatch, tmp_path):
    pytest.importorskip("sympy")

    class Hypothesis:
        def __init__(self, text):
            self.text = text

    class File:
        texts = ("sin x", "add cos x mul x sin x")

        def generate_text(self, source):
            assert source == "integrate mul x cos x"
            return [Hypothesis(text) for text in self.texts]

    monkeypatch.setattr(integration.runtime, "load", lambda path: File())
    problem = integration.problem_of("x*cos(x)")
    found = integration.answer_text(problem, tmp_path)
    assert (
        found == "integral of x*cos(x) = cos(x) + x*sin(x) + C   (hypothesis 2, proved by algebra)"
    )
    File.texts = ("sin x", "mul x")
    with pytest.raises(SystemExit, match=r"no answer: .* none of the 2 hypotheses is x\*cos"):
        integration.answer_text(problem, tmp_path)
