"""Text of examples/word2vec.py: docstrings of the standard library and of installed packages.

    python examples/word2vec_data.py        # prints statistics, half a minute

The words of a corpus depend on the versions that are installed, so scores differ a little between
machines. A tenth of the modules is held out, from the embeddings too: word2vec_data.split.
"""

import ast
import hashlib
import importlib.util
import re
import sysconfig
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

# Installed with the extra `examples`, and imported by none of this: only read.
PACKAGES = ("keras", "matplotlib", "numpy", "scipy", "sklearn", "sympy", "tensorflow")
STANDARD_LIBRARY = "the standard library"
TEST = 100  # modules of a thousand
UNKNOWN, PADDING = 1, 0
Documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Paragraph(NamedTuple):
    """The words of a paragraph of a docstring, its package and its module."""

    words: tuple[str, ...]
    package: str
    module: str


def paragraphs(packages: tuple[str, ...] = PACKAGES) -> list[Paragraph]:
    """The paragraphs of all docstrings; of equal ones the first."""
    found: dict[tuple[str, ...], Paragraph] = {}
    for package, root in folders(packages):
        for path in sorted(root.rglob("*.py")):
            module = path.relative_to(root).as_posix()
            if not re.search(r"(^|/)(tests?|site-packages|_vendor|lib2to3|idlelib)(/|$)", module):
                for words in _paragraphs_of(path):
                    found.setdefault(words, Paragraph(words, package, f"{package}/{module}"))
    return list(found.values())


def folders(packages: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    yield STANDARD_LIBRARY, Path(sysconfig.get_path("stdlib"))
    for package in packages:
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin:
            yield package, Path(spec.origin).parent


def _paragraphs_of(path: Path) -> Iterator[tuple[str, ...]]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's docstrings
            tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, Documented):
            for paragraph in (ast.get_docstring(node) or "").split("\n\n"):
                if ">>>" not in paragraph and "::" not in paragraph:
                    words = tuple(words_of(paragraph))
                    if len(words) >= 4:
                        yield words


def words_of(text: str) -> list[str]:
    """Words in lower case: letters, also with an apostrophe or underscore inside."""
    return re.findall(r"[a-z]+(?:['_][a-z]+)*", text.lower())


def split(some: list[Paragraph]) -> tuple[list[Paragraph], list[Paragraph]]:
    """Training and test paragraphs, by hashes of the modules."""

    def held_out(paragraph: Paragraph) -> bool:
        digest = hashlib.blake2b(paragraph.module.encode()).digest()
        return int.from_bytes(digest[:4], "big") % 1000 < TEST

    return [x for x in some if not held_out(x)], [x for x in some if held_out(x)]


class Vocabulary:
    """Words that occur at least `least` times, frequent ones first; ids 0 and 1 are special.

    Attributes:
        words: list of str by id.
        counts: (V,), float64, how often each occurs; 0 of the special ones.
    """

    def __init__(self, some: list[Paragraph], least: int = 10):
        counted = Counter(word for paragraph in some for word in paragraph.words)
        kept = [(word, n) for word, n in counted.most_common() if n >= least]
        self.words = ["<padding>", "<unknown>", *(word for word, _ in kept)]
        self.counts = np.array([0, 0, *(n for _, n in kept)], "float64")
        self.ids = {word: i for i, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, words: tuple[str, ...]) -> list[int]:
        return [self.ids.get(word, UNKNOWN) for word in words]


class Pairs:
    """Skip-gram pairs with negative samples (arXiv:1310.4546).

    - Subsampling: a word with frequency f is kept with probability sqrt(t / f), at most 1.
    - Window: for each word a width from 1 to `window` is drawn; paragraphs are not crossed.
    - Negatives: drawn by counts to the power of 3/4.
    """

    def __init__(
        self, vocabulary: Vocabulary, some: list[Paragraph], window=5, negatives=5, t=1e-4
    ):
        self.window, self.negatives = window, negatives
        rows = [[i for i in vocabulary.encode(x.words) if i != UNKNOWN] for x in some]
        self.ids = np.array([i for row in rows for i in row], "int32")
        self.rows = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
        frequency = vocabulary.counts / vocabulary.counts.sum()
        self.kept = np.sqrt(t / np.maximum(frequency, 1e-12)).clip(max=1.0)
        weights = vocabulary.counts**0.75
        self.cumulative = np.cumsum(weights / weights.sum())

    def epoch(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Centres (N,) and contexts (N,) of an epoch, in random order."""
        keep = rng.random(len(self.ids)) < self.kept[self.ids]
        ids, rows = self.ids[keep], self.rows[keep]
        widths = rng.integers(1, self.window + 1, len(ids))
        centres, contexts = [], []
        for distance in range(1, self.window + 1):
            near = rows[:-distance] == rows[distance:]
            left, right = ids[:-distance], ids[distance:]
            forward, back = (
                near & (widths[:-distance] >= distance),
                near & (widths[distance:] >= distance),
            )
            centres += [left[forward], right[back]]
            contexts += [right[forward], left[back]]
        order = rng.permutation(sum(map(len, centres)))
        return np.concatenate(centres)[order], np.concatenate(contexts)[order]

    def batches(self, batch_size: int, rng: np.random.Generator) -> Iterator[tuple]:
        """Batches ({"centre": (B, 1), "context": (B, 1 + K)}, labels (B, 1 + K)) without end.

        The first of the 1 + K contexts is the true one.
        """
        labels = np.zeros((batch_size, 1 + self.negatives), "float32")
        labels[:, 0] = 1.0
        while True:
            centres, contexts = self.epoch(rng)
            for first in range(0, len(centres) - batch_size + 1, batch_size):
                some = slice(first, first + batch_size)
                drawn = np.searchsorted(self.cumulative, rng.random((batch_size, self.negatives)))
                context = np.concatenate([contexts[some, None], drawn], axis=1).astype("int32")
                yield {"centre": centres[some, None], "context": context}, labels


def main() -> None:
    start = time.perf_counter()
    known, test = split(paragraphs())
    print(f"{len(known):,} and {len(test):,} paragraphs in {time.perf_counter() - start:.0f} s")
    print(Counter(x.package for x in known).most_common())
    vocabulary = Vocabulary(known)
    print(f"{sum(len(x.words) for x in known):,} words, {len(vocabulary):,} in the vocabulary")
    pairs = Pairs(vocabulary, known)
    print(f"{len(pairs.epoch(np.random.default_rng(0))[0]):,} pairs in an epoch")
    print(" ".join(vocabulary.words[2:3000:30]))


if __name__ == "__main__":
    main()
