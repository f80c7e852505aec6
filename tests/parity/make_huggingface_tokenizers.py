"""python tests/parity/make_huggingface_tokenizers.py

Needs: pip install transformers==5.23.0 tokenizers sentencepiece protobuf. Writes
huggingface_tokenizers/ beside this file:

<case>/vocab.txt, vocab.json and merges.txt, or *.model   small vocabularies, trained here
<case>/config.json, tokenizer_config.json, added_tokens.json   what else a folder has
<case>/tokenizer.json                                          alone, in the cases *_json
<case>/expected.json   by text, the ids that transformers' own class makes of it; and of pairs of
    texts, the ids and the segments
"""

import contextlib
import io
import json
import shutil
from pathlib import Path

import sentencepiece
import tokenizers
import transformers

FOLDER = Path(__file__).with_name("huggingface_tokenizers")
CORPUS = [
    "Hello world, this is text number 1. It's 3.14 o'clock!",
    "the quick brown fox jumps over the lazy dog; they've understood 10,000 words",
    "größere Wörter über Äpfel und naïve Cafés, déjà vu à Paris",
    "日本語のテキスト 中文，标点！ 한국어 텍스트 😀 👩‍👩‍👧",
    "ещё один текст, Привет мир",
] * 20
TEXTS = [
    "", " ", "a", "Hello, world!", "  two  spaces ", "tab\there\nline\r\nend\n", "\n\n a", "a \n",
    "It's 3.14 o'clock; they've 10,000!", "CamelCase snake_case KEBAB-CASE", "don't DON'T I'M",
    "Größe STRASSE straße ǅ ﬁne Ⅳ ½ ²", "cafe\u0301 café naïve", "İstanbul Isı", "Σίσυφος ΟΔΟΣ",
    "Привет, мир! Ёлка", "שלום עולם", "مرحبا بالعالم ١٢٣", "नमस्ते दुनिया", "สวัสดีชาวโลก",
    "日本語のテキスト。", "中文，标点！", "한국어 텍스트", "㍿ ｱｲｳ ＡＢＣ", "𠀀 𝒳 😀👩‍👩‍👧 🇩🇪",
    "a\u00a0b\u2009c\u3000d\u200be\u00adf\ufeffg", "«quoted» „so“ ‘x’ … — –", "a\0b",
    "\x01\x7f\x80\ufffd",
    "$5 #1 @x ^ ~ ` | < > = + \\", "x" * 150, "word " * 30, "[CLS] a [MASK] b [SEP]",
    "[mask] [UNK][PAD]",
    "<s> </s> <unk> <pad> <extra_id_0> <extra_id_99>x", "a<|endoftext|>b <|endoftext|>",
    "▁a ▁ Ġb </w>",
    "##stand under##", "e\u0301\u0327\u0308", "\u202eabc\u202c", "1.000,50 € – 20 %",
    "#version: 0.2",
]  # fmt: skip
# Of the families whose tokens these are; in other texts they are like any text.
MORE = [
    "<s>a <mask> b</s>", "a<mask>b  <mask>", "<|im_start|>user\nGröße  😀<|im_end|>\n",
    "<bos><start_of_turn>user\n\n中文 1234<end_of_turn><eos>", "[CLS] ``a'' b [MASK] [SEP]",
    "  leading", "trailing  ", "a   b    c", "line\n\n\nline\t\tx", "12,345.67 1,2",
    "<0x41> <0xE4>", "<extra>x <extra> y", "ﬁn a\u0301",
]  # fmt: skip
# Code points in hexadecimal, as SentencePiece wants them: ligatures, wide letters, spaces, marks.
RULES = [
    ("FB01", "66 69"), ("BD", "31 2044 32"), ("2163", "49 56"), ("FF21", "41"), ("FF22", "42"),
    ("A0", "20"), ("3000", "20"), ("200B", "20"), ("65 301", "E9"), ("AD", ""), ("1", ""),
    ("338F", "6B 67"), ("2026", "2E 2E 2E"), ("A", "20"), ("9", "20"), ("D", "20"),
]  # fmt: skip
PAIRS = [["Hello world", "the fox"], ["", "a"], ["größere", " "], ["[SEP]", "中文"]]
BERT_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    bert("bert", {})
    bert("bert_cased", {"do_lower_case": False})
    bert("bert_accents", {"strip_accents": False, "tokenize_chinese_chars": False})
    gpt2("gpt2", {})
    gpt2("gpt2_prefix", {"add_prefix_space": True})
    gpt1("gpt1")
    t5("t5", {})
    t5("t5_few", {"extra_ids": 7}, "identity")
    successors()
    mpnet("mpnet", None)
    mpnet("mpnet_cased", {"do_lower_case": False, "tokenize_chinese_chars": False})
    for case, cls in (("bert", "Bert"), ("gpt2", "GPT2"), ("t5", "T5")):
        saved = getattr(transformers, f"{cls}Tokenizer").from_pretrained(FOLDER / case)
        folder = new(f"{case}_json", {"model_type": case})
        saved._tokenizer.enable_truncation(3)  # as some folders have it, and no text may be cut
        saved._tokenizer.save(str(folder / "tokenizer.json"))
        saved._tokenizer.no_truncation()
        expect(folder, saved)


