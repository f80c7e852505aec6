"""Loads the tokenizer of a Hugging Face checkpoint with the package `tokenizers`."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keras_tfm.arguments import check_integer
from keras_tfm.checkpoints.config import Config
from keras_tfm.checkpoints.quantized.gguf_file import is_gguf
from keras_tfm.checkpoints.tensors import read_json
from keras_tfm.checkpoints.tokenizers import byte_pairs, languages, sentence_pieces
from keras_tfm.checkpoints.tokenizers.gguf_tokenizer import gguf_tokenizer
from keras_tfm.checkpoints.tokenizers.marian_pieces import marian
from keras_tfm.checkpoints.tokenizers.tokenizer_settings import (
    Tokenizer,
    TokenizerSettings,
    reading,
)
from keras_tfm.model_types import MODEL_TYPES
from keras_tfm.runtime.tokenizers.tokenizer_limits import read_tokenizer_json

# The maximum number of unused rows of an embedding (its size rounded up, or rows for new tokens).
SPARE_ROWS = 1024


def load_tokenizer(
    folder: str | Path,
    target: bool = False,
    vocabulary_size: int | None = None,
    language: str | None = None,
) -> Tokenizer:
    """Loads the tokenizer of a folder saved by `transformers`, with the same ids for every text.

    Args:
        folder: str or Path, a GGUF file, which has its tokenizer (GPT-2's or Llama's kind); or it
            contains `tokenizer.json`, or the files of a tokenizer class:
            `vocab.txt` (BERT, DistilBERT, ELECTRA, MPNet), `vocab.json` and `merges.txt` (GPT,
            GPT-2, GPT-Neo, OPT, Phi, RoBERTa, BART, Qwen), `spiece.model` (T5, PEGASUS, ALBERT),
            `spm.model` (DeBERTa), `sentencepiece.bpe.model` (XLM-R, mBART), `tokenizer.model`
            (Llama, Gemma), `source.spm`, `target.spm` and `vocab.json` (Marian), or
            `sentencepiece.bpe.model` and `vocab.json` (M2M-100). The class is that of
            `tokenizer_config.json` or `config.json`, or else follows from the model type. Added
            tokens and other settings are read from `tokenizer_config.json`,
            `special_tokens_map.json` and `added_tokens.json`, which are optional.
        target: bool, whether to load the tokenizer of target texts, which Marian has. It also
            decodes generated tokens, as the other one does if both have one vocabulary.
        vocabulary_size: int, number of token ids of the model, if it is loaded with another number
            than the folder's: for a tokenizer with added tokens. Default: that of `config.json`.
        language: str, the language of the texts, whose token M2M-100 ("en"), NLLB ("eng_Latn") and
            mBART ("en_XX") put before or after a text. Default: `src_lang` of the settings, or
            English.

    Gemma's tokenizer for SigLIP 2 converts texts to lower case, as in its training.

    Returns:
        A `tokenizers.Tokenizer`: `tokenizer.encode(text).ids`, with the model's special tokens
        around a text ([CLS] and [SEP]; </s>). `export_tflite(tokenizer=...)` stores it in the file.
        Marian: where `transformers` has one unknown token for a piece of `source.spm` that
        `vocab.json` lacks, or for several characters in a row that `source.spm` lacks, this
        tokenizer has the ids of smaller pieces or of the characters, if `vocab.json` has them.
        DeBERTa, mBART and PEGASUS: characters and spaces are normalized by the SentencePiece model,
        as in their training, where `transformers` 5 has rules of its own (½, full-width letters,
        spaces at the end of a text).

    Raises:
        FileNotFoundError: the folder does not exist, or has none of these files.
        ValueError: a file is damaged; the class is another one, and there is no `tokenizer.json`;
            an added token gets another id than the settings say; or the vocabulary is larger than
            the model's, `vocab_size` in `config.json`, or smaller by more than 1,024 ids and a
            thirty-second of the model's; `target` is True for another model than Marian; or the
            tokenizer does not have the `language`.
        ModuleNotFoundError: `tokenizers`, or for T5 and Marian `sentencepiece`, is not installed.

    Example:

    >>> import pathlib, tempfile
    >>> from keras_tfm import checkpoints
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "under", "##stand"]
    ...     _ = pathlib.Path(folder, "vocab.txt").write_text("\\n".join(words))
    ...     _ = pathlib.Path(folder, "config.json").write_text('{"model_type": "bert"}')
    ...     checkpoints.load_tokenizer(folder).encode("Understand").ids
    [2, 5, 6, 3]
    """
    folder = Path(folder)
    if is_gguf(folder) and not target:
        tokenizer = gguf_tokenizer(folder)
        check_integer("vocabulary_size", vocabulary_size, optional=True)
        if vocabulary_size is not None:
            _check_size(folder, tokenizer, vocabulary_size)
        return tokenizer
    if not folder.is_dir():
        raise FileNotFoundError(f"no such folder: {folder}")
    if target and not (folder / "target.spm").is_file():
        raise ValueError(f"target=True is for Marian, but {folder} has no target.spm")
    settings = TokenizerSettings(folder)
    if settings.get("split_special_tokens", False):
        raise ValueError(
            f"{folder}: split_special_tokens must be false in tokenizer_config.json, got true: "
            "texts that hold special tokens would get other ids"
        )
    config = _config_of(folder)
    size = "decoder_vocab_size" if target else "vocab_size"
    check_integer("vocabulary_size", vocabulary_size, optional=True)
    if vocabulary_size is None and config is not None:
        vocabulary_size = config.integer(size, None)
    if (folder / "tokenizer.json").is_file() and not target:
        tokenizer = _of_json(settings, vocabulary_size)
    else:
        tokenizer = _of_vocabulary(settings, config, target)
    languages.set_language(settings, tokenizer, class_of(settings), language)
    if _reads_lower_case(settings, config) or _sentences_are_lower_case(folder):
        _lower_case(tokenizer, settings.package.normalizers)
    if vocabulary_size is not None:
        _check_size(folder, tokenizer, vocabulary_size)
    return tokenizer


def _of_json(settings: TokenizerSettings, rows: int | None) -> Tokenizer:
    """The tokenizer of `tokenizer.json`, with what transformers changes by the settings beside it.

    Tokens of the settings for which the model's `rows` have no row stay out.
    """
    file = settings.folder / "tokenizer.json"
    with reading(file):
        content = file.read_bytes()
        parts = read_tokenizer_json(content)
        left_out = _leave_out(parts, rows)
        is_changed = _follow_settings(parts, settings) or bool(left_out)
        text = json.dumps(parts) if is_changed else content.decode("utf-8")
        tokenizer = settings.package.Tokenizer.from_str(text)
        tokenizer.no_truncation()
        tokenizer.no_padding()
    settings.add_missing(tokenizer, rows)
    if left_out:
        warnings.warn(
            f"{file}: the model has {rows} rows and none for {', '.join(left_out)}: this stays "
            "text, unless the model and the tokenizer are loaded with a larger vocabulary_size=",
            stacklevel=3,
        )
    return tokenizer


def _leave_out(parts: dict[str, Any], rows: int | None) -> list[str]:
    """Removes the added tokens of a `tokenizer.json` that have no row; returns their texts.

    Such as `<image_soft_token>` of Gemma 3's text models, which has the first id beyond the table.
    """
    added = parts.get("added_tokens") or []
    used = json.dumps(parts.get("post_processor"))
    beyond = [
        x
        for x in added
        if rows is not None and x["id"] >= rows and json.dumps(x["content"])[1:-1] not in used
    ]
    parts["added_tokens"] = [x for x in added if x not in beyond]
    return [str(x["content"]) for x in beyond]


def _follow_settings(parts: dict[str, Any], settings: TokenizerSettings) -> bool:
    """Changes a `tokenizer.json` where the class that reads it follows `tokenizer_config.json`.

    Returns whether anything may have changed.
    """
    name, prefix = class_of(settings), settings.get("add_prefix_space")
    if name in _WORD_PIECES:
        for part in _parts(parts, "normalizer", "BertNormalizer"):
            part["lowercase"] = settings.get("do_lower_case", True)
            part["strip_accents"] = settings.get("strip_accents")
            part["handle_chinese_chars"] = settings.get("tokenize_chinese_chars", True)
        return True
    if name in _BYTE_LEVEL and prefix is not None:
        for part in _parts(parts, "pre_tokenizer", "ByteLevel"):
            part["add_prefix_space"] = bool(prefix)
        return True
    config = _config_of(settings.folder)
    # Families whose folders name Llama's class by mistake are read by the file alone.
    is_llama = config is None or config.fields.get("model_type") == "llama"
    if name == "LlamaTokenizer" and prefix is False and is_llama:
        for part in _parts(parts, "pre_tokenizer", "Metaspace"):
            part["prepend_scheme"] = "never"
        for kind, of_prefix in (("normalizer", "Prepend"), ("decoder", "Strip")):
            for part in _parts(parts, kind, of_prefix):
                part.clear()
                part.update(_NOTHING[kind])
        return True
    return False


def _parts(parts: dict[str, Any], kind: str, name: str) -> list[dict[str, Any]]:
    """The parts with a name of a `tokenizer.json`, which may stand in a sequence."""
    first = parts.get(kind) or {}
    found = [first, *first.get("normalizers", ()), *first.get("pretokenizers", ())]
    return [x for x in [*found, *first.get("decoders", ())] if x.get("type") == name]


def _check_size(folder: Path, tokenizer: Tokenizer, rows: int) -> None:
    size = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    spare = max(SPARE_ROWS, rows // 32)
    if not size <= rows <= size + spare:
        raise ValueError(
            f"{folder}: the tokenizer has {size} ids and the embedding {rows} rows (vocab_size in "
            f"config.json): expected as many rows as ids, or up to {spare} more; for added "
            "tokens, load the model and the tokenizer with vocabulary_size="
        )


def _of_vocabulary(settings: TokenizerSettings, config: Config | None, target: bool) -> Tokenizer:
    """The tokenizer of a folder without `tokenizer.json`, by its class in transformers."""
    folder, name = settings.folder, class_of(settings)
    model_type = None if config is None else config.fields.get("model_type")
    if name is None and model_type is None:
        name = next((x for x in _UNNAMED if _has(folder, _CLASSES[x][0])), "BertTokenizer")
    if name is None and not any(_has(folder, files) for files, _ in _CLASSES.values()):
        raise FileNotFoundError(f"{folder} has no tokenizer: no tokenizer.json, and no vocabulary")
    if name not in _CLASSES:
        has_vocabulary = any(True for x in _VOCABULARIES for _ in folder.glob(x))
        raise (ValueError if has_vocabulary else FileNotFoundError)(
            f"{folder} has no tokenizer.json, and without it a "
            f"{name or f'tokenizer of model_type {model_type!r}'} is not supported: load it with "
            "transformers and call save_pretrained, which writes tokenizer.json"
        )
    files, make = _CLASSES[name]
    if not _has(folder, files):
        raise FileNotFoundError(
            f"{folder} has no tokenizer: neither tokenizer.json nor {' with '.join(files)}"
        )
    options = {"is_target": target} if make is marian else {}
    return make(settings, *(folder / file for file in files), **options)


def _config_of(folder: Path) -> Config | None:
    return Config(folder) if (folder / "config.json").is_file() else None


def class_of(settings: TokenizerSettings) -> str | None:
    """The class in transformers, of the settings or of the model type in `config.json`."""
    config = _config_of(settings.folder)
    model_type = None if config is None else config.fields.get("model_type")
    named = None if config is None else config.fields.get("tokenizer_class")
    if settings.tokenizer_class is None and named is not None:
        return str(named).removesuffix("Fast")
    return settings.tokenizer_class or _OF_MODEL_TYPE.get(str(model_type))


def _reads_lower_case(settings: TokenizerSettings, config: Config | None) -> bool:
    """Whether the tokenizer is Gemma's for SigLIP 2, which was trained on text in lower case.

    That is the class `Siglip2Tokenizer`; older folders name Gemma's, which keeps capitals.
    """
    kind = settings.tokenizer_class
    model_type = None if config is None else config.fields.get("model_type")
    siglip = ("siglip", "siglip2", "siglip_text_model", "siglip2_text_model")
    is_siglip = model_type in siglip
    return kind == "Siglip2Tokenizer" or (kind == "GemmaTokenizer" and is_siglip)


def _sentences_are_lower_case(folder: Path) -> bool:
    """Whether sentence-transformers makes the texts of this folder's model lower case."""
    files = sorted(folder.glob("sentence_*_config.json"))
    return bool(files) and Config.of(files[0], read_json(files[0])).flag("do_lower_case", False)


