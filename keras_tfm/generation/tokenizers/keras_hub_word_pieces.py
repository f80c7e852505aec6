"""KerasHub's WordPiece tokenizer as a `tokenizers.Tokenizer` with the same ids for every text.

KerasHub splits a text into words first and changes their case afterwards, and limits the bytes of a
word. `tokenizers` normalizes before it splits, and limits the characters of a word. So the stored
form separates words while it normalizes, and its pieces are bytes.
"""

import unicodedata
from typing import Any

from keras_tfm.optional_package import optional_package

# A word with more bytes is unknown.
_LONGEST_WORD = 100
# What separates words, and what is a word of its own.
_SPACES = r"\t\n\r\f \p{Cc}\p{Cf}"
_PUNCTUATION = r"!-/:-@\[-`{-~\p{P}"
_IDEOGRAPHS = (
    "\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f"
    "\U0002b820-\U0002ceaf\uf900-\ufaff\U0002f800-\U0002fa1f"
)
# Unicode's default ignorable code points, as KerasHub lists them.
_IGNORED = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
# Letters whose case folding is not their lower case: sharp s, final sigma, iota below, and letters
# of Cherokee, Cyrillic and Greek.
_FOLDED = (
    0xDF, 0x345, 0x3C2, *range(0x13F8, 0x13FE), *range(0x1C80, 0x1C89), *range(0x1F80, 0x1F88),
    *range(0x1F90, 0x1F98), *range(0x1FA0, 0x1FA8), 0x1FB2, 0x1FB3, 0x1FB4, 0x1FB7, 0x1FC2, 0x1FC3,
    0x1FC4, 0x1FC7, 0x1FF2, 0x1FF3, 0x1FF4, 0x1FF7, *range(0xAB70, 0xABC0),
)  # fmt: skip
# Punctuation beyond ASCII in what other characters are folded to.
_FOLDED_TO = "\u00b7\u2032\u2035\u3014\u3015"


def word_piece_json(tokenizer: Any) -> bytes:
    """The tokenizer.json of a `keras_hub.tokenizers.WordPieceTokenizer`.

    Raises:
        ValueError: it has an option that `tokenizers` lacks.
        ModuleNotFoundError: `tokenizers` is missing.
    """
    if not tokenizer.split:
        raise ValueError("it takes words (split=False), not texts: make it with split=True")
    if tokenizer.lowercase and tokenizer.strip_accents:
        raise ValueError(
            "a WordPieceTokenizer with lowercase=True and strip_accents=True cannot be stored "
            "exactly: make a tokenizers.Tokenizer, and train with that"
        )
    package = optional_package(
        "tokenizers", "storing this tokenizer needs tokenizers", "tokenizers", extra="text"
    )
    prefix, oov = tokenizer.suffix_indicator, tokenizer.oov_token
    pieces = list(tokenizer.get_vocabulary())
    made = package.Tokenizer(
        package.models.WordPiece(
            {_in_bytes(piece, prefix): i for i, piece in enumerate(pieces)},
            unk_token=_in_bytes(oov, prefix),
            continuing_subword_prefix=prefix,
            max_input_chars_per_word=_LONGEST_WORD,
        )
    )
    if tokenizer.special_tokens_in_strings:
        special = [*tokenizer.special_tokens, *(tokenizer.get_config()["special_tokens"] or ())]
        made.add_special_tokens([*dict.fromkeys(special)])
    normalizers, pre_tokenizers = package.normalizers, package.pre_tokenizers
    steps = []
    if tokenizer.strip_accents:
        steps += [normalizers.NFD(), normalizers.Replace(package.Regex(r"\p{Mn}"), "")]
    if tokenizer.lowercase:
        steps += _separate_words(package, tokenizer.split_on_cjk)
        steps += _case_folding(package, {x for piece in pieces for x in piece})
        split = [
            pre_tokenizers.Split(package.Regex(r"\n"), "removed"),
            pre_tokenizers.Split(package.Regex(rf"(?![!-~{_FOLDED_TO}])\p{{P}}"), "isolated"),
        ]
    else:
        alone = _PUNCTUATION + (_IDEOGRAPHS if tokenizer.split_on_cjk else "")
        split = [
            pre_tokenizers.Split(package.Regex(f"[{_SPACES}]"), "removed"),
            pre_tokenizers.Split(package.Regex(f"[{alone}]"), "isolated"),
        ]
    made.normalizer = normalizers.Sequence(steps)
    in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([*split, in_bytes])
    decoders = package.decoders
    made.decoder = decoders.Sequence(
        [decoders.WordPiece(prefix, cleanup=False), decoders.Replace(" ", _BYTES[32]),
         decoders.ByteLevel()]
    )  # fmt: skip
    text: str = made.to_str()
    return text.encode()


def _separate_words(package: Any, ideographs: bool) -> list[Any]:
    """Steps that put line feeds around words which case folding would change or make.

    "\u2026" becomes three dots that are one word, but the dot of "\u2488" (a digit and a full stop)
    stays within its word, as do the Chinese characters of "\u337f".
    """
    normalizers = package.normalizers
    steps = []
    if ideographs:
        steps.append(normalizers.BertNormalizer(False, True, False, False))
    signs = [*(chr(i) for i in range(33, 127) if not chr(i).isalnum()), *_FOLDED_TO]
    for i in range(128, 0x110000):
        if unicodedata.category(chr(i)).startswith("P") and _fold(chr(i)) != chr(i):
            signs.append(chr(i))
    steps += [normalizers.Replace(x, f"\n{_fold(x)}\n") for x in signs]
    return [*steps, normalizers.Replace(package.Regex(f"[{_SPACES}]"), "\n")]


def _fold(text: str) -> str:
    """NFKC_Casefold, but for characters that are ignored."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return unicodedata.normalize("NFKC", folded)


def _case_folding(package: Any, alphabet: set[str]) -> list[Any]:
    """Unicode's NFKC_Casefold of words, exact for the characters of a vocabulary.

    A word with another character is unknown in any case.
    """
    normalizers = package.normalizers
    steps = [normalizers.NFKC(), normalizers.Lowercase()]
    for letter in map(chr, _FOLDED):
        folded = _fold(letter)
        if letter in alphabet or alphabet.issuperset(folded):
            steps.append(normalizers.Replace(letter, folded))
    # Letters with accents that are one character only in lower case, such as "\u01f0".
    for letter in sorted(alphabet):
        parts = unicodedata.normalize("NFD", letter)
        if len(parts) > 1 and len(parts[0].upper()) == 1:
            upper = unicodedata.normalize("NFKC", parts[0].upper() + parts[1:])
            lower = upper.lower()
            if lower != letter and unicodedata.normalize("NFKC", lower) == letter:
                steps.append(normalizers.Replace(lower, letter))
    return [*steps, normalizers.Replace(package.Regex(f"[{_IGNORED}]"), "")]


def _byte_characters() -> list[str]:
    """GPT-2's character for each byte, as `ByteLevel` of `tokenizers` has it."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [i for i in range(256) if i not in shown]
    return [chr(i if i in shown else 256 + others.index(i)) for i in range(256)]


_BYTES = _byte_characters()


def _in_bytes(piece: str, prefix: str) -> str:
    """A piece with a character for each byte; the prefix of continued words stays."""
    start = prefix if piece.startswith(prefix) else ""
    return start + "".join(_BYTES[x] for x in piece.removeprefix(start).encode("utf-8"))
