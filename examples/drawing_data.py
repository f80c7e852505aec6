"""Emoji and their English names for drawing.py.

    python examples/drawing_data.py        # downloads, prints statistics

The emoji of five styles (emoji_data.py), reduced to 32 x 32 pixels, of the subgroups of faces,
animals, plants, food and sky, with their English names and further words (emoji_names.py).
"""

from pathlib import Path
from typing import NamedTuple

import emoji_data as data
import emoji_names as texts
import numpy as np

SIZE = 32
# The subgroups of Unicode that are drawn, by the start of their names.
DRAWN = ("face-", "animal-", "plant-", "food-", "sky")
VOCABULARY, TEXT_LENGTH = 1000, 12
NAME_SHARE = 0.7  # of the captions; the others are further words


class Pairs(NamedTuple):
    """What is trained on, and what is tested.

    Attributes:
        drawn: (N, S, SIZE, SIZE, 3), uint8, each emoji in the styles of the training.
        unseen: (N, SIZE, SIZE, 3), uint8, in the unseen style.
        names: list of N str, the English name of each emoji.
        words: list of N lists of str, further words.
    """

    drawn: np.ndarray
    unseen: np.ndarray
    names: list[str]
    words: list[list[str]]


def read(folder: Path = data.FOLDER) -> Pairs:
    """The emoji of the drawn subgroups that have an English name, in all styles."""
    styles = data.styles(folder)
    unseen = styles.pop(data.UNSEEN)
    rows = [dict(zip(x.codes.tolist(), x.pixels, strict=True)) for x in styles.values()]
    names = texts.read(unseen.codes.tolist(), folder)["en"]
    kept = [
        i
        for i, group in enumerate(unseen.classes)
        if unseen.names[group].startswith(DRAWN) and names.names[i]
    ]
    # A style without an emoji shows it as the next style that has it.
    drawn = [
        [next(x[code] for x in [*rows[i:], *rows] if code in x) for i in range(len(rows))]
        for code in unseen.codes[kept]
    ]
    return Pairs(
        small(np.array(drawn)),
        small(unseen.pixels[kept]),
        [names.names[i] for i in kept],
        [names.words[i] for i in kept],
    )


def digits() -> Pairs:
    """scikit-learn's digits with their names, for a test run without a network."""
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    styles = [[x.pixels[x.classes == i][0] for i in range(10)] for x in data.digits().values()]
    drawn = np.array(styles[:-1]).swapaxes(0, 1)
    return Pairs(small(drawn), small(np.array(styles[-1])), words, [[] for _ in words])


def small(pixels: np.ndarray) -> np.ndarray:
    """Pictures (..., H, W, 3) reduced to (..., SIZE, SIZE, 3)."""
    from keras_tfm import runtime

    flat = pixels.reshape(-1, *pixels.shape[-3:])
    reduced = runtime.ImageProcessor((SIZE, SIZE), resample="lanczos")(flat)
    return reduced.reshape(*pixels.shape[:-3], *reduced.shape[1:])


def tokenizer(pairs: Pairs):
    """Byte pair encoding of the names and words."""
    return texts.tokenizer({"en": texts.Names(pairs.names, pairs.words)}, size=VOCABULARY)


def caption(pairs: Pairs, i: int, random: np.random.Generator) -> str:
    """The name of an emoji, or some of its further words."""
    words = pairs.words[i]
    if not words or random.random() < NAME_SHARE:
        return pairs.names[i]
    return " ".join(random.permutation(words)[: random.integers(1, 3)])


def encode(captions: list[str], reader) -> list[list[int]]:
    """The ids of captions; of longer ones the first and the end token."""
    found = [x.ids for x in reader.encode_batch(captions)]
    return [x if len(x) <= TEXT_LENGTH else [*x[: TEXT_LENGTH - 1], x[-1]] for x in found]


def padded(captions: list[str], reader) -> np.ndarray:
    """(N, TEXT_LENGTH), int32, padded with 0."""
    rows = np.zeros((len(captions), TEXT_LENGTH), "int32")
    for row, ids in zip(rows, encode(captions, reader), strict=True):
        row[: len(ids)] = ids
    return rows


def main() -> None:
    pairs = read()
    lengths = [len(x.ids) for x in tokenizer(pairs).encode_batch(pairs.names)]
    print(f"{len(pairs.names)} emoji in {pairs.drawn.shape[1]} styles and an unseen one")
    print(f"names of {np.mean(lengths):.1f} tokens, at most {max(lengths)}")


if __name__ == "__main__":
    main()
