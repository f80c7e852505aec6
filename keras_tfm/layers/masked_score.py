"""What is added to the scores of masked keys while a graph for a device is traced."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_bound: ContextVar[float | None] = ContextVar("masked_score", default=None)


@contextmanager
def bounded_masks(score: float) -> Iterator[None]:
    """Graphs traced inside add `score` to masked scores, negative and of the scores' own size.

    Scores in 8 bits share 256 steps over their whole range, so a mask of -3e4 would leave all
    scores that count in one step. A masked key then weighs exp(score), no longer exactly nothing.

    >>> from keras_tfm.layers.masked_score import bounded_masks, masked_score
    >>> with bounded_masks(-30.0):
    ...     masked_score(-3e4)
    -30.0
    >>> masked_score(-3e4)
    -30000.0
    """
    token = _bound.set(score)
    try:
        yield
    finally:
        _bound.reset(token)


def masked_score(unbounded: float) -> float:
    """The score of `bounded_masks` inside one, otherwise `unbounded`."""
    bound = _bound.get()
    return unbounded if bound is None else bound
