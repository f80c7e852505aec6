"""`trim_vocabulary`: the same tokens for texts of kept tokens, and the same logits."""

import functools
import hashlib
import importlib
import json
import pydoc

import numpy as np
import pytest
import real_lines
from compare import assert_close, to_numpy
from families import NAMES, arguments_of, small_model
from keras_weights import randomize
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers import models as tokenizer_models

from keras_tfm import checkpoints, generation, models
from keras_tfm.checkpoints import trim
from keras_tfm.checkpoints.tokenizers.trim_tokenizer import TokenizerParts
from keras_tfm.models.quantization.state import (
    TrainedQuantization,
    quantization_of,
    quantization_settings,
    set_quantization,
)
from keras_tfm.models.resize import select_ids, special_ids

SIZES = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 16}


def folder_of(folder, model_type, **files):
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        path.write_bytes(content) if isinstance(content, bytes) else path.write_text(content)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    return checkpoints.load_tokenizer(folder)


def word_piece(folder):
    return folder_of(folder, "bert", vocab__txt="\n".join(real_lines.word_pieces()))


def byte_pairs(folder):
    ids, merges = real_lines.byte_pairs("<s>", "<pad>", "</s>", "<unk>")
    files = {"vocab__json": json.dumps(ids), "merges__txt": "\n".join(merges)}
    return folder_of(folder, "roberta", **files)


def unigrams(folder):
    content = real_lines.sentence_pieces(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    return folder_of(folder, "t5", spiece__model=content)


def sentence_piece_pairs(folder):
    content = real_lines.sentence_pieces(
        model_type="bpe", byte_fallback=True, normalization_rule_name="identity",
        remove_extra_whitespaces=False,
    )  # fmt: skip
    return folder_of(folder, "llama", tokenizer__model=content)


KINDS = {
    "WordPiece": word_piece, "BPE of bytes": byte_pairs, "Unigram": unigrams,
    "BPE with bytes as fallback": sentence_piece_pairs,
}  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request, tmp_path_factory):
    return KINDS[request.param](tmp_path_factory.mktemp("tokenizer"))


def check_same_tokens(tokenizer, given, others):
    """Of the given texts, and of others that have kept tokens only; returns how many these are."""
    parts = TokenizerParts(tokenizer)
    kept = sorted(parts.closure(parts.special_ids() | parts.ids_of(given)))
    small, new = parts.trim(kept), {old: i for i, old in enumerate(kept)}
    assert len(kept) < 0.9 * len(parts.ids)
    same = 0
    for text in [*given, *others]:
        before, after = tokenizer.encode(text), small.encode(text)
        if set(before.ids) <= set(kept):
            assert after.tokens == before.tokens, text
            assert after.ids == [new[x] for x in before.ids]
            assert small.decode(after.ids) == tokenizer.decode(before.ids)
            same += 1
    return same - len(given)


@functools.cache
def english_lines(count=2000):
    """Lines of the documentation of the standard library."""
    found = set()
    for name in ("argparse", "ast", "asyncio", "datetime", "decimal", "email", "logging", "socket"):
        pages = pydoc.plaintext.document(importlib.import_module(name))
        found |= {x.strip() for x in pages.splitlines() if len(x.strip()) > 30}
    assert len(found) >= count
    return sorted(found, key=lambda x: hashlib.md5(x.encode()).digest())[:count]


def test_2000_texts_have_the_same_tokens(tokenizer):
    """Of English, and 200 of German, in a vocabulary of ten languages."""
    lines = real_lines.lines()
    german = lines[200:400]
    assert check_same_tokens(tokenizer, [*english_lines()[:1800], *german], lines[::3]) > 10


