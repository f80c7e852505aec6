"""The tokenizers of Marian: two SentencePiece models, whose ids are in `vocab.json`."""

from pathlib import Path

from keras_tfm.checkpoints.tensors import read_json
from keras_tfm.checkpoints.tokenizers.sentence_pieces import (
    processor_of,
    read_model,
    split_at_spaces,
)
from keras_tfm.checkpoints.tokenizers.tokenizer_settings import (
    Tokenizer,
    TokenizerSettings,
    reading,
)

# Put before pieces that no text may match. A noncharacter of Unicode, which texts do not have.
_UNMATCHED, _REPLACED = "\U0010ffff", "\U0010fffe"
_SPECIAL = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}


def marian(
    settings: TokenizerSettings, source: Path, target: Path, vocabulary: Path, is_target: bool
) -> Tokenizer:
    """The tokenizer of Marian: the pieces of one SentencePiece model, with ids of `vocab.json`.

    It decodes every id. In texts it finds only the pieces of its own side.
    """
    package = settings.package
    if is_target and settings.get("separate_vocabs", False):
        vocabulary = vocabulary.with_name("target_vocab.json")
    with reading(vocabulary):
        ids = read_json(vocabulary)
        if sorted(ids.values()) != list(range(len(ids))):
            raise ValueError("expected a dictionary from tokens to the ids 0, 1, ...")
        special = {key: settings.text(key, x) for key, x in _SPECIAL.items()}
        missing = sorted(set(special.values()) - set(ids))
        if missing:
            raise ValueError(f"expected the tokens {missing}, which are missing")
    file = target if is_target else source
    with reading(file):
        processor = processor_of(file)
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
        characters = read_model(file).characters
        normalizers = package.normalizers
        parts = [normalizers.Precompiled(characters)] if characters else []
        parts.append(normalizers.Replace(_UNMATCHED, _REPLACED))
        tokenizer.normalizer = normalizers.Sequence(parts)
    split_at_spaces(settings, tokenizer)
    tokenizer.decoder = package.decoders.Sequence(
        [package.decoders.Replace(_UNMATCHED, ""), tokenizer.decoder]
    )
    tokenizer.add_special_tokens(sorted(kept, key=ids.__getitem__))
    end = special["eos"]
    tokenizer.post_processor = package.processors.TemplateProcessing(
        single=f"$A {end}", pair=f"$A $B {end}", special_tokens=[(end, ids[end])]
    )
    return tokenizer
