"""`Sampler` against Keras's filters and the warpers of transformers."""

import numpy as np
import pytest
from keras import ops
from small_writers import written

from keras_tfm.generation import Context, Sample, filters
from keras_tfm.generation.processors import RepetitionPenalty, SuppressTokens
from keras_tfm.runtime import Sampler, load

SIZE = 37
# Of float32 logits of order 3; the runtime computes in float64.
FLOAT32 = 1e-5
OPTIONS = [
    {},
    {"temperature": 0.7},
    {"temperature": 2.5, "top_k": 5},
    {"top_k": 100},
    {"top_p": 0.8},
    {"top_p": 1e-9},
    {"min_p": 0.2, "temperature": 1.3},
    {"top_k": 12, "top_p": 0.9, "min_p": 0.05},
    {"repetition_penalty": 1.7, "top_p": 0.9},
    {"repetition_penalty": 0.6, "banned_tokens": [3, 5, 5]},
]


def logits_of(seed, rows=3):
    logits = np.random.default_rng(seed).normal(size=(rows, SIZE)) * 3
    logits[:, 7] = logits[:, 11]  # a tie
    return logits.astype("float32")


TOKENS = np.array([[3, 3, 8], [1, 30, 36], [0, 7, 11]])


def expected(options, logits):
    """The probabilities of `generation.Sample` with its processors."""
    options = dict(options)
    x, written = ops.convert_to_tensor(logits), np.ones(TOKENS.shape, bool)
    context = Context(ops.convert_to_tensor(TOKENS), ops.convert_to_tensor(written), 2, None)
    if penalty := options.pop("repetition_penalty", None):
        x = RepetitionPenalty(penalty)(x, context)
    if banned := options.pop("banned_tokens", None):
        x = SuppressTokens(banned)(x, context)
    return ops.convert_to_numpy(ops.softmax(Sample(**options).filter(x), axis=-1))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_probabilities_are_those_of_keras(options, seed):
    logits = logits_of(seed)
    kept = logits.copy()
    found = Sampler(**options).probabilities(logits, TOKENS)
    np.testing.assert_array_equal(logits, kept)
    wanted = expected(options, logits)
    np.testing.assert_array_equal(found > 0, wanted > 0)
    np.testing.assert_allclose(found, wanted, rtol=0.0, atol=FLOAT32)
    np.testing.assert_allclose(found.sum(axis=-1), 1.0)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_probabilities_are_those_of_transformers(options):
    """Its processors and warpers in the order of its `generate`."""
    torch = pytest.importorskip("torch")
    process = pytest.importorskip("transformers.generation.logits_process")
    warpers = {
        "repetition_penalty": process.RepetitionPenaltyLogitsProcessor,
        "banned_tokens": lambda x: process.SuppressTokensLogitsProcessor(x, device="cpu"),
        "temperature": process.TemperatureLogitsWarper,
        "top_k": process.TopKLogitsWarper,
        "top_p": process.TopPLogitsWarper,
        "min_p": process.MinPLogitsWarper,
    }
    logits = logits_of(4)
    logits[:, 7] += 0.1  # of equal logits it keeps one, we keep all of them
    x = torch.tensor(logits)
    for name, make in warpers.items():
        if name in options:
            x = make(options[name])(torch.tensor(TOKENS), x)
    wanted = torch.softmax(x, -1).numpy()
    found = Sampler(**options).probabilities(logits, TOKENS)
    np.testing.assert_allclose(found, wanted, rtol=0.0, atol=FLOAT32)


@pytest.mark.default
def test_samples_have_these_probabilities():
    """A chi-square test of 200,000 samples, each option with its own seed."""
    stats = pytest.importorskip("scipy.stats")
    for number, options in enumerate(OPTIONS):
        logits = np.repeat(logits_of(5, rows=1), 20_000, axis=0)
        text = np.repeat(TOKENS[:1], 20_000, axis=0)
        counts = np.zeros(SIZE)
        for i in range(10):  # each after the same text
            choose = Sampler(**options, seed=100 * number + i).following(text)
            counts += np.bincount(choose(logits), minlength=SIZE)
        wanted = expected(options, logits[:3])[0].astype("float64") * counts.sum()
        assert not counts[wanted == 0].any()
        # Tokens of fewer than 5 expected samples are one class.
        rare = wanted < 5
        pairs = [np.append(x[~rare], x[rare].sum()) for x in (counts, wanted)]
        found, likely = (x[pairs[1] > 0] for x in pairs)
        if len(found) > 1:
            assert stats.chisquare(found, likely * found.sum() / likely.sum()).pvalue > 1e-4


