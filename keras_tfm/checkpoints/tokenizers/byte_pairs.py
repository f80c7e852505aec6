"""Tokenizers from `vocab.json` and `merges.txt`: GPT, GPT-2, RoBERTa, BART, Qwen."""

from pathlib import Path

from keras_tfm.checkpoints.tensors import read_json
from keras_tfm.checkpoints.tokenizers.tokenizer_settings import (
    SPECIAL_TOKENS,
    Package,
    Tokenizer,
    TokenizerSettings,
    reading,
)

# Qwen's rule for words: like GPT-4's, but each digit alone.
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def gpt2(settings: TokenizerSettings, file: Path, merges: Path) -> Tokenizer:
    """The byte-level BPE tokenizer of GPT-2 (arXiv:1508.07909)."""
    tokenizer = _byte_level(settings, file, merges)
    names = SPECIAL_TOKENS["GPT2Tokenizer"]
    settings.add_tokens(tokenizer, {**names})
    ends = [settings.text(name, names[name]) for name in ("bos", "eos")]
    settings.add_ends(tokenizer, *ends)
    return tokenizer


def roberta(settings: TokenizerSettings, file: Path, merges: Path) -> Tokenizer:
    """The tokenizer of RoBERTa and BART: GPT-2's, with <s> and </s> around each text."""
    tokenizer = _byte_level(settings, file, merges)
    names = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "pad": "<pad>"}
    settings.add_tokens(tokenizer, {**names, "cls": "<s>", "mask": "<mask>"})
    ends = [settings.text(name, token) for name, token in (("sep", "</s>"), ("cls", "<s>"))]
    tokenizer.post_processor = settings.package.processors.RobertaProcessing(
        *((token, tokenizer.token_to_id(token)) for token in ends),
        trim_offsets=settings.get("trim_offsets", True),
        add_prefix_space=settings.get("add_prefix_space", False),
    )
    return tokenizer


def qwen2(settings: TokenizerSettings, file: Path, merges: Path) -> Tokenizer:
    """The tokenizer of Qwen 2 and 3: byte-level BPE of normalised text, split into other words."""
    package = settings.package
    tokenizer = _byte_level(settings, file, merges)
    tokenizer.normalizer = package.normalizers.NFC()
    prefix = settings.get("add_prefix_space") or False
    tokenizer.pre_tokenizer = package.pre_tokenizers.Sequence(
        [
            package.pre_tokenizers.Split(package.Regex(QWEN_WORDS), behavior="isolated"),
            package.pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False),
        ]
    )
    names = SPECIAL_TOKENS["Qwen2Tokenizer"]
    settings.add_tokens(tokenizer, {**names})
    end = names["eos"]
    settings.add_ends(tokenizer, settings.text("bos", end), settings.text("eos", end))
    return tokenizer


def gpt1(settings: TokenizerSettings, file: Path, merges: Path) -> Tokenizer:
    """The BPE tokenizer of the first GPT: lowercase words, split by the rules of BERT."""
    package = settings.package
    unknown = settings.text("unk", "<unk>")
    tokenizer = package.Tokenizer(
        _pairs(package, file, merges, end_of_word_suffix="</w>", unk_token=unknown)
    )
    tokenizer.normalizer = package.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = package.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = package.decoders.BPEDecoder(suffix="</w>")
    settings.add_tokens(tokenizer, {"unk": unknown})
    return tokenizer


def _byte_level(settings: TokenizerSettings, file: Path, merges: Path) -> Tokenizer:
    package = settings.package
    tokenizer = package.Tokenizer(_pairs(package, file, merges, end_of_word_suffix=""))
    tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(
        add_prefix_space=settings.get("add_prefix_space") or False
    )
    tokenizer.decoder = package.decoders.ByteLevel()
    return tokenizer


def _pairs(package: Package, file: Path, merges: Path, **options: object) -> Tokenizer:
    with reading(file):
        vocabulary = read_json(file)
        if not all(isinstance(i, int) and i >= 0 for i in vocabulary.values()):
            raise ValueError("expected a dictionary from tokens to ids")
    with reading(merges):
        with merges.open(encoding="utf-8", newline="\n") as opened:
            lines = [line.rstrip("\n") for line in opened]
        pairs = [tuple(x.split(" ")) for x in lines if x.strip() and not x.startswith("#version")]
        odd = next((pair for pair in pairs if len(pair) != 2), None)
        if odd is not None:
            raise ValueError(f"expected two tokens in each line, got {odd}")
        return package.models.BPE(
            vocab=vocabulary, merges=pairs, continuing_subword_prefix="", fuse_unk=False, **options
        )
