"""What a graph is traced for: Keras itself, or a runtime on a device. Set by the exporter alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

# "keras": training and inference in Keras. "cpu-edge": LiteRT with XNNPACK. "gpu-edge": a delegate
# that runs on a GPU.
TARGETS = ("keras", "cpu-edge", "gpu-edge")


class Target(NamedTuple):
    """What the graph that is being traced is for.

    Attributes:
        name: one of `TARGETS`.
        masked_score: what is added to the score of a masked key.
    """

    name: str
    masked_score: float

    @property
    def is_edge(self) -> bool:
        """Whether the graph runs on a device, where some operators are slow or missing."""
        return self.name != "keras"


# Finite, so that a row that is masked entirely stays finite; beyond any score.
_KERAS = Target("keras", -1e30)
# Within float16's 65,504: a delegate that computes in half precision may add scores to it.
_EDGE_MASKED = -3e4

_current: ContextVar[Target] = ContextVar("target", default=_KERAS)


def current_target() -> Target:
    """The target of the graph that is being traced; "keras" outside an `export_target`."""
    return _current.get()


@contextmanager
def export_target(name: str = "cpu-edge") -> Iterator[Target]:
    """Graphs traced inside are for a device.

    Asked where a table is looked up, scores are masked, and a projection is split. Each has a twin
    that is better in training, and a test that both agree.

    >>> from keras_tfm.layers.target import current_target, export_target
    >>> with export_target("cpu-edge"):
    ...     current_target().is_edge
    True
    """
    if name not in TARGETS:
        raise ValueError(f"target must be one of {list(TARGETS)}, got {name!r}")
    outer = _current.get()
    score = outer.masked_score if outer.is_edge else _EDGE_MASKED
    target = _KERAS if name == "keras" else Target(name, score)
    token = _current.set(target)
    try:
        yield target
    finally:
        _current.reset(token)


@contextmanager
def bounded_masks(score: float) -> Iterator[None]:
    """Edge graphs traced inside add `score` to masked scores, negative and of the scores' size.

    Scores in 8 bits share 256 steps over their whole range, so a mask of -3e4 would leave all
    unmasked scores in one step. A masked key then weighs exp(score), no longer exactly nothing.

    >>> from keras_tfm.layers.target import bounded_masks, current_target
    >>> with bounded_masks(-30.0):
    ...     current_target().masked_score
    -30.0
    """
    token = _current.set(Target("cpu-edge", score))
    try:
        yield
    finally:
        _current.reset(token)
