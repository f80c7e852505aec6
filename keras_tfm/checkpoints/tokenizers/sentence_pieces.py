"""Tokenizers from a SentencePiece model: T5, PEGASUS, ALBERT, DeBERTa, XLM-R, Llama, Gemma."""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from keras_tfm.checkpoints.tokenizers.tokenizer_settings import (
    SPECIAL_TOKENS,
    Package,
    Tokenizer,
    TokenizerSettings,
    import_package,
    reading,
)
from keras_tfm.runtime.tokenizers.protobuf import message_fields
from keras_tfm.runtime.tokenizers.tokenizer_limits import check_sentence_piece

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
# Values of `ModelProto.SentencePiece.type` and `TrainerSpec.model_type`.
CONTROL, USER_DEFINED = 3, 4
UNIGRAM, _BPE = 1, 2


class SentencePieceModel(NamedTuple):
    """The parts of a SentencePiece model that a tokenizer is made of.

    Attributes:
        pieces: the text and the score of each piece.
        kinds: int, the type of each piece.
        algorithm: int, the type of the model.
        characters: bytes, the map from characters to normalised ones; empty without one.
    """

    pieces: list[tuple[str, float]]
    kinds: list[int]
    algorithm: int
    characters: bytes


def read_model(file: Path) -> SentencePieceModel:
    """Reads a SentencePiece model, which is a protocol buffer.

    Raises:
        ValueError: the file is damaged.
    """
    pieces, kinds, algorithm, characters = [], [], UNIGRAM, b""
    content = file.read_bytes()
    check_sentence_piece(content)
    # Field 1 of the model is a piece, 2 the training's settings, 3 the normalisation's.
    for number, value in message_fields(content):
        if not isinstance(value, bytes):
            continue
        if number == 1:
            inner = dict(message_fields(value))
            (score,) = struct.unpack("<f", inner.get(2, bytes(4)))
            pieces.append((inner.get(1, b"").decode("utf-8"), score))
            kinds.append(int(inner.get(3, 1)))
        elif number == 2:
            algorithm = int(dict(message_fields(value)).get(3, UNIGRAM))
        elif number == 3:
            characters = bytes(dict(message_fields(value)).get(2, b""))
    if not pieces:
        raise ValueError("the file has no pieces")
    return SentencePieceModel(pieces, kinds, algorithm, characters)


def processor_of(file: Path) -> Tokenizer:
    """The model as a `sentencepiece.SentencePieceProcessor`."""
    content = file.read_bytes()
    if not content:
        raise ValueError("the file is empty")
    check_sentence_piece(content)
    package = import_package("sentencepiece")
    return package.SentencePieceProcessor(model_proto=content)


def llama(settings: TokenizerSettings, file: Path) -> Tokenizer:
    """The tokenizer of Llama 1 and 2: byte pairs, a space before the text, bytes as fallback."""
    with reading(file):
        return llama_of_pieces(settings, _of_kind(read_model(file), _BPE))


def llama_of_pieces(settings: TokenizerSettings, model: SentencePieceModel) -> Tokenizer:
    """The tokenizer of Llama 1 and 2, of the pieces of its model."""
    package = settings.package
    tokenizer, added = _byte_pairs(settings, model)
    prefix = settings.get("add_prefix_space")
    prefix = True if prefix is None else prefix
    # "legacy" also puts a space after each special token within a text.
    scheme = "always" if settings.get("legacy", False) else "first"
    tokenizer.pre_tokenizer = package.pre_tokenizers.Metaspace(
        replacement=SPACE, prepend_scheme=scheme if prefix else "never", split=False
    )
    decoders = [*_decoders(package), *([package.decoders.Strip(" ", 1, 0)] if prefix else [])]
    tokenizer.decoder = package.decoders.Sequence(decoders)
    names = SPECIAL_TOKENS["LlamaTokenizer"]
    settings.add_tokens(tokenizer, {**names}, added)
    settings.add_ends(tokenizer, *(settings.text(name, names[name]) for name in ("bos", "eos")))
    return tokenizer


