"""Loads the tokenizer of a Hugging Face checkpoint with the package `tokenizers`."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from keras_tfm.checkpoints.config import Config
from keras_tfm.checkpoints.sentence_pieces import (
    import_package,
    marian_tokenizer,
    reading,
    t5_tokenizer,
    token,
)
from keras_tfm.checkpoints.tensors import read_json

# The maximum number of unused rows of an embedding (its size rounded up, or rows for new tokens).
SPARE_ROWS = 1024
# Model types whose SentencePiece files have other ids than the model.
JSON_ONLY = ("albert", "mbart", "pegasus", "xlm-roberta")


def load_tokenizer(folder: str | Path, target: bool = False) -> Any:
    """Loads the tokenizer of a folder saved by `transformers`, with the same ids for every text.

    Args:
        folder: contains `tokenizer.json`; or `vocab.txt` (BERT), `vocab.json` and `merges.txt`
            (GPT, RoBERTa and BART), `spiece.model` (T5), or `source.spm`, `target.spm` and
            `vocab.json` (Marian), with a `config.json` for the model type. Settings are read from
            `tokenizer_config.json`, which is optional.
        target: bool, the tokenizer of target texts, which Marian has. It also decodes generated
            tokens, as the other one does if both have one vocabulary.

    Returns:
        A `tokenizers.Tokenizer`: `tokenizer.encode(text).ids`, with the model's special tokens
        around a text ([CLS] and [SEP]; </s>). `export_tflite(tokenizer=...)` stores it in the file.
        Marian: where `transformers` has one unknown token for a piece of `source.spm` that
        `vocab.json` lacks, or for several characters in a row that `source.spm` lacks, this
        tokenizer has the ids of smaller pieces or of the characters, if `vocab.json` has them.

    Raises:
        FileNotFoundError: the folder does not exist, or has none of these files.
        ValueError: a file is damaged; or the vocabulary is larger than `vocab_size` in
            `config.json`, or smaller by more than 1,024; or the tokenizer of this model type is
            read from `tokenizer.json` only; or `target=True` for another model than Marian.
        ModuleNotFoundError: `tokenizers`, or for `spiece.model` `sentencepiece`, is not installed.

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
    if not folder.is_dir():
        raise FileNotFoundError(f"no such folder: {folder}")
    package = import_package("tokenizers")
    if target and not (folder / "target.spm").is_file():
        raise ValueError(f"target=True is for Marian, but {folder} has no target.spm")
    config = Config(folder) if (folder / "config.json").is_file() else None
    settings_file = folder / "tokenizer_config.json"
    settings = read_json(settings_file) if settings_file.is_file() else {}
    if (folder / "tokenizer.json").is_file() and not target:
        with reading(folder / "tokenizer.json"):
            tokenizer = package.Tokenizer.from_file(str(folder / "tokenizer.json"))
            tokenizer.no_truncation()
            tokenizer.no_padding()
    else:
        tokenizer = _of_vocabulary(package, folder, config, settings, target)
    size = "decoder_vocab_size" if target else "vocab_size"
    if config is not None and size in config.fields:
        _check_size(folder, tokenizer, config.integer(size, None))
    return tokenizer


def _check_size(folder: Path, tokenizer: Any, rows: int) -> None:
    size = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if not size <= rows <= size + SPARE_ROWS:
        raise ValueError(
            f"{folder}: the tokenizer has {size} ids and the embedding {rows} rows (vocab_size in "
            f"config.json): expected as many rows as ids, or up to {SPARE_ROWS} more"
        )


