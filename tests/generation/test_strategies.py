"""Beam search, sampling, contrastive search; prompts of different lengths; streaming; NaN."""

import itertools
from pathlib import Path

import keras
import numpy as np
import pytest
from blocks import decoder_block
from compare import to_numpy
from grids import first_of
from keras import ops
from small_models import (
    SOURCES,
    START,
    TARGET_SIZE,
    AddToLogit,
    decoder_only,
    encoder_decoder,
    full_pass,
    log_softmax,
    logits_of,
    randomize,
    unpadded,
)

from keras_tfm.generation import (
    Beam,
    Context,
    Contrastive,
    Generator,
    Greedy,
    Sample,
    Strategy,
    generate,
    processors,
)
from keras_tfm.generation.processors import SuppressTokens
from keras_tfm.layers import (
    ALiBi,
    PositionEmbedding,
    RelativePositionBias,
    RelativePositionEmbedding,
    RotaryEmbedding,
    TokenEmbedding,
    TransformerDecoderBlock,
)

MAX_LENGTH = 9
END = 7
# Logits of order 1 differ by 1e-6 between a full pass and steps; eight log-probabilities add up.
SCORE = 1e-5
PROMPTS = [[5], [4, 8, 3], [9, 1, 2, 6, 12], [11, 11]]
rng = np.random.default_rng(0)


@pytest.fixture(scope="module")
def translator():
    return encoder_decoder()


@pytest.fixture(scope="module")
def writer():
    return decoder_only()


def log_probability(model, source, row, prompt_length):
    """Of what follows the prompt in an unpadded row, by a full pass."""
    inputs = [[row]] if source is None else [[unpadded(source)], [row]]
    gained = log_softmax(logits_of(model, *inputs)[0])
    return sum(gained[i - 1, row[i]] for i in range(prompt_length, len(row)))


def ended(tokens, prompt_length, end=END):
    """The row up to its end."""
    tokens = [int(token) for token in tokens]
    for i in range(prompt_length, len(tokens)):
        if tokens[i] == end:
            return tokens[: i + 1]
    return tokens


def divisor(length, penalty=1.0):
    return length**penalty


# Beam search


def exhaustive(model, source, max_length, alpha):
    """Every hypothesis of up to max_length tokens, best first: (score, tokens)."""
    found = []
    open_ = [([START], 0.0)]
    while open_:
        rows = [tokens for tokens, _ in open_]
        sources = np.repeat([unpadded(source)], len(rows), axis=0)
        gained = log_softmax(logits_of(model, sources, rows)[:, -1])
        following = []
        for (tokens, total), row in zip(open_, gained, strict=True):
            for token, gain in enumerate(row):
                longer = ([*tokens, token], total + gain)
                if token == END or len(longer[0]) == max_length:
                    found.append((longer[1] / divisor(len(tokens), alpha), longer[0]))
                else:
                    following.append(longer)
        open_ = following
    return sorted(found, reverse=True)


class Wide(Beam):
    """A beam wider than the vocabulary: that many hypotheses exist only after two tokens."""

    def check(self, vocabulary_size):
        pass


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_a_beam_as_wide_as_all_hypotheses_is_an_exhaustive_search(translator, alpha):
    length, size = 4, TARGET_SIZE**2
    generator = Generator(translator, length, START, END, Wide(size, alpha, 10, "never"))
    result = generator(SOURCES[:2])
    for row, source in enumerate(SOURCES[:2]):
        wanted = exhaustive(translator, source, length, alpha)[:10]
        for i, (score, tokens) in enumerate(wanted):
            assert ended(result.tokens[row, i], 1) == tokens
            assert abs(result.scores[row, i] - score) < SCORE


