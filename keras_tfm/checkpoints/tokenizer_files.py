"""Loads the tokenizer of a Hugging Face checkpoint with the package `tokenizers`."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from keras_tfm.checkpoints.config import Config
from keras_tfm.checkpoints.tensors import read_json
from keras_tfm.runtime.tokenizer import refusing

# The maximum number of unused rows of an embedding (its size rounded up, or rows for new tokens).
SPARE_ROWS = 1024


def load_tokenizer(folder: str | Path) -> Any:
    """Loads the tokenizer of a folder saved by `transformers`, with the same ids for every text.

    Args:
        folder: str or Path, contains `tokenizer.json`; or `vocab.txt` (BERT), `vocab.json` and
            `merges.txt` (GPT) or `spiece.model` (T5), with a `config.json` for the model type.
            Settings are read from `tokenizer_config.json`, which is optional.

    Returns:
        A `tokenizers.Tokenizer`: `tokenizer.encode(text).ids`, with the model's special tokens
        around a text ([CLS] and [SEP]; </s>). `export_tflite(tokenizer=...)` stores it in the file.

    Raises:
        FileNotFoundError: the folder does not exist, or has none of these files.
        ValueError: a file is damaged; or the vocabulary is larger than `vocab_size` in
            `config.json`, or smaller by more than 1,024.
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
    package = _import("tokenizers")
    config = Config(folder) if (folder / "config.json").is_file() else None
    settings_file = folder / "tokenizer_config.json"
    settings = read_json(settings_file) if settings_file.is_file() else {}
    if (folder / "tokenizer.json").is_file():
        with _reading(folder / "tokenizer.json"):
            tokenizer = package.Tokenizer.from_file(str(folder / "tokenizer.json"))
            tokenizer.no_truncation()
            tokenizer.no_padding()
    else:
        tokenizer = _of_vocabulary(package, folder, config, settings)
    if config is not None and "vocab_size" in config.fields:
        _check_size(folder, tokenizer, config.integer("vocab_size", None))
    return tokenizer


def _check_size(folder: Path, tokenizer: Any, rows: int) -> None:
    size = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if not size <= rows <= size + SPARE_ROWS:
        raise ValueError(
            f"{folder}: the tokenizer has {size} ids and the embedding {rows} rows (vocab_size in "
            f"config.json): expected as many rows as ids, or up to {SPARE_ROWS} more"
        )


def _of_vocabulary(package: Any, folder: Path, config: Config | None, settings: Any) -> Any:
    kind = None if config is None else config.fields.get("model_type")
    makers: dict[tuple[str, ...], Callable[..., Any]] = {
        ("vocab.txt",): _word_piece,
        ("spiece.model",): _sentence_piece,
        ("vocab.json", "merges.txt"): _byte_pairs_of_words if kind == "openai-gpt" else _byte_pairs,
    }
    for names, maker in makers.items():
        files = [folder / name for name in names]
        if all(file.is_file() for file in files):
            return maker(package, settings, *files)
    raise FileNotFoundError(
        f"{folder} has no tokenizer: neither tokenizer.json nor vocab.txt, vocab.json with "
        "merges.txt, or spiece.model"
    )


def _word_piece(package: Any, settings: Any, file: Path) -> Any:
    """The WordPiece tokenizer of BERT (arXiv:1810.04805)."""
    names = {
        key: _token(settings, f"{key}_token", f"[{key.upper()}]")
        for key in ("unk", "sep", "pad", "cls", "mask")
    }
    with _reading(file):
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
    names = [_token(settings, f"{x}_token", "<|endoftext|>") for x in ("bos", "eos", "unk")]
    tokenizer.add_special_tokens(list(dict.fromkeys(names)))
    return tokenizer


def _byte_pairs_of_words(package: Any, settings: Any, file: Path, merges: Path) -> Any:
    """The BPE tokenizer of the first GPT: lowercase words, split by the rules of BERT."""
    unknown = _token(settings, "unk_token", "<unk>")
    tokenizer = package.Tokenizer(
        _pairs(package, file, merges, end_of_word_suffix="</w>", unk_token=unknown)
    )
    tokenizer.normalizer = package.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = package.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = package.decoders.BPEDecoder(suffix="</w>")
    tokenizer.add_special_tokens([unknown])
    return tokenizer