def test_the_filters_are_those_of_keras_alone():
    logits = logits_of(6)
    for name, value in {"top_k": 4, "top_p": 0.7, "min_p": 0.1}.items():
        wanted = ops.convert_to_numpy(getattr(filters, name)(ops.convert_to_tensor(logits), value))
        found = Sampler(**{name: value}).probabilities(logits)
        np.testing.assert_array_equal(found > 0, np.isfinite(wanted))


def test_the_penalty_counts_what_was_chosen():
    choose = Sampler(temperature=0, repetition_penalty=1e6).following([[2]])
    logits = np.array([[5.0, 4.0, 9.0, 3.0]], "float32")
    assert [int(choose(logits)[0]) for _ in range(3)] == [0, 1, 3]


def test_seeds():
    logits = [logits_of(i, rows=2) for i in range(20)]

    def draw(seed):
        choose = Sampler(seed=seed).following([[1], [2]])
        return [choose(x).tolist() for x in logits]

    assert draw(3) == draw(3)
    assert draw(3) != draw(4)
    assert draw(None) != draw(None)


def test_extreme_logits():
    logits = np.array([[3e38, -3e38, -np.inf, 0.0]], "float32")
    found = Sampler(temperature=1e-3, top_k=3, top_p=0.9, min_p=0.1).probabilities(logits)
    np.testing.assert_array_equal(found, [[1, 0, 0, 0]])
    np.testing.assert_array_equal(Sampler(temperature=0).probabilities(logits), [[1, 0, 0, 0]])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"temperature": -1}, ValueError, "temperature must be finite and at least 0, got -1"),
        ({"temperature": np.nan}, ValueError, "must be finite and at least 0, got nan"),
        ({"temperature": np.inf}, ValueError, "must be finite and at least 0, got inf"),
        ({"banned_tokens": 3}, TypeError, "banned_tokens must be ids, got 3"),
        ({"banned_tokens": [-1]}, ValueError, "banned_tokens must be at least 0, got -1"),
        ({"top_k": True}, TypeError, "top_k must be an integer, got True"),
        ({"temperature": "1"}, TypeError, "temperature must be a number, got '1'"),
        ({"temperature": True}, TypeError, "temperature must be a number, got True"),
        ({"top_k": 0}, ValueError, "top_k must be at least 1, got 0"),
        ({"top_k": 1.5}, TypeError, "top_k must be an integer, got 1.5"),
        ({"top_p": 0}, ValueError, "top_p must be finite and greater than 0, got 0"),
        ({"top_p": 1.1}, ValueError, "top_p must be within 0 and 1, got 1.1"),
        ({"min_p": 2}, ValueError, "min_p must be within 0 and 1, got 2"),
        ({"repetition_penalty": 0}, ValueError, "must be finite and greater than 0, got 0"),
        ({"seed": -1}, ValueError, "seed must be at least 0, got -1"),
        ({"banned_tokens": ["a"]}, TypeError, "banned_tokens must be an integer, got 'a'"),
    ],
)
def test_bad_arguments(options, error, message):
    with pytest.raises(error, match=message):
        Sampler(**options)


def test_bad_logits():
    with pytest.raises(ValueError, match=r"banned_tokens must be in 0\.\.36, got \[37\]"):
        Sampler(banned_tokens=[37]).probabilities(logits_of(0))
    with pytest.raises(ValueError, match="expected a finite logit in each row, got at most"):
        Sampler(banned_tokens=range(37)).probabilities(logits_of(0))
    with pytest.raises(ValueError, match="expected a finite logit in each row, got at most"):
        Sampler().probabilities(np.full((1, 3), np.nan))


def test_it_chooses_in_streams_and_sessions():
    model = load(written())
    sampler = Sampler(temperature=0.8, top_k=20, repetition_penalty=1.2, seed=1)
    streamed = [int(x[0]) for x in model.stream([[4, 5, 6]], sampler)]
    session = model.session()
    session.append([4, 5, 6])
    fork = session.fork()
    assert list(session.stream_tokens(choose=sampler)) == streamed[: len(session) - 3]
    fork.append("")
    assert fork.generate(choose=sampler).tokens.tolist() == session.tokens[3:].tolist()
    assert "".join(model.stream_text("hello", sampler)) == "".join(
        model.stream_text("hello", sampler)
    )
