"""`Beam` beside its definition: a search over Python lists, one row and one hypothesis at a time.

There is no model: the logits after each pair of tokens are a table of random numbers.
"""

import numpy as np
import pytest
from compare import to_numpy
from grids import pairwise
from keras import ops

from keras_tfm.generation import Beam
from keras_tfm.generation.strategies import Task
from keras_tfm.generation.strategies.beam import IMPOSSIBLE

ROWS, V, LENGTH, FIRST = 3, 6, 7, 1
PROMPTS = np.array([[1, 3], [5, 0], [2, 2]], "int32")
LOGITS = np.random.default_rng(0).normal(0, 2, (V, V, V)).astype("float32")
LOGITS[..., 4] += 1.5  # the end token of most cases
NO_LIMIT = [LENGTH] * ROWS


def falling(n):
    """The divisor of a length penalty that is a function: smaller for longer hypotheses."""
    return 1.0 + 4.0 / n


def never_twice(logits, context):
    """A processor that reads the tokens of a hypothesis: the last one is not repeated."""
    last = ops.take(context.tokens, context.position, axis=1)
    return ops.where(ops.one_hot(last, V, dtype="bool"), -np.inf, logits)


def found(strategy, end_ids, limit):
    """Tokens, scores and the number of steps of every row, by the methods of `Beam`."""
    limits = None if limit is NO_LIMIT else ops.convert_to_tensor(limit, "int32")
    task = Task(ROWS, LENGTH, FIRST, end_ids, limits, None, True, None, pad_id=4)
    state = strategy.start(task, task.sequences(ops.convert_to_tensor(PROMPTS)), None)
    assert to_numpy(state.token).tolist() == [[x] * strategy.size for x in PROMPTS[:, FIRST]]
    steps = np.zeros(ROWS, int)
    while int(state.position) < LENGTH - 1 and to_numpy(strategy.going(task, state)).any():
        steps += to_numpy(strategy.going(task, state))
        position, tokens = int(state.position), to_numpy(state.tokens)
        assert to_numpy(state.token).tolist() == tokens[:, :, position].tolist()
        logits = LOGITS[tokens[:, :, position - 1], tokens[:, :, position]].reshape(-1, V)
        after, parents = strategy.advance(task, state, ops.convert_to_tensor(logits), None)
        for row, (own, earlier) in enumerate(zip(to_numpy(after.tokens), tokens, strict=True)):
            begun = earlier[to_numpy(parents)[row]][:, : position + 1]
            np.testing.assert_array_equal(own[:, : position + 1], begun)
        state = after
    result = strategy.result(task, state)
    return to_numpy(result["tokens"]), to_numpy(result["scores"]), steps


def expected(strategy, end_ids, limit, row):
    """The same of one row: tokens and scores of the best finished hypotheses, number of steps."""
    n, prompt = strategy.size, PROMPTS[row].tolist()
    still_open, finished, steps = [(0.0, prompt)], [], 0

    def score(log_probability, length):
        if callable(strategy.length_penalty):
            return log_probability / strategy.length_penalty(length)
        return log_probability / length**strategy.length_penalty

    while still_open and len(still_open[0][1]) < LENGTH:
        steps += 1
        continued = []
        for log_probability, tokens in still_open:
            logits = LOGITS[tokens[-2], tokens[-1]].astype("float64")
            gains = logits - np.log(np.exp(logits).sum())
            if strategy.processors:
                gains[tokens[-1]] = -np.inf
            continued += [(log_probability + x, [*tokens, i]) for i, x in enumerate(gains)]
        continued = sorted((x for x in continued if x[0] > -np.inf), reverse=True)
        still_open = []
        for rank, (log_probability, tokens) in enumerate(continued):
            if tokens[-1] not in end_ids and len(tokens) < limit[row]:
                still_open.append((log_probability, tokens))
            elif rank < n:  # a worse one may not end
                finished.append((score(log_probability, len(tokens) - 2), tokens))
        still_open = still_open[:n]
        finished = sorted(finished, reverse=True)[:n]
        if len(finished) == n:
            worst, length = finished[-1][0], len(tokens) - 2
            if strategy.early_stopping is True or not still_open:
                break
            best = still_open[0][0]
            attainable = score(best, length)
            if strategy.early_stopping == "never":
                last = score(best, limit[row] - 2)
                if callable(strategy.length_penalty):
                    attainable = max(last, score(best, length + 1))
                elif strategy.length_penalty > 0:
                    attainable = last
            if attainable <= worst:
                break
    return finished, steps


