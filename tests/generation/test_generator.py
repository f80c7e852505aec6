"""`Generator` and `generate`: the right tokens and scores, and what they refuse."""

import keras
import numpy as np
import pytest
from blocks import decoder_block
from compare import assert_best
from grids import first_of
from padded_models import translator
from small_models import (
    BLOCK,
    DIM,
    SOURCE_SIZE,
    SOURCES,
    START,
    TARGET_SIZE,
    brute_force,
    decoder_only,
    encoder_decoder,
    log_softmax,
    logits_of,
    randomize,
    telling_end,
    unpadded,
)

from keras_tfm.generation import Beam, Contrastive, Generator, Greedy, generate
from keras_tfm.layers import MultiHeadCrossAttention, TokenEmbedding
from keras_tfm.models import gpt, transformer

MAX_LENGTH = 9
# Logits of order 1 differ by 1e-6 between a full pass and steps; eight log-probabilities add up.
SCORE = 1e-5


@pytest.fixture(scope="module", params=first_of({"post_norm": False, "pre_norm": True}))
def model(request):
    return encoder_decoder(request.param, num_layers=1 if request.param else 2)


@pytest.fixture(scope="module")
def generator(model):
    return Generator(model, MAX_LENGTH, START)


@pytest.fixture(scope="module")
def one():
    """One model, where the position of the norms cannot matter."""
    return encoder_decoder()


@pytest.fixture(scope="module")
def generator_of_one(one):
    return Generator(one, MAX_LENGTH, START)


def expect(model, end_id=None, prompts=None):
    """What brute force makes of each source, by itself and without its padding."""
    prompts = [[START]] * len(SOURCES) if prompts is None else prompts
    rows = zip(SOURCES, prompts, strict=True)
    return [brute_force(model, unpadded(row), prompt, MAX_LENGTH, end_id) for row, prompt in rows]


def assert_generated(generated, expected):
    tokens, scores, margins = zip(*expected, strict=True)
    assert min(margins) > 1e-4  # far above rounding: no tie decides a token
    assert generated.tokens.tolist() == list(tokens)
    assert generated.tokens.dtype == np.int32
    np.testing.assert_allclose(generated.scores, scores, rtol=0.0, atol=SCORE)


@pytest.mark.default
def test_greedy_is_brute_force_whatever_the_padding(model, generator):
    expected = expect(model)
    rows = [tokens for tokens, _, _ in expected]
    assert len({tuple(row) for row in rows}) >= 3  # the sources are told apart
    assert len({token for row in rows for token in row}) >= 5
    assert_generated(generator({"source": SOURCES}), expected)


def test_a_batch_is_its_rows_one_by_one(generator_of_one):
    rows = np.concatenate([generator_of_one(row[np.newaxis]).tokens for row in SOURCES])
    assert generator_of_one(SOURCES).tokens.tolist() == rows.tolist()


def test_scores_are_log_probabilities_of_the_full_pass(model, generator):
    tokens, scores = generator(SOURCES)
    steps = log_softmax(logits_of(model, SOURCES, tokens[:, :-1]))
    gained = np.take_along_axis(steps, tokens[:, 1:, np.newaxis].astype("int64"), axis=2)[..., 0]
    np.testing.assert_allclose(scores, gained.sum(axis=1), rtol=0.0, atol=SCORE)
    assert scores.dtype == np.float32


def test_rows_that_end_are_filled_with_zeros(model, generator):
    end_id = telling_end(generator(SOURCES).tokens)
    assert_generated(generate(model, SOURCES, MAX_LENGTH, START, end_id), expect(model, end_id))


def test_all_rows_may_end_at_once(one, generator_of_one):
    end_id = int(generator_of_one(SOURCES[:1]).tokens[0, 1])
    generated = generate(one, SOURCES[:1], MAX_LENGTH, START, end_id)
    assert generated.tokens.tolist() == [[START, end_id] + [0] * (MAX_LENGTH - 2)]


def test_the_start_token_may_be_the_end_token(one):
    """As in translation models that begin with the end of a sentence."""
    for start in range(1, TARGET_SIZE):
        expected = expect(one, start, [[start]] * len(SOURCES))
        if any(start in tokens[1:] for tokens, _, _ in expected):
            break
    assert_generated(generate(one, SOURCES, MAX_LENGTH, start, end_id=start), expected)


