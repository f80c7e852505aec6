"""Each logits processor with each strategy: what it promises holds in every generated row."""

import itertools
import re
import sys

import keras
import numpy as np
import pytest
from small_models import SOURCES, TARGET_SIZE, encoder_decoder

from keras_tfm.generation import (
    Beam,
    Contrastive,
    Drafted,
    Generator,
    Greedy,
    PromptLookup,
    Sample,
    processors,
)

END, LENGTH = 7, 10
# Of one token and more, so that rows have padding before them.
PROMPTS = [[1], [1, 5], [1, 3, 4], [1]]
BAD = [[4], [11, 11], [2, 10]]
ALLOWED = [[3, 4], [5, 6, 7], [8, 9], [2, 7]]

# One or more groups of two of 3 to 8, separated by 10.
GROUPS = np.full((4, TARGET_SIZE), -1)
GROUPS[0, 3:9], GROUPS[1, 3:9], GROUPS[2, 10] = 1, 2, 0
# State 3 is a dead end, which no row may enter.
GROUPS[2, 11] = 3

STRATEGIES = {
    "greedy": Greedy,
    "beam": lambda **options: Beam(3, hypotheses=2, **options),
    "sample": lambda **options: Sample(seed=2, hypotheses=2, **options),
    "contrastive": lambda **options: Contrastive(3, **options),
}


@pytest.fixture(scope="module")
def model():
    return encoder_decoder()


def is_accepted(new):
    state = 0
    for token in new:
        if token == END:
            return state == 2
        state = -1 if state < 0 else GROUPS[state, token]
        if state in (-1, 3):
            return False
    return True


def is_timed(new):
    """A timestamp first, then text between two of them, which never decrease."""
    is_stamp = [True] + [x >= 9 for x in new]  # before the first token as after a timestamp
    if new[0] not in (9, 10) or 8 in new:
        return False
    for i in range(1, len(new)):
        before, last, this = is_stamp[i - 1 : i + 2]
        if last and (this if before else new[i] < END):
            return False
        if this and new[i] < max(x for x in new[:i] if x >= 9):
            return False
    return True


def ngrams(row, n):
    return [tuple(row[i : i + n]) for i in range(len(row) - n + 1)]


def contains(row, sequence):
    return tuple(sequence) in ngrams(row, len(sequence))


# The processors, and what holds of a row up to its end: its tokens, the prompt's length, its index.
KINDS = {
    "forced": (
        [processors.ForcedBOS(12), processors.ForcedEOS(END)],
        lambda row, prompt, _: row[-1] == END and (prompt > 1 or row[1] == 12),
    ),
    "min length": (
        [processors.MinLength(6), processors.MinNewTokens(4)],
        lambda row, prompt, _: END not in row[prompt : max(prompt + 4, 6)],
    ),
    "no repetition": (
        [processors.NoRepeatNGram(2), processors.RepetitionPenalty(1.2)],
        lambda row, prompt, _: len(set(ngrams(row, 2))) == len(ngrams(row, 2)),
    ),
    "bad words": (
        [
            processors.NoBadWords(BAD),
            processors.SuppressTokens([9]),
            processors.LogitNormalization(),
        ],
        lambda row, prompt, _: not any(contains(row[prompt:], x) for x in [*BAD, [9]]),
    ),
    "bias": (
        [
            processors.SequenceBias({(3,): 50.0, (3, 3): -99.0, (8,): -99.0}),
            processors.SuppressTokensAtBegin([3]),
        ],
        lambda row, prompt, _: row[prompt] != 3 and 3 in row and not contains(row, (3, 3)),
    ),
    "grammar": (
        [processors.Grammar(GROUPS, [2])],
        lambda row, prompt, _: is_accepted(row[prompt:]),
    ),
    "timestamps": (
        [processors.Timestamps(8, max_initial=1)],
        lambda row, prompt, _: is_timed(row[prompt:]),
    ),
    "function": (
        [processors.PrefixConstrained(lambda row, tokens: ALLOWED[row])],
        lambda row, prompt, i: set(row[prompt:]) <= set(ALLOWED[i]),
    ),
}


