"""The tokenizer in the fields of a GGUF file: byte pairs of GPT-2's or of Llama's kind.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, "Tokenizer".
"""

from pathlib import Path
from typing import Any

from keras_tfm.checkpoints.config import Fields
from keras_tfm.checkpoints.quantized.gguf_file import GgufFile
from keras_tfm.checkpoints.tokenizers.byte_pairs import QWEN_WORDS
from keras_tfm.checkpoints.tokenizers.sentence_pieces import (
    CONTROL,
    SPACE,
    USER_DEFINED,
    SentencePieceModel,
    gemma_of_pieces,
    llama_of_pieces,
)
from keras_tfm.checkpoints.tokenizers.tokenizer_settings import (
    Package,
    Tokenizer,
    TokenizerSettings,
    reading,
)

_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
# The rules for words of `tokenizer.ggml.pre`: a regular expression; None: GPT-2's words; "digits":
# GPT-2's words, and each digit alone.
_LLAMA_3 = (
    rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
WORDS: dict[str, str | None] = {
    "gpt-2": None,
    **dict.fromkeys(("smollm", "starcoder", "refact"), "digits"),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "smaug-bpe"), _LLAMA_3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), QWEN_WORDS),
    "tekken": _TEKKEN,
}
# In these a word that is a token is one, whatever its merges.
_WHOLE_WORDS = (_LLAMA_3, _TEKKEN)
_PREFIX = "tokenizer.ggml."
_SPECIAL = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "unk": "unknown_token_id",
    "pad": "padding_token_id",
}


def gguf_settings(path: Path) -> Fields:
    """What `tokenizer_config.json` of a folder would say of a GGUF file's tokenizer.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no GGUF file, or a special token is none of its tokens.
    """
    return _settings(GgufFile(path))


def _settings(file: GgufFile) -> Fields:
    fields = file.fields
    tokens = _strings(file, "tokens")
    settings: Fields = {"added_tokens_decoder": {}}
    for name, key in _SPECIAL.items():
        number = fields.get(f"{_PREFIX}{key}")
        if number is not None and not (type(number) is int and 0 <= number < len(tokens)):
            raise ValueError(
                f"{file.path}: {_PREFIX}{key} must be below {len(tokens)}, got {number!r}"
            )
        settings[f"{name}_token"] = None if number is None else tokens[number]
    is_llama = fields.get(f"{_PREFIX}model") == "llama"
    settings["add_bos_token"] = fields.get(f"{_PREFIX}add_bos_token", is_llama)
    settings["add_eos_token"] = fields.get(f"{_PREFIX}add_eos_token", False)
    settings["add_prefix_space"] = fields.get(f"{_PREFIX}add_space_prefix", is_llama)
    template = fields.get("tokenizer.chat_template")
    return settings if template is None else {**settings, "chat_template": template}


def gguf_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a GGUF file.

    Raises:
        FileNotFoundError: there is no such file, or it has no tokenizer.
        ValueError: it is no GGUF file, or has a tokenizer of another kind.
        ModuleNotFoundError: `tokenizers` is not installed.
    """
    file = GgufFile(path)
    kind = file.fields.get(f"{_PREFIX}model")
    if kind is None:
        raise FileNotFoundError(f"{path} has no tokenizer: no {_PREFIX}model")
    settings = TokenizerSettings(path, _settings(file))
    tokens = _strings(file, "tokens")
    types = file.fields.get(f"{_PREFIX}token_type") or [1] * len(tokens)
    if not isinstance(types, list) or len(types) != len(tokens):
        raise ValueError(f"{path}: {_PREFIX}token_type must have {len(tokens)} numbers")
    rule = file.fields.get(f"{_PREFIX}pre")
    if kind == "gpt2" and rule not in WORDS:
        raise ValueError(f"{path}: {_PREFIX}pre must be one of {list(WORDS)}, got {rule!r}")
    with reading(path):
        if kind == "llama":
            scores = file.fields.get(f"{_PREFIX}scores") or [0.0] * len(tokens)
            is_gemma = str(file.fields.get("general.architecture")).startswith("gemma")
            if is_gemma:  # whose pieces of several spaces are written with spaces
                tokens = [x.replace(" ", SPACE) if x.isspace() else x for x in tokens]
            pieces = [*zip(tokens, scores, strict=True)]
            make = gemma_of_pieces if is_gemma else llama_of_pieces
            return make(settings, SentencePieceModel(pieces, types, 2, b""))
        if kind == "gpt2":
            return _byte_level(settings, file, tokens, types, WORDS[str(rule)])
    raise ValueError(f"{path}: {_PREFIX}model must be one of ['gpt2', 'llama'], got {kind!r}")


def _byte_level(
    settings: TokenizerSettings,
    file: GgufFile,
    tokens: list[str],
    types: list[int],
    words: str | None,
) -> Tokenizer:
    package = settings.package
    merges = [tuple(x.split(" ", 1)) for x in _strings(file, "merges")]
    tokenizer = package.Tokenizer(
        package.models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=merges,
            ignore_merges=words in _WHOLE_WORDS,
        )
    )
    if words == QWEN_WORDS:
        tokenizer.normalizer = package.normalizers.NFC()
    tokenizer.pre_tokenizer = _word_rule(package, words)
    tokenizer.decoder = package.decoders.ByteLevel()
    tokenizer.add_tokens(
        [
            package.AddedToken(token, normalized=False, special=kind == CONTROL)
            for token, kind in zip(tokens, types, strict=True)
            if kind in (CONTROL, USER_DEFINED)
        ]
    )
    settings.add_ends(tokenizer, *(str(settings.get(f"{name}_token")) for name in ("bos", "eos")))
    return tokenizer


def _word_rule(package: Package, words: str | None) -> Any:
    parts = package.pre_tokenizers
    if words is None:
        return parts.ByteLevel(add_prefix_space=False)
    if words == "digits":
        return parts.Sequence(
            [parts.Digits(individual_digits=True), parts.ByteLevel(add_prefix_space=False)]
        )
    split = parts.Split(package.Regex(words), behavior="isolated")
    return parts.Sequence([split, parts.ByteLevel(add_prefix_space=False, use_regex=False)])


def _strings(file: GgufFile, name: str) -> list[str]:
    """A list of texts in the fields."""
    found = file.fields.get(f"{_PREFIX}{name}")
    if not isinstance(found, list) or not found or not all(isinstance(x, str) for x in found):
        raise ValueError(f"{file.path} has no {_PREFIX}{name}, a list of texts")
    return found