@pytest.mark.parametrize("max_length", first_of([2, 5]))
def test_max_length_counts_the_start_token(one, generator_of_one, max_length):
    tokens = generate(one, SOURCES, max_length, START).tokens
    assert tokens.tolist() == generator_of_one(SOURCES).tokens[:, :max_length].tolist()


@pytest.mark.parametrize("length", [2, MAX_LENGTH - 1])
def test_prompts_are_continued(model, generator, length):
    prompts = np.random.default_rng(5).integers(1, TARGET_SIZE, (len(SOURCES), length)).tolist()
    generated = generator({"source": SOURCES, "target": prompts})
    assert_generated(generated, expect(model, prompts=prompts))


@pytest.mark.parametrize("prompt", [[1, 0, 7], [0, 0, 7], [3, 5, 7]])
def test_padding_before_and_inside_a_prompt_is_masked(one, generator_of_one, prompt):
    """It keeps its position, as in the full pass."""
    generated = generator_of_one({"source": SOURCES, "target": [prompt] * len(SOURCES)})
    assert_generated(generated, expect(one, prompts=[prompt] * len(SOURCES)))


@pytest.mark.parametrize("kind", [list, np.array, keras.ops.convert_to_tensor])
def test_padding_after_a_prompt_is_stripped(generator_of_one, kind):
    padded = [[3, 5, 0, 0], [1, 0, 7, 0], [0, 4, 0, 0], [1, 2, 3, 4]]
    rows = [[3, 5], [1, 0, 7], [0, 4], [1, 2, 3, 4]]
    expected = generator_of_one({"source": SOURCES, "target": rows})
    actual = generator_of_one({"source": SOURCES, "target": kind(padded)})
    assert actual.tokens.tolist() == expected.tokens.tolist()
    np.testing.assert_array_equal(actual.scores, expected.scores)


def test_padding_after_a_prompt_is_the_model_s_padding_id():
    """5 is padding, 0 is a token."""
    model = randomize(translator(), 15)
    generator = Generator(model, MAX_LENGTH, START)
    target = np.array([[1, 0, 5], [1, 3, 0], [5, 4, 3], [1, 5, 5]], "int32")
    expected = generator({"source": SOURCES, "target": [[1, 0], [1, 3, 0], [5, 4, 3], [1]]})
    actual = generator({"source": SOURCES, "target": target})
    assert actual.tokens.tolist() == expected.tokens.tolist()
    assert actual.tokens[1, :3].tolist() == [1, 3, 0]


def test_a_start_token_that_is_the_padding_id_is_kept(one):
    expected = generate(one, SOURCES, MAX_LENGTH, start_id=0).tokens
    prompts = np.zeros((len(SOURCES), 2), "int32")
    actual = Generator(one, MAX_LENGTH, start_id=0)({"source": SOURCES, "target": prompts}).tokens
    assert actual.tolist() == expected.tolist()


def test_a_prompt_of_padding_alone_is_refused(generator_of_one):
    with pytest.raises(ValueError, match="a prompt must have at least one token"):
        generator_of_one({"source": SOURCES[:2], "target": [[1, 3], [0, 0]]})


@pytest.mark.parametrize(
    "prompts", [np.array([[1, 5, 0]]), [[1, 5, 7, 0, 0], [1, 3, 4, 5, 6]]], ids=["array", "list"]
)
def test_padding_after_a_prompt_is_refused_without_a_mask(unmasked, prompts):
    zeros = np.count_nonzero(np.asarray(prompts)[0] == 0)
    message = f"row 0 of 'tokens' must not end in padding.* got {zeros} times 0"
    with pytest.raises(ValueError, match=message):
        unmasked(prompts)


@pytest.mark.parametrize(
    "prompts", [[[1, 5, 0]], [[1, 5, 0], [1, 0]], [[1, 0], [1, 3]], np.zeros((2, 1), "int32")]
)
def test_id_0_is_a_token_of_a_prompt_without_a_mask(unmasked, prompts):
    tokens = unmasked(prompts).tokens
    rows = [[int(i) for i in row] for row in prompts]
    assert [row[: len(p)].tolist() for row, p in zip(tokens, rows, strict=True)] == rows
    alone = [unmasked([row]).tokens[0].tolist() for row in rows]
    assert tokens.tolist() == alone


