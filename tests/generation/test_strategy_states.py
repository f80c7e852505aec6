"""The interface between the loop and a strategy: typed states, parents, padding after the end.

No model: the logits of each step are given, so that every expected value is written by hand.
"""

import keras
import numpy as np
import pytest
from compare import to_numpy
from keras import ops

from keras_tfm.generation import Beam, Contrastive, Greedy, Sample, Strategy
from keras_tfm.generation.strategies import Task

V, D, END, PAD = 5, 3, 4, 2
LENGTH = 6
STRATEGIES = [Greedy(), Sample(seed=1), Beam(3, hypotheses=2), Contrastive(2)]


def task(batch=2, pad_id=0, end_ids=(END,), limit=None, score=True, first=1):
    seed = ops.convert_to_tensor([1, 2], "int32")
    return Task(batch, LENGTH, first, end_ids, limit, None, score, seed, pad_id)


def prompt(batch=2):
    return ops.convert_to_tensor([[1, 3]] * batch, "int32")


def started(strategy, of):
    features = None
    if strategy.reads_features:
        features = ops.convert_to_tensor(np.ones((of.batch, 1, D), "float32"))
    return strategy.start(of, of.sequences(prompt(of.batch)), features)


def advanced(strategy, of, state, best):
    """One step whose logits prefer the token `best[row]` of each row, by far."""
    logits = 9.0 * np.eye(V, dtype="float32")[best]
    # Worse ones differ, so that no two hypotheses have equal scores.
    logits = logits - 0.25 * np.arange(V, dtype="float32")
    logits = np.repeat(logits, strategy.width, axis=0)
    features = None
    if strategy.reads_features:
        features = ops.convert_to_tensor(np.ones((len(logits), D), "float32"))
    return strategy.advance(of, state, ops.convert_to_tensor(logits), features)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda x: type(x).__name__)
def test_a_state_survives_flattening(strategy):
    """It is a variable of `ops.while_loop`, on every backend."""
    state = started(strategy, task())
    leaves = keras.tree.flatten(state)
    assert len(leaves) == len(state)
    again = keras.tree.pack_sequence_as(state, leaves)
    assert type(again) is type(state)
    for name in state._fields:
        np.testing.assert_array_equal(
            to_numpy(getattr(again, name)), to_numpy(getattr(state, name))
        )


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("of", [task(), task(end_ids=(), score=False)], ids=["ends", "no end"])
def test_a_step_keeps_the_structure_and_the_shapes(strategy, of):
    state = started(strategy, of)
    after, parents = advanced(strategy, of, state, [3, 1])
    keras.tree.assert_same_structure(state, after)
    for before, value in zip(keras.tree.flatten(state), keras.tree.flatten(after), strict=True):
        if before is None:
            assert value is None
        else:
            assert tuple(before.shape) == tuple(value.shape)
            assert str(before.dtype) == str(value.dtype)
    assert int(state.position) == of.first
    assert int(after.position) == of.first + 1
    assert tuple(state.token.shape) == tuple(after.token.shape) == (2, strategy.width)
    assert to_numpy(state.token).tolist() == [[3] * strategy.width] * 2
    if strategy.width == 1:
        assert parents is None
    else:
        assert tuple(parents.shape) == (2, strategy.width)
        assert 0 <= to_numpy(parents).min() <= to_numpy(parents).max() < strategy.width


def test_what_is_not_needed_is_none():
    """So that an exported loop carries no flags and sums that nothing reads."""
    plain = started(Greedy(), task(end_ids=(), score=False))
    assert plain.running is None and plain.scores is None
    assert Greedy().going(task(end_ids=(), score=False), plain) is None
    assert list(Greedy().result(task(end_ids=(), score=False), plain)) == ["tokens"]
    assert started(Greedy(), task(end_ids=(), limit=ops.array([4, 5]))).running is not None


@pytest.mark.parametrize("pad_id", [0, PAD])
def test_greedy_pads_after_the_end(pad_id):
    """The first row ends at once, the second one step later; then both would go on with 3."""
    of, strategy = task(pad_id=pad_id), Greedy()
    state = started(strategy, of)
    for best in ([END, 1], [3, END], [3, 3]):
        state, _ = advanced(strategy, of, state, best)
    assert to_numpy(state.tokens).tolist() == [
        [1, 3, END, pad_id, pad_id, pad_id],
        [1, 3, 1, END, pad_id, pad_id],
    ]
    assert not to_numpy(strategy.going(of, state)).any()


