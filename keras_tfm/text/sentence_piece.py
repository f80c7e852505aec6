"""A SentencePiece vocabulary from texts."""

import io
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from keras_tfm.arguments import check_integer
from keras_tfm.optional_package import optional_package
from keras_tfm.text.word_piece import END, PADDING, START, UNKNOWN, checked_texts

# A `SentencePieceProcessor`, which only the function imports.
Tokenizer: TypeAlias = Any


KINDS = ("unigram", "bpe", "char")
LONGEST = 10_000  # bytes of a text


def train_sentence_piece(
    texts: Iterable[str],
    vocabulary_size: int = 8_000,
    kind: str = "unigram",
    special_tokens: Sequence[str] = (),
    ends: bool = True,
    byte_fallback: bool = False,
) -> Tokenizer:
    """Trains a SentencePiece tokenizer, which splits text into pieces without word boundaries.

    "SentencePiece" (arXiv:1808.06226); by default the unigram model of "Subword Regularization"
    (arXiv:1804.10959). It needs no spaces between words, as in Japanese or Thai. Texts are
    normalised (NFKC), and runs of spaces become one.

    Args:
        texts: iterable of str, read once. Texts of more than 10,000 bytes are skipped.
        vocabulary_size: int, maximum number of tokens, including the special ones. Small texts give
            fewer.
        kind: str, "unigram", "bpe" or "char".
        special_tokens: list of more special tokens, such as "<mask>", with ids from 4.
        ends: bool, whether encoding adds "<start>" and "<end>" around a text.
        byte_fallback: bool, whether characters that did not occur in training are encoded as bytes
            (256 more tokens) instead of "<unknown>".

    Returns:
        A `sentencepiece.SentencePieceProcessor` with the ids 0 "<pad>", 1 "<start>", 2 "<end>" and
        3 "<unknown>": `encode(text)`, `decode(ids)`. `serialized_model_proto()` is the content of
        its `.model` file, and `export_tflite(tokenizer=)` puts it into the exported file.

    Raises:
        ValueError: an unknown kind, or SentencePiece cannot train on these texts.
        TypeError: one text instead of several, or a text that is no str.
        ModuleNotFoundError: `sentencepiece` (extra `text`) is not installed.

    Example:

    >>> from keras_tfm.text import train_sentence_piece
    >>> tokenizer = train_sentence_piece(["low lower lowest", "new newer newest"], 24)
    >>> ids = tokenizer.encode("newest lower")
    >>> ids[0], ids[-1], tokenizer.decode(ids)
    (1, 2, 'newest lower')
    """
    check_integer("vocabulary_size", vocabulary_size, minimum=4 + len(special_tokens))
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    texts = checked_texts(texts)
    first = next(texts, None)
    if first is None:
        raise ValueError("training a vocabulary needs at least one text, got none")
    sentencepiece = optional_package(
        "sentencepiece",
        "training this vocabulary needs sentencepiece",
        "sentencepiece",
        extra="text",
    )
    written = io.BytesIO()
    errors: list[Exception] = []

    def read() -> Iterator[str]:
        """The texts, and what they raise: SentencePiece makes a RuntimeError of it."""
        try:
            yield from itertools.chain([first], texts)
        except Exception as error:
            errors.append(error)
            raise

    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=read(),
            model_writer=written,
            vocab_size=vocabulary_size,
            hard_vocab_limit=False,
            model_type=kind,
            user_defined_symbols=list(special_tokens),
            byte_fallback=byte_fallback,
            character_coverage=1.0,
            max_sentence_length=LONGEST,
            pad_id=0,
            bos_id=1,
            eos_id=2,
            unk_id=3,
            pad_piece=PADDING,
            bos_piece=START,
            eos_piece=END,
            unk_piece=UNKNOWN,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        if errors:
            raise errors[0] from None
        lines = [line for line in str(error).splitlines() if line] or ["no reason given"]
        reason = lines[-1]
        if "sentences_.empty()" in reason:
            reason = (
                f"each is empty or has more than {LONGEST:,} bytes; pass sentences or paragraphs"
            )
        raise ValueError(f"SentencePiece cannot train on these texts: {reason}") from None
    return sentencepiece.SentencePieceProcessor(
        model_proto=written.getvalue(), add_bos=ends, add_eos=ends
    )