def rows_of(model, strategy, **options):
    """The generated rows up to their ends: (index of the prompt, tokens)."""
    generator = Generator(model, LENGTH, end_id=END, strategy=strategy, **options)
    tokens = generator({"source": SOURCES, "target": PROMPTS}).tokens
    assert tokens.shape == (len(PROMPTS), *([2] * (strategy.hypotheses > 1)), LENGTH)
    for i, several in enumerate(tokens.reshape(len(PROMPTS), -1, LENGTH).tolist()):
        for row in several:
            prompt = len(PROMPTS[i])
            assert row[:prompt] == PROMPTS[i]
            end = row.index(END, prompt) + 1 if END in row[prompt:] else LENGTH
            assert not any(row[end:])
            yield i, row[:end]


# By default each kind by greedy search; every strategy calls a processor in the same way.
PAIRS = [
    pytest.param(*x, marks=[pytest.mark.slow] * (x[0] != "greedy"))
    for x in itertools.product(STRATEGIES, KINDS)
]


@pytest.mark.parametrize(("strategy", "kind"), PAIRS)
def test_what_a_processor_promises_holds(model, strategy, kind):
    some, holds = KINDS[kind]
    found = list(rows_of(model, STRATEGIES[strategy](processors=some)))
    assert all(holds(row, len(PROMPTS[i]), i) for i, row in found)


@pytest.mark.default
def test_it_does_not_hold_without_the_processors(model):
    found = [*rows_of(model, Greedy()), *rows_of(model, Sample(seed=1, hypotheses=2))]
    for kind, (_, holds) in KINDS.items():
        assert not all(holds(row, len(PROMPTS[i]), i) for i, row in found), kind


@pytest.mark.parametrize(
    ("strategy", "kind"),
    [
        pytest.param(*x, marks=pytest.mark.slow)
        for x in itertools.product(["greedy", "beam", "contrastive"], [*KINDS][:-1])
    ],
)
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="jit_compile is TensorFlow's")
def test_under_xla_as_in_a_graph(model, strategy, kind):
    made = STRATEGIES[strategy](processors=KINDS[kind][0])
    assert list(rows_of(model, made, jit_compile=True)) == list(rows_of(model, made))


def test_processors_compose_in_their_order(model):
    """The last one decides: a forced token that is suppressed before, and one that is after."""
    force, suppress = processors.ForcedBOS(12), processors.SuppressTokens([12])
    assert dict(rows_of(model, Greedy([suppress, force])))[0][1] == 12
    with pytest.raises(ValueError, match="allow no token in row 0"):
        list(rows_of(model, Greedy([force, suppress])))


@pytest.mark.parametrize(
    "strategy",
    [pytest.param(x, marks=[pytest.mark.slow] * (x not in ("greedy", "beam"))) for x in STRATEGIES],
)
def test_processors_that_leave_no_token_are_an_error(model, strategy):
    """Row 2 is allowed 8 and 9 only."""
    some = [*KINDS["function"][0], processors.SuppressTokens([8, 9])]
    with pytest.raises(ValueError, match="allow no token in row 2: some contradict each other"):
        list(rows_of(model, STRATEGIES[strategy](processors=some)))


