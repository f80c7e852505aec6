"""The data and the answers of examples/word_problems.py."""

import random
import re
from fractions import Fraction

import pytest
import word_problems
import word_problems_data as data


@pytest.fixture
def chance():
    return random.Random(5)


@pytest.mark.parametrize(
    ("equation", "expected"),
    [
        ("2+3*4", 14), ("(2+3)*4", 20), ("7-5-1", 1), ("12/2/3", 2), ("7/2*2", 7),
        ("(-5)-(-12)", 7), ("-(3+4)", -7), ("1/3", Fraction(1, 3)), ("((8))", 8),
    ],
)  # fmt: skip
def test_values_by_hand(equation, expected):
    assert data.value(equation) == expected == data.answer_of(equation)


@pytest.mark.parametrize("equation", ["", "2+", "(2", "2)", "*3", "2 3", "()", "x+1", "2//3"])
def test_what_is_no_equation(equation):
    with pytest.raises(ValueError, match="expected"):
        data.value(equation)
    assert data.answer_of(equation) is None


@pytest.mark.parametrize("equation", ["5/0", "5/(3-3)", "1+2*3/0"])
def test_divisions_by_zero(equation):
    with pytest.raises(ZeroDivisionError):
        data.value(equation)
    assert data.answer_of(equation) == "division by zero"


def test_values_are_those_of_python(chance):
    for _ in range(300):
        parts = [str(chance.randint(0, 99))]
        for _ in range(chance.randint(1, 4)):
            parts += [chance.choice("+-*/"), str(chance.randint(1, 99))]
            if chance.random() < 0.3:
                parts = ["(", *parts, ")"]
        text = "".join(parts)
        assert data.value(text) == eval(re.sub(r"(\d+)", r"Fraction(\1)", text)), text


def test_stories_make_sense(chance):
    zero = 0
    for _ in range(2000):
        large = chance.random() < 0.5
        problem = data.story(chance, chance.random() < 0.5, large)
        answer = data.answer_of(problem.equation)
        if answer == "division by zero":
            zero += 1
            continue
        assert answer.denominator == 1 and answer >= 0, problem
        assert "{" not in problem.text and data._fits(problem)
        if large:  # all numbers that count are in the text, in digits
            numbers = re.findall(r"\d+", problem.equation)
            assert {*numbers} - {"100", "3"} <= {*re.findall(r"\d+", problem.text)}, problem
    assert 0 < zero < 40


def test_equations_have_the_numbers_of_the_text():
    """By hand: the kind's letters are the phrasing's."""
    for kind, phrasings in data.STORIES.items():
        letters = {*re.findall("[abcd]", kind)}
        for phrasing in phrasings:
            assert {*re.findall(r"{([abcd])}", phrasing)} == letters, phrasing
        assert len({*phrasings}) == len(phrasings) >= 5


def test_parts_differ_as_they_say(monkeypatch):
    monkeypatch.setattr(data, "GENERATED", 0.0)
    training = data.problems(1500, data.TRAINING, seed=1)
    texts = [problem.text for problem in training]
    assert len({*texts}) == 1500
    assert not {*texts} & {p.text for p in data.problems(300, data.NEW, 1, texts)}

    def has_last(problem):
        last = data.STORIES[problem.kind][-1]
        words = re.escape(re.sub(r"^{\w}|{\w+}", "_", last)).replace("_", r"[\w ]+?")
        return re.search(words, problem.text, re.IGNORECASE) is not None

    assert not any(map(has_last, training))
    assert all(map(has_last, data.problems(200, data.PHRASINGS, 1)))
    largest = {}
    for p in training:
        size = max(map(int, re.findall(r"\d+", p.equation)))
        largest[p.kind] = max(size, largest.get(p.kind, 0))
    above = [
        max(map(int, re.findall(r"\d+", p.equation))) > largest[p.kind]
        for p in data.problems(200, data.NUMBERS, 1)
        if not p.equation.endswith("/0")
    ]
    # Stories with a drawn and a computed number: the computed one may be below the largest.
    assert sum(above) / len(above) > 0.9


def test_generators_of_mathematics_dataset(chance):
    pytest.importorskip("mathematics_dataset")
    found = [x for x in (data.drawn(chance) for _ in range(120)) if x is not None]
    assert {x.kind for x in found} >= {"generator, div", "generator, time"}
    for problem in found:
        assert data._fits(problem) and isinstance(data.answer_of(problem.equation), Fraction)
    large = [x for x in (data.drawn(chance, large=True) for _ in range(120)) if x is not None]
    assert large and all(re.search(r"\d{4}", x.text) for x in large)


@pytest.mark.parametrize(
    ("text", "answer", "equation"),
    [
        ("How many minutes are there between 3:05 AM and 12:44 PM?", "579", "12*60+44-(3*60+5)"),
        ("How many minutes are there between 12:58 AM and 1:00 AM?", "2", "1*60+0-(0*60+58)"),
    ],
)
def test_times_of_day_by_hand(text, answer, equation):
    assert data._time_of_day(text, answer) == data.Problem("generator, time", text, equation)
    assert data._time_of_day(text, "7") is None
    assert data._time_of_day("What is 5 minutes before 1:00 AM?", "12:55 AM") is None


def test_tokenizers():
    source = data.source_tokenizer(["A baker has 12 cakes. How many?"])
    ids = source.encode("a BAKER has 21 zebras?")
    assert ids.tokens == ["a", "baker", "has", "2", "1", "<unknown>", "?"]
    assert ids.ids[5] == data.UNKNOWN
    target = data.target_tokenizer()
    ids = target.encode("(12-5)/7").ids
    assert ids[0] == data.START and ids[-1] == data.END and len(ids) == 10
    assert target.decode(ids) == "(12-5)/7"


@pytest.mark.parametrize(
    ("equation", "message"),
    [
        ("96/0", "no answer: 96/0 is a division by zero"),
        ("9+(", r"no answer: the model wrote '9\+\(', which is no equation"),
    ],
)
def test_what_has_no_value_is_one_line(monkeypatch, tmp_path, equation, message):
    class File:
        def generate_text(self, text):
            return equation

    monkeypatch.setattr(word_problems.runtime, "load", lambda path: File())
    with pytest.raises(SystemExit, match=message) as error:
        word_problems.answer_text("How many?", tmp_path)
    assert "\n" not in str(error.value)


def test_an_answer(monkeypatch, tmp_path):
    class File:
        def generate_text(self, text):
            return "(12+5)/2"

    monkeypatch.setattr(word_problems.runtime, "load", lambda path: File())
    assert word_problems.answer_text("How many?", tmp_path) == "(12+5)/2 = 17/2"
