"""A WordPiece vocabulary from texts, as a tokenizer that gives back what it was given."""

from collections.abc import Iterable, Sequence
from typing import Any

from keras_tfm.layers.arguments import check_integer

# Before a piece that goes on with a word; a character that texts do not have (a reserved one).
CONTINUED = "\ue000"
SPECIAL = ("<pad>", "<start>", "<end>", "<unknown>")


def train_word_piece(
    texts: Iterable[str],
    vocabulary_size: int = 8_000,
    special_tokens: Sequence[str] = SPECIAL,
    unknown: str = "<unknown>",
    ends: tuple[str | None, str | None] = ("<start>", "<end>"),
    min_frequency: int = 2,
) -> Any:
    from tokenizers import (
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )

    tokenizer = Tokenizer(
        models.WordPiece(
            unk_token=unknown, continuing_subword_prefix=CONTINUED, max_input_chars_per_word=100
        )
    )
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation("isolated")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(CONTINUED, ""),
            decoders.Replace("\u2581", " "),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary_size,
        min_frequency=min_frequency,
        special_tokens=list(special_tokens),
        continuing_subword_prefix=CONTINUED,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    start, end = ends
    template = " ".join(part for part in (start, "$A", end) if part)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template,
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ends if token],
    )
    return tokenizer
