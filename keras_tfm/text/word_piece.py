"""Trains a WordPiece tokenizer whose decoding restores the text."""

from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any, TypeAlias

from keras_tfm.arguments import check_integer
from keras_tfm.optional_package import optional_package

# A `Tokenizer` of `tokenizers`, which only the function imports.
Tokenizer: TypeAlias = Any


PADDING, START, END, UNKNOWN = "<pad>", "<start>", "<end>", "<unknown>"
# The prefix of a piece inside a word: a private-use character. With the usual "##", decoding would
# drop a "##" in the text.
CONTINUED = "\ue000"
# Stands for the space before a word, as in SentencePiece.
SPACE = "\u2581"
# Characters of a word. Longer ones, as in languages without spaces, are cut: the search for pieces
# takes the square of a word's length, and `tokenizers` makes a word over its limit one <unknown>.
LONGEST = 100
# Planes 15 and 16 of Unicode are for private use: two code points for each of 60,000 characters.
PRIVATE = 0xF0000


def checked_texts(texts: Iterable[str]) -> Iterator[str]:
    """The texts; raises for a single one, of which each character would be a text.

    >>> from keras_tfm.text.word_piece import checked_texts
    >>> list(checked_texts(["low", "new"]))
    ['low', 'new']
    """
    if isinstance(texts, str | bytes):
        raise TypeError(f"texts must be an iterable of str, got one {type(texts).__name__}")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"texts must be str, got {type(text).__name__} as text {i}")
        yield text


def train_word_piece(
    texts: Iterable[str],
    vocabulary_size: int = 8_000,
    special_tokens: Sequence[str] = (),
    ends: bool = True,
    min_frequency: int = 2,
) -> Tokenizer:
    """Trains a WordPiece tokenizer that keeps capitals and spaces.

    A word is split into the longest pieces in the vocabulary, from its start: "Google's Neural
    Machine Translation System" (arXiv:1609.08144), section 4.1. Punctuation is a piece of its own.
    Unlike BERT's, this tokenizer keeps spaces, as a mark at the start of a word, so decoding
    returns the text in Unicode's composed form (NFC) with its runs of spaces, except one leading
    space. A word with a character that training did not see becomes "<unknown>". A span without
    spaces, in Chinese or Thai for instance, is cut every 100 characters. The same texts give the
    same vocabulary.

    Args:
        texts: iterable of str, read once.
        vocabulary_size: int, maximum number of tokens, including the special ones.
        special_tokens: list of more special tokens, such as "<mask>", with ids from 4.
        ends: bool, whether encoding adds "<start>" and "<end>" around a text.
        min_frequency: int, minimum number of occurrences of a merged piece.

    Returns:
        A `tokenizers.Tokenizer` with the ids 0 "<pad>", 1 "<start>", 2 "<end>" and 3 "<unknown>":
        `encode(text).ids`, `encode_batch`, `decode(ids)`. `save("tokenizer.json")` stores it, and
        `export_tflite(tokenizer=)` puts it into the exported file.

    Raises:
        ValueError: there are no texts, or `vocabulary_size` is too small for all characters that
            occur.
        TypeError: one text instead of several, or a text that is no str.
        ModuleNotFoundError: `tokenizers` (extra `text`) is not installed.

    Example:

    >>> from keras_tfm.text import train_word_piece
    >>> tokenizer = train_word_piece(["low lower, lowest", "new newer, newest"], 40)
    >>> encoding = tokenizer.encode("newest lower")
    >>> encoding.ids[0], encoding.ids[-1], tokenizer.decode(encoding.ids)
    (1, 2, 'newest lower')
    """
    check_integer("vocabulary_size", vocabulary_size, minimum=4 + len(special_tokens))
    check_integer("min_frequency", min_frequency)
    special = [PADDING, START, END, UNKNOWN, *special_tokens]
    if len(set(special)) != len(special):
        raise ValueError(f"special tokens must differ, got {special}")
    package = _import_tokenizers()
    normalizer = package.normalizers.NFC()
    pre_tokenizer = package.pre_tokenizers.Sequence(
        [
            package.pre_tokenizers.Metaspace(SPACE),
            package.pre_tokenizers.Punctuation("isolated"),
            package.pre_tokenizers.Split(package.Regex(rf"[\s\S]{{1,{LONGEST}}}"), "isolated"),
        ]
    )
    words = (
        [word for word, _ in pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(text))]
        for text in checked_texts(texts)
    )
    pieces = _pieces(words, vocabulary_size - len(special), min_frequency)
    if not pieces:
        raise ValueError("training a vocabulary needs at least one text, got none")
    if len(special) + len(pieces) > vocabulary_size:
        raise ValueError(
            f"vocabulary_size must be at least {len(special) + len(pieces)}, special tokens and "
            f"all characters that occur, got {vocabulary_size}"
        )
    tokenizer = package.Tokenizer(
        package.models.WordPiece(
            {piece: i for i, piece in enumerate([*special, *pieces])},
            unk_token=UNKNOWN,
            continuing_subword_prefix=CONTINUED,
            max_input_chars_per_word=LONGEST,
        )
    )
    tokenizer.add_special_tokens(special)
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizer
    tokenizer.decoder = package.decoders.Sequence(
        [
            package.decoders.Replace(CONTINUED, ""),
            package.decoders.Replace(SPACE, " "),
            package.decoders.Fuse(),
            package.decoders.Strip(" ", 1, 0),
        ]
    )
    if ends:
        tokenizer.post_processor = package.processors.TemplateProcessing(
            single=f"{START} $A {END}",
            pair=f"{START} $A {END} $B:1 {END}:1",
            special_tokens=[(START, special.index(START)), (END, special.index(END))],
        )
    return tokenizer


def _pieces(words: Iterable[list[str]], size: int, min_frequency: int) -> list[str]:
    """The most frequent pieces, by merging the most frequent pair (arXiv:1508.07909).

    The WordPiece trainer of `tokenizers` is not deterministic: it numbers pieces in the order of a
    hash table and breaks ties by these numbers. So the BPE trainer is used: every character is
    mapped to two private-use characters, one for the start of a word and one for other places.
    """
    package = _import_tokenizers()
    codes: dict[str, int] = {}
    written: dict[str, str] = {}

    def write(word: str) -> str:
        if word not in written:
            numbers = [codes.setdefault(character, len(codes)) for character in word]
            written[word] = "".join(
                chr(PRIVATE + 2 * number + (place > 0)) for place, number in enumerate(numbers)
            )
        return written[word]

    def corpus() -> Iterator[str]:
        for text in words:
            yield " ".join(map(write, text))
        # Each character in both forms, so that no word of known characters is unknown.
        yield " ".join(chr(PRIVATE + place) for place in range(2 * len(codes)))

    trained = package.Tokenizer(package.models.BPE())
    trained.pre_tokenizer = package.pre_tokenizers.WhitespaceSplit()
    trained.train_from_iterator(
        corpus(),
        package.trainers.BpeTrainer(
            vocab_size=max(0, size), min_frequency=min_frequency, show_progress=False
        ),
    )
    characters = list(codes)

    def read(piece: str) -> str:
        numbers = [ord(character) - PRIVATE for character in piece]
        word = "".join(characters[number // 2] for number in numbers)
        return CONTINUED + word if numbers[0] % 2 else word

    vocabulary = trained.get_vocab()
    return [read(piece) for piece in sorted(vocabulary, key=vocabulary.__getitem__)]


def _import_tokenizers() -> ModuleType:
    return optional_package(
        "tokenizers", "training this vocabulary needs tokenizers", "tokenizers", extra="text"
    )