@pytest.fixture(scope="module")
def unmasked():
    model = gpt(13, dim=8, num_layers=1, num_heads=2, intermediate_dim=17, max_length=MAX_LENGTH)
    return Generator(randomize(model, 3), MAX_LENGTH)


# A table of 40 positions: prompts of 33 to 40 tokens are longer than its largest power of two.


@pytest.fixture(scope="module")
def long_gpt():
    model = gpt(13, dim=8, num_layers=1, num_heads=2, intermediate_dim=17, max_length=40)
    return randomize(model, 3)


@pytest.mark.parametrize(
    "strategy",
    [Greedy(), *(pytest.param(x, marks=pytest.mark.slow) for x in (Beam(2), Contrastive(2)))],
    ids=lambda s: type(s).__name__,
)
def test_prompts_may_fill_the_position_table(long_gpt, strategy):
    prompts = np.random.default_rng(1).integers(1, 13, (2, 37)).tolist()
    prompts[1] = prompts[1][:35]
    together = Generator(long_gpt, max_new_tokens=3, strategy=strategy)(prompts).tokens
    assert together.shape == (2, 40)
    for row, prompt in zip(together, prompts, strict=True):
        alone = generate(long_gpt, [prompt], len(prompt) + 3, strategy=strategy).tokens[0]
        assert row[: len(alone)].tolist() == alone.tolist()
        if isinstance(strategy, Greedy):
            expected, _, margin = brute_force(long_gpt, None, prompt, len(prompt) + 3)
            assert margin > 1e-4
            assert alone.tolist() == expected


def test_the_last_position_of_the_table_may_be_read(long_gpt):
    prompt = np.arange(38)[np.newaxis] % 13
    tokens = generate(long_gpt, prompt, max_new_tokens=3).tokens
    assert tokens.shape == (1, 41)
    assert_best(long_gpt(tokens[:, :-1])[:, 37:], tokens[:, 38:], 1e-5)


def test_more_tokens_than_the_position_table_has(long_gpt):
    message = (
        r"a row of 42 tokens does not fit the position table, which has 40 .* fewer than 5 new"
    )
    with pytest.raises(ValueError, match=message):
        generate(long_gpt, [[3] * 37], max_new_tokens=5)
    message = r"a row of 41 tokens .* fewer than 4 new tokens"  # it reads the last token, too
    with pytest.raises(ValueError, match=message):
        generate(long_gpt, [[3] * 37], max_new_tokens=4, strategy=Contrastive(2))
    message = "a prompt must have at most 40 tokens, the length of the position table, got 41"
    with pytest.raises(ValueError, match=message):
        generate(long_gpt, [[3] * 41], max_new_tokens=3)


@pytest.mark.parametrize(("normalize_first", "length"), first_of([(True, 3), (False, 1)]))
def test_decoder_only(normalize_first, length):
    model = decoder_only(normalize_first)
    prompts = np.random.default_rng(7).integers(1, TARGET_SIZE, (3, length))
    expected = [brute_force(model, None, prompt, MAX_LENGTH) for prompt in prompts.tolist()]
    assert_generated(generate(model, prompts, MAX_LENGTH), expected)
    assert_generated(generate(model, {"tokens": prompts}, MAX_LENGTH), expected)


@pytest.mark.parametrize("shared", first_of([True, False]))
def test_the_builder_has_tied_logits(shared):
    sizes = (TARGET_SIZE, TARGET_SIZE) if shared else (SOURCE_SIZE, TARGET_SIZE)
    options = {"dim": 6, "num_layers": 1, "num_heads": 2, "intermediate_dim": 17}
    model = transformer(*sizes, normalize_first=True, **options)
    randomize(model, 17)
    assert_generated(generate(model, SOURCES, MAX_LENGTH, START), expect(model))


@pytest.mark.default
def test_weights_that_change_are_seen():
    """As when a generator is made before training, or kept through it."""
    model = encoder_decoder()
    generator = Generator(model, MAX_LENGTH, START)
    before = generator(SOURCES).tokens
    randomize(model, seed=8)
    assert_generated(generator(SOURCES), expect(model))
    assert not np.array_equal(before, generator(SOURCES).tokens)