@pytest.mark.parametrize("end", first_of([END, None]))
def test_a_beam_of_one_is_greedy(translator, end):
    beam = Generator(translator, MAX_LENGTH, START, end, Beam(1, 0.0))(SOURCES)
    greedy = Generator(translator, MAX_LENGTH, START, end)(SOURCES)
    np.testing.assert_array_equal(beam.tokens, greedy.tokens)
    np.testing.assert_allclose(beam.scores, greedy.scores, atol=SCORE)


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_scores_of_hypotheses_are_those_of_a_full_pass(translator, alpha):
    result = Generator(translator, MAX_LENGTH, START, END, Beam(4, alpha, hypotheses=4))(SOURCES)
    assert result.tokens.shape == (len(SOURCES), 4, MAX_LENGTH)
    for source, hypotheses, scores in zip(SOURCES, result.tokens, result.scores, strict=True):
        assert list(scores) == sorted(scores, reverse=True)
        assert len({tuple(tokens) for tokens in hypotheses}) == 4
        for tokens, score in zip(hypotheses, scores, strict=True):
            row = ended(tokens, 1)
            assert not any(tokens[len(row) :])
            wanted = log_probability(translator, source, row, 1) / divisor(len(row) - 1, alpha)
            assert abs(score - wanted) < SCORE


def test_a_function_is_a_length_penalty(translator):
    """The mean log-probability."""
    result = Generator(translator, MAX_LENGTH, START, END, Beam(3, lambda n: n))(SOURCES)
    for source, tokens, score in zip(SOURCES, result.tokens, result.scores, strict=True):
        row = ended(tokens, 1)
        mean = log_probability(translator, source, row, 1) / (len(row) - 1)
        assert abs(score - mean) < SCORE


def test_the_search_stops_when_no_open_hypothesis_can_win(translator):
    """Where the end is all but certain, after few steps."""
    sure = keras.Model(translator.input, AddToLogit(END, 30.0)(translator.output))
    generator = Generator(sure, 300, START, END, Beam(1))
    assert len(list(states(generator, SOURCES))) <= 3
    result = generator(SOURCES)
    assert [ended(tokens, 1) for tokens in result.tokens] == [[START, END]] * len(SOURCES)


def states(generator, inputs):
    """The states of a generator's loop, step by step."""
    prepared = generator._preparation(inputs)
    state = generator._function("start", prepared)(*prepared.tensors)
    more = True
    while more:
        state, more = generator._function("step", prepared)(state, *prepared.tensors)
        yield state


# Against Hugging Face


@pytest.fixture(scope="module")
def gpt2():
    """The fixture's arrays, and the same model composed of layers here."""
    with np.load(Path(__file__).parents[1] / "parity" / "gpt2_generation.npz") as file:
        arrays = dict(file)
    vocabulary, dim = arrays["transformer.wte.weight"].shape
    ids = keras.Input((None,), dtype="int32")
    embedding = TokenEmbedding(vocabulary, dim, name="wte")
    positions = PositionEmbedding(len(arrays["transformer.wpe.weight"]), name="wpe")
    x = positions(embedding(ids))
    blocks = [
        TransformerDecoderBlock(
            4 * dim, int(arrays["num_heads"]), cross_attention=False, normalize_first=True,
            activation=lambda x: ops.gelu(x, approximate=True), name=f"block_{i}",
        )
        for i in range(2)
    ]  # fmt: skip
    for block in blocks:
        x = block(x)
    norm = keras.layers.LayerNormalization(epsilon=1e-5)
    model = keras.Model(ids, embedding(norm(x), reverse=True))
    embedding.embeddings.assign(arrays["transformer.wte.weight"])
    positions.positions.assign(arrays["transformer.wpe.weight"])
    dense = {
        "attn.c_attn": lambda block: block.self_attention.query_key_value,
        "attn.c_proj": lambda block: block.self_attention.output_projection,
        "mlp.c_fc": lambda block: block.feed_forward.inner,
        "mlp.c_proj": lambda block: block.feed_forward.outer,
    }
    norms = {
        "ln_1": lambda block: block.self_attention_residual.input_norm,
        "ln_2": lambda block: block.feed_forward_residual.input_norm,
    }
    for i, block in enumerate(blocks):
        for name, part in {**dense, **norms}.items():
            kernel, bias = (arrays[f"transformer.h.{i}.{name}.{w}"] for w in ("weight", "bias"))
            part(block).set_weights([kernel, bias])
    norm.set_weights([arrays["transformer.ln_f.weight"], arrays["transformer.ln_f.bias"]])
    return model, arrays


def of_gpt2(arrays, name):
    return [arrays[f"{name}_{i}"] for i in range(3)]