def test_a_word_that_was_unknown_still_is():
    """Without "abc", which leads to a place where no piece matches, "ab" and "##cd" would match."""
    words = ["[UNK]", "[CLS]", "[SEP]", "abc", "ab", "##cd", "d"]
    tokenizer = Tokenizer(
        tokenizer_models.WordPiece({x: i for i, x in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    parts = TokenizerParts(tokenizer)
    assert tokenizer.encode("abcd").tokens == ["[UNK]"]
    kept = sorted(parts.special_ids() | parts.ids_of(["abcd ab d"]) | {5})
    assert parts.trim(kept).encode("abcd").tokens == ["[UNK]"]
    kept.remove(3)
    assert parts.trim(kept).encode("abcd").tokens == ["ab", "##cd"]


def test_an_unknown_character_costs_what_it_cost():
    """Unigram derives its score from that of the worst piece, which is therefore kept."""
    pieces = [("<unk>", 0.0), ("a", -30.0), ("bc", -1.0), ("ab", -19.0), ("c", -19.0), ("z", -40.0)]
    tokenizer = Tokenizer(tokenizer_models.Unigram(pieces, unk_id=0))
    assert tokenizer.encode("abc").tokens == ["a", "bc"]
    parts = TokenizerParts(tokenizer)
    assert parts.special_ids() == {0, 5}
    pieces[1] = ("a", -39.0)
    tokenizer = Tokenizer(tokenizer_models.Unigram(pieces, unk_id=0))
    assert tokenizer.encode("abc").tokens == ["ab", "c"]
    small = TokenizerParts(tokenizer).trim([0, 2, 3, 4, 5])
    assert small.encode("abc").tokens == ["ab", "c"]
    # Without the worst one, the unknown "a" and "bc" would be better.
    worse = TokenizerParts(tokenizer).trim([0, 2, 3, 4])
    assert worse.encode("abc").tokens == ["a", "bc"]


@pytest.mark.parametrize("ends", ["template", "roberta", "bert"])
def test_ids_of_added_and_special_tokens_are_renumbered(ends):
    words = ["a", "b", "<s>", "c", "</s>"]
    tokenizer = Tokenizer(tokenizer_models.WordLevel({x: i for i, x in enumerate(words)}))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>", "</s>", "<new>"])
    tokenizer.add_tokens(["other", "plain"])
    pairs = [("<s>", 2), ("</s>", 4)]
    tokenizer.post_processor = {
        "template": processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=pairs
        ),
        "roberta": processors.RobertaProcessing(pairs[1], pairs[0]),
        "bert": processors.BertProcessing(pairs[1], pairs[0]),
    }[ends]
    tokenizer.enable_padding(pad_id=4, pad_token="</s>")
    parts = TokenizerParts(tokenizer)
    kept = sorted(parts.special_ids() | parts.ids_of(["b plain <new>"]))
    assert kept == [1, 2, 4, 5, 7]
    small = parts.trim(kept)
    assert small.encode("b plain <new>").ids == [1, 0, 4, 3, 2]
    assert small.encode("b", "b").ids.count(0) == 2
    assert small.padding["pad_id"] == 2


# Models

WORDS = Tokenizer(tokenizer_models.WordLevel({f"w{i}": i for i in range(31)}, unk_token="w0"))
WORDS.pre_tokenizer = pre_tokenizers.Whitespace()
TEXTS = ["w4 w9 w3", "w17 w21", "w25 w30"]
# With a vocabulary of 31 ids that can be trimmed.
OF_PICTURES = ("image_gpt", "imagegpt", "dalle", "dvae", "flava_image_codebook")
TRIMMED = [
    x for x in NAMES
    if x not in (*OF_PICTURES, "transformer", "clip")
    and "vocabulary_size" in arguments_of(x)
]  # fmt: skip
FAST = ("bert", "moonshine")


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[pytest.mark.slow] * (x not in FAST)) for x in TRIMMED]
)
def test_outputs_for_kept_tokens_are_the_same(name):
    """`trim_vocabulary` compares them itself, with random tokens and padding."""
    model = randomize(small_model(name))
    trimmed = checkpoints.trim_vocabulary(model, WORDS, TEXTS, ids=[1])
    special = {x for ids in special_ids(model).values() for x in ids}
    assert trimmed.kept == sorted({0, 1, 3, 4, 9, 17, 21, 25, 30} | special)
    assert trimmed.model.arguments["vocabulary_size"] == len(trimmed.kept)
    for argument, ids in special_ids(model).items():
        assert special_ids(trimmed.model)[argument] == trimmed.new_id(ids)
    assert trimmed.model.count_params() < model.count_params()
    assert (trimmed.model.family, trimmed.model.head) == (model.family, model.head)