@pytest.mark.parametrize(
    "strategy",
    [Greedy, Sample, lambda **options: Drafted(PromptLookup(), strategy=Greedy(**options))],
)
@pytest.mark.parametrize("ids", [[5], range(TARGET_SIZE)], ids=["one", "all"])
def test_nan_of_a_processor_is_an_error(model, strategy, ids):
    def broken(logits, context):
        is_broken = np.isin(np.arange(TARGET_SIZE), list(ids))
        return keras.ops.where(is_broken, float("nan"), logits)

    with pytest.raises(ValueError, match=r"allow no token in row 0: .* NaN"):
        list(rows_of(model, strategy(processors=[broken])))


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="of TensorFlow")
@pytest.mark.parametrize("strategy", [Greedy, lambda **options: Beam(2, **options)])
def test_a_function_of_python_is_a_processor(model, strategy):
    """Its result has no static shape."""
    import tensorflow as tf

    def halved(logits, context):
        return tf.numpy_function(lambda x: x * np.float32(0.5), [logits], tf.float32)

    def half(logits, context):
        return logits * 0.5

    found, wanted = (list(rows_of(model, strategy(processors=[x]))) for x in (halved, half))
    assert [list(x) for _, x in found] == [list(x) for _, x in wanted]


@pytest.mark.parametrize(
    ("processor", "got"),
    [
        (lambda logits, context: logits[:, :3], r"\(\w+, 3\)"),
        (lambda logits, context: logits[0], r"\(13,\)"),
        (lambda logits, context: None, "NoneType"),
    ],
    ids=["narrower", "a row", "None"],
)
def test_processors_return_logits(model, processor, got):
    with pytest.raises(ValueError, match=rf"must return logits \(B, 13\), got {got}"):
        list(rows_of(model, Greedy([processor])))


def test_a_stream_stops_where_no_token_is_left(model):
    some = [processors.ForcedBOS(4), processors.NoBadWords([[4]])]
    generator = Generator(model, LENGTH, 1, END, Greedy(some))
    with pytest.raises(ValueError, match="allow no token in row 0"):
        list(generator.stream(SOURCES))


def test_a_function_of_tensors_is_a_processor(model):
    def only_even(logits, context):
        even = keras.ops.arange(TARGET_SIZE) % 2 == 0
        return keras.ops.where(even, logits, float("-inf"))

    for _, row in rows_of(model, Beam(2, hypotheses=2, processors=[only_even])):
        assert not any(token % 2 for token in row if token not in (1, 3, 5))


# Bad input

TABLE = np.full((2, TARGET_SIZE), -1)
TABLE[0, 3] = 1


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: processors.MinLength(-1), ValueError, "min_length must be at least 0, got -1"),
        (lambda: processors.MinNewTokens(1.5), TypeError, "min_new_tokens must be an integer"),
        (lambda: processors.NoRepeatNGram(0), ValueError, "size must be at least 1, got 0"),
        (lambda: processors.RepetitionPenalty(0), ValueError, "penalty must be positive, got 0"),
        (lambda: processors.NoBadWords([]), ValueError, "at least one sequence of ids, got none"),
        (lambda: processors.NoBadWords([[]]), ValueError, r"at least one id.*got \[\]"),
        (lambda: processors.SuppressTokens([-3]), ValueError, r"not negative, got \[-3\]"),
        (lambda: processors.SuppressTokens("ab"), TypeError, "must be an integer.*got 'ab'"),
        (lambda: processors.SequenceBias({}), ValueError, "biases must be numbers"),
        (lambda: processors.ForcedBOS(None), TypeError, r"must be an integer.*got \[None\]"),
        (lambda: processors.PrefixConstrained([3]), TypeError, r"callable, got \[3\]"),
        (lambda: processors.Grammar(TABLE, [2]), ValueError, r"must be in 0\.\.1, got \(2,\)"),
        (lambda: processors.Grammar(TABLE + 1, [1]), ValueError, r"in -1\.\.1, got 0\.\.2"),
        (lambda: processors.Grammar(TABLE * 1.0, [1]), ValueError, "must be integers"),
        (lambda: processors.Grammar(TABLE, [0], 1), ValueError, "no accepting state can be reach"),
    ],
)
def test_impossible_values_are_refused(make, error, message):
    with pytest.raises(error, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("processor", "error", "message"),
    [
        (processors.ForcedBOS(13), ValueError, r"ForcedBOS: id must be in 0\.\.12, got 13"),
        (processors.ForcedEOS([2, 13]), ValueError, r"ForcedEOS: ids must be in 0\.\.12, got 13"),
        (processors.SuppressTokens(13), ValueError, r"ids must be in 0\.\.12, got 13"),
        (processors.NoBadWords([[1, 13]]), ValueError, r"must be in 0\.\.12, got 13"),
        (processors.SequenceBias({(13,): 1}), ValueError, r"must be in 0\.\.12, got 13"),
        (processors.Grammar(TABLE[:, 1:], [1]), ValueError, "each of 13 tokens, got 12"),
        (3, TypeError, "processors must be functions of logits and a context.*got 3"),
    ],
)
def test_what_does_not_fit_the_vocabulary_is_refused(model, processor, error, message):
    with pytest.raises(error, match=message):
        Generator(model, LENGTH, end_id=END, strategy=Greedy([processor]))