def gemma(settings: TokenizerSettings, file: Path) -> Tokenizer:
    """The tokenizer of Gemma: byte pairs that keep all spaces, and bytes as fallback."""
    with reading(file):
        return gemma_of_pieces(settings, _of_kind(read_model(file), _BPE))


def gemma_of_pieces(settings: TokenizerSettings, model: SentencePieceModel) -> Tokenizer:
    """The tokenizer of Gemma, of the pieces of its model."""
    package = settings.package
    names = SPECIAL_TOKENS["GemmaTokenizer"]
    tokenizer, added = _byte_pairs(settings, model, unk_token=settings.text("unk", "<unk>"))
    tokenizer.normalizer = package.normalizers.Replace(" ", SPACE)
    tokenizer.pre_tokenizer = package.pre_tokenizers.Split(" ", behavior="merged_with_previous")
    tokenizer.decoder = package.decoders.Sequence(_decoders(package))
    settings.add_tokens(tokenizer, {**names}, added)
    settings.add_ends(tokenizer, *(settings.text(name, names[name]) for name in ("bos", "eos")))
    return tokenizer


def albert(settings: TokenizerSettings, file: Path) -> Tokenizer:
    """The tokenizer of ALBERT: unigrams of text in lower case, without accents."""
    package = settings.package
    normalizers = package.normalizers
    with reading(file):
        model = _of_kind(read_model(file), UNIGRAM)
        tokenizer = package.Tokenizer(
            package.models.Unigram(model.pieces, unk_id=1, byte_fallback=False)
        )
        steps = [normalizers.Replace(x, '"') for x in ("``", "''")]
        if not settings.get("keep_accents", False):
            steps += [normalizers.NFKD(), normalizers.StripAccents()]
        if settings.get("do_lower_case", True):
            steps.append(normalizers.Lowercase())
        if model.characters:
            steps.append(normalizers.Precompiled(model.characters))
        tokenizer.normalizer = normalizers.Sequence(steps)
    split_at_spaces(settings, tokenizer)
    names = {"bos": "[CLS]", "eos": "[SEP]", "unk": "<unk>", "sep": "[SEP]", "pad": "<pad>"}
    names |= {"cls": "[CLS]", "mask": "[MASK]"}
    settings.add_tokens(tokenizer, {**names}, _added_tokens(package, model))
    settings.add_segments(tokenizer, names["cls"], names["sep"])
    return tokenizer


def deberta(settings: TokenizerSettings, file: Path) -> Tokenizer:
    """The tokenizer of DeBERTa v2 and v3: unigrams, with BERT's special tokens around each text.

    Characters are normalized as SentencePiece does. `transformers` 5 composes them (NFC) instead.
    """
    package = settings.package
    normalizers, space = package.normalizers, {"replacement": SPACE, "prepend_scheme": "always"}
    names = {"bos": "[CLS]", "eos": "[SEP]", "unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]"}
    names |= {"cls": "[CLS]", "mask": "[MASK]"}
    with reading(file):
        model = _of_kind(read_model(file), UNIGRAM)
        ids = {piece: i for i, (piece, _) in enumerate(model.pieces)}
        unknown = settings.text("unk", names["unk"])
        if unknown not in ids:
            raise ValueError(f"expected the piece {unknown}, which is missing")
        tokenizer = package.Tokenizer(
            package.models.Unigram(model.pieces, unk_id=ids[unknown], byte_fallback=False)
        )
        steps = [normalizers.Lowercase()] if settings.get("do_lower_case", False) else []
        steps.append(normalizers.Strip())
        if model.characters:
            steps.append(normalizers.Precompiled(model.characters))
        steps.append(normalizers.Replace(package.Regex(" {2,}"), " "))
        tokenizer.normalizer = normalizers.Sequence(steps)
    splits = [package.pre_tokenizers.Metaspace(**space)]
    if settings.get("split_by_punct", False):
        splits.insert(0, package.pre_tokenizers.Punctuation(behavior="isolated"))
    tokenizer.pre_tokenizer = package.pre_tokenizers.Sequence(splits)
    tokenizer.decoder = package.decoders.Metaspace(**space)
    settings.add_tokens(tokenizer, {**names}, _added_tokens(package, model))
    settings.add_segments(tokenizer, names["cls"], names["sep"])
    return tokenizer