def _lower_case(tokenizer: Tokenizer, normalizers: Any) -> None:
    """Puts a `Lowercase` before the other normalizers, unless one of them has that effect."""
    first = tokenizer.normalizer
    if first is None:
        tokenizer.normalizer = normalizers.Lowercase()
    elif not any(x in repr(first) for x in ("Lowercase(", "lowercase=True")):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), first])


def _has(folder: Path, files: tuple[str, ...]) -> bool:
    return all((folder / file).is_file() for file in files)


def _bert(settings: TokenizerSettings, file: Path) -> Tokenizer:
    """The WordPiece tokenizer of BERT (arXiv:1810.04805)."""
    special = {key: f"[{key.upper()}]" for key in ("unk", "sep", "pad", "cls", "mask")}
    tokenizer, first, last = _word_piece(settings, file, special)
    settings.add_segments(tokenizer, first, last)
    return tokenizer


def _mpnet(settings: TokenizerSettings, file: Path) -> Tokenizer:
    """The tokenizer of MPNet: BERT's pieces, with RoBERTa's special tokens around each text."""
    mask = settings.get("mask_token", "<mask>")
    if isinstance(mask, str):  # the space before it belongs to it, unless the settings deny it
        fields = {**settings.fields, "mask_token": {"content": mask, "lstrip": True}}
        settings = TokenizerSettings(settings.folder, fields)
    special = {"bos": "<s>", "eos": "</s>", "unk": "[UNK]", "sep": "</s>", "pad": "<pad>"}
    special |= {"cls": "<s>", "mask": "<mask>"}
    tokenizer, first, last = _word_piece(settings, file, special)
    tokenizer.post_processor = settings.package.processors.RobertaProcessing(
        *((token, tokenizer.token_to_id(token)) for token in (last, first)), add_prefix_space=False
    )
    return tokenizer


