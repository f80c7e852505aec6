"""Drafts change the number of steps, and nothing else."""

import keras
import numpy as np
import pytest
from grids import first_of
from keras import ops
from keras_weights import randomize
from small_models import SOURCES, START, encoder_decoder

from keras_tfm import models
from keras_tfm.generation import (
    Beam,
    Contrastive,
    Draft,
    Drafted,
    DraftHeads,
    DraftModel,
    Generator,
    Greedy,
    PromptLookup,
    Sample,
    generate,
    processors,
)
from keras_tfm.generation.loop import GenerationLoop
from keras_tfm.generation.strategies import Task

VOCABULARY, LENGTH, END = 13, 24, 6
SIZE = {"dim": 16, "num_layers": 2, "num_heads": 2, "intermediate_dim": 16}
PROMPTS = [[3, 4, 5, 3, 4], [7, 8, 9], [1, 2, 1, 2, 1, 2, 1]]


@pytest.fixture(scope="module")
def decoder():
    return randomize(models.gpt(VOCABULARY, max_length=LENGTH, **SIZE))


@pytest.fixture(scope="module")
def with_heads(decoder):
    return randomize(models.with_draft_heads(decoder, 4))


@pytest.fixture(scope="module")
def small():
    size = {"dim": 6, "num_layers": 1, "num_heads": 3, "intermediate_dim": 5}
    return randomize(models.gpt(VOCABULARY, max_length=LENGTH, **size), seed=3)


class Oracle(Draft):
    """Drafts the tokens that greedy search finds, shifted by `wrong`."""

    def __init__(self, tokens, wrong=0):
        self.tokens = (np.asarray(tokens) + wrong) % VOCABULARY

    def propose(self, task, tokens, position, count, heads=None):
        longer = np.pad(self.tokens, [(0, 0), (0, count)]).astype("int32")
        return ops.slice(ops.convert_to_tensor(longer), (0, position + 1), (len(longer), count))


def steps_of(model, prompt, strategy, end_ids=()):
    loop = GenerationLoop(model, {}, "tokens", np.array(prompt, "int32"), LENGTH, end_ids, strategy)
    found = {name: ops.convert_to_numpy(x) for name, x in loop.run().items()}
    return found["tokens"], int(found["passes"])


@pytest.mark.parametrize(
    ("length", "end_id", "rows"),
    [
        pytest.param(1, None, 3, marks=pytest.mark.slow),
        pytest.param(3, END, 1, marks=pytest.mark.slow),
        (3, [END, 2], 3),
        pytest.param(7, END, 3, marks=pytest.mark.slow),
    ],
)
def test_prompt_lookup_finds_what_greedy_search_finds(decoder, length, end_id, rows):
    arguments = {"max_length": LENGTH, "end_id": end_id}
    wanted = generate(decoder, PROMPTS[:rows], **arguments)
    drafted = Drafted(PromptLookup(), length)
    found = Generator(decoder, strategy=drafted, **arguments)(PROMPTS[:rows])
    np.testing.assert_array_equal(found.tokens, wanted.tokens)
    np.testing.assert_allclose(found.scores, wanted.scores, atol=2e-5)


@pytest.mark.parametrize("length", first_of([2, 4]))
def test_draft_heads_find_what_greedy_search_finds(decoder, with_heads, length):
    wanted = generate(with_heads, PROMPTS, LENGTH, end_id=END)
    strategy = Drafted(DraftHeads(), length)
    found = Generator(with_heads, LENGTH, end_id=END, strategy=strategy)(PROMPTS)
    np.testing.assert_array_equal(found.tokens, wanted.tokens)
    np.testing.assert_allclose(found.scores, wanted.scores, atol=2e-5)
    # The heads leave the model's own logits as they are.
    whole, drafts = with_heads.predict(np.array([PROMPTS[0]]), verbose=0)
    np.testing.assert_array_equal(whole, decoder.predict(np.array([PROMPTS[0]]), verbose=0))
    assert drafts.shape == (1, 5, 4, VOCABULARY)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="jit_compile is TensorFlow's")