def successors() -> None:
    """The tokenizers of later families."""
    token = {"content": "<extra>", "lstrip": True, "rstrip": False, "normalized": False}
    mask = {**token, "content": "<mask>", "special": True}
    byte_level("gpt2_added", "GPT2", "gpt_neo", ["<|endoftext|>"], {}, {"<extra>": 320})
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    byte_level("roberta", "Roberta", "roberta", special, {})
    byte_level(
        "roberta_added", "Roberta", "bart", special,
        {
            "add_prefix_space": True,
            "mask_token": {**mask, "__type": "AddedToken"},
            "added_tokens_decoder": {"4": mask, "320": token},
        },
    )  # fmt: skip
    turns = {
        str(320 + i): {**token, "content": x, "lstrip": False, "special": True}
        for i, x in enumerate(["<|im_start|>", "<|im_end|>"])
    }
    byte_level(
        "qwen2", "Qwen2", "qwen3", ["<|endoftext|>"],
        {
            "added_tokens_decoder": turns, "bos_token": None, "eos_token": "<|im_end|>",
            "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        },
    )  # fmt: skip
    pairs = {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity"}
    pairs |= {"remove_extra_whitespaces": False, "split_digits": True, "vocab_size": 400}
    ends = {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1}
    for case, settings in (
        ("llama", {"add_bos_token": True, "add_eos_token": False, "legacy": False}),
        ("llama_legacy", {"legacy": True}),
        ("llama_ends", {"add_bos_token": True, "add_eos_token": True, "add_prefix_space": False}),
    ):
        sentence_piece(case, "Llama", "llama", "tokenizer.model", settings, **pairs, **ends)
    ends = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "add_dummy_prefix": False}
    ends |= {"pad_piece": "<pad>", "eos_piece": "<eos>", "bos_piece": "<bos>"}
    ends["user_defined_symbols"] = ["<mask>", "<start_of_turn>", "<end_of_turn>", "\n\n", "▁▁"]
    settings = {"add_bos_token": True, "add_eos_token": False}
    sentence_piece("gemma", "Gemma", "gemma2", "tokenizer.model", settings, **pairs, **ends)
    unigram = {"model_type": "unigram", "vocab_size": 200}
    ends = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1}
    ends |= {"control_symbols": ["[CLS]", "[SEP]"], "user_defined_symbols": ["[MASK]"]}
    for case, settings in (
        ("albert", {}),
        ("albert_cased", {"do_lower_case": False, "keep_accents": True}),
    ):
        sentence_piece(case, "Albert", "albert", "spiece.model", settings, **unigram, **ends)
    for case, cls, model_type in (
        ("xlm_roberta", "XLMRoberta", "xlm-roberta"), ("camembert", "Camembert", "camembert"),
    ):  # fmt: skip
        sentence_piece(case, cls, model_type, "sentencepiece.bpe.model", {}, **unigram)


def byte_level(
    case: str,
    cls: str,
    model_type: str,
    special: list[str],
    settings: dict,
    added: dict | None = None,
) -> None:
    folder = new(case, {"model_type": model_type, "vocab_size": 330}, settings)
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320, special_tokens=special, show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    trained.train_from_iterator(CORPUS, trainer)
    trained.model.save(str(folder))
    if added is not None:
        (folder / "added_tokens.json").write_text(json.dumps(added))
    expect_same(folder, getattr(transformers, f"{cls}Tokenizer").from_pretrained(folder))


def sentence_piece(
    case: str, cls: str, family: str, name: str, settings: dict, **options: object
) -> None:
    settings = {**settings, "tokenizer_class": f"{cls}TokenizerFast"}
    config = {"model_type": family, "vocab_size": 410}
    folder = new(case, config, settings)
    rules = FOLDER / "rules.tsv"
    rules.write_text("".join(f"{a}\t{b}\n" for a, b in RULES))
    if "normalization_rule_name" not in options:
        options["normalization_rule_tsv"] = rules.name  # the model stores this path
    model = io.BytesIO()
    with contextlib.chdir(FOLDER):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS), model_writer=model, hard_vocab_limit=False,
            minloglevel=2, character_coverage=0.98, **options,
        )  # fmt: skip
    rules.unlink()
    (folder / name).write_bytes(model.getvalue())
    expect_same(folder, getattr(transformers, f"{cls}Tokenizer").from_pretrained(folder))