def _word_piece(
    settings: TokenizerSettings, file: Path, special: dict[str, str]
) -> tuple[Tokenizer, str, str]:
    """A tokenizer of BERT's words and pieces, and the tokens before and after a text.

    Args:
        settings, file: the settings of a folder, and its `vocab.txt`.
        special: the special tokens of the class, by name, which the settings may replace.
    """
    package = settings.package
    names = {key: settings.text(key, token) for key, token in special.items()}
    with reading(file):
        # Only a line feed ends a line: other separators may be tokens.
        with file.open(encoding="utf-8", newline="\n") as opened:
            vocabulary = {line.rstrip("\n"): i for i, line in enumerate(opened)}
        missing = sorted({names[key] for key in ("unk", "sep", "cls")} - set(vocabulary))
        if missing:
            raise ValueError(f"expected the tokens {missing}, which are missing")
        tokenizer = package.Tokenizer(package.models.WordPiece(vocabulary, unk_token=names["unk"]))
    lower = settings.get("do_lower_case", True)
    tokenizer.normalizer = package.normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=lower,
    )
    tokenizer.pre_tokenizer = package.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = package.decoders.WordPiece(prefix="##")
    settings.add_tokens(tokenizer, {**names})
    return tokenizer, names["cls"], names["sep"]