def test_a_strategy_chooses():
    class Least(Greedy):
        def choose(self, logits, context):
            return super().choose(-logits, context)

    model = encoder_decoder()
    tokens, scores = generate(model, SOURCES[:1], 3, START, strategy=Least())
    first = logits_of(model, SOURCES[:1], [[START]])[0, -1]
    assert tokens[0, 1] == np.argmin(first)
    second = logits_of(model, SOURCES[:1], tokens[:, :2])[0, -1]
    assert tokens[0, 2] == np.argmin(second)
    expected = log_softmax(first).min() + log_softmax(second).min()
    np.testing.assert_allclose(scores, [expected], rtol=0.0, atol=SCORE)


def test_ties_go_to_the_lowest_id():
    model = encoder_decoder()
    model.get_layer("head").kernel.assign(np.zeros((7, TARGET_SIZE)))
    model.get_layer("head").bias.assign(np.eye(TARGET_SIZE)[5] + np.eye(TARGET_SIZE)[8])
    assert generate(model, SOURCES[:1], 4, START).tokens.tolist() == [[START, 5, 5, 5]]


def test_no_rows_in_no_rows_out():
    generated = generate(encoder_decoder(), SOURCES[:0], MAX_LENGTH, START, end_id=2)
    assert generated.tokens.shape == (0, MAX_LENGTH)
    assert generated.scores.shape == (0,)


def test_a_source_of_length_0_is_one_of_padding_alone(generator_of_one):
    """As the runtime has it, which pads what is short."""
    padding, empty = (generator_of_one(np.zeros((1, n), "int32")) for n in (3, 0))
    assert np.isfinite(padding.scores).all()
    assert empty.tokens.tolist() == padding.tokens.tolist()


def test_ids_may_be_lists_and_of_any_integer_type(generator_of_one):
    tokens = generator_of_one(SOURCES).tokens.tolist()
    assert generator_of_one(SOURCES.tolist()).tokens.tolist() == tokens
    assert generator_of_one(SOURCES.astype("uint8")).tokens.tolist() == tokens
    assert generator_of_one(keras.ops.convert_to_tensor(SOURCES, "int64")).tokens.tolist() == tokens


# Refused


@pytest.fixture(scope="module")
def small():
    return Generator(encoder_decoder(), 5, START)


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ([[11, 3]], ValueError, r"source: ids must be in 0\.\.10, got 3\.\.11"),
        ([[-1, 3]], ValueError, r"source: ids must be in 0\.\.10, got -1\.\.3"),
        # 3 in 32 bits
        ([[2**32 + 3]], ValueError, r"source: ids must be in 0\.\.10, got 4294967299"),
        ([[3.0, 4.0]], TypeError, r"input 'source' must be integers, got float64"),
        ([[True, False]], TypeError, r"input 'source' must be integers, got bool"),
        ({"source": [[3]], "target": [[13]]}, ValueError, r"target: ids must be in 0\.\.12"),
        ({"source": [[3]], "target": [[1.0]]}, TypeError, r"'target' must be integers"),
        ({"sauce": [[3]]}, ValueError, r"missing: \['source'\], unknown: \['sauce'\]"),
        ({}, ValueError, r"missing: \['source'\], unknown: \[\]"),
        ({"target": [[1]]}, ValueError, r"missing: \['source'\]"),
        ({"source": [[3]], "x": [[1]]}, ValueError, r"missing: \[\], unknown: \['x'\]"),
    ],
)
def test_bad_inputs(small, inputs, error, message):
    with pytest.raises(error, match=message):
        small(inputs)


@pytest.mark.parametrize("strategy", ["beam", Beam], ids=str)
def test_a_strategy_that_is_none(one, strategy):
    with pytest.raises(TypeError, match=r"strategy must be a Strategy such as Beam\(4\), got"):
        generate(one, SOURCES[:1], 3, START, strategy=strategy)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1,), r"a prompt must have shape \(B, P\), got \(1,\)"),
        ((1, 0), "a prompt must have at least one token"),
        ((1, 5), r"fewer than max_length \(5\), got 5 to 5"),
        ((1, 7), r"fewer than max_length \(5\), got 7 to 7"),
        ((1, 2, 2), r"a prompt must have shape \(B, P\), got \(1, 2, 2\)"),
    ],
)
def test_bad_prompts(small, shape, message):
    prompt = np.ones(shape, "int32")
    with pytest.raises(ValueError, match=message):
        small({"source": SOURCES[:1], "target": prompt})