@pytest.mark.parametrize(
    "draft",
    [
        pytest.param(DraftModel, marks=pytest.mark.slow),
        PromptLookup(2),
        pytest.param(DraftHeads(), marks=pytest.mark.slow),
    ],
)
def test_xla(with_heads, small, draft):
    draft = DraftModel(small) if draft is DraftModel else draft
    wanted = generate(with_heads, PROMPTS, LENGTH, end_id=END)
    compiled = Generator(
        with_heads, LENGTH, end_id=END, strategy=Drafted(draft, 3), jit_compile=True
    )(PROMPTS)
    np.testing.assert_array_equal(compiled.tokens, wanted.tokens)


@pytest.mark.parametrize("sources", [pytest.param((), marks=pytest.mark.slow), ("source",)])
def test_an_encoder_decoder(sources):
    model = encoder_decoder()
    arguments = {"max_length": 19, "start_id": START, "end_id": 2}
    wanted = Generator(model, **arguments)(SOURCES)
    drafted = Drafted(PromptLookup(2, sources), 5)
    found = Generator(model, strategy=drafted, **arguments)(SOURCES)
    np.testing.assert_array_equal(found.tokens, wanted.tokens)


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(Sample(seed=3), id="sample", marks=pytest.mark.slow),
        pytest.param(Sample(temperature=0.7, top_k=4, seed=5, hypotheses=3), id="top_k"),
        pytest.param(
            Greedy(processors=[processors.RepetitionPenalty(1.7)]),
            id="penalty",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            Greedy(processors=[processors.NoRepeatNGram(2), processors.MinNewTokens(6)]),
            id="ngrams",
        ),
    ],
)
def test_other_strategies_inside(decoder, strategy):
    """Sampling draws the same tokens with the same seed: the distribution is the same."""
    arguments = {"max_length": LENGTH, "end_id": END}
    wanted = Generator(decoder, strategy=strategy, **arguments)(PROMPTS)
    drafted = Drafted(PromptLookup(2), 3, strategy)
    found = Generator(decoder, strategy=drafted, **arguments)(PROMPTS)
    np.testing.assert_array_equal(found.tokens, wanted.tokens)
    np.testing.assert_allclose(found.scores, wanted.scores, atol=2e-5)


@pytest.mark.parametrize(
    ("length", "end_id", "rows"),
    first_of([(4, [END, 2], 3), (1, None, 3), (3, END, 1)]),
)
def test_a_draft_model_finds_what_greedy_search_finds(decoder, small, length, end_id, rows):
    arguments = {"max_length": LENGTH, "end_id": end_id}
    wanted = generate(decoder, PROMPTS[:rows], **arguments)
    drafted = Drafted(DraftModel(small), length)
    found = Generator(decoder, strategy=drafted, **arguments)(PROMPTS[:rows])
    np.testing.assert_array_equal(found.tokens, wanted.tokens)
    # Sums of 24 log-probabilities in float32, of steps of one and of several tokens.
    np.testing.assert_allclose(found.scores, wanted.scores, atol=2e-5)