@functools.cache
def answerer(num_images, image_id=1):
    tower = {"dim": 6, "num_layers": 1, "num_heads": 3, "intermediate_dim": 7}
    model = models.smolvlm(
        31, **SIZES, num_key_value_heads=1, image_size=16, patch_size=4, scale_factor=2,
        image_id=image_id, num_images=num_images, image=tower,
    )  # fmt: skip
    return randomize(model, 3)


@pytest.mark.parametrize(
    ("num_images", "old_id"),
    [
        (None, 1),
        (2, 1),
        (None, 8),
    ],
)
def test_the_check_draws_no_placeholder_by_chance(num_images, old_id):
    """Of few ids, three rows of random ones nearly always had some."""
    model = answerer(num_images, old_id)
    trimmed = checkpoints.trim_vocabulary(model, WORDS, ["w9 w11", "w20"])
    image_id = trimmed.model.arguments["image_id"]
    assert trimmed.kept[image_id] == old_id
    features = 4 * (num_images or 1)
    new = np.array([[image_id + 1, *[image_id] * features, image_id + 2]])
    shape = (1, *model.input["pixels"].shape[1:])
    pixels = np.random.default_rng(1).integers(0, 256, shape).astype("float32")
    old = np.asarray(trimmed.kept)[new]
    expected = to_numpy(model({"pixels": pixels, "target": old}))[..., trimmed.kept]
    # float32, one block.
    assert_close(trimmed.model({"pixels": pixels, "target": new}), expected, 1e-5)


def test_the_check_compares_rows_with_a_picture(monkeypatch):
    def select(model, kept):
        small = select_ids(model, kept)
        kernel = small.get_layer("connector").weights[0]
        kernel.assign(2 * kernel)
        return small

    monkeypatch.setattr(trim, "select_ids", select)
    with pytest.raises(ValueError, match="cannot be trimmed: its outputs for kept tokens would"):
        checkpoints.trim_vocabulary(answerer(None), WORDS, ["w3 w7"])


def test_logits_are_those_of_the_kept_ids():
    model = randomize(models.llama(31, **SIZES))
    trimmed = checkpoints.trim_vocabulary(model, WORDS, TEXTS)
    ids = np.array([[4, 9, 3, 30]])
    expected = to_numpy(model(ids))[..., trimmed.kept]
    new = trimmed.new_id(ids[0].tolist())
    assert_close(to_numpy(trimmed.model(np.array([new]))), expected, 1e-6)
    assert trimmed.new_id(30) == len(trimmed.kept) - 1
    with pytest.raises(ValueError, match="expected an id that was kept, got 2"):
        trimmed.new_id([3, 2])


def test_generated_tokens_are_those_without_the_dropped_ones():
    model = randomize(models.llama(31, **SIZES), seed=3)
    trimmed = checkpoints.trim_vocabulary(model, WORDS, TEXTS, ids=range(2, 25, 2))
    others = sorted(set(range(31)) - set(trimmed.kept))
    suppressed = generation.Greedy(processors=[generation.processors.SuppressTokens(others)])
    prompt = [4, 9, 3]
    lengths = {"max_length": 12, "end_id": None}
    expected = generation.generate(model, [prompt], **lengths, strategy=suppressed).tokens
    found = generation.generate(trimmed.model, [trimmed.new_id(prompt)], **lengths).tokens
    assert [trimmed.kept[x] for x in found[0]] == expected[0].tolist()
    assert len(set(found[0, 3:].tolist())) > 2


def test_a_folder_of_a_trimmed_model(tmp_path):
    model = randomize(models.sequence_classifier(models.roberta(31, **SIZES, max_length=9), 3))
    trimmed = checkpoints.trim_vocabulary(model, WORDS, TEXTS)
    checkpoints.save_huggingface(trimmed.model, tmp_path)
    trimmed.tokenizer.save(str(tmp_path / "tokenizer.json"))
    again, tokenizer = checkpoints.load_huggingface(tmp_path), checkpoints.load_tokenizer(tmp_path)
    new, old = ({"tokens": np.array([x.encode(TEXTS[0]).ids])} for x in (tokenizer, WORDS))
    assert_close(to_numpy(again(new)), to_numpy(model(old)), 1e-6)


