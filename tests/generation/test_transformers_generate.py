"""Whole outputs beside `generate` of transformers: small GPT-2 and T5 with random weights."""

import functools

import numpy as np
import pytest
from grids import pairwise
from live_transformers import made

from keras_tfm.generation import Beam, Greedy, generate, processors

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

PAD, END, NEW = 0, 2, 9
MODELS = {
    "GPT2LMHeadModel": {
        "vocab_size": 17, "n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 40,
        "bos_token_id": 1, "eos_token_id": END, "pad_token_id": PAD,
    },
    "T5ForConditionalGeneration": {
        "vocab_size": 17, "d_model": 12, "d_kv": 5, "d_ff": 7, "num_layers": 2, "num_heads": 3,
        "pad_token_id": PAD, "eos_token_id": END, "decoder_start_token_id": PAD,
    },
}  # fmt: skip
IDS = np.random.default_rng(0).integers(3, 17, (4, 5))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    @functools.cache
    def of(name, seed):
        return made(name, MODELS[name], tmp_path_factory.mktemp("model"), seed)

    return of


def assert_same(pair, strategy, end=END, **options):
    """Tokens and, of a beam search, scores of all hypotheses."""
    theirs, ours = pair
    encoder_decoder = theirs.config.is_encoder_decoder
    several = getattr(strategy, "hypotheses", 1)
    with torch.no_grad():
        expected = theirs.generate(
            torch.from_numpy(IDS), max_new_tokens=NEW, do_sample=False, pad_token_id=PAD,
            num_beams=strategy.width, num_return_sequences=several, eos_token_id=end,
            return_dict_in_generate=True, output_scores=True, **options,
        )  # fmt: skip
    start = {"start_id": PAD} if encoder_decoder else {}
    actual = generate(
        ours, IDS.astype("int32"), max_new_tokens=NEW, end_id=end, strategy=strategy, **start
    )
    prompt = 1 if encoder_decoder else IDS.shape[1]
    rows = actual.tokens.reshape(-1, prompt + NEW)
    wanted = np.full_like(rows, PAD)
    for row, tokens in zip(wanted, expected.sequences.numpy(), strict=True):
        ends = np.flatnonzero(np.isin(tokens[prompt:], end))
        # transformers fills columns after the end with the end token if the padding id is 0.
        last = prompt + ends[0] + 1 if len(ends) else len(tokens)
        row[:last] = tokens[:last]
    np.testing.assert_array_equal(rows, wanted)
    if strategy.width > 1:
        scores = expected.sequences_scores.numpy()
        # Nine log-probabilities in float32; with the penalty -1 they are multiplied by nine.
        np.testing.assert_allclose(actual.scores.ravel(), scores, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "seed", "width", "penalty", "early_stopping", "end"),
    pairwise(
        list(MODELS), [0, 1, 2], [2, 3, 4, 5], [-1.0, 0.0, 1.0, 2.0], [False, True, "never"],
        {"one end": END, "two ends": [END, 3]},
    ),
)  # fmt: skip
def test_beam_search(models, model, seed, width, penalty, early_stopping, end):
    strategy = Beam(width, penalty, width, early_stopping)
    assert_same(
        models(model, seed), strategy, end, length_penalty=penalty, early_stopping=early_stopping
    )


@pytest.mark.parametrize("model", MODELS)
def test_the_options_of_beam_search_matter(models, model):
    """Each of them changes the tokens of some row, so that equality above shows something."""
    _, ours = models(model, 0)
    start = {"start_id": PAD} if len(ours.inputs) > 1 else {}

    def tokens(*options):
        strategy = Beam(3, *options)
        return generate(
            ours, IDS.astype("int32"), max_new_tokens=NEW, end_id=[END, 3], strategy=strategy,
            **start,
        ).tokens  # fmt: skip

    default = tokens(1.0, 3, False)
    assert np.any(default != tokens(-1.0, 3, False))
    assert np.any(default != tokens(1.0, 3, True)) or np.any(default != tokens(1.0, 3, "never"))


PROCESSORS = {
    "forced": (
        [processors.ForcedBOS(9), processors.ForcedEOS(END)],
        {"forced_bos_token_id": 9, "forced_eos_token_id": END},
    ),
    "min_new_tokens": ([processors.MinNewTokens(6)], {"min_new_tokens": 6}),
    "min_length": ([processors.MinLength(8)], {"min_length": 8}),
    "repetition": (
        [processors.RepetitionPenalty(1.3), processors.NoRepeatNGram(2)],
        {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    ),
    "bad words": (
        [processors.NoBadWords([[4], [5, 6], [7, 8, 4]]), processors.SuppressTokens([11, 12])],
        {"bad_words_ids": [[4], [5, 6], [7, 8, 4]], "suppress_tokens": [11, 12]},
    ),
    "bias": (
        [
            processors.SequenceBias({(3,): 2.0, (5, 6): 4.0, (6,): 1.0}),
            processors.SuppressTokensAtBegin([5, 8]),
        ],
        {
            "sequence_bias": [[[3], 2.0], [[5, 6], 4.0], [[6], 1.0]],
            "begin_suppress_tokens": [5, 8],
        },
    ),
    "normalized": (
        [processors.NoBadWords([[4], [5, 6]]), processors.LogitNormalization()],
        {"bad_words_ids": [[4], [5, 6]], "renormalize_logits": True},
    ),
}


@pytest.mark.parametrize(
    ("model", "width", "name"), pairwise(list(MODELS), [1, 3], list(PROCESSORS))
)
def test_processors(models, model, width, name):
    ours, theirs = PROCESSORS[name]
    strategy = Greedy(ours) if width == 1 else Beam(width, hypotheses=width, processors=ours)
    assert_same(models(model, 0), strategy, **theirs)