def test_greedy_tokens_are_hugging_face_s(gpt2):
    model, arrays = gpt2
    end = int(arrays["end_id"])
    generator = Generator(model, int(arrays["max_length"]), end_id=end)
    prompts = [list(prompt) for prompt in of_gpt2(arrays, "prompt")]
    result = generator(prompts)  # in one batch, of different lengths
    for tokens, wanted in zip(result.tokens, of_gpt2(arrays, "greedy"), strict=True):
        assert tokens.tolist() == wanted.tolist()


def test_beam_hypotheses_and_scores_are_hugging_face_s(gpt2):
    model, arrays = gpt2
    end = int(arrays["end_id"])
    strategy = Beam(4, length_penalty=0.0, hypotheses=4)
    generator = Generator(model, int(arrays["max_length"]), end_id=end, strategy=strategy)
    prompts = [list(prompt) for prompt in of_gpt2(arrays, "prompt")]
    result = generator(prompts)
    for i, prompt in enumerate(prompts):
        wanted = [ended(tokens, len(prompt), end) for tokens in arrays[f"beam_{i}"]]
        assert [ended(tokens, len(prompt), end) for tokens in result.tokens[i]] == wanted
        # transformers in float64, here float32: ten sums of log-probabilities up to 9.
        np.testing.assert_allclose(result.scores[i], arrays[f"beam_scores_{i}"], atol=5e-5)


# Sampling

LOGITS = np.log(np.array([[0.5, 0.2, 0.15, 0.1, 0.05]], "float32"))


def distribution(strategy, logits=LOGITS):
    unused = Context(ops.zeros((1, 2), "int32"), ops.ones((1, 2), "bool"), 1, None)
    logits = strategy.process(ops.convert_to_tensor(logits), unused)
    filtered = to_numpy(strategy.filter(logits))[0]
    exponents = np.exp(filtered - filtered.max())
    return exponents / exponents.sum()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.5, 0.2, 0.15, 0.1, 0.05]),
        ({"top_k": 2}, [5 / 7, 2 / 7, 0, 0, 0]),
        ({"top_k": 99}, [0.5, 0.2, 0.15, 0.1, 0.05]),
        # 0.5 + 0.2 are fewer than 0.75: a third is needed.
        ({"top_p": 0.75}, [50 / 85, 20 / 85, 15 / 85, 0, 0]),
        ({"top_p": 0.4}, [1, 0, 0, 0, 0]),
        ({"top_p": 1e-9}, [1, 0, 0, 0, 0]),
        ({"top_p": 1.0}, [0.5, 0.2, 0.15, 0.1, 0.05]),
        # A quarter of 0.5.
        ({"min_p": 0.25}, [50 / 85, 20 / 85, 15 / 85, 0, 0]),
        ({"temperature": 0.5}, np.array([25, 4, 2.25, 1, 0.25]) / 32.5),
        ({"top_k": 3, "top_p": 0.6}, [5 / 7, 2 / 7, 0, 0, 0]),
    ],
)
def test_filters_by_hand(options, expected):
    # -inf and exp in float32.
    np.testing.assert_allclose(distribution(Sample(**options)), expected, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.7, "top_k": 6},
        {"top_p": 0.8},
        {"processors": [SuppressTokens([4, 9])]},
    ],
)
def test_samples_pass_a_chi_square_test(writer, options):
    """4,000 first tokens after one prompt, against the exact distribution."""
    count = 4000
    generator = Generator(writer, max_new_tokens=1, strategy=Sample(seed=11, **options))
    drawn = generator(np.tile([[5, 3]], (count, 1))).tokens[:, 2]
    logits = logits_of(writer, [[5, 3]])[:, -1].astype("float32")
    exact = distribution(Sample(**options), logits)
    observed = np.bincount(drawn, minlength=TARGET_SIZE)
    possible = exact > 0
    assert not observed[~possible].any()
    # Rare ones together: the test wants five of each.
    common = possible & (exact * count >= 5)
    cells = [(observed[i], exact[i] * count) for i in np.flatnonzero(common)]
    rest = possible & ~common
    if rest.any() and exact[rest].sum() * count >= 5:
        cells.append((observed[rest].sum(), exact[rest].sum() * count))
    chi_square = sum((seen - wanted) ** 2 / wanted for seen, wanted in cells)
    freedom = len(cells) - 1
    assert freedom >= 3
    # A mean of `freedom` and a deviation of sqrt(2 freedom): five of them, once in a million.
    assert chi_square < freedom + 5 * np.sqrt(2 * freedom)