def test_adapters_are_kept():
    model = randomize(models.gpt(31, **SIZES))
    models.enable_lora(model, rank=2)
    for x in model.trainable_weights:
        x.assign(x + 0.1)
    trimmed = checkpoints.trim_vocabulary(model, WORDS, TEXTS)
    assert len(trimmed.model.trainable_weights) == len(model.trainable_weights)


def test_two_tokenizers_with_the_same_ids():
    model = models.marian(31, **SIZES)
    both = checkpoints.trim_vocabulary(model, [WORDS, WORDS], TEXTS).tokenizer
    assert [x.encode(TEXTS[0]).tokens for x in both] == [TEXTS[0].split()] * 2


@pytest.mark.parametrize(("quantization", "tied"), [("int4", True), ("int8", False)])
def test_rounding_is_kept(quantization, tied):
    """Of a training: logits are those of the rounded model, and so are those of its file."""
    model = models.llama(31, **{**SIZES, "dim": 64}, tie_output=tied)
    randomize(model)
    models.enable_quantization(model, quantization)
    trimmed = checkpoints.trim_vocabulary(model, WORDS, ids=range(2, 31, 2))
    small, kept = trimmed.model, np.array(trimmed.kept)
    assert quantization_settings(small) == quantization_settings(model)
    assert len(quantization_of(small).weights) == len(quantization_of(model).weights)
    ids = np.array([[2, 5, 9, 3]])
    expected = to_numpy(model(kept[ids]))[..., kept]
    assert_close(to_numpy(small(ids)), expected, 1e-6)
    models.disable_quantization(model)
    assert np.abs(to_numpy(model(kept[ids]))[..., kept] - expected).max() > 1e-3


def test_published_scales_are_those_of_the_kept_ids():
    """Of a quantized checkpoint, whose scales do not follow from the weights."""
    model = randomize(models.gpt(31, **{**SIZES, "dim": 32}, max_length=7))
    state = TrainedQuantization(model, "int4")
    scales = np.linspace(0.1, 0.4, 31).astype("float16")[:, None]
    state.publish({0: state.weights[0].grid._replace(scales=scales)})
    set_quantization(model, state)
    trimmed = checkpoints.trim_vocabulary(model, WORDS, ids=range(3, 31, 3))
    grid = quantization_of(trimmed.model).weights[0].grid
    np.testing.assert_array_equal(grid.scales, scales[trimmed.kept])


@functools.cache
def small_gpt():
    return models.gpt(31, **SIZES)


def quantized():
    model = models.gpt(31, **SIZES)
    model.quantize("int8", filters="dense|projection|query|inner|outer")
    return model


@pytest.mark.parametrize(
    ("build", "arguments", "error", "message"),
    [
        (small_gpt, {}, ValueError, "texts or ids must name tokens to keep, got neither"),
        (small_gpt, {"ids": [31]}, ValueError, "ids must be from 0 to 30, got 31"),
        (small_gpt, {"texts": [3]}, TypeError, "texts must be str, got int"),
        (small_gpt, {"texts": TEXTS, "tokenizer": "x"}, TypeError, "tokenizers.Tokenizer, as"),
        (lambda: models.gpt(30, **SIZES), {"texts": TEXTS}, ValueError,
         "the tokenizer has 31 ids and gpt 30: expected at most as many"),
        (lambda: models.marian(31, **SIZES, target_vocabulary_size=31), {"texts": TEXTS},
         ValueError, "source and target must share their ids, got two tables"),
        (lambda: models.vit(image_size=8, patch_size=4, **SIZES), {"texts": TEXTS}, ValueError,
         "expected a model with a vocabulary of texts, got 'vit'"),
        (quantized, {"texts": TEXTS}, ValueError, "gpt is quantized: trim the model of floats"),
        (lambda: models.sequence_classifier(models.bart(31, **SIZES, pad_id=5, end_id=30), 3),
         {"texts": TEXTS}, ValueError, "so it compares ids, as the classifiers of BART do"),
    ],
)  # fmt: skip
def test_what_cannot_be_trimmed(build, arguments, error, message):
    given = {"tokenizer": WORDS, **arguments}
    with pytest.raises(error, match=message) as caught:
        checkpoints.trim_vocabulary(build(), **given)
    assert "\n" not in str(caught.value)
