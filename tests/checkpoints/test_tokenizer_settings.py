"""What transformers changes in a `tokenizer.json` by the settings beside it."""

import json

import pytest

from keras_tfm.checkpoints import load_tokenizer

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
from tokenizers import (  # noqa: E402
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "film", "The", "café", "cafe", "猫"]
TEXTS = ["The film café", "the 猫 film", "", "café The"]


def ids_of_both(folder):
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = load_tokenizer(folder)
    return [ours.encode(x).ids for x in TEXTS], [theirs(x)["input_ids"] for x in TEXTS]


def write(folder, tokenizer, model_type, settings, size=None):
    tokenizer.save(str(folder / "tokenizer.json"))
    size = size or tokenizer.get_vocab_size()
    config = {"model_type": model_type, "vocab_size": size}
    (folder / "config.json").write_text(json.dumps(config))
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        None,
        {"tokenizer_class": "BertTokenizer"},
        {"tokenizer_class": "BertTokenizerFast", "do_lower_case": False},
        {"tokenizer_class": "ElectraTokenizer", "strip_accents": False},
        {"tokenizer_class": "DistilBertTokenizer", "do_lower_case": False, "strip_accents": True},
        {"tokenizer_class": "BertTokenizer", "tokenize_chinese_chars": False},
        {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": False},
    ],
    ids=str,
)
def test_word_pieces(lowercase, settings, tmp_path):
    tokenizer = Tokenizer(models.WordPiece({x: i for i, x in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    write(tmp_path, tokenizer, "bert", settings)
    ours, theirs = ids_of_both(tmp_path)
    assert ours == theirs


@pytest.mark.parametrize(
    "settings",
    [
        None,
        {"tokenizer_class": "MPNetTokenizer", "do_lower_case": False},
        {"tokenizer_class": "MPNetTokenizerFast", "tokenize_chinese_chars": False},
        {"mask_token": {"content": "<mask>", "lstrip": False, "__type": "AddedToken"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("file", ["tokenizer.json", "vocab.txt"])
def test_word_pieces_of_mpnet(file, settings, tmp_path):
    """A text, and a pair with two tokens between its texts."""
    words = ["<s>", "<pad>", "</s>", "<unk>", *WORDS, "<mask>"]
    (tmp_path / "vocab.txt").write_text("".join(f"{x}\n" for x in words))
    config = {"model_type": "mpnet", "vocab_size": len(words)}
    (tmp_path / "config.json").write_text(json.dumps(config))
    if file == "tokenizer.json":
        transformers.MPNetTokenizer.from_pretrained(tmp_path)._tokenizer.save(
            str(tmp_path / "tokenizer.json")
        )
        (tmp_path / "vocab.txt").unlink()
    if settings is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    ours = load_tokenizer(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in [*TEXTS, "the <mask> film", "the<mask> </s>"]:
        assert ours.encode(text).ids == theirs(text)["input_ids"], text
        assert ours.encode(text, "café").ids == theirs(text, "café")["input_ids"], text
    assert ours.encode("the", "film").ids == [0, 9, 2, 2, 10, 2]


@pytest.mark.parametrize("name", ["GPT2Tokenizer", "Qwen2Tokenizer"])
@pytest.mark.parametrize("prefix", [False, True])
@pytest.mark.parametrize("setting", [False, True])
def test_a_space_before_byte_pairs(name, prefix, setting, tmp_path):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = {x: i for i, x in enumerate(["<|endoftext|>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(pieces, []))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    settings = {"tokenizer_class": name, "add_prefix_space": setting}
    write(tmp_path, tokenizer, "gpt2", settings)
    ours, theirs = ids_of_both(tmp_path)
    assert ours == theirs


def test_llama_without_a_space(tmp_path):
    pieces = {x: i for i, x in enumerate(["<unk>", "<s>", "</s>", "▁", *"abcefhilmtTé"])}
    tokenizer = Tokenizer(models.BPE(pieces, [], unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    write(tmp_path, tokenizer, "llama", {"tokenizer_class": "LlamaTokenizer"})
    prefixed = load_tokenizer(tmp_path)
    assert prefixed.encode("the").tokens == ["▁", "t", "h", "e"]
    settings = {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = load_tokenizer(tmp_path)
    for text in ("The film café", "a  cafe"):
        wanted = transformers.AutoTokenizer.from_pretrained(tmp_path)(
            text, add_special_tokens=False
        )["input_ids"]
        assert tokenizer.encode(text).ids == wanted
    assert tokenizer.decode(tokenizer.encode(" the").ids) == " the"


@pytest.mark.parametrize(
    ("settings", "others"),
    [
        ({"additional_special_tokens": ["<tool>"]}, {}),
        ({"added_tokens_decoder": {"4": {"content": "<tool>", "special": True}}}, {}),
        ({"pad_token": "<tool>"}, {}),
        ({}, {"special_tokens_map.json": {"pad_token": "<tool>"}}),
        ({}, {"added_tokens.json": {"<tool>": 4}}),
        ({"eos_token": "b"}, {}),  # a word of the vocabulary, found within others
    ],
    ids=str,
)
@pytest.mark.parametrize("rows", [4, 5])
def test_tokens_of_the_settings(settings, others, rows, tmp_path):
    tokenizer = Tokenizer(
        models.WordLevel({"<unk>": 0, "a": 1, "b": 2, "</s>": 3}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **settings}
    write(tmp_path, tokenizer, "llama", settings, rows)
    for name, content in others.items():
        (tmp_path / name).write_text(json.dumps(content))
    ours = load_tokenizer(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("a <tool> b", "a</s> ab", "<tool>b"):
        wanted = theirs(text)["input_ids"]
        if max(wanted) < rows:  # a token for which the model has no row stays text
            assert ours.encode(text).ids == wanted, text
        else:
            assert max(ours.encode(text).ids) < rows


@pytest.mark.parametrize(
    ("settings", "others"),
    [
        ({"mask_token": "<mask>"}, {}),  # as transformers 5 saves it: by its text alone
        ({}, {"special_tokens_map.json": {"mask_token": "<mask>"}}),
        ({"additional_special_tokens": ["<mask>"]}, {}),
        ({"added_tokens_decoder": {"4": {"content": "<mask>", "lstrip": True}}}, {}),
    ],
    ids=str,
)
def test_rules_of_a_mask(settings, others, tmp_path):
    """The space before it belongs to it."""
    pieces = {"<unk>": 0, "a": 1, "b": 2, "Ġ": 3, "<mask>": 4}
    tokenizer = Tokenizer(models.BPE(pieces, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True, special=True)])
    write(tmp_path, tokenizer, "gpt2", {"tokenizer_class": "PreTrainedTokenizerFast", **settings})
    for name, content in others.items():
        (tmp_path / name).write_text(json.dumps(content))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)("a <mask> b")["input_ids"]
    assert load_tokenizer(tmp_path).encode("a <mask> b").ids == theirs == [1, 4, 3, 2]


@pytest.mark.parametrize("number", [1, 300])
def test_numbers_that_a_tokenizer_does_not_give(number, tmp_path):
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    added = {str(number): {"content": "<new>"}}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": added}
    write(tmp_path, tokenizer, "gpt2", settings, size=5)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)("a <new>")["input_ids"]
    assert load_tokenizer(tmp_path).encode("a <new>").ids == theirs


def test_rows_for_some_tokens(tmp_path):
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    settings = {"additional_special_tokens": ["<1>", "<2>"]}
    write(tmp_path, tokenizer, "gpt2", {"tokenizer_class": "TokenizersBackend", **settings}, 3)
    assert load_tokenizer(tmp_path).encode("a <1> <2>").ids == [1, 2, 0]


def test_added_tokens_of_the_file_without_a_row(tmp_path):
    """Gemma 3's text models have `<image_soft_token>`, one more than their tables have rows."""
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<1>", "<soft>"])
    added = {"3": {"content": "<soft>", "special": True}}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": added}
    write(tmp_path, tokenizer, "gemma3_text", settings, size=3)
    with pytest.warns(UserWarning, match="the model has 3 rows and none for <soft>: this stays"):
        ours = load_tokenizer(tmp_path)
    assert ours.encode("a <1> <soft>").ids == [1, 2, 0]
    assert load_tokenizer(tmp_path, vocabulary_size=4).encode("a <soft>").ids == [1, 3]
    tokenizer.post_processor = processors.TemplateProcessing("<soft> $A", None, [("<soft>", 3)])
    write(tmp_path, tokenizer, "gemma3_text", settings, size=3)
    with pytest.raises(ValueError, match="has 4 ids and the embedding 3 rows"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("lowercase", [False, True])
def test_texts_of_sentences_in_lower_case(lowercase, tmp_path):
    """As sentence-transformers makes them, with `do_lower_case` of BGE's folders."""
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "b": 2}, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    write(tmp_path, tokenizer, "gpt2", None)
    assert load_tokenizer(tmp_path).encode("A b").ids == [int(lowercase), 2]
    (tmp_path / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    assert load_tokenizer(tmp_path).encode("A b").ids == [1, 2]


def test_special_tokens_that_are_split(tmp_path):
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    write(tmp_path, tokenizer, "llama", {"split_special_tokens": True})
    with pytest.raises(ValueError, match="split_special_tokens must be false"):
        load_tokenizer(tmp_path)