def test_a_row_is_padded_after_its_limit():
    of = task(pad_id=PAD, end_ids=(), limit=ops.convert_to_tensor([3, 5], "int32"))
    state = started(Greedy(), of)
    for _ in range(4):
        state, _ = advanced(Greedy(), of, state, [1, 3])
    assert to_numpy(state.tokens).tolist() == [[1, 3, 1, PAD, PAD, PAD], [1, 3, 3, 3, 3, PAD]]


@pytest.mark.parametrize("pad_id", [0, PAD])
def test_beam_pads_after_the_end(pad_id):
    of, strategy = task(pad_id=pad_id), Beam(2, length_penalty=0.0)
    state = started(strategy, of)
    for best in ([END, 1], [3, END]):
        state, _ = advanced(strategy, of, state, best)
    assert to_numpy(strategy.result(of, state)["tokens"]).tolist() == [
        [1, 3, END, pad_id, pad_id, pad_id],
        [1, 3, 1, END, pad_id, pad_id],
    ]


@pytest.mark.parametrize("pad_id", [0, PAD])
def test_contrastive_search_pads_after_the_end(pad_id):
    """It writes a candidate a step after it was found, and feeds the prompt's last token first."""
    of, strategy = task(pad_id=pad_id), Contrastive(2, alpha=0.0)
    state = started(strategy, of)
    for best in ([END, 1], [3, END], [3, 3], [3, 3]):
        state, _ = advanced(strategy, of, state, best)
    assert to_numpy(strategy.result(of, state)["tokens"]).tolist() == [
        [1, 3, END, pad_id, pad_id, pad_id],
        [1, 3, 1, END, pad_id, pad_id],
    ]


def test_scores_are_of_the_row_up_to_its_end():
    """log softmax of 9 against 0.25 n less for token n, once and twice."""
    of, strategy = task(), Greedy()
    state = started(strategy, of)
    rows = [[END, 1], [3, END], [3, 3]]
    expected = np.zeros(2)
    for best in rows:
        running = to_numpy(state.running)[:, 0]
        state, _ = advanced(strategy, of, state, best)
        logits = 9.0 * np.eye(V)[best] - 0.25 * np.arange(V)
        log_sums = np.log(np.exp(logits).sum(axis=1))
        expected += running * (logits[[0, 1], best] - log_sums)
    # Two logarithms in float32.
    np.testing.assert_allclose(to_numpy(state.scores), expected, atol=2e-6)


def test_the_parents_of_a_beam():
    """Both hypotheses of the second step continue the better one of the first."""
    of, strategy = task(batch=1), Beam(2, length_penalty=0.0)
    state = started(strategy, of)
    state, parents = advanced(strategy, of, state, [3])
    assert to_numpy(parents).tolist() == [[0, 0]]  # the prompt: the other one is impossible
    assert to_numpy(state.token).tolist() == [[3, 0]]
    logits = np.float32([[0, 5, 4, -9, -9], [0, 0, 0, 0, 0]])
    state, parents = strategy.advance(of, state, ops.convert_to_tensor(logits), None)
    assert to_numpy(parents).tolist() == [[0, 0]]
    assert to_numpy(state.tokens)[0].tolist() == [[1, 3, 3, 1, 0, 0], [1, 3, 3, 2, 0, 0]]


def test_choose_is_needed():
    with pytest.raises(
        NotImplementedError, match=r"Mine does not define choose\(logits, context\)"
    ):
        type("Mine", (Strategy,), {})().choose(None, None)


@pytest.mark.parametrize(
    ("penalty", "early_stopping", "worst", "goes_on"),
    [
        # Of 2 tokens with log-probability -4, at most 4 tokens.
        (0.5, "never", -2.5, True),  # -4 / 4^0.5 may still be reached
        (0.5, "never", -1.9, False),
        (0.5, False, -2.5, False),  # only -4 / 2^0.5 counts
        (-0.5, "never", -5.0, False),  # longer is worse: -4 * 2^0.5
        (-0.5, "never", -6.0, True),
        (lambda n: 8.0 / n, "never", -1.7, True),  # the next token gives -4 / (8 / 3)
        (lambda n: 8.0 / n, "never", -1.4, False),
    ],
)
def test_beam_goes_on_while_a_longer_hypothesis_can_win(penalty, early_stopping, worst, goes_on):
    beam = Beam(2, length_penalty=penalty, early_stopping=early_stopping)
    numbers = (ops.convert_to_tensor([x], "float32") for x in (-4.0, worst))
    found = beam._can_improve(task(batch=1), ops.convert_to_tensor(3, "int32"), *numbers)
    assert to_numpy(found).tolist() == [goes_on]
