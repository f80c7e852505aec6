"""SentencePiece tokenizers of T5 and Marian, as tokenizers of the package `tokenizers`."""

import importlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from keras_tfm.checkpoints.tensors import read_json
from keras_tfm.runtime.tokenizer import refusing

_SPACE = {
    "replacement": "\N{LOWER ONE EIGHTH BLOCK}", "prepend_scheme": "always", "split": True,
}  # fmt: skip
# Put before pieces that no text may match. A noncharacter of Unicode, which texts do not have.
_UNMATCHED, _REPLACED = "\U0010ffff", "\U0010fffe"


def t5_tokenizer(package: Any, settings: Any, file: Path) -> Any:
    """The unigram tokenizer of T5 (arXiv:1804.10959); sentinels follow in reverse order."""
    with reading(file):
        processor, content = _processor(file)
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
    tokenizer.pre_tokenizer = _words(package)
    tokenizer.decoder = package.decoders.Metaspace(**_SPACE)
    names = [
        token(settings, f"{key}_token", default)
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


def marian_tokenizer(
    package: Any, settings: Any, source: Path, target: Path, vocabulary: Path, is_target: bool
) -> Any:
    """The tokenizer of Marian: the pieces of one SentencePiece model, with ids of `vocab.json`.

    It decodes every id. In texts it finds only the pieces of its own side.
    """
    if is_target and settings.get("separate_vocabs", False):
        vocabulary = vocabulary.with_name("target_vocab.json")
    with reading(vocabulary):
        ids = read_json(vocabulary)
        if sorted(ids.values()) != list(range(len(ids))):
            raise ValueError("expected a dictionary from tokens to the ids 0, 1, ...")
        special = {key: token(settings, f"{key}_token", x) for key, x in _MARIAN.items()}
        missing = sorted(set(special.values()) - set(ids))
        if missing:
            raise ValueError(f"expected the tokens {missing}, which are missing")
    file = target if is_target else source
    with reading(file):
        processor, content = _processor(file)
        if any(processor.is_byte(i) for i in range(processor.get_piece_size())):
            raise ValueError("expected a model without byte fallback")
        own = {
            processor.id_to_piece(i): processor.get_score(i)
            for i in range(processor.get_piece_size())
            if not (processor.is_control(i) or processor.is_unknown(i) or processor.is_unused(i))
        }
        # transformers looks up a character that the model does not know in `vocab.json`.
        lowest = min(own.values(), default=0.0) - 1.0
        kept = {*special.values(), *(x for x in ids if x.startswith(">>") and x.endswith("<<"))}
        pieces = [
            (x if x in own or x in kept or len(x) == 1 else _UNMATCHED + x, own.get(x, lowest))
            for x in sorted(ids, key=ids.__getitem__)
        ]
        tokenizer = package.Tokenizer(
            package.models.Unigram(pieces, unk_id=ids[special["unk"]], byte_fallback=False)
        )
        characters = _character_map(content)
        normalizers = package.normalizers
        parts = [normalizers.Precompiled(characters)] if characters else []
        parts.append(normalizers.Replace(_UNMATCHED, _REPLACED))
        tokenizer.normalizer = normalizers.Sequence(parts)
    tokenizer.pre_tokenizer = _words(package)
    tokenizer.decoder = package.decoders.Sequence(
        [package.decoders.Replace(_UNMATCHED, ""), package.decoders.Metaspace(**_SPACE)]
    )
    tokenizer.add_special_tokens(sorted(kept, key=ids.__getitem__))
    end = special["eos"]
    tokenizer.post_processor = package.processors.TemplateProcessing(
        single=f"$A {end}", pair=f"$A $B {end}", special_tokens=[(end, ids[end])]
    )
    return tokenizer


_MARIAN = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}


def _processor(file: Path) -> tuple[Any, bytes]:
    """A SentencePiece model and its bytes."""
    sentencepiece = import_package("sentencepiece")
    content = file.read_bytes()
    if not content:
        raise ValueError("the file is empty")
    return sentencepiece.SentencePieceProcessor(model_proto=content), content


def _words(package: Any) -> Any:
    """Splits at white space, and puts the sign of a space before each word."""
    split, space = package.pre_tokenizers.WhitespaceSplit, package.pre_tokenizers.Metaspace
    return package.pre_tokenizers.Sequence([split(), space(**_SPACE)])


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


def token(settings: Any, name: str, default: str) -> str:
    """The text of a special token; older settings store a dictionary with it."""
    value = settings.get(name)
    if isinstance(value, dict):
        value = value.get("content")
    return default if value is None else str(value)


def reading(file: Path) -> AbstractContextManager[None]:
    """Converts the errors of a package to a ValueError that names the file."""
    return refusing(f"{file} cannot be read")


def import_package(package: str) -> Any:
    """Imports a package; the error names the extra to install."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ModuleNotFoundError(
            f'this tokenizer needs {package}: pip install "keras-tfm[text]"', name=package
        ) from None