def test_steps_and_rows_draw_independently(writer):
    """Were the same numbers drawn at each step, or in each row, tokens would repeat."""
    flat = keras.Model(writer.input, ops.zeros_like(writer.output) * writer.output)
    tokens = Generator(flat, max_new_tokens=8, strategy=Sample(seed=1))(
        np.full((500, 1), 3, "int32")
    ).tokens[:, 1:]
    for a, b in itertools.combinations(range(8), 2):
        assert abs(np.mean(tokens[:, a] == tokens[:, b]) - 1 / TARGET_SIZE) < 0.06
    assert abs(np.mean(tokens[1:] == tokens[:-1]) - 1 / TARGET_SIZE) < 0.03


def test_a_seed_decides_and_without_one_calls_differ(writer):
    prompt = np.full((20, 1), 3, "int32")
    seeded = [Generator(writer, MAX_LENGTH, strategy=Sample(seed=s))(prompt) for s in (1, 1, 2)]
    np.testing.assert_array_equal(seeded[0].tokens, seeded[1].tokens)
    assert np.any(seeded[0].tokens != seeded[2].tokens)
    free = Generator(writer, MAX_LENGTH, strategy=Sample())
    assert np.any(free(prompt).tokens != free(prompt).tokens)


def test_scores_of_samples_are_the_model_s_log_probabilities(writer):
    result = Generator(writer, MAX_LENGTH, end_id=END, strategy=Sample(0.5, top_k=4, seed=3))(
        PROMPTS
    )
    for prompt, tokens, score in zip(PROMPTS, result.tokens, result.scores, strict=True):
        row = ended(tokens, len(prompt))
        assert abs(score - log_probability(writer, None, row, len(prompt))) < SCORE


def test_several_samples_per_row_are_independent(translator):
    """Each is a row of its own: other tokens, own scores, prompts of different lengths."""
    inputs = {"source": SOURCES, "target": PROMPTS}
    generator = Generator(translator, MAX_LENGTH, end_id=END, strategy=Sample(seed=3, hypotheses=5))
    result = generator(inputs)
    assert result.tokens.shape == (len(SOURCES), 5, MAX_LENGTH)
    assert result.scores.shape == (len(SOURCES), 5)
    for source, prompt, rows, scores in zip(SOURCES, PROMPTS, *result, strict=True):
        assert len({tuple(row) for row in rows.tolist()}) > 1
        for row, score in zip(rows, scores, strict=True):
            line = ended(row, len(prompt))
            assert line[: len(prompt)] == prompt
            assert not any(row[len(line) :])
            wanted = log_probability(translator, source, line, len(prompt))
            assert abs(score - wanted) < SCORE
    streamed = np.stack(list(generator.stream(inputs)), axis=-1)  # (B, n, steps)
    for i, prompt in enumerate(PROMPTS):
        wanted = result.tokens[i, :, len(prompt) : len(prompt) + streamed.shape[-1]]
        np.testing.assert_array_equal(streamed[i, :, : wanted.shape[1]], wanted)
    none = generator({"source": SOURCES[:0], "target": []})
    assert none.tokens.shape == (0, 5, MAX_LENGTH)
    assert none.scores.shape == (0, 5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sample(temperature=0), "temperature must be positive, got 0"),
        (lambda: Sample(temperature=-1.0), "temperature must be positive, got -1.0"),
        (lambda: Sample(temperature=float("nan")), "temperature must be finite, got nan"),
        (lambda: Sample(top_k=0), "top_k must be at least 1, got 0"),
        (lambda: Sample(top_p=1.5), "top_p must be within 0 and 1, got 1.5"),
        (lambda: Sample(top_p=0.0), "top_p must be positive, got 0.0"),
        (lambda: Sample(min_p=2), "min_p must be within 0 and 1, got 2"),
        (lambda: Sample(seed=-1), "seed must be at least 0, got -1"),
        (lambda: Sample(hypotheses=0), "hypotheses must be at least 1, got 0"),
        (lambda: Beam(0), "size must be at least 1, got 0"),
        (lambda: Beam(2, early_stopping="always"), "early_stopping must be True, False or"),
        (lambda: Beam(2, hypotheses=3), r"hypotheses \(3\) must not be more than size \(2\)"),
        (lambda: Beam(2, float("inf")), "length_penalty must be finite, got inf"),
        (lambda: Contrastive(alpha=1.2), "alpha must be within 0 and 1, got 1.2"),
        (lambda: Contrastive(top_k=0), "top_k must be at least 1, got 0"),
    ],
)
def test_impossible_values_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (
            Sample(processors=[processors.SuppressTokens(range(13))]),
            "ids must leave at least one of 13 tokens, got all of them",
        ),
        (Beam(14), r"size \(14\) must not be more than the vocabulary \(13\)"),
        (Contrastive(14), r"top_k \(14\) must not be more than the vocabulary \(13\)"),
    ],
)
def test_what_does_not_fit_the_vocabulary_is_refused(writer, strategy, message):
    with pytest.raises(ValueError, match=message):
        Generator(writer, MAX_LENGTH, strategy=strategy)


