"""Choosing tokens on the device: `Sampler`, in NumPy."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from keras_tfm.arguments import check_integer

# From logits (B, V), float32, to integer tokens (B,).
Choose = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Sampler:
    """Samples the next token from the model's distribution, after filtering it.

    The same distribution as `keras_tfm.generation.Sample`: first the repetition penalty and the
    banned tokens, then temperature, top k, top p and min p, in this order. For `choose=` of
    `Model.stream`, `Model.stream_text` and a `Session`.

    Args:
        temperature: float, divides the logits; below 1 it makes probable tokens more probable. 0
            takes the most probable token.
        top_k: int, sample only from the k most probable tokens (arXiv:1805.04833).
        top_p: float, sample only from the smallest set of tokens whose probabilities sum to at
            least p, "nucleus sampling" (arXiv:1904.09751).
        min_p: float, sample only from tokens at least min_p times as probable as the most probable
            one (arXiv:2407.01082).
        repetition_penalty: float, divides the positive logits of tokens that occur in the text so
            far, prompt included, and multiplies the negative ones (arXiv:1909.05858).
        seed: int, for the same tokens in every call. None: other tokens in every call.
        banned_tokens: list of int, ids that are never sampled.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.runtime import Sampler
    >>> logits = np.log([[0.5, 0.3, 0.2]])
    >>> Sampler(top_k=2, banned_tokens=[0]).probabilities(logits).round(2).tolist()
    [[0.0, 0.6, 0.4]]
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    seed: int | None = None
    banned_tokens: Iterable[int] = ()

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, zero=True)
        _check("repetition_penalty", self.repetition_penalty)
        for name in ("top_p", "min_p"):
            value = getattr(self, name)
            if value is not None:
                _check(name, value)
                if value > 1:
                    raise ValueError(f"{name} must be within 0 and 1, got {value}")
        for name, least in (("top_k", 1), ("seed", 0)):
            value = getattr(self, name)
            check_integer(name, value, least, optional=True)
        given = self.banned_tokens
        if isinstance(given, str | bytes) or not isinstance(given, Iterable):
            raise TypeError(f"banned_tokens must be ids, got {given!r}")
        banned = tuple(given)
        for token in banned:
            check_integer("banned_tokens", token, 0)
        banned = tuple(map(int, banned))
        object.__setattr__(self, "banned_tokens", banned)

    def probabilities(self, logits: np.ndarray, tokens: np.ndarray | None = None) -> np.ndarray:
        """The probability of each token.

        Args:
            logits: (B, V), float.
            tokens: (B, T), integers, the text so far, for the repetition penalty.

        Returns:
            (B, V), float64; each row sums to 1.

        Raises:
            ValueError: a banned token is not in the vocabulary; no token is left; NaN logits.
        """
        return self._filter(logits, _occurrences(logits, tokens))

    def _filter(self, logits: np.ndarray, occurred: np.ndarray | None) -> np.ndarray:
        """The probabilities; `occurred` (B, V), boolean: which tokens the text so far has."""
        x = np.array(logits, "float64")
        size, banned = x.shape[-1], np.array([*self.banned_tokens], "int64")
        if banned.size and not 0 <= banned.min() <= banned.max() < size:
            raise ValueError(f"banned_tokens must be in 0..{size - 1}, got {banned.tolist()}")
        if occurred is not None and self.repetition_penalty != 1:
            penalised = np.where(x > 0, x / self.repetition_penalty, x * self.repetition_penalty)
            x = np.where(occurred, penalised, x)
        x[:, banned] = -np.inf
        largest = x.max(axis=-1, keepdims=True)
        if not np.isfinite(largest).all():
            raise ValueError(f"expected a finite logit in each row, got at most {largest.ravel()}")
        if self.temperature == 0:
            return np.eye(size)[x.argmax(axis=-1)]
        x = (x - largest) / self.temperature  # at most 0, which overflows in no division
        if self.top_k is not None:
            x = _at_least(x, _kth(x, self.top_k))
        if self.top_p is not None:
            x = _at_least(x, _last_of_nucleus(x, self.top_p))
        if self.min_p is not None:
            x = _at_least(x, x.max(axis=-1, keepdims=True) + np.log(self.min_p))
        return _softmax(x)

    def following(self, tokens: np.ndarray) -> Choose:
        """A function that chooses the tokens after `tokens` (B, T), one call per step."""
        generator = np.random.default_rng(self.seed)
        text = np.array(tokens, "int64")
        occurred: np.ndarray | None = None

        def choose(logits: np.ndarray) -> np.ndarray:
            nonlocal occurred
            if occurred is None and self.repetition_penalty != 1:
                occurred = _occurrences(logits, text)
            ends = np.cumsum(self._filter(logits, occurred), axis=-1)
            drawn = generator.random((len(ends), 1)) * ends[:, -1:]
            # The first token whose interval ends beyond the drawn number: never an empty one.
            chosen: np.ndarray = (ends > drawn).argmax(axis=-1)
            if occurred is not None:
                occurred[np.arange(len(chosen)), chosen] = True
            return chosen

        return choose


def chooser(choose: Choose | Sampler | None, tokens: np.ndarray) -> Choose:
    """The function that chooses the tokens after `tokens` (B, T); by default the most probable."""
    if choose is None:
        return lambda logits: np.argmax(logits, axis=-1)
    if isinstance(choose, Sampler):
        return choose.following(tokens)
    if not callable(choose):
        raise TypeError(f"choose must be a Sampler or a function of logits, got {choose!r}")
    return choose


def is_sampler(arguments: object) -> bool:
    """Whether a JSON value has the arguments of a `Sampler`."""
    try:
        Sampler(**arguments)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True


def _occurrences(logits: np.ndarray, tokens: np.ndarray | None) -> np.ndarray | None:
    """Which tokens (B, V) occur in `tokens` (B, T)."""
    if tokens is None:
        return None
    occurred = np.zeros(np.shape(logits), bool)
    np.put_along_axis(occurred, np.asarray(tokens, "int64"), True, axis=-1)
    return occurred


def _at_least(x: np.ndarray, least: np.ndarray) -> np.ndarray:
    return np.where(x < least, -np.inf, x)


def _kth(x: np.ndarray, k: int) -> np.ndarray:
    """The k-th largest logit of each row, (B, 1)."""
    k = min(k, x.shape[-1])
    return np.partition(x, -k, axis=-1)[:, -k:][:, :1]


def _last_of_nucleus(x: np.ndarray, p: float) -> np.ndarray:
    """The smallest logit of the smallest set whose probabilities sum to at least p, (B, 1)."""
    descending = -np.sort(-x, axis=-1)
    probabilities = _softmax(descending)
    before = np.cumsum(probabilities, axis=-1) - probabilities
    # The most probable token is always kept, whatever the rounding.
    kept = np.where(before < p, descending, np.inf).min(axis=-1, keepdims=True)
    return np.minimum(kept, descending[:, :1])


def _softmax(x: np.ndarray) -> np.ndarray:
    exponentials = np.exp(x - x.max(axis=-1, keepdims=True))
    result: np.ndarray = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return result


def _check(name: str, value: object, zero: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not (0 < value < np.inf or (zero and value == 0)):
        least = "at least" if zero else "greater than"
        raise ValueError(f"{name} must be finite and {least} 0, got {value}")
