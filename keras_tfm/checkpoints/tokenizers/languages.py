"""Tokenizers of translation models that mark a text with its language: M2M-100, NLLB, mBART."""

from collections.abc import Container
from pathlib import Path

from keras_tfm.checkpoints.tensors import read_json
from keras_tfm.checkpoints.tokenizers.sentence_pieces import (
    UNIGRAM,
    merges_of,
    read_model,
    split_at_spaces,
    xlm_roberta,
)
from keras_tfm.checkpoints.tokenizers.tokenizer_settings import (
    Tokenizer,
    TokenizerSettings,
    reading,
)

# By class of transformers: the language of a text unless the settings have another one, and
# whether it stands before the text (True), or after its end token.
_DEFAULTS = {
    "M2M100Tokenizer": ("en", True),
    "NllbTokenizer": ("eng_Latn", True),
    "MBartTokenizer": ("en_XX", False),
    "MBart50Tokenizer": ("en_XX", True),
}


def m2m_100(settings: TokenizerSettings, file: Path, vocabulary: Path) -> Tokenizer:
    """The tokenizer of M2M-100: SentencePiece, with ids of `vocab.json`, then the languages."""
    package = settings.package
    names = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "pad": "<pad>"}
    special = {name: settings.text(name, token) for name, token in names.items()}
    with reading(vocabulary):
        ids = read_json(vocabulary)
        if sorted(ids.values()) != list(range(len(ids))):
            raise ValueError("expected a dictionary from tokens to the ids 0, 1, ...")
        missing = sorted(set(special.values()) - set(ids))
        if missing:
            raise ValueError(f"expected the tokens {missing}, which are missing")
    languages = _languages(settings, ids, "__en__")
    with reading(file):
        model = read_model(file)
        scores = {piece: score for piece, score in model.pieces if piece in ids}
        if model.algorithm == UNIGRAM:
            lowest = min(scores.values(), default=0.0)  # the score of no other piece is lower
            pieces = [(x, scores.get(x, lowest)) for x in sorted(ids, key=ids.__getitem__)]
            core = package.models.Unigram(pieces, unk_id=ids[special["unk"]], byte_fallback=False)
        else:
            # Merges follow the order of the model's pieces, not that of the ids.
            core = package.models.BPE(
                vocab=ids,
                merges=merges_of({piece: i for i, piece in enumerate(scores)}),
                unk_token=special["unk"],
                fuse_unk=True,
            )
        tokenizer = package.Tokenizer(core)
        if model.characters:
            tokenizer.normalizer = package.normalizers.Precompiled(model.characters)
    split_at_spaces(settings, tokenizer)
    tokenizer.add_special_tokens([*dict.fromkeys(special.values()), *languages])
    return tokenizer


def mbart(settings: TokenizerSettings, file: Path) -> Tokenizer:
    """The tokenizer of mBART and mBART-50: that of XLM-R, with languages before the mask."""
    languages = _languages(settings, (), "en_XX")
    tokenizer = xlm_roberta(settings, file, languages)
    tokenizer.add_special_tokens(languages)
    return tokenizer


def _languages(settings: TokenizerSettings, others: Container[str], example: str) -> list[str]:
    """The tokens of languages, which the settings name, but for `others`."""
    languages = [token.content for token in settings.extra() if token.content not in others]
    if not languages:
        raise ValueError(
            f"{settings.folder}: expected the tokens of languages, such as {example}, in "
            "additional_special_tokens of tokenizer_config.json or special_tokens_map.json"
        )
    return languages


def set_language(
    settings: TokenizerSettings, tokenizer: Tokenizer, name: str | None, language: str | None
) -> None:
    """Adds the language and the end token to each text, as the class in `transformers` does.

    A `tokenizer.json` says it too, but the classes do not read it there.

    Args:
        settings: of the folder.
        tokenizer: `tokenizers.Tokenizer`, changed in place.
        name: str, the class in `transformers`; other classes than those of this module add none.
        language: str, such as "deu_Latn". Default: that of the settings, or of the class.

    Raises:
        ValueError: a language that the tokenizer, or any language that the class does not have.
    """
    if name not in _DEFAULTS:
        if language is not None:
            raise ValueError(
                f"{settings.folder}: language must be None, as a {name or 'tokenizer of no class'} "
                f"marks no language, got {language!r}; {', '.join(_DEFAULTS)} do"
            )
        return
    default, is_first = _DEFAULTS[name]
    language = language or settings.get("src_lang") or default
    token = f"__{language}__" if name == "M2M100Tokenizer" else str(language)
    end = settings.text("eos", "</s>")
    ids = {x: tokenizer.token_to_id(x) for x in (token, end)}
    if ids[token] is None:
        added = [x.content for x in tokenizer.get_added_tokens_decoder().values()]
        raise ValueError(
            f"{settings.folder}: language must be one of the tokenizer, whose tokens are such as "
            f"{[x for x in added if '_' in x][:3]}, got {language!r}"
        )
    is_first = is_first and not settings.get("legacy_behaviour", False)
    before, after = ([token], [end]) if is_first else ([], [end, token])
    tokenizer.post_processor = settings.package.processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", "$B", *after],
        special_tokens=list(ids.items()),
    )