@pytest.mark.parametrize(("sources", "prompts"), [(1, 2), (2, 1), (2, 3)])
def test_inputs_of_unequal_rows(small, sources, prompts):
    inputs = {"source": SOURCES[:sources], "target": np.ones((prompts, 1), "int32")}
    with pytest.raises(ValueError, match="rows"):
        small(inputs)


@pytest.mark.parametrize("source", [3, [3, 4], [[[3, 4]]]])
def test_sources_of_another_rank(small, source):
    with pytest.raises(ValueError, match=r"source.* shape"):
        small(source)


def test_ragged_sources(small):
    with pytest.raises(ValueError, match="rows of other lengths: pad them"):
        small([[3, 4], [5]])


def test_neither_start_nor_prompt():
    with pytest.raises(ValueError, match="give a start_id, or prompts as the input 'target'"):
        generate(encoder_decoder(), SOURCES, 5)


@pytest.mark.parametrize("inputs", [{}, {"tokens": np.zeros((1, 0), "int32")}])
def test_no_prompt_for_a_model_of_its_target_alone(inputs):
    with pytest.raises(ValueError, match="prompt"):
        Generator(decoder_only(num_layers=1), 5)(inputs)


def test_one_array_for_several_inputs():
    names = ("a", "b", "target")
    a, b, target = (keras.Input((None,), dtype="int32", name=name) for name in names)
    embedding = TokenEmbedding(TARGET_SIZE, DIM)
    context = keras.layers.Add()([embedding(a), embedding(b)])
    x = decoder_block(**BLOCK)(embedding(target), context)
    generator = Generator(keras.Model([a, b, target], embedding(x, reverse=True)), 5, START)
    assert generator({"a": [[3]], "b": [[4]]}).tokens.shape == (1, 5)
    with pytest.raises(ValueError, match=r"the model has inputs \['a', 'b'\]: give a dictionary"):
        generator(SOURCES)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 1}, r"max_length must be at least 2, the start token included, got 1"),
        ({"start_id": 13}, r"start_id must be in 0\.\.12, got 13"),
        ({"start_id": -1}, r"start_id must be in 0\.\.12, got -1"),
        ({"end_id": 13}, r"end_id must be in 0\.\.12, got 13"),
        ({"target": "sauce"}, r"no input 'sauce' to step, its inputs are \['source', 'target'\]"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        Generator(encoder_decoder(), **{"max_length": 5, "start_id": 1, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 8.5}, "max_length must be an integer, got 8.5"),
        ({"max_length": "8"}, "max_length must be an integer, got '8'"),
        ({"start_id": 1.0}, "start_id must be an integer, got 1.0"),
        ({"start_id": True}, "start_id must be an integer, got True"),
        ({"end_id": [2, 1.5]}, r"end_id must be .*, got \[2, 1\.5\]"),
    ],
)
def test_numbers_that_are_no_integers(options, message):
    with pytest.raises(TypeError, match=message):
        Generator(encoder_decoder(), **{"max_length": 5, "start_id": 1, **options})


def test_logits_over_more_ids_than_the_target_takes():
    """Such a model would choose an id, 15 say, that its own embedding does not have."""
    model = encoder_decoder(head=keras.layers.Dense(TARGET_SIZE + 4))
    with pytest.raises(ValueError, match=r"17.*13|13.*17"):
        Generator(model, 5, START)


def test_a_mask_of_floats_is_refused():
    """0 and -1e9 as booleans mean the opposite."""
    keep = keras.Input((None,), dtype="bool", name="keep")
    source, target = (keras.Input((None,), dtype="int32", name=n) for n in ("source", "target"))
    context = TokenEmbedding(SOURCE_SIZE, DIM)(source)
    x = MultiHeadCrossAttention(num_heads=2, head_dim=3)(
        TokenEmbedding(TARGET_SIZE, DIM)(target), context, context_mask=keep
    )
    inputs = {"keep": keep, "source": source, "target": target}
    generator = Generator(keras.Model(inputs, keras.layers.Dense(TARGET_SIZE)(x)), 5, START)
    assert generator({"source": [[3, 4]], "keep": [[True, False]]}).tokens.shape == (1, 5)
    with pytest.raises(TypeError, match=r"keep.*bool.*float"):
        generator({"source": [[3, 4]], "keep": [[0.0, -1e9]]})