# Contrastive search


def contrastive(model, prompt, k, alpha, max_length):
    """One row, with full passes."""
    features_of = keras.Model(model.input, model.layers[-1].input)
    tokens = list(prompt)
    while len(tokens) < max_length:
        logits = log_softmax(logits_of(model, [tokens])[0, -1])
        candidates = np.argsort(-logits)[:k]
        merits = []
        for candidate in candidates:
            features = to_numpy(full_pass(features_of)(np.array([[*tokens, candidate]], "int32")))[
                0
            ]
            features /= np.linalg.norm(features, axis=-1, keepdims=True)
            likeness = (features[:-1] @ features[-1]).max()
            merits.append((1 - alpha) * np.exp(logits[candidate]) - alpha * likeness)
        tokens.append(int(candidates[int(np.argmax(merits))]))
        if tokens[-1] == END:
            break
    return tokens


@pytest.mark.parametrize("alpha", [0.0, 0.6])
@pytest.mark.slow
def test_contrastive_search_is_that_of_full_passes(writer, alpha):
    strategy = Contrastive(3, alpha)
    result = Generator(writer, MAX_LENGTH, end_id=END, strategy=strategy)(PROMPTS)
    for prompt, tokens, score in zip(PROMPTS, result.tokens, result.scores, strict=True):
        row = ended(tokens, len(prompt))
        assert row == contrastive(writer, prompt, 3, alpha, MAX_LENGTH)
        assert abs(score - log_probability(writer, None, row, len(prompt))) < SCORE


def test_contrastive_search_repeats_less_than_greedy(writer):
    prompts = [[i] for i in range(1, TARGET_SIZE)]

    def repeats(strategy):
        tokens = Generator(writer, 12, strategy=strategy)(prompts).tokens
        return np.mean([12 - len(set(row)) for row in tokens.tolist()])

    assert repeats(Contrastive(5, 0.6)) < repeats(Greedy())


# Prompts of different lengths


def positioned(position, added):
    ids = keras.Input((None,), dtype="int32")
    x = TokenEmbedding(TARGET_SIZE, 8, mask_zero=position == "masked")(ids)
    if added is not None:
        x = added(x)
    part = {
        "rotary": lambda: RotaryEmbedding(max_wavelength=20.0),
        "T5": lambda: RelativePositionBias(8, 16),
        "Shaw": lambda: RelativePositionEmbedding(3),
        "ALiBi": ALiBi,
    }.get(position, lambda: None)()
    for window in (None, 3):
        x = decoder_block(9, 2, cross_attention=False, window=window, position=part)(x)
        part = None
    return randomize(keras.Model(ids, keras.layers.Dense(TARGET_SIZE)(x)), seed=4)


STRATEGIES = {
    "greedy": Greedy(),
    "beam": Beam(3, hypotheses=2),
    "contrastive": Contrastive(3),
}