def test_a_draft_model_with_processors_that_read_the_last_tokens(decoder, small):
    """At the end of a row it drafts past the last column."""
    rules = [processors.NoRepeatNGram(2), processors.NoBadWords([[3, 4], [5]])]
    strategy = Greedy(processors=rules)
    wanted = generate(decoder, [PROMPTS[0]], LENGTH, strategy=strategy).tokens
    drafted = Drafted(DraftModel(small), 4, strategy)
    found = generate(decoder, [PROMPTS[0]], LENGTH, strategy=drafted).tokens
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("length", "strategy"),
    [
        (4, Greedy()),
        (2, Sample(temperature=1.5, seed=4)),
        *(pytest.param(x, Greedy(), marks=pytest.mark.slow) for x in (1, 2)),
        *(pytest.param(x, Sample(temperature=1.5, seed=4), marks=pytest.mark.slow) for x in (1, 4)),
    ],
)
def test_a_draft_model_that_is_the_model_is_always_right(decoder, length, strategy):
    """Its caches hold the right keys, also after steps in which all drafts were right."""
    wanted = generate(decoder, [PROMPTS[0]], LENGTH, strategy=strategy).tokens
    drafted = Drafted(DraftModel(decoder), length, strategy)
    loop = GenerationLoop(
        decoder,
        {},
        "tokens",
        np.array([PROMPTS[0]], "int32"),
        LENGTH,
        (),
        drafted,
        seed=None if strategy.seed is None else np.array([0, strategy.seed], "int32"),
    )
    found = loop.run()
    if strategy.seed is None:
        np.testing.assert_array_equal(ops.convert_to_numpy(found["tokens"]), wanted)
    assert int(found["passes"]) == -(-(LENGTH - len(PROMPTS[0])) // (length + 1))


def test_a_draft_model_with_the_source_and_one_without(small):
    model, draft = encoder_decoder(), encoder_decoder()
    draft.set_weights([x + np.float32(0.05) * np.sign(x) for x in model.get_weights()])
    arguments = {"max_length": 19, "start_id": START, "end_id": 2}
    wanted = Generator(model, **arguments)(SOURCES)
    found = Generator(model, strategy=Drafted(DraftModel(draft), 3), **arguments)(SOURCES)
    np.testing.assert_array_equal(found.tokens, wanted.tokens)
    size = model.outputs[0].shape[-1]
    alone = randomize(models.gpt(size, dim=6, num_layers=1, num_heads=2, intermediate_dim=5))
    found = Generator(model, strategy=Drafted(DraftModel(alone), 3), **arguments)(SOURCES)
    np.testing.assert_array_equal(found.tokens, wanted.tokens)


def test_a_draft_model_whose_input_has_no_name(decoder, small):
    ids = keras.Input((None,), dtype="int32")
    drafted = Drafted(DraftModel(keras.Model(ids, small(ids))), 3)
    wanted = generate(decoder, [PROMPTS[0]], LENGTH).tokens
    found = generate(decoder, [PROMPTS[0]], LENGTH, strategy=drafted).tokens
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.slow
def test_samples_have_the_distribution_of_the_model(decoder, small):
    """Chi-square of the second new token over many seeds, against the model's probabilities."""
    prompt = np.array([PROMPTS[1]], "int32")
    generator = Generator(decoder, 6, strategy=Drafted(DraftModel(small), 2, Sample()))
    keras.utils.set_random_seed(5)
    found = np.array([generator(prompt).tokens[0, 4] for _ in range(800)])

    def probabilities(rows):
        logits = decoder.predict(rows, verbose=0)[:, -1].astype("float64")
        exps = np.exp(logits - logits.max(axis=1, keepdims=True))
        return exps / exps.sum(axis=1, keepdims=True)

    first = probabilities(prompt)[0]
    longer = np.column_stack([np.repeat(prompt, VOCABULARY, axis=0), np.arange(VOCABULARY)])
    expected = 800 * first @ probabilities(longer)
    counts = np.bincount(found, minlength=VOCABULARY)
    chi_square = np.sum((counts - expected) ** 2 / expected)
    # 12 degrees of freedom: above 39.1 once in 10,000 runs, and the seed is fixed.
    assert chi_square < 39.1
    # The smaller model's own distribution would be noticed.
    assert np.sum((counts - 800 / VOCABULARY) ** 2 / (800 / VOCABULARY)) > 39.1


def test_nan_in_a_draft_alone_changes_nothing(decoder, small, with_heads):
    broken = keras.models.clone_model(small)
    broken.set_weights([np.full_like(x, np.nan) for x in small.get_weights()])
    wanted = generate(decoder, PROMPTS, LENGTH).tokens
    found = generate(decoder, PROMPTS, LENGTH, strategy=Drafted(DraftModel(broken), 3)).tokens
    np.testing.assert_array_equal(found, wanted)
    heads = keras.models.clone_model(with_heads)
    heads.set_weights(with_heads.get_weights())
    generator = Generator(heads, LENGTH, strategy=Drafted(DraftHeads(), 3))
    layer = next(x for x in heads.layers if x.name.startswith("draft_heads"))
    layer.set_weights([np.full_like(x, np.nan) for x in layer.get_weights()])
    np.testing.assert_array_equal(generator(PROMPTS).tokens, wanted)


def test_a_draft_model_that_does_not_fit_is_named(decoder, small):
    other = models.gpt(VOCABULARY + 1, dim=6, num_layers=1, num_heads=2, intermediate_dim=5)
    with pytest.raises(ValueError, match=r"has logits over 14 ids, but the model .* has 13"):
        generate(decoder, PROMPTS, LENGTH, strategy=Drafted(DraftModel(other)))
    with pytest.raises(ValueError, match="the draft model reads the input 'source'"):
        strategy = Drafted(DraftModel(encoder_decoder()))
        object.__setattr__(strategy.draft, "check", lambda size: None)
        generate(decoder, PROMPTS, LENGTH, strategy=strategy)
    with pytest.raises(ValueError, match=r"a draft model has one output, logits \(B, T, V\)"):
        DraftModel(models.with_draft_heads(small, 2))


def test_a_draft_model_with_fewer_positions(decoder):
    size = {"dim": 6, "num_layers": 1, "num_heads": 2, "intermediate_dim": 5}
    short = randomize(models.gpt(VOCABULARY, max_length=9, **size))
    wanted = generate(decoder, PROMPTS, LENGTH).tokens
    found = generate(decoder, PROMPTS, LENGTH, strategy=Drafted(DraftModel(short), 3)).tokens
    np.testing.assert_array_equal(found, wanted)


def test_the_longest_draft_that_fits(decoder):
    wanted = generate(decoder, PROMPTS[1:2], 8).tokens
    found = generate(decoder, PROMPTS[1:2], 8, strategy=Drafted(PromptLookup(), 6))
    np.testing.assert_array_equal(found.tokens, wanted)


@pytest.mark.parametrize("length", [1, 4])
def test_right_drafts_save_steps(decoder, length):
    prompt = [PROMPTS[0]]
    wanted = generate(decoder, prompt, LENGTH).tokens
    found, steps = steps_of(decoder, prompt, Drafted(Oracle(wanted), length))
    np.testing.assert_array_equal(found, wanted)
    assert steps == -(-(LENGTH - len(prompt[0])) // (length + 1))


def test_wrong_drafts_cost_a_step_a_token(decoder):
    prompt = [PROMPTS[0]]
    wanted = generate(decoder, prompt, LENGTH).tokens
    found, steps = steps_of(decoder, prompt, Drafted(Oracle(wanted, wrong=1), 4))
    np.testing.assert_array_equal(found, wanted)
    assert steps == LENGTH - len(prompt[0])


def test_a_batch_advances_as_its_slowest_row(decoder):
    prompts = [PROMPTS[0], PROMPTS[0][::-1]]
    wanted = np.concatenate([generate(decoder, [row], LENGTH).tokens for row in prompts])
    draft = Oracle(wanted)
    draft.tokens[1] = (draft.tokens[1] + 1) % VOCABULARY
    found, steps = steps_of(decoder, prompts, Drafted(draft, 4))
    np.testing.assert_array_equal(found, wanted)
    assert steps == LENGTH - len(prompts[0])


def test_a_row_that_has_ended_holds_no_other_back(decoder):
    free = generate(decoder, [PROMPTS[0]], LENGTH).tokens[0]
    end = int(free[len(PROMPTS[0])])  # the first new token ends this row
    prompts = [PROMPTS[0], PROMPTS[0][::-1]]
    wanted = np.concatenate(
        [generate(decoder, [row], LENGTH, end_id=end).tokens for row in prompts]
    )
    draft = Oracle(wanted)
    draft.tokens[0] = 0  # all wrong, after the end
    _, alone = steps_of(decoder, prompts[1:], Drafted(Oracle(wanted[1:]), 4), (end,))
    found, steps = steps_of(decoder, prompts, Drafted(draft, 4), (end,))
    np.testing.assert_array_equal(found, wanted)
    assert steps <= alone + 1  # the first step, in which the wrong row still runs


def test_nan_in_the_model_is_an_error(decoder):
    model = keras.models.clone_model(decoder)
    model.set_weights(decoder.get_weights())
    generator = Generator(model, LENGTH, strategy=Drafted(PromptLookup(), 3))
    model.set_weights([np.full_like(x, np.nan) for x in model.get_weights()])
    with pytest.raises(ValueError, match="NaN"):
        generator(PROMPTS)


def looked_up(history, tokens, position, count, ngram):
    """`PromptLookup`, written for one row with lists."""
    known = [*history, *tokens[: position + 1]]
    last = len(known) - 1

    def score(place):
        n = 0
        while n < ngram and n <= position and place >= n and known[place - n] == known[last - n]:
            n += 1
        return n

    best = max(range(last), key=lambda place: (score(place), place))
    following = known[best + 1 :]
    return [following[i % len(following)] for i in range(count)]


def test_prompt_lookup_against_lists():
    generator = np.random.default_rng(0)
    for _ in range(60):
        ngram, count, position = generator.integers(1, 5), generator.integers(1, 6), 0
        source = generator.integers(1, 4, (2, 9)).astype("int32")
        tokens = generator.integers(1, 4, (2, 12)).astype("int32")
        position = int(generator.integers(1, 12))
        tokens[:, position + 1 :] = 0
        task = Task(2, 12, 0, (), None, None, False, None, sources={"source": source})
        for sources in ((), ("source",)):
            draft = PromptLookup(int(ngram), sources)
            found = ops.convert_to_numpy(draft.propose(task, tokens, position, int(count)))
            for row, history in enumerate(source):
                before = history.tolist() if sources else []
                wanted = looked_up(before, tokens[row].tolist(), position, count, ngram)
                assert found[row].tolist() == wanted


@pytest.mark.parametrize("strategy", [Beam(2), Contrastive(), Drafted(PromptLookup())])
def test_several_hypotheses_cannot_be_drafted(strategy):
    with pytest.raises(ValueError, match="several hypotheses cannot be drafted"):
        Drafted(PromptLookup(), 2, strategy)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"draft": "lookup"}, "draft must be a Draft such as PromptLookup"),
        ({"draft": PromptLookup(), "length": 2.5}, "length must be an integer"),
        ({"draft": PromptLookup(), "strategy": "greedy"}, "strategy must be a Strategy"),
    ],
)
def test_arguments_of_the_wrong_type(arguments, error):
    with pytest.raises(TypeError, match=error):
        Drafted(**arguments)
    with pytest.raises(TypeError, match="sources must be a list of names"):
        PromptLookup(sources="source")


def test_what_does_not_fit_is_named(decoder, with_heads):
    with pytest.raises(ValueError, match="length=7 drafted tokens do not fit a row of 8 tokens"):
        generate(decoder, PROMPTS[1:2], 8, strategy=Drafted(PromptLookup(), 7))
    with pytest.raises(ValueError, match=r"DraftHeads needs a model with two outputs.*got 1"):
        generate(decoder, PROMPTS, LENGTH, strategy=Drafted(DraftHeads()))
    with pytest.raises(ValueError, match="at most the number of heads"):
        generate(with_heads, PROMPTS, LENGTH, strategy=Drafted(DraftHeads(), 5))
    with pytest.raises(ValueError, match="reads the input 'source', the model has"):
        generate(decoder, PROMPTS, LENGTH, strategy=Drafted(PromptLookup(sources=["source"])))
    with pytest.raises(ValueError, match="Drafted cannot be streamed"):
        next(Generator(decoder, LENGTH, strategy=Drafted(PromptLookup())).stream(PROMPTS))
