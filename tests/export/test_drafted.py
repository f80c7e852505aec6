"""Drafts in a file: the tokens of the file without drafts."""

import numpy as np
import pytest
from keras_weights import randomize

from keras_tfm import models, runtime
from keras_tfm.export import export_tflite
from keras_tfm.generation import (
    Drafted,
    DraftHeads,
    DraftModel,
    Greedy,
    PromptLookup,
    Sample,
    generate,
    processors,
)

VOCABULARY, LENGTH, END = 13, 20, 6
SIZE = {"dim": 16, "num_layers": 2, "num_heads": 2, "intermediate_dim": 16}
PROMPTS = [[3, 4, 5, 3, 4], [7, 8, 9, 7, 1], [1, 2, 1, 2, 1]]


@pytest.fixture(scope="module")
def decoder():
    return randomize(models.gpt(VOCABULARY, max_length=LENGTH, **SIZE))


@pytest.fixture(scope="module")
def wanted(decoder, tmp_path_factory):
    """What a file without drafts generates."""
    plain = loaded(decoder, tmp_path_factory.mktemp("plain"), None)
    return [plain.generate([prompt]).tokens for prompt in PROMPTS]


def loaded(model, folder, strategy, **options):
    path = folder / "model.tflite"
    options = {"max_length": LENGTH, "prompt_length": 5, "end_id": END, "verify": False, **options}
    export_tflite(model, path, ["generate"], strategy=strategy, overwrite=True, **options)
    return runtime.load(path)


PENALTY = Greedy(processors=[processors.RepetitionPenalty(1.5)])


@pytest.mark.parametrize(
    ("quantization", "strategy"),
    [
        ("float32", Drafted(PromptLookup(), 2, PENALTY)),
        pytest.param("int8", Drafted(PromptLookup(2), 3), marks=pytest.mark.slow),
        pytest.param("float32", Drafted(PromptLookup(2), 3), marks=pytest.mark.slow),
        pytest.param("int8", Drafted(PromptLookup(), 2, PENALTY), marks=pytest.mark.slow),
    ],
)
def test_a_file_with_drafts_generates_what_one_without_does(
    decoder, quantization, strategy, tmp_path
):
    plain = loaded(decoder, tmp_path, strategy.strategy, quantization=quantization)
    wanted = [plain.generate([prompt]).tokens for prompt in PROMPTS]
    drafted = loaded(decoder, tmp_path, strategy, quantization=quantization, verify=True)
    for prompt, tokens in zip(PROMPTS, wanted, strict=True):
        np.testing.assert_array_equal(drafted.generate([prompt]).tokens, tokens)


def test_draft_heads_in_a_file(decoder, wanted, tmp_path):
    weights = decoder.get_weights()
    model = randomize(models.with_draft_heads(decoder, 3), seed=2)
    decoder.set_weights(weights)  # shared: the heads alone are other ones
    drafted = loaded(model, tmp_path, Drafted(DraftHeads(), 3))
    found = [drafted.generate([x]).tokens for x in PROMPTS]
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(x, y)
    strategy = drafted.manifest["signatures"]["generate"]["strategy"]
    assert strategy["name"] == "Drafted" and strategy["strategy"]["name"] == "Greedy"


@pytest.mark.parametrize("positions", [pytest.param(LENGTH, marks=pytest.mark.slow), 9])
def test_a_draft_model_in_a_file(decoder, wanted, positions, tmp_path):
    """Also one with fewer positions than the text: LiteRT refuses a lookup past the table."""
    size = {"dim": 6, "num_layers": 1, "num_heads": 3, "intermediate_dim": 5}
    small = randomize(models.gpt(VOCABULARY, max_length=positions, **size), seed=3)
    drafted = loaded(decoder, tmp_path, Drafted(DraftModel(small), 3))
    found = [drafted.generate([x]).tokens for x in PROMPTS]
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.slow
def test_a_draft_model_in_a_file_with_processors_that_read_the_last_tokens(decoder, tmp_path):
    small = randomize(models.gpt(VOCABULARY, max_length=LENGTH, **SIZE), seed=3)
    rules = [processors.NoRepeatNGram(2), processors.NoBadWords([[3, 4], [5]])]
    strategy = Greedy(processors=rules)
    options = {"max_length": 12, "end_id": None}
    drafted = loaded(decoder, tmp_path, Drafted(DraftModel(small), 4, strategy), **options)
    for prompt in ([3], PROMPTS[0]):
        wanted = generate(decoder, [prompt], strategy=strategy, **options).tokens
        np.testing.assert_array_equal(drafted.generate([prompt]).tokens, wanted)


def test_random_numbers_are_not_in_a_file(decoder, tmp_path):
    with pytest.raises(ValueError, match="Drafted draws random numbers"):
        loaded(decoder, tmp_path, Drafted(PromptLookup(), 2, Sample()))


def test_a_length_of_which_the_converter_makes_an_activation(decoder, tmp_path):
    """Of max(min(x, 6), 0) it makes ReLU6, which LiteRT does not have for integers."""
    drafted = loaded(decoder, tmp_path, Drafted(PromptLookup(), 4), max_length=12)
    wanted = generate(decoder, [PROMPTS[0]], 12, end_id=END).tokens
    np.testing.assert_array_equal(drafted.generate([PROMPTS[0]]).tokens, wanted)
