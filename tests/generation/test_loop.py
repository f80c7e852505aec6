"""The loop itself: traced or not, how often it steps, where it stops."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from grids import first_of
from small_models import (
    SOURCES,
    START,
    TARGET_SIZE,
    AddToLogit,
    brute_force,
    encoder_decoder,
    logits_of,
    unpadded,
)

from keras_tfm.generation import Beam, Contrastive, Greedy
from keras_tfm.generation.loop import GenerationLoop, cache_capacities
from keras_tfm.models.features import with_features

MAX_LENGTH = 7
# Logits of order 1 differ by 1e-6 between a full pass and steps; six log-probabilities add up.
SCORE = 1e-5


class Counting(Greedy):
    """Greedy, and knows how often it was asked."""

    def __init__(self):
        object.__setattr__(self, "calls", [])

    def choose(self, logits, context):
        self.calls.append(tuple(logits.shape))
        return super().choose(logits, context)


@pytest.fixture(scope="module")
def model():
    return encoder_decoder()


def loop(model, prompt, end_id=None, sources=SOURCES, **options):
    ends = () if end_id is None else (end_id,)
    inputs = {"source": tf.constant(sources)}
    return GenerationLoop(model, inputs, "target", prompt, MAX_LENGTH, ends, **options).run()


def prompts(rows, length=1):
    return tf.fill((rows, length), START)


def test_eager_and_compiled_agree(model):
    eager = loop(model, prompts(4), end_id=2)
    run = tf.function(lambda prompt: loop(model, prompt, end_id=2), autograph=False)
    compiled = run(prompts(4))
    assert eager["tokens"].numpy().tolist() == compiled["tokens"].numpy().tolist()
    np.testing.assert_allclose(eager["scores"], compiled["scores"], rtol=0.0, atol=SCORE)


def test_an_open_batch_compiles(model):
    """As in a SavedModel, whose batch and length are open."""
    ids = tf.TensorSpec((None, None), tf.int32)

    @tf.function(input_signature=[ids], autograph=False)
    def run(source):
        prompt = tf.fill((tf.shape(source)[0], 1), START)
        return GenerationLoop(model, {"source": source}, "target", prompt, MAX_LENGTH).run()

    expected = loop(model, prompts(4))["tokens"].numpy().tolist()
    assert run(SOURCES)["tokens"].numpy().tolist() == expected
    assert run(SOURCES[1:2, :3])["tokens"].numpy().tolist() == expected[1:2]


def test_scores_are_left_out(model):
    assert set(loop(model, prompts(4), score=False)) == {"tokens"}


@pytest.mark.parametrize("length", [1, 3, MAX_LENGTH - 1])
def test_a_step_a_token(model, length):
    """The prompt's last token is fed by the loop, the others before it at once."""
    strategy = Counting()
    loop(model, prompts(4, length), strategy=strategy)
    assert strategy.calls == [(4, TARGET_SIZE)] * (MAX_LENGTH - length)


def test_the_loop_stops_when_all_rows_have_ended(model):
    tokens = loop(model, prompts(4))["tokens"].numpy()
    end_id = int(tokens[0, 2])
    ends = [list(row).index(end_id, 1) if end_id in row[1:] else MAX_LENGTH - 1 for row in tokens]
    rows = [i for i, end in enumerate(ends) if end < MAX_LENGTH - 1]
    assert rows  # or nothing would be tested
    strategy = Counting()
    loop(model, prompts(len(rows)), end_id, SOURCES[rows], strategy=strategy)
    assert len(strategy.calls) == max(ends[i] for i in rows)


def test_an_end_token_of_0_ends_a_row():
    """A generated 0 is the end then; without an end it is a token like others."""
    model = encoder_decoder(seed=0)
    expected = [brute_force(model, unpadded(row), [START], MAX_LENGTH, 0)[0] for row in SOURCES]
    ends = {row.index(0) if 0 in row else MAX_LENGTH for row in expected}
    assert len(ends) > 1  # or nothing would be tested
    assert loop(model, prompts(4), end_id=0)["tokens"].numpy().tolist() == expected


def test_a_forbidden_token_leaves_scores_finite():
    """0 fills the rows that have ended: its log-probability, -inf here, must not be added."""
    head = keras.layers.Dense(TARGET_SIZE)
    model = encoder_decoder(head=lambda x: AddToLogit(0, -np.inf)(head(x)))
    end_id = int(np.argmax(logits_of(model, SOURCES[:1], [[START]])[0, -1]))
    result = loop(model, prompts(4), end_id)
    expected = [brute_force(model, unpadded(row), [START], MAX_LENGTH, end_id) for row in SOURCES]
    assert result["tokens"].numpy().tolist() == [tokens for tokens, _, _ in expected]
    assert result["tokens"][0, -1] == 0  # the first row has ended
    scores = [score for _, score, _ in expected]
    np.testing.assert_allclose(result["scores"], scores, rtol=0.0, atol=SCORE)


@pytest.mark.parametrize(
    ("largest", "first", "used", "expected"),
    [
        (1, 32, 0, (1,)),
        (32, 32, 0, (32,)),
        (48, 32, 0, (48,)),  # 32 would be two thirds
        (49, 32, 0, (32, 49)),
        (192, 32, 0, (32, 192)),
        (193, 32, 0, (32, 128, 193)),
        (10000, 128, 0, (128, 512, 2048, 10000)),
        (193, 32, 31, (32, 128, 193)),
        (193, 32, 32, (128, 193)),
        (193, 32, 128, (193,)),
        (193, 32, 192, (193,)),
    ],
)
def test_capacities_of_growing_caches(largest, first, used, expected):
    assert cache_capacities(largest, first, used) == expected


@pytest.mark.parametrize(
    ("strategy", "prompt"),
    first_of(
        [
            *((Greedy(), 1), (Beam(3), 3), (Contrastive(3), 1)),
            *((Greedy(), 3), (Beam(3), 1), (Contrastive(3), 3)),
        ],
        count=3,
    ),
    ids=str,
)
def test_caches_that_grow_change_nothing(model, strategy, prompt):
    """The smallest capacity, then four times as much, against the full capacity at once."""
    if strategy.reads_features:
        model = with_features(model)
    results = [
        loop(model, prompts(4, prompt), strategy=strategy, capacity=capacity)
        for capacity in (1, MAX_LENGTH)
    ]
    assert cache_capacities(MAX_LENGTH, 1, prompt) == {1: (4, 7), 3: (4, 7)}[prompt]
    np.testing.assert_array_equal(results[0]["tokens"], results[1]["tokens"])
    assert len(np.unique(results[0]["tokens"])) > 3
    np.testing.assert_allclose(results[0]["scores"], results[1]["scores"], atol=SCORE)