@pytest.mark.default
@pytest.mark.parametrize(
    ("strategy", "limit"),
    [
        pytest.param("greedy", {"max_new_tokens": 4}, marks=pytest.mark.slow),
        ("beam", {"max_length": MAX_LENGTH}),
        pytest.param("contrastive", {"max_length": MAX_LENGTH}, marks=pytest.mark.slow),
        pytest.param("greedy", {"max_length": MAX_LENGTH}, marks=pytest.mark.slow),
        pytest.param("beam", {"max_new_tokens": 4}, marks=pytest.mark.slow),
        pytest.param("contrastive", {"max_new_tokens": 4}, marks=pytest.mark.slow),
    ],
)
def test_a_batch_is_generated_as_one_by_one(writer, strategy, limit):
    generator = Generator(writer, end_id=END, strategy=STRATEGIES[strategy], **limit)
    together = generator(PROMPTS[:3])
    for row, prompt in enumerate(PROMPTS[:3]):
        alone = generator([prompt])
        length = alone.tokens.shape[-1]
        np.testing.assert_array_equal(together.tokens[row, ..., :length], alone.tokens[0])
        assert not together.tokens[row, ..., length:].any()
        np.testing.assert_allclose(together.scores[row], alone.scores[0], atol=SCORE)
        assert np.all(together.tokens[row, ..., : len(prompt)] == prompt)


@pytest.mark.parametrize(
    "position",
    ["T5", "masked"]
    + [pytest.param(x, marks=pytest.mark.slow) for x in ("rotary", "Shaw", "ALiBi", "learned")],
)
def test_positions_do_not_see_the_padding(position):
    added = PositionEmbedding(20) if position in ("learned", "masked") else None
    model = positioned(position, added)
    result = Generator(model, MAX_LENGTH)(PROMPTS)
    for prompt, tokens, score in zip(PROMPTS, result.tokens, result.scores, strict=True):
        row = [int(token) for token in tokens]
        logits = logits_of(model, [row])[0]
        for i in range(len(prompt), MAX_LENGTH):
            # The best of the full pass, or as good up to rounding.
            assert logits[i - 1, row[i]] > logits[i - 1].max() - 1e-5
        assert abs(score - log_probability(model, None, row, len(prompt))) < SCORE


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.slow
def test_a_row_that_has_ended_may_leave_the_table_of_positions(strategy):
    """The longest prompt's row, the first of all, is full while the shortest's goes on."""
    model = positioned("learned", PositionEmbedding(MAX_LENGTH))
    generator = Generator(model, MAX_LENGTH, strategy=STRATEGIES[strategy])
    prompts = [max(PROMPTS, key=len), min(PROMPTS, key=len)]
    together = generator(prompts)
    for row, prompt in enumerate(prompts):
        np.testing.assert_array_equal(together.tokens[row], generator([prompt]).tokens[0])


def test_going_beyond_the_table_of_positions_is_an_error():
    model = positioned("learned", PositionEmbedding(MAX_LENGTH))
    with pytest.raises(ValueError, match="does not fit the position table"):
        Generator(model, max_new_tokens=MAX_LENGTH - 2)(PROMPTS)


def test_prompts_of_different_lengths_beside_sources(translator):
    """The encoder's positions are not shifted."""
    generator = Generator(translator, MAX_LENGTH, end_id=END)
    together = generator({"source": SOURCES, "target": PROMPTS})
    for row, prompt in enumerate(PROMPTS):
        alone = generator({"source": SOURCES[row : row + 1], "target": [prompt]})
        np.testing.assert_array_equal(together.tokens[row], alone.tokens[0])
        line = ended(together.tokens[row], len(prompt))
        wanted = log_probability(translator, SOURCES[row], line, len(prompt))
        assert abs(together.scores[row] - wanted) < SCORE


def test_several_ends(writer):
    free = Generator(writer, MAX_LENGTH)(PROMPTS).tokens
    ends = [int(free[0, 3]), int(free[1, 5])]
    result = Generator(writer, MAX_LENGTH, end_id=ends)(PROMPTS)
    for prompt, tokens, whole in zip(PROMPTS, result.tokens, free, strict=True):
        row = whole.tolist()
        last = next((i for i in range(len(prompt), MAX_LENGTH) if row[i] in ends), MAX_LENGTH - 1)
        assert tokens.tolist() == row[: last + 1] + [0] * (MAX_LENGTH - 1 - last)


# Streaming


