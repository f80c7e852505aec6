"""Folders loaded with more token ids, or with other numbers of positions."""

import json
import warnings

import numpy as np
import pytest
from compare import assert_close, to_numpy
from keras_weights import randomize
from small_checkpoints import copied, tensors_of

from keras_tfm import models
from keras_tfm.checkpoints import load_huggingface, load_tokenizer, save_huggingface

SMALL = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 11}
IDS = np.array([[3, 4, 5, 6], [6, 7, 8, 2]], "int32")
TOKENS = {"tokens": IDS}
BOTH = {"source": IDS, "target": IDS}
MODELS = {
    "gpt": (lambda: models.gpt(13, **SMALL, max_length=7), IDS),
    "roberta": (lambda: models.masked_language_model(models.roberta(13, **SMALL)), TOKENS),
    "llama": (lambda: models.llama(13, **SMALL), IDS),
    "deberta": (lambda: models.deberta(13, **SMALL, max_length=7, num_buckets=4), TOKENS),
    "bart": (lambda: models.bart(13, **SMALL, max_length=7), BOTH),
    "marian": (lambda: models.marian(13, **SMALL, max_length=7), BOTH),
    "t5": (lambda: models.t5(13, **SMALL), BOTH),
}


def run(model, inputs):
    return to_numpy(model(inputs, training=False))


def some(names, default):
    """Those in `default` by default, the others in the slow tier."""
    return [pytest.param(x, marks=[pytest.mark.slow] * (x not in default)) for x in names]


@pytest.mark.parametrize("name", some(MODELS, ("gpt", "t5")))
def test_added_ids_go_there_and_back(name, tmp_path):
    build, inputs = MODELS[name]
    model = randomize(build())
    save_huggingface(model, tmp_path / "folder")
    with pytest.warns(UserWarning, match="vocabulary_size is 17 instead of 13: the new rows have"):
        larger = load_huggingface(tmp_path / "folder", vocabulary_size=17)
    before, after = run(model, inputs), run(larger, inputs)
    assert_close(after[..., : before.shape[-1]], before, 1e-5)
    save_huggingface(larger, tmp_path / "larger")
    assert json.loads((tmp_path / "larger" / "config.json").read_text())["vocab_size"] == 17
    assert_close(run(load_huggingface(tmp_path / "larger"), inputs), after, 1e-6)


@pytest.mark.parametrize(
    "name", some([x for x in MODELS if x not in ("llama", "t5")], ("roberta", "marian"))
)
def test_other_numbers_of_positions_go_there_and_back(name, tmp_path):
    build, inputs = MODELS[name]
    model = randomize(build())
    old = model.arguments["max_length"]
    save_huggingface(model, tmp_path / "folder")
    with pytest.warns(UserWarning, match=f"max_length is {old + 4} instead of {old}: the new rows"):
        longer = load_huggingface(tmp_path / "folder", max_length=old + 4)
    save_huggingface(longer, tmp_path / "longer")
    shorter = load_huggingface(tmp_path / "folder", max_length=5)
    for one in (longer, load_huggingface(tmp_path / "longer"), shorter):
        assert_close(run(one, inputs), run(model, inputs), 1e-5)
    assert shorter.arguments["max_length"] == 5


def test_an_added_token_may_be_the_padding(tmp_path):
    """As for Llama, whose tokenizer has no padding token."""
    model = randomize(models.llama(13, **SMALL))
    save_huggingface(model, tmp_path)
    with pytest.warns(UserWarning, match="vocabulary_size is 14"):
        larger = load_huggingface(tmp_path, vocabulary_size=14, pad_id=13, max_length=9)
    given = larger.arguments
    assert (given["pad_id"], given["vocabulary_size"], given["max_length"]) == (13, 14, 9)
    assert_close(run(larger, IDS)[..., :13], run(model, IDS), 1e-5)
    assert_close(
        run(larger, np.pad(IDS, ((0, 0), (0, 2)), constant_values=13))[:, :4, :13],
        run(model, IDS),
        1e-5,
    )
    with pytest.raises(ValueError, match=r"in the vocabulary, 0\.\.13, got 14"):
        load_huggingface(tmp_path, vocabulary_size=14, pad_id=14)


def test_without_a_table_of_positions_nothing_is_new(tmp_path):
    model = randomize(MODELS["llama"][0]())
    save_huggingface(model, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        longer = load_huggingface(tmp_path, max_length=9000, vocabulary_size=13)
    assert longer.arguments["max_length"] == 9000
    assert_close(run(longer, IDS), run(model, IDS), 1e-6)


def test_ids_are_not_lost_on_loading(tmp_path):
    folder = copied(tmp_path, "gpt2")
    with pytest.raises(ValueError, match="vocabulary_size must be at least the folder's 29, got 5"):
        load_huggingface(folder, vocabulary_size=5)


def test_a_tokenizer_with_added_tokens_and_its_model(tmp_path):
    """Into a folder that both load, and that transformers loads."""
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path / "folder"
    save_huggingface(randomize(models.bert(13, **SMALL, max_length=9)), folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
    (folder / "vocab.txt").write_text("\n".join(words))
    tokenizer = load_tokenizer(folder)
    tokenizer.add_tokens([tokenizers.AddedToken("<left>"), tokenizers.AddedToken("<right>")])
    size = tokenizer.get_vocab_size()
    assert size == 15
    with pytest.warns(UserWarning, match="vocabulary_size is 15"):
        model = load_huggingface(folder, vocabulary_size=size)
    save_huggingface(model, tmp_path / "larger")
    tokenizer.save(str(tmp_path / "larger" / "tokenizer.json"))
    assert load_tokenizer(tmp_path / "larger").encode("a <right>").ids == [2, 5, 14, 3]
    rows = tensors_of(tmp_path / "larger")["embeddings.word_embeddings.weight"]
    assert_close(rows[13:], np.tile(rows[:13].mean(0), (2, 1)), 1e-6)
    # The old model's folder with the larger tokenizer: both are loaded with its size.
    tokenizer.save(str(folder / "tokenizer.json"))
    with pytest.warns(UserWarning, match=r"13 rows and none for <left>, <right>: .*vocabulary_siz"):
        assert load_tokenizer(folder).get_vocab_size() == 13
    assert load_tokenizer(folder, vocabulary_size=size).get_vocab_size() == size