def expect_same(folder: Path, tokenizer: transformers.PreTrainedTokenizerBase) -> None:
    """What the class of the family makes, and `AutoTokenizer` too."""
    expect(folder, tokenizer, MORE, pairs=True)
    auto = transformers.AutoTokenizer.from_pretrained(folder)
    for text in TEXTS + MORE:
        assert auto(text)["input_ids"] == tokenizer(text)["input_ids"], (folder.name, text)


def new(case: str, config: dict, settings: dict | None = None) -> Path:
    folder = FOLDER / case
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def bert(case: str, settings: dict) -> None:
    folder = new(case, {"model_type": "bert", "vocab_size": 400}, settings)
    word_pieces(folder, settings, BERT_SPECIAL)
    expect(folder, transformers.BertTokenizer.from_pretrained(folder), pairs=True)


def mpnet(case: str, settings: dict | None) -> None:
    """RoBERTa's special tokens before BERT's vocabulary, and the mask behind it."""
    folder = new(case, {"model_type": "mpnet", "vocab_size": 300}, settings)
    word_pieces(folder, settings or {}, ["<s>", "<pad>", "</s>", "<unk>", *BERT_SPECIAL])
    with (folder / "vocab.txt").open("a") as file:
        file.write("<mask>\n")
    expect_same(folder, transformers.MPNetTokenizer.from_pretrained(folder))


def word_pieces(folder: Path, settings: dict, special: list[str]) -> None:
    """Writes `vocab.txt`."""
    trained = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    options = {key.replace("do_lower_case", "lowercase"): x for key, x in settings.items()}
    options.pop("tokenize_chinese_chars", None)
    trained.normalizer = tokenizers.normalizers.BertNormalizer(**options)
    trained.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=250, special_tokens=special, show_progress=False
    )
    trained.train_from_iterator(CORPUS, trainer)
    words = sorted(trained.get_vocab().items(), key=lambda x: x[1])
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word, _ in words))


def gpt2(case: str, settings: dict) -> None:
    folder = new(case, {"model_type": "gpt2", "vocab_size": 320}, settings)
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    trained.train_from_iterator(CORPUS, trainer)
    trained.model.save(str(folder))
    expect(folder, transformers.GPT2Tokenizer.from_pretrained(folder))


def gpt1(case: str) -> None:
    folder = new(case, {"model_type": "openai-gpt", "vocab_size": 260})
    trained = tokenizers.Tokenizer(
        tokenizers.models.BPE(unk_token="<unk>", end_of_word_suffix="</w>")
    )
    trained.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    trained.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=260, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    trained.train_from_iterator(CORPUS, trainer)
    trained.model.save(str(folder))
    expect(folder, transformers.OpenAIGPTTokenizer.from_pretrained(folder))


def t5(case: str, settings: dict, rule: str | None = None) -> None:
    """T5's own normalisation is compiled into 240 KB: here are a few of its rules.

    tests/checkpoints/test_transformers.py compares all of them.
    """
    rules = FOLDER / "rules.tsv"
    rules.write_text("".join(f"{a}\t{b}\n" for a, b in RULES))
    normalisation = {"normalization_rule_tsv": rules.name}  # the model stores this path
    if rule is not None:
        normalisation = {"normalization_rule_name": rule}
    extra = settings.get("extra_ids", 100)
    folder = new(case, {"model_type": "t5", "vocab_size": 250 + extra}, settings)
    model = io.BytesIO()
    with contextlib.chdir(FOLDER):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS), model_writer=model, vocab_size=200,
            model_type="unigram", hard_vocab_limit=False, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
            minloglevel=2, **normalisation,
        )  # fmt: skip
    rules.unlink()
    (folder / "spiece.model").write_bytes(model.getvalue())
    expect(folder, transformers.T5Tokenizer.from_pretrained(folder, **settings))


def expect(
    folder: Path, tokenizer: transformers.PreTrainedTokenizerBase, more=(), pairs=False
) -> None:
    texts = [[text, tokenizer(text)["input_ids"]] for text in [*TEXTS, *more]]
    result = {"size": len(tokenizer), "texts": texts}
    if pairs:
        encoded = [tokenizer(*pair) for pair in PAIRS]
        result["pairs"] = [
            [pair, x["input_ids"], x.get("token_type_ids")]
            for pair, x in zip(PAIRS, encoded, strict=True)
        ]
    text = json.dumps(result, ensure_ascii=True, separators=(",", ":"))
    (folder / "expected.json").write_text(text + "\n")
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder.name}: {len(tokenizer)} ids, {size:,} bytes")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    main()
