"""Classifier-free guidance: beside full passes in NumPy, beside transformers, and in a file."""

import functools

import numpy as np
import pytest
from compare import to_numpy
from execution import tensorflow_only
from keras_weights import randomize

from keras_tfm import models
from keras_tfm.generation import (
    Beam,
    Context,
    Contrastive,
    Drafted,
    Generator,
    Greedy,
    PromptLookup,
    Sample,
    processors,
)

VOCABULARY, LENGTH, SCALE = 17, 9, 2.5
EMPTY = (5, 9)
PROMPTS = [[3, 4, 6], [8, 2], [7, 7, 1, 4]]


@functools.cache
def model():
    sizes = {"dim": 12, "num_layers": 2, "num_heads": 3, "intermediate_dim": 10}
    return randomize(models.gpt(VOCABULARY, **sizes, max_length=LENGTH + 4))


def log_softmax(x):
    x = x - x.max()
    return x - np.log(np.exp(x).sum())


def next_log_probabilities(row, scale):
    """From two full passes: of the row, and of the row after the empty prompt."""
    empty = [*EMPTY, *row[len(EMPTY) :]]
    given, without = (
        log_softmax(to_numpy(model()(np.array([x], "int32")))[0, -1]) for x in (row, empty)
    )
    return without + scale * (given - without)


def guided(prompt, scale, length=LENGTH):
    return [*_guided(tuple(prompt), scale, length)]


@functools.cache
def _guided(prompt, scale, length):
    row = list(prompt)
    while len(row) < length:
        row.append(int(next_log_probabilities(row, scale).argmax()))
    return row


def strategy(cls, scale=SCALE, *args, **options):
    return cls(*args, processors=[processors.Guidance(scale, EMPTY)], **options)


def rows(found):
    return [row.tolist() for row in found.tokens]


def test_each_token_is_the_best_of_both_passes():
    """With prompts of different lengths, which are padded on the left."""
    found = rows(Generator(model(), LENGTH, strategy=strategy(Greedy))(PROMPTS))
    assert found == [guided(x, SCALE) for x in PROMPTS]
    assert found != [guided(x, 1.0) for x in PROMPTS]
    plain = rows(Generator(model(), LENGTH)(PROMPTS))
    assert plain == [guided(x, 1.0) for x in PROMPTS]


@pytest.mark.parametrize(
    "make",
    [
        lambda **x: Beam(3, hypotheses=2, **x),
        pytest.param(lambda **x: Sample(seed=4, hypotheses=2, **x), marks=pytest.mark.slow),
    ],
    ids=["beam", "sample"],
)
def test_a_scale_of_one_changes_no_tokens(make):
    """Nor the pruned caches of a beam search; and another scale does."""
    outputs = [
        Generator(model(), LENGTH, strategy=make(processors=some))(PROMPTS).tokens.tolist()
        for some in (
            [],
            [processors.Guidance(1.0, EMPTY)],
            [processors.Guidance(SCALE, EMPTY)],
        )
    ]
    assert outputs[0] == outputs[1] != outputs[2]


def test_a_beam_of_one_is_greedy():
    found = Generator(model(), LENGTH, strategy=strategy(Beam, SCALE, 1))(PROMPTS)
    assert rows(found) == [guided(x, SCALE) for x in PROMPTS]


def test_streamed_as_returned():
    generator = Generator(model(), LENGTH, strategy=strategy(Greedy))
    streamed = np.stack([*generator.stream([PROMPTS[0]])], axis=1)
    assert streamed[0].tolist() == guided(PROMPTS[0], SCALE)[3:]


slow = pytest.mark.slow
STRATEGIES = {
    "greedy": Greedy,
    "beam": lambda **x: Beam(3, hypotheses=2, **x),
    "sample": lambda **x: Sample(seed=4, hypotheses=2, **x),
}


@pytest.fixture
def eagerly():
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@functools.cache
def compiled_rows(name, jit_compile):
    chosen = strategy(STRATEGIES[name])
    return Generator(model(), LENGTH, strategy=chosen, jit_compile=jit_compile)(PROMPTS)


@tensorflow_only
@pytest.mark.parametrize(
    "name", ["greedy", pytest.param("beam", marks=slow), pytest.param("sample", marks=slow)]
)
def test_eager_as_a_graph(name, eagerly):
    """A generator without a graph: each step runs operation by operation."""
    eager = Generator(model(), LENGTH, strategy=strategy(STRATEGIES[name]))(PROMPTS)
    assert len({str(row) for row in eager.tokens.tolist()}) == len(PROMPTS)
    if name == "greedy":
        assert rows(eager) == [guided(x, SCALE) for x in PROMPTS]
    import tensorflow as tf

    tf.config.run_functions_eagerly(False)
    np.testing.assert_array_equal(eager.tokens, compiled_rows(name, False).tokens)