def _pairs(package: Any, file: Path, merges: Path, **options: Any) -> Any:
    with _reading(file):
        if not all(isinstance(i, int) and i >= 0 for i in read_json(file).values()):
            raise ValueError("expected a dictionary from tokens to ids")
        vocabulary = read_json(file)
    with _reading(merges):
        with merges.open(encoding="utf-8", newline="\n") as opened:
            lines = [line.rstrip("\n") for line in opened]
        pairs = [tuple(x.split(" ")) for x in lines if x.strip() and not x.startswith("#version")]
        odd = next((pair for pair in pairs if len(pair) != 2), None)
        if odd is not None:
            raise ValueError(f"expected two tokens in each line, got {odd}")
        return package.models.BPE(
            vocab=vocabulary, merges=pairs, continuing_subword_prefix="", fuse_unk=False, **options
        )


def _sentence_piece(package: Any, settings: Any, file: Path) -> Any:
    """The unigram tokenizer of T5 (arXiv:1804.10959); sentinels follow in reverse order."""
    sentencepiece = _import("sentencepiece")
    with _reading(file):
        content = file.read_bytes()
        if not content:
            raise ValueError("the file is empty")
        processor = sentencepiece.SentencePieceProcessor(model_proto=content)
        pieces = [
            (processor.id_to_piece(i), processor.get_score(i))
            for i in range(processor.get_piece_size())
        ]
        sentinels = [f"<extra_id_{i}>" for i in range(int(settings.get("extra_ids", 100)))]
        known = {piece for piece, _ in pieces}
        pieces += [(name, 0.0) for name in reversed(sentinels) if name not in known]
        tokenizer = package.Tokenizer(
            package.models.Unigram(pieces, unk_id=processor.unk_id(), byte_fallback=False)
        )
        characters = _character_map(content)
        if characters:
            tokenizer.normalizer = package.normalizers.Precompiled(characters)
    space = {"replacement": "\N{LOWER ONE EIGHTH BLOCK}", "prepend_scheme": "always"}
    pre_tokenizers = package.pre_tokenizers
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(**space, split=True)]
    )
    tokenizer.decoder = package.decoders.Metaspace(**space, split=True)
    names = [
        _token(settings, f"{key}_token", default)
        for key, default in (("eos", "</s>"), ("unk", "<unk>"), ("pad", "<pad>"))
    ]
    tokenizer.add_special_tokens([*names, *sentinels])
    end = names[0]
    tokenizer.post_processor = package.processors.TemplateProcessing(
        single=f"$A {end}",
        pair=f"$A {end} $B {end}",
        special_tokens=[(end, tokenizer.token_to_id(end))],
    )
    return tokenizer


def _character_map(model: bytes) -> bytes:
    """`normalizer_spec.precompiled_charsmap` of a SentencePiece model, which is a protocol buffer.

    It maps characters to normalised ones before tokenization.
    """
    for number, value in _fields(model):
        if number == 3 and isinstance(value, bytes):
            for inner, content in _fields(value):
                if inner == 2 and isinstance(content, bytes):
                    return content
    return b""


def _fields(content: bytes) -> Iterator[tuple[int, bytes | int]]:
    """The fields of a protocol buffer message, with their numbers."""
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = content[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return value
            shift += 7

    while position < len(content):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(kind)
        if size is None:
            if kind != 2:
                raise ValueError(f"unknown wire type {kind}")
            size = varint()
        if position + size > len(content):
            raise ValueError("the file is truncated")
        yield key >> 3, content[position : position + size]
        position += size


def _token(settings: Any, name: str, default: str) -> str:
    """The text of a special token; older settings store a dictionary with it."""
    value = settings.get(name)
    if isinstance(value, dict):
        value = value.get("content")
    return default if value is None else str(value)


def _reading(file: Path) -> AbstractContextManager[None]:
    """Converts the errors of a package to a ValueError that names the file."""
    return refusing(f"{file} cannot be read")


def _import(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ModuleNotFoundError(
            f'this tokenizer needs {package}: pip install "keras-tfm[text]"', name=package
        ) from None