@pytest.mark.parametrize(
    ("strategy", "prompts"),
    [
        pytest.param(Greedy(), PROMPTS, id="greedy"),
        pytest.param(Sample(seed=5), [[5, 3]], id="sample one"),
        pytest.param(Sample(seed=5), PROMPTS, id="sample", marks=pytest.mark.slow),
    ],
)
def test_a_stream_brings_what_a_call_returns(writer, strategy, prompts):
    generator = Generator(writer, max_new_tokens=5, end_id=END, strategy=strategy)
    streamed = np.stack(list(generator.stream(prompts)), axis=1)
    result = generator(prompts)
    for prompt, tokens, new in zip(prompts, result.tokens, streamed, strict=True):
        wanted = tokens[len(prompt) : len(prompt) + streamed.shape[1]]
        np.testing.assert_array_equal(new, wanted)


def test_a_stream_ends_with_the_last_row(writer):
    first = int(Generator(writer, max_new_tokens=1)([[5]]).tokens[0, 1])
    assert [list(new) for new in Generator(writer, 50, end_id=first).stream([[5]])] == [[first]]


@pytest.mark.parametrize("strategy", [Beam(2), Beam(1), Contrastive(2), Contrastive(1)], ids=str)
def test_what_may_change_later_cannot_be_streamed(writer, strategy):
    name = type(strategy).__name__
    with pytest.raises(ValueError, match=f"{name} cannot be streamed"):
        next(Generator(writer, MAX_LENGTH, strategy=strategy).stream([[5]]))


# Once compiled


@pytest.mark.slow
def test_shapes_of_many_lengths_are_few_graphs(translator, monkeypatch):
    traces = []

    class Counting(Greedy):
        def choose(self, logits, context):
            traces.append(1)
            return super().choose(logits, context)

    generator = Generator(translator, 40, START, strategy=Counting())
    generator(SOURCES)
    first = len(traces)
    generator(SOURCES)
    assert len(traces) == first  # nothing new for the same shape
    for rows, length in itertools.product((1, 2, 3, 5), (3, 6, 9, 17)):
        generator(rng.integers(1, 11, (rows, length)))
    assert len(traces) <= 3 * first  # once more for open batches, once for open lengths
    before = len(traces)
    for length in range(1, 31):
        generator({"source": SOURCES[:2], "target": rng.integers(1, 13, (2, length))})
    # Widths 1, 2, 4, 8, 16, 32, with and without padding of a few widths.
    assert len(traces) - before <= 20 * first


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(strategy, id=name, marks=[pytest.mark.slow] * (name != "greedy"))
        for name, strategy in STRATEGIES.items()
    ],
)
@pytest.mark.slow
def test_under_xla_as_in_a_graph(translator, strategy):
    inputs = {"source": SOURCES, "target": PROMPTS}
    plain, jit = (
        Generator(translator, MAX_LENGTH, end_id=END, strategy=strategy, jit_compile=jit)
        for jit in (False, True)
    )
    expected, actual = plain(inputs), jit(inputs)
    np.testing.assert_array_equal(actual.tokens, expected.tokens)
    np.testing.assert_allclose(actual.scores, expected.scores, atol=SCORE)
    if strategy.width == 1:
        for new, wanted in zip(jit.stream(inputs), plain.stream(inputs), strict=True):
            np.testing.assert_array_equal(new, wanted)


@pytest.mark.slow
def test_sampling_under_xla_draws_what_the_model_allows(writer):
    """Other numbers than in a graph, but the same at every call, and scored as they should be."""
    strategy = Sample(seed=3, top_k=4, processors=[processors.RepetitionPenalty(1.5)])
    generator = Generator(writer, MAX_LENGTH, strategy=strategy, jit_compile=True)
    result = generator(PROMPTS)
    np.testing.assert_array_equal(generator(PROMPTS).tokens, result.tokens)
    for prompt, tokens, score in zip(PROMPTS, result.tokens, result.scores, strict=True):
        row = tokens.tolist()
        assert abs(score - log_probability(writer, None, row, len(prompt))) < SCORE


# What can go wrong