def camembert(settings: TokenizerSettings, file: Path) -> Tokenizer:
    """The tokenizer of CamemBERT: that of XLM-R, with the model's own <s> and </s>.

    Three of the five tokens before them are in no text.
    """
    tokens = ("<s>NOTUSED", "pad", "</s>NOTUSED", "unk", "<unk>NOTUSED")
    return xlm_roberta(settings, file, first=tokens, skipped=1)


def xlm_roberta(
    settings: TokenizerSettings,
    file: Path,
    languages: Sequence[str] = (),
    first: Sequence[str] = ("bos", "pad", "eos", "unk"),
    skipped: int = 3,
) -> Tokenizer:
    """The tokenizer of XLM-R: unigrams, whose ids follow those of <s>, <pad>, </s> and <unk>.

    Args:
        settings: of the folder.
        file: Path, the SentencePiece model.
        languages: tokens between the pieces and the mask.
        first: the tokens before the pieces: names of special tokens, or texts.
        skipped: int, how many pieces of the model are left out: those that are in `first`.
    """
    package = settings.package
    names = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "pad": "<pad>"}
    names |= {"cls": "<s>", "mask": "<mask>"}
    texts = {name: settings.text(name, token) for name, token in names.items()}
    with reading(file):
        model = _of_kind(read_model(file), UNIGRAM)
        before = [(texts.get(name, name), 0.0) for name in first]
        last = [(token, 0.0) for token in (*languages, texts["mask"])]
        pieces = [*before, *model.pieces[skipped:], *last]
        tokenizer = package.Tokenizer(package.models.Unigram(pieces, unk_id=3, byte_fallback=False))
        if model.characters:
            tokenizer.normalizer = package.normalizers.Precompiled(model.characters)
    split_at_spaces(settings, tokenizer)
    unused = [
        package.AddedToken(x, normalized=False, special=True) for x in first if x not in names
    ]
    settings.add_tokens(tokenizer, {**names}, [*_added_tokens(package, model), *unused])
    begin, end = texts["bos"], texts["eos"]
    tokenizer.post_processor = package.processors.TemplateProcessing(
        single=[begin, "$A", end],
        pair=[begin, "$A", end, end, "$B", end],
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (begin, end)],
    )
    return tokenizer


def pegasus(settings: TokenizerSettings, file: Path) -> Tokenizer:
    """The tokenizer of PEGASUS: unigrams, whose ids follow those of tokens for pretraining."""
    package = settings.package
    names = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask_2>"}
    texts = {name: settings.text(name, token) for name, token in names.items()}
    sentence = str(settings.get("mask_token_sent", "<mask_1>"))
    offset = int(settings.get("offset", 103))
    first = [texts["pad"], texts["eos"], sentence, texts["mask"]]
    first += [f"<unk_{i}>" for i in range(2, offset)]
    with reading(file):
        model = _of_kind(read_model(file), UNIGRAM)
        # The model's own pieces begin with padding and the end, which are first here, too.
        pieces = [*((token, 0.0) for token in first), *model.pieces[2:]]
        unknown = [piece for piece, _ in pieces].index(texts["unk"])
        tokenizer = package.Tokenizer(
            package.models.Unigram(pieces, unk_id=unknown, byte_fallback=False)
        )
        if model.characters:
            tokenizer.normalizer = package.normalizers.Precompiled(model.characters)
    split_at_spaces(settings, tokenizer)
    tokenizer.add_special_tokens([*first, texts["unk"]])
    end = texts["eos"]
    tokenizer.post_processor = package.processors.TemplateProcessing(
        single=f"$A {end}",
        pair=f"$A $B {end}",
        special_tokens=[(end, tokenizer.token_to_id(end))],
    )
    return tokenizer