@tensorflow_only
@slow
@pytest.mark.parametrize("name", ["greedy", "beam"])
def test_under_xla_as_a_graph(name):
    """The tokens and, of a beam search, the scores."""
    expected, found = compiled_rows(name, False), compiled_rows(name, True)
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    if name == "greedy":
        assert rows(found) == [guided(x, SCALE) for x in PROMPTS]
    if name == "beam":
        # float32 sums of up to seven log-probabilities, of order 10, times SCALE.
        np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)


@tensorflow_only
@pytest.mark.slow
def test_sampling_under_xla_draws_what_guidance_allows():
    """Other random numbers than in a graph, but only of the three most probable tokens."""
    chosen = strategy(Sample, seed=4, top_k=3, hypotheses=5)
    generator = Generator(model(), LENGTH, strategy=chosen, jit_compile=True)
    found = generator(PROMPTS).tokens
    np.testing.assert_array_equal(generator(PROMPTS).tokens, found)
    ranks = []
    for prompt, hypotheses in zip(PROMPTS, found.tolist(), strict=True):
        for row in hypotheses:
            assert row[: len(prompt)] == prompt
            for i in range(len(prompt), LENGTH):
                order = np.argsort(-next_log_probabilities(row[:i], SCALE))
                ranks.append(int(np.flatnonzero(order == row[i])[0]))
    assert set(ranks) == {0, 1, 2}


@tensorflow_only
@pytest.mark.parametrize("name", ["greedy", pytest.param("beam", marks=slow)])
def test_the_loop_in_a_file(name, tmp_path):
    from keras_tfm import runtime
    from keras_tfm.export import export_tflite

    report = export_tflite(
        model(), tmp_path / "x.tflite", ["generate"], prompt_length=4, max_length=LENGTH,
        strategy=strategy(STRATEGIES[name]),
    )  # fmt: skip
    assert not report.custom_operators
    found, expected = runtime.load(report.path).generate(PROMPTS), compiled_rows(name, False)
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    if name == "greedy":
        assert rows(found) == [guided(x, SCALE) for x in PROMPTS]
    else:
        np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)


@tensorflow_only
@pytest.mark.slow
@pytest.mark.parametrize("scale", [3.0, -3.0])
def test_a_drawing_under_xla(scale):
    """Masks by absolute position, and suppressed text after the guidance."""
    from small_drawing import LENGTH, ROWS, dalle, drawn, greedy

    captions = [[2, 4], [9], [10, 6, 6]]
    generator = Generator(dalle(), LENGTH, strategy=greedy(scale), jit_compile=True)
    found = ROWS.codes(generator(ROWS.prompts(captions)).tokens)
    np.testing.assert_array_equal(found, drawn(captions, scale))
    assert np.any(found != drawn(captions, 1.0))


def test_as_transformers_does(tmp_path):
    """Whose negative prompt is as long as the prompt, so that both have the same positions."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from live_transformers import made

    sizes = {
        "vocab_size": 17, "n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 40,
        "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0,
    }  # fmt: skip
    theirs, ours = made("GPT2LMHeadModel", sizes, tmp_path)
    prompt, negative = [[3, 4, 6]], (9, 5, 8)
    found = {}
    for scale in (3.0, 1.5):
        expected = theirs.generate(
            torch.tensor(prompt), max_new_tokens=9, do_sample=False, guidance_scale=scale,
            negative_prompt_ids=torch.tensor([negative]),
        )  # fmt: skip
        guide = Greedy(processors=[processors.Guidance(scale, negative)])
        found[scale] = Generator(ours, max_new_tokens=9, strategy=guide)(prompt).tokens
        np.testing.assert_array_equal(found[scale], expected.numpy())
    assert np.any(found[3.0] != found[1.5])


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: processors.Guidance("2", EMPTY), TypeError, "scale must be a number"),
        (lambda: processors.Guidance(2.0, []), ValueError, "prompt must be at least one id"),
        (
            lambda: Generator(
                model(), 5, strategy=Greedy(processors=[processors.Guidance(2.0, [17])])
            ),
            ValueError,
            r"Guidance: prompt must be in 0..16, got 17",
        ),
        (
            lambda: Generator(model(), 5, strategy=strategy(Contrastive, 2.0, 3))([[3, 4]]),
            ValueError,
            "Guidance is for strategies that choose a token in each step, .* got Contrastive",
        ),
        (
            lambda: Generator(
                model(), LENGTH, strategy=Drafted(PromptLookup(), strategy=strategy(Greedy))
            )([[3, 4]]),
            ValueError,
            "Guidance ",
        ),
        (
            lambda: Generator(
                model(),
                5,
                strategy=Greedy(
                    processors=[processors.Guidance(2.0, [1]), processors.Guidance(2.0, [2])]
                ),
            )([[3, 4]]),
            ValueError,
            "all Guidance must have the same prompt",
        ),
        (
            lambda: processors.Guidance(2.0, [1])(
                np.zeros((1, 3), "float32"), Context(np.zeros((1, 2)), np.ones((1, 2)), 0, None)
            ),
            ValueError,
            "Guidance needs the logits after the empty prompt",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()