# Classes that follow the settings of lower case, accents and Chinese characters.
_BERTS = (
    "BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer",
)  # fmt: skip
_WORD_PIECES = (*_BERTS, "MPNetTokenizer")
# Classes that follow `add_prefix_space`.
_BYTE_LEVEL = (
    "GPT2Tokenizer", "CodeGenTokenizer", "RobertaTokenizer", "BartTokenizer", "Qwen2Tokenizer",
)  # fmt: skip
# Parts of a `tokenizer.json` that change no text.
_NOTHING = {
    "normalizer": {"type": "Prepend", "prepend": ""},
    "decoder": {"type": "Fuse"},
}
_PAIRS = ("vocab.json", "merges.txt")
# By class of transformers, its files and the function that makes its tokenizer from them.
_CLASSES: dict[str, tuple[tuple[str, ...], Callable[..., Tokenizer]]] = {
    **dict.fromkeys(_BERTS, (("vocab.txt",), _bert)),
    "MPNetTokenizer": (("vocab.txt",), _mpnet),
    "OpenAIGPTTokenizer": (_PAIRS, byte_pairs.gpt1),
    **dict.fromkeys(("GPT2Tokenizer", "CodeGenTokenizer"), (_PAIRS, byte_pairs.gpt2)),
    **dict.fromkeys(("RobertaTokenizer", "BartTokenizer"), (_PAIRS, byte_pairs.roberta)),
    "Qwen2Tokenizer": (_PAIRS, byte_pairs.qwen2),
    "MarianTokenizer": (("source.spm", "target.spm", "vocab.json"), marian),
    **dict.fromkeys(("T5Tokenizer", "MT5Tokenizer"), (("spiece.model",), sentence_pieces.t5)),
    "M2M100Tokenizer": (("sentencepiece.bpe.model", "vocab.json"), languages.m2m_100),
    **dict.fromkeys(
        ("MBartTokenizer", "MBart50Tokenizer"), (("sentencepiece.bpe.model",), languages.mbart)
    ),
    "PegasusTokenizer": (("spiece.model",), sentence_pieces.pegasus),
    "AlbertTokenizer": (("spiece.model",), sentence_pieces.albert),
    "DebertaV2Tokenizer": (("spm.model",), sentence_pieces.deberta),
    "XLMRobertaTokenizer": (("sentencepiece.bpe.model",), sentence_pieces.xlm_roberta),
    "CamembertTokenizer": (("sentencepiece.bpe.model",), sentence_pieces.camembert),
    "LlamaTokenizer": (("tokenizer.model",), sentence_pieces.llama),
    **dict.fromkeys(
        ("GemmaTokenizer", "Siglip2Tokenizer"), (("tokenizer.model",), sentence_pieces.gemma)
    ),
}
# The class of a folder whose tokenizer_config.json names none.
_OF_MODEL_TYPE = {x.name: x.tokenizer for x in MODEL_TYPES if x.tokenizer}
# The files in which any class of transformers keeps a vocabulary, without tokenizer.json.
_VOCABULARIES = ("*vocab*", "merges*", "*.model", "*.spm", "*.tiktoken", "*.bpe", "dict*.txt")
# The classes of a folder without any configuration, by its files.
_UNNAMED = ("BertTokenizer", "T5Tokenizer", "MarianTokenizer", "GPT2Tokenizer")