CASES = pairwise(
    {"early_stopping=" + str(x): x for x in (False, True, "never")},
    {"no end": (), "one end": (4,), "two ends": (4, 0)},
    {"of 1": 1, "of 3": 3, "of 4": 4},
    {"penalty 0": 0.0, "0.7": 0.7, "-0.5": -0.5, "falling": falling},
    {"no limit": NO_LIMIT, "limits": [3, 7, 5]},
    {"plain": (), "processor": (never_twice,)},
)


@pytest.mark.parametrize(
    ("early_stopping", "end_ids", "size", "penalty", "limit", "processors"), CASES
)
def test_a_search_is_that_of_its_definition(
    early_stopping, end_ids, size, penalty, limit, processors
):
    strategy = Beam(size, penalty, size, early_stopping, processors=processors)
    tokens, scores, steps = found(strategy, end_ids, limit)
    if size == 1:
        tokens, scores = tokens[:, None], scores[:, None]
    for row in range(ROWS):
        hypotheses, needed = expected(strategy, end_ids, limit, row)
        assert steps[row] == needed
        missing = size - len(hypotheses)
        padded = [[*x, *[4] * (LENGTH - len(x))] for _, x in hypotheses]
        padded += [[*PROMPTS[row], *[4] * (LENGTH - 2)]] * missing
        assert tokens[row].tolist() == padded
        # Six sums of logarithms in float32, of about 3 each.
        wanted = [x for x, _ in hypotheses] + [IMPOSSIBLE] * missing
        np.testing.assert_allclose(scores[row], wanted, rtol=1e-6, atol=1e-5)


def test_when_a_search_stops():
    """The steps that the cases above count differ with what is asked for."""
    steps = {x: found(Beam(3, 0.7, 3, x), (4,), NO_LIMIT)[2].sum() for x in (True, False, "never")}
    assert steps[True] < steps[False] < steps["never"]


def test_fewer_hypotheses_are_the_best_ones():
    all_tokens, all_scores, _ = found(Beam(4, 0.7, 4), (4,), NO_LIMIT)
    for count in (1, 2, 3):
        tokens, scores, _ = found(Beam(4, 0.7, count), (4,), NO_LIMIT)
        best = slice(count) if count > 1 else 0
        np.testing.assert_array_equal(tokens, all_tokens[:, best])
        np.testing.assert_array_equal(scores, all_scores[:, best])


def test_a_beam_as_wide_as_the_vocabulary():
    """All continuations of a hypothesis are kept: after one step no more than V are there."""
    tokens, _, _ = found(Beam(V, 0.0, V), (), [3] * ROWS)
    assert np.sort(tokens[:, :, 2], axis=1).tolist() == [list(range(V))] * ROWS
    # A forbidden token leaves one hypothesis fewer, which is no reason to go on.
    strategy = Beam(V, falling, V, processors=(never_twice,))
    tokens, scores, steps = found(strategy, (), [3] * ROWS)
    assert (tokens[:, :-1, 2] != PROMPTS[:, 1:]).all() and (scores[:, :-1] > -100).all()
    np.testing.assert_array_equal(scores[:, -1], np.float32(IMPOSSIBLE))
    np.testing.assert_array_equal(steps, 1)


def test_defaults():
    assert Beam() == Beam(4, 1.0, 1, False, processors=())
    assert not Beam.streams  # a later token may change the best hypothesis
    with pytest.raises(TypeError, match="positional"):
        Beam(4, 1.0, 1, False, (never_twice,))
    with pytest.raises(AttributeError, match="size"):  # a dataclass that is frozen
        Beam().size = 3


def test_a_beam_is_not_wider_than_the_vocabulary():
    Beam(V).check(V)
    with pytest.raises(ValueError, match=r"size \(7\) must not be more than the vocabulary \(6\)"):
        Beam(V + 1).check(V)