PATTERN = "(ab|c)+d?|[^a-d]{2}"
LETTERS = [None, "", "ab", "a", "b", "c", "cc", "d", "x", "xy", "cd", "abc", "é"]


def test_a_regular_expression_is_a_grammar():
    """Every sequence of up to three tokens, beside Python's `re`."""
    pytest.importorskip("interegular")
    grammar = processors.Grammar.from_regex(PATTERN, LETTERS)

    def state_of(ids):
        state = grammar.start
        for token in ids:
            state = grammar.transitions[state, token] if state >= 0 else -1
        return state

    texts = [i for i, x in enumerate(LETTERS) if x]
    matching = 0
    for length in range(4):
        for ids in itertools.product(texts, repeat=length):
            expected = bool(re.fullmatch(PATTERN, "".join(LETTERS[i] for i in ids)))
            assert (state_of(ids) in grammar.accepting) == expected, ids
            matching += expected
    assert matching > 20
    assert (grammar.transitions[:, [0, 1]] == -1).all()


def test_a_grammar_of_a_regular_expression_is_generated(model):
    pytest.importorskip("interegular")
    grammar = processors.Grammar.from_regex(PATTERN, LETTERS)
    for strategy in (Greedy([grammar]), Beam(3, hypotheses=2, processors=[grammar])):
        for i, row in rows_of(model, strategy):
            if row[-1] == END:
                text = "".join(LETTERS[token] for token in row[len(PROMPTS[i]) : -1])
                assert re.fullmatch(PATTERN, text)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("a(", r"the pattern 'a\(' cannot be read"),
        (r"(a)\1", "cannot be read"),
        ("z", "no accepting state can be reached"),
    ],
)
def test_a_pattern_that_cannot_be_read_is_refused(pattern, message):
    pytest.importorskip("interegular")
    with pytest.raises(ValueError, match=message) as caught:
        processors.Grammar.from_regex(pattern, LETTERS)
    assert "\n" not in str(caught.value)


def test_a_regular_expression_without_its_package_is_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "interegular", None)
    with pytest.raises(ModuleNotFoundError, match=r'interegular.* \(the extra "grammar" of'):
        processors.Grammar.from_regex("a", LETTERS)


def test_a_grammar_needs_an_end_token(model):
    generator = Generator(
        model, LENGTH, start_id=1, strategy=Greedy([processors.Grammar(TABLE, [1])])
    )
    with pytest.raises(ValueError, match="give end_id, got none"):
        generator(SOURCES)


def test_xla_cannot_call_python(model):
    strategy = Beam(2, processors=[processors.PrefixConstrained(lambda row, tokens: [3])])
    with pytest.raises(ValueError, match="PrefixConstrained calls Python in each step, which XLA"):
        Generator(model, LENGTH, strategy=strategy, jit_compile=True)


def test_a_function_that_allows_nothing_is_an_error(model):
    strategy = Greedy([processors.PrefixConstrained(lambda row, tokens: [])])
    with pytest.raises(Exception, match=r"must return ids in 0\.\.12, at least one, got \[\]"):
        Generator(model, LENGTH, start_id=1, strategy=strategy)(SOURCES)
