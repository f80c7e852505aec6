"""Drafts for the decoding loop on the host: `PromptLookup`, in NumPy."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# A function of the tokens so far (B, n), the number of tokens to guess, and the inputs by name, as
# lists of rows, that returns the guesses: integers (B, count).
Draft = Callable[[np.ndarray, int, Mapping[str, Sequence[np.ndarray]]], np.ndarray]


@dataclass(frozen=True)
class PromptLookup:
    """Continues as the text did where its last tokens appeared before: for `Model.stream(draft=)`.

    The rule is that of `keras_tfm.generation.PromptLookup`: it finds the latest place in the
    sources and in the tokens so far that ends in the same n tokens, or in as many of them as any
    place, and copies what follows it.

    Args:
        ngram: int, the largest number of tokens that are compared.
        sources: list of str, names of inputs (B, S) of ids to copy from, in the vocabulary of the
            generated tokens.

    Raises:
        TypeError: `sources` is a string.
        ValueError: `ngram` is below 1; when it is called, an input is missing.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.runtime import PromptLookup
    >>> PromptLookup()(np.array([[5, 6, 7, 8, 6]]), 2, {}).tolist()  # 6 was followed by 7, 8
    [[7, 8]]
    """

    ngram: int = 3
    sources: Sequence[str] = ()

    def __post_init__(self) -> None:
        if isinstance(self.sources, str):
            raise TypeError(f"sources must be a list of names, got {self.sources!r}")
        if self.ngram < 1:
            raise ValueError(f"ngram must be at least 1, got {self.ngram}")

    def __call__(
        self, tokens: np.ndarray, count: int, inputs: Mapping[str, Sequence[np.ndarray]]
    ) -> np.ndarray:
        """The tokens (B, count) that followed the last ones before."""
        missing = [name for name in self.sources if name not in inputs]
        if missing:
            raise ValueError(
                f"PromptLookup reads the input {missing[0]!r}, the file has {list(inputs)}"
            )
        rows = []
        for i, row in enumerate(tokens):
            before = [np.asarray(inputs[name][i]) for name in self.sources]
            rows.append(self._following(np.concatenate([*before, row]), len(row), count))
        return np.stack(rows)

    def _following(self, history: np.ndarray, length: int, count: int) -> np.ndarray:
        """The tokens (count,) that a row's last ones are expected to be followed by.

        Args:
            history: (N,), the sources, then the tokens.
            length: int, the number of tokens; sources continue no tokens.
        """
        last = len(history) - 1
        if last == 0:  # nothing to copy
            return np.repeat(history, count)
        equal, score = np.ones(last, bool), np.zeros(last, int)
        for i in range(min(self.ngram, length)):
            equal[:i] = False
            equal[i:] &= history[: last - i] == history[last - i]
            score += equal
        best = last - 1 - int(np.argmax(score[::-1]))  # the latest
        # Past the end, what was copied is copied again.
        return history[best + 1 + np.arange(count) % (last - best)]


def checked_drafts(drafts: npt.ArrayLike, shape: tuple[int, int], size: int) -> np.ndarray:
    """The guesses of a draft, checked: integers of this shape in 0..size - 1."""
    found = np.asarray(drafts)
    if found.shape != shape or found.dtype.kind not in "iu":
        raise TypeError(
            f"draft must return integer tokens of shape {shape}, got {found.dtype} {found.shape}"
        )
    if found.size and (found.min() < 0 or found.max() >= size):
        raise ValueError(f"draft must return tokens in 0..{size - 1}, got {found.tolist()}")
    return found
