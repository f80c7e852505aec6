"""The target that a graph is traced for: Keras, or an on-device runtime. Set by the exporter."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

# "keras": training and inference in Keras. "cpu-edge": LiteRT with XNNPACK. "gpu-edge": LiteRT with
# a GPU delegate.
TARGETS = ("keras", "cpu-edge", "gpu-edge")


class Target(NamedTuple):
    """The target of the graph that is being traced.

    Attributes:
        name: str, one of `TARGETS`.
        masked_score: float, added to the scores of masked keys.
        is_edge: bool, whether the graph runs on-device, where some operators are slow or
            unsupported.
    """

    name: str
    masked_score: float
    is_edge: bool = True


# Far below any score, but finite, so that a fully masked row stays finite.
_KERAS = Target("keras", -1e30, is_edge=False)
# Within the range of float16 (65,504), for delegates that compute in half precision.
_EDGE_MASKED = -3e4

# The target of the graph that is being traced; "keras" outside an `export_target`.
current_target: ContextVar[Target] = ContextVar("target", default=_KERAS)


@contextmanager
def export_target(name: str = "cpu-edge") -> Iterator[Target]:
    """Graphs traced inside are for on-device inference.

    Layers check the target where they look up a table, mask scores and split a projection. Each of
    these has a second form that is better for training, and a test that both agree. For "gpu-edge"
    the KV cache has transposed keys, and rows of position tables are looked up as embeddings.

    >>> from keras_tfm.layers.target import current_target, export_target
    >>> with export_target("cpu-edge"):
    ...     current_target.get().is_edge
    True
    """
    if name not in TARGETS:
        raise ValueError(f"target must be one of {list(TARGETS)}, got {name!r}")
    outer = current_target.get()
    score = outer.masked_score if outer.is_edge else _EDGE_MASKED
    target = _KERAS if name == "keras" else Target(name, score)
    token = current_target.set(target)
    try:
        yield target
    finally:
        current_target.reset(token)


@contextmanager
def bounded_masks(score: float) -> Iterator[None]:
    """Edge graphs traced inside add `score` to masked scores, a negative number of their magnitude.

    For 8-bit activations: 256 quantization steps cover the whole range of the scores, so with a
    mask of -3e4 all unmasked scores would fall into one step. The weight of a masked key is then
    exp(score) instead of exactly 0.

    >>> from keras_tfm.layers.target import bounded_masks, current_target
    >>> with bounded_masks(-30.0):
    ...     current_target.get().masked_score
    -30.0
    """
    token = current_target.set(Target("cpu-edge", score))
    try:
        yield
    finally:
        current_target.reset(token)