def t5(settings: TokenizerSettings, file: Path) -> Tokenizer:
    """The unigram tokenizer of T5 (arXiv:1804.10959); sentinels follow in reverse order."""
    package = settings.package
    with reading(file):
        processor, model = processor_of(file), read_model(file)
        sentinels = [f"<extra_id_{i}>" for i in range(int(settings.get("extra_ids", 100)))]
        known = {piece for piece, _ in model.pieces}
        pieces = [*model.pieces, *((x, 0.0) for x in reversed(sentinels) if x not in known)]
        tokenizer = package.Tokenizer(
            package.models.Unigram(pieces, unk_id=processor.unk_id(), byte_fallback=False)
        )
        if model.characters:
            tokenizer.normalizer = package.normalizers.Precompiled(model.characters)
    split_at_spaces(settings, tokenizer)
    names = [settings.text(*x) for x in (("eos", "</s>"), ("unk", "<unk>"), ("pad", "<pad>"))]
    tokenizer.add_special_tokens([*names, *sentinels])
    end = names[0]
    tokenizer.post_processor = package.processors.TemplateProcessing(
        single=f"$A {end}",
        pair=f"$A {end} $B {end}",
        special_tokens=[(end, tokenizer.token_to_id(end))],
    )
    return tokenizer


def _byte_pairs(
    settings: TokenizerSettings, model: SentencePieceModel, **options: object
) -> tuple[Tokenizer, list[object]]:
    """A BPE tokenizer with bytes as fallback, and the tokens to add to it."""
    package = settings.package
    ids = {piece: i for i, (piece, _) in enumerate(model.pieces)}
    tokenizer = package.Tokenizer(
        package.models.BPE(
            vocab=ids,
            merges=merges_of(ids),
            fuse_unk=True,
            byte_fallback=True,
            **options,
        )
    )
    return tokenizer, _added_tokens(package, model)


def merges_of(ranks: dict[str, int]) -> list[tuple[str, str]]:
    """The merges of a BPE model of SentencePiece, which it does not store.

    Two pieces are merged if the result is a piece, the first ones first.

    Args:
        ranks: dict from each piece to its place in the model.
    """
    merges = []
    for piece, i in ranks.items():
        halves = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        found = [(a, b) for a, b in halves if a in ranks and b in ranks]
        found.sort(key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
        merges += [(i, len(a), len(b), a, b) for a, b in found]
    merges.sort(key=lambda x: x[:3])
    return [(a, b) for *_, a, b in merges]


def _added_tokens(package: Package, model: SentencePieceModel) -> list[object]:
    """The control and user-defined pieces, which are never split."""
    return [
        package.AddedToken(piece, normalized=False, special=kind == CONTROL)
        for (piece, _), kind in zip(model.pieces, model.kinds, strict=True)
        if kind in (CONTROL, USER_DEFINED)
    ]


def _of_kind(model: SentencePieceModel, algorithm: int) -> SentencePieceModel:
    if model.algorithm != algorithm:
        names = {UNIGRAM: "unigram", _BPE: "BPE", 3: "word", 4: "character"}
        raise ValueError(
            f"expected a {names[algorithm]} model, got a {names.get(model.algorithm)} model"
        )
    return model


def _decoders(package: Package) -> list[object]:
    decoders = package.decoders
    return [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]


def split_at_spaces(settings: TokenizerSettings, tokenizer: Tokenizer) -> None:
    """Words at spaces, which are marked, as unigram models expect them."""
    package = settings.package
    prefix = settings.get("add_prefix_space")
    scheme = "never" if prefix is False else "always"
    space = {"replacement": SPACE, "prepend_scheme": scheme}
    tokenizer.pre_tokenizer = package.pre_tokenizers.Sequence(
        [package.pre_tokenizers.WhitespaceSplit(), package.pre_tokenizers.Metaspace(**space)]
    )
    tokenizer.decoder = package.decoders.Metaspace(**space)
