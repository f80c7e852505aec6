"""Names of emoji in 33 languages, for emoji_search.py.

    pip install -e ".[examples]"
    python examples/emoji_names.py       # downloads, trains the tokenizer, prints statistics

`npm pack` fetches Unicode's CLDR (cldr-annotations-full and -derived-full, Unicode License): in
each language a name of each emoji, such as "flexed biceps", and further words, such as "strong".
"""

import functools
import json
import tarfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from emoji_data import FOLDER, archive, code

PACKAGES = {  # package, and the part of its paths and keys
    "cldr-annotations-derived-full@48.2.0": "annotationsDerived",
    "cldr-annotations-full@48.2.0": "annotations",
}
# The languages of the training, and three that the model never reads: a relative of Danish and
# Swedish, one of Spanish and Italian, and one of Finnish.
SEEN = (
    *("en", "de", "nl", "sv", "da", "fr", "es", "pt", "it", "ro", "pl", "cs", "ru", "uk", "bg"),
    *("hr", "el", "lt", "fi", "hu", "tr", "he", "ar", "fa", "hi", "bn", "th", "vi", "ja", "zh"),
)
UNSEEN = ("no", "ca", "et")
VOCABULARY = 32_000  # most words of 30 languages are one token: with 8,000 a name has 7
LENGTH = 48  # tokens of the longest text, the end token included
PAD, END = "<pad>", "<end>"


class Names(NamedTuple):
    """The texts of the emoji in one language.

    Attributes:
        names: list of N str, the name of each emoji, in the order of the codes; "" where Unicode
            has none in this language.
        words: list of N lists of str, further words, which several emoji may share.
    """

    names: list[str]
    words: list[list[str]]


def read(codes: list[str], folder: Path = FOLDER) -> dict[str, Names]:
    """The names of the emoji with these codes, by language."""
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, dict]] = {language: {} for language in SEEN + UNSEEN}
    for name, part in PACKAGES.items():
        with tarfile.open(archive(name, folder)) as opened:
            for language, entries in found.items():
                member = opened.extractfile(f"package/{part}/{language}/annotations.json")
                for emoji, texts in json.load(member)[part]["annotations"].items():
                    entries[code("-".join(f"{ord(x):x}" for x in emoji))] = texts
    return {
        language: Names(
            [entries.get(x, {}).get("tts", [""])[0] for x in codes],
            [entries.get(x, {}).get("default", []) for x in codes],
        )
        for language, entries in found.items()
    }


def tokenizer(names: dict[str, Names], size: int = VOCABULARY):
    """Byte pair encoding of the texts of the training's languages, in lower case."""
    from tokenizers import Tokenizer

    return Tokenizer.from_str(_trained(tuple(_texts(names)), size))


@functools.cache
def _trained(texts: tuple[str, ...], size: int) -> str:
    from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors, trainers
    from tokenizers.models import BPE

    made = Tokenizer(BPE(unk_token="<unk>"))
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    special = [PAD, END, "<unk>"]
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    made.train_from_iterator(texts, trainer)
    made.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, special.index(END))]
    )
    return made.to_str()


def encode(texts: list[str], reader, length: int = LENGTH) -> np.ndarray:
    """(N, length), int32, padded; of longer texts the first tokens and the end token."""
    rows = np.zeros((len(texts), length), "int32")
    for row, found in zip(rows, reader.encode_batch(texts), strict=True):
        ids = found.ids if len(found.ids) <= length else [*found.ids[: length - 1], found.ids[-1]]
        row[: len(ids)] = ids
    return rows


def _texts(names: dict[str, Names]) -> list[str]:
    return [
        text
        for language in names
        if language not in UNSEEN
        for name, words in zip(*names[language], strict=True)
        for text in (name, *words)
        if text
    ]


def main() -> None:
    from emoji_data import styles

    pictures = next(iter(styles().values()))
    names = read(pictures.codes.tolist())
    reader = tokenizer(names)
    for language, texts in names.items():
        found = reader.encode_batch([name for name in texts.names if name])
        lengths = [len(x.ids) for x in found]
        unknown = np.mean([2 in x.ids for x in found])
        print(
            f"{language:3} {len(found):,} names of {np.mean(lengths):.1f} tokens, at most "
            f"{max(lengths)}; {unknown:.1%} with an unknown character: {texts.names[500]}"
        )


if __name__ == "__main__":
    main()