@pytest.mark.parametrize(
    "strategy",
    [
        Greedy(),
        STRATEGIES["beam"],
        *(
            pytest.param(x, marks=pytest.mark.slow)
            for x in (STRATEGIES["contrastive"], Sample(seed=1))
        ),
    ],
    ids=str,
)
def test_nan_logits_are_an_error_and_no_endless_loop(writer, strategy):
    """Infinite ones too, as their softmax is NaN."""
    generator = Generator(writer, 300, end_id=END, strategy=strategy)
    head = writer.layers[-1]
    weights = head.get_weights()
    try:
        *others, bias = weights
        for value in (np.nan, np.inf, -np.inf):
            head.set_weights([*(0 * x for x in others), np.full_like(bias, value)])
            with pytest.raises(ValueError, match="logits is NaN for new token 0"):
                generator([[5]])
    finally:
        head.set_weights(weights)


@pytest.mark.parametrize("strategy", [*STRATEGIES.values(), Sample(seed=1)], ids=str)
def test_no_rows_are_no_rows(translator, strategy):
    result = Generator(translator, MAX_LENGTH, START, strategy=strategy)(SOURCES[:0])
    many = (2,) if strategy == STRATEGIES["beam"] else ()
    assert result.tokens.shape == (0, *many, MAX_LENGTH)
    assert result.scores.shape == (0, *many)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([[3], []], "at least one token"),
        ([[3] * 9], r"fewer than max_length \(9\), got 9 to 9"),
        ([[3, 13]], r"ids must be in 0\.\.12, got 3\.\.13"),
        ([[3, -1]], r"ids must be in 0\.\.12, got -1\.\.3"),
        ([3, 4], "a list of rows"),
    ],
)
def test_wrong_prompts_are_refused(writer, prompts, message):
    with pytest.raises(ValueError, match=message):
        Generator(writer, MAX_LENGTH)(prompts)


def test_a_prompt_of_floats_is_refused(writer):
    with pytest.raises(TypeError, match="must be integers, got float64"):
        Generator(writer, MAX_LENGTH)([[3.5]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give either max_length or max_new_tokens, got max_length=None"),
        ({"max_length": 5, "max_new_tokens": 5}, "got max_length=5 and max_new_tokens=5"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
        ({"max_length": 5, "end_id": [3, 13]}, r"end_id must be in 0\.\.12, got 13"),
    ],
)
def test_impossible_limits_are_refused(writer, options, message):
    with pytest.raises(ValueError, match=message):
        Generator(writer, **options)


def test_an_end_that_is_none_is_refused(writer):
    with pytest.raises(
        TypeError, match="end_id must be an integer, several integers or None, got 'two'"
    ):
        Generator(writer, 5, end_id="two")


def test_a_strategy_of_one_s_own(writer):
    class Second(Strategy):
        """Takes the second best."""

        def choose(self, logits, context):
            return ops.cast(ops.top_k(logits, k=2)[1][:, 1], "int32")

    tokens = generate(writer, [[5, 3]], max_length=6, strategy=Second()).tokens[0].tolist()
    for i in range(2, 6):
        assert tokens[i] == np.argsort(logits_of(writer, [tokens[:i]])[0, -1])[-2]
    with pytest.raises(NotImplementedError, match=r"Nothing does not define choose"):
        generate(writer, [[5]], max_length=6, strategy=type("Nothing", (Strategy,), {})())


# Half precision


@pytest.mark.parametrize(
    ("policy", "strategy"),
    [
        ("mixed_float16", "beam"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                ("mixed_bfloat16", "greedy"),
                ("mixed_bfloat16", "beam"),
                ("mixed_bfloat16", "contrastive"),
                ("mixed_float16", "greedy"),
                ("mixed_float16", "contrastive"),
            ]
        ),
    ],
)
def test_half_precision_scores_as_the_full_pass_in_it(policy, strategy):
    model = encoder_decoder(dtype=policy)
    result = Generator(model, MAX_LENGTH, START, END, STRATEGIES[strategy])(SOURCES)
    tokens = result.tokens[:, 0] if strategy == "beam" else result.tokens
    scores = result.scores[:, 0] if strategy == "beam" else result.scores
    for source, row, score in zip(SOURCES, tokens, scores, strict=True):
        line = ended(row, 1)
        wanted = log_probability(model, source, line, 1)
        if strategy == "beam":
            wanted /= divisor(len(line) - 1)
        # Logits of order 1 with roundings of 4e-3 (bfloat16), eight of them, made of many sums.
        assert abs(score - wanted) < (0.3 if policy == "mixed_bfloat16" else 0.05)