def _of_vocabulary(
    package: Any, folder: Path, config: Config | None, settings: Any, target: bool
) -> Any:
    kind = None if config is None else config.fields.get("model_type")
    pairs = {"openai-gpt": _byte_pairs_of_words, "roberta": _byte_pairs_of_texts}
    pairs["bart"] = _byte_pairs_of_texts
    makers: dict[tuple[str, ...], Callable[..., Any]] = {
        ("vocab.txt",): _word_piece,
        ("spiece.model",): t5_tokenizer,
        ("source.spm", "target.spm", "vocab.json"): partial(marian_tokenizer, is_target=target),
        ("vocab.json", "merges.txt"): pairs.get(str(kind), _byte_pairs),
    }
    if kind in JSON_ONLY:
        raise ValueError(
            f"{folder}: a tokenizer of {kind} is read from tokenizer.json, which is missing: load "
            "it with AutoTokenizer of transformers and call save_pretrained"
        )
    for names, maker in makers.items():
        files = [folder / name for name in names]
        if all(file.is_file() for file in files):
            return maker(package, settings, *files)
    raise FileNotFoundError(
        f"{folder} has no tokenizer: neither tokenizer.json nor vocab.txt, vocab.json with "
        "merges.txt, spiece.model, or source.spm with target.spm and vocab.json"
    )


def _word_piece(package: Any, settings: Any, file: Path) -> Any:
    """The WordPiece tokenizer of BERT (arXiv:1810.04805)."""
    names = {
        key: token(settings, f"{key}_token", f"[{key.upper()}]")
        for key in ("unk", "sep", "pad", "cls", "mask")
    }
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
    tokenizer.add_special_tokens(list(names.values()))
    first, last = names["cls"], names["sep"]
    tokenizer.post_processor = package.processors.TemplateProcessing(
        single=f"{first}:0 $A:0 {last}:0",
        pair=f"{first}:0 $A:0 {last}:0 $B:1 {last}:1",
        special_tokens=[(name, vocabulary[name]) for name in (first, last)],
    )
    return tokenizer


def _byte_pairs(package: Any, settings: Any, file: Path, merges: Path) -> Any:
    """The byte-level BPE tokenizer of GPT-2 (arXiv:1508.07909)."""
    tokenizer = package.Tokenizer(_pairs(package, file, merges, end_of_word_suffix=""))
    tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(
        add_prefix_space=settings.get("add_prefix_space", False)
    )
    tokenizer.decoder = package.decoders.ByteLevel()
    names = [token(settings, f"{x}_token", "<|endoftext|>") for x in ("bos", "eos", "unk")]
    tokenizer.add_special_tokens(list(dict.fromkeys(names)))
    return tokenizer


def _byte_pairs_of_texts(package: Any, settings: Any, file: Path, merges: Path) -> Any:
    """The tokenizer of RoBERTa and BART: that of GPT-2, with <s> and </s> around a text."""
    tokenizer = package.Tokenizer(_pairs(package, file, merges, end_of_word_suffix=""))
    space = settings.get("add_prefix_space", False)
    tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=space)
    tokenizer.decoder = package.decoders.ByteLevel()
    defaults = {"cls": "<s>", "sep": "</s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>"}
    names = {key: token(settings, f"{key}_token", x) for key, x in defaults.items()}
    missing = sorted(x for x in names.values() if tokenizer.token_to_id(x) is None)
    if missing:
        raise ValueError(f"{file}: expected the tokens {missing}, which are missing")
    tokenizer.add_special_tokens(list(names.values()))
    first, last = ((names[key], tokenizer.token_to_id(names[key])) for key in ("cls", "sep"))
    tokenizer.post_processor = package.processors.RobertaProcessing(
        last, first, trim_offsets=True, add_prefix_space=space
    )
    return tokenizer


def _byte_pairs_of_words(package: Any, settings: Any, file: Path, merges: Path) -> Any:
    """The BPE tokenizer of the first GPT: lowercase words, split by the rules of BERT."""
    unknown = token(settings, "unk_token", "<unk>")
    tokenizer = package.Tokenizer(
        _pairs(package, file, merges, end_of_word_suffix="</w>", unk_token=unknown)
    )
    tokenizer.normalizer = package.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = package.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = package.decoders.BPEDecoder(suffix="</w>")
    tokenizer.add_special_tokens([unknown])
    return tokenizer


def _pairs(package: Any, file: Path, merges: Path, **options: Any) -> Any:
    with reading(file):
        if not all(isinstance(i, int) and i >= 0 for i in read_json(file).values()):
            raise ValueError("expected a dictionary from tokens to ids")
        vocabulary = read_json(file)
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
