"""The numerical error of one signature against the model."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

Result = TypeVar("Result")

# Timed runs per call, of which the median is reported.
RUNS = 3
# Milliseconds. A call that takes longer is timed once.
_SLOW = 1000

# The allowed relative error of float32: a file with the model's own weights stays below it.
EXACT = 1e-4


@dataclass
class Check:
    """The comparison of one signature with the model.

    Attributes:
        signature: str, its name.
        rows: int, number of rows that were compared.
        max_error, mean_error: float, the largest and the mean absolute error of the outputs; for
            "generate", of the logits of every step, or of the scores of a beam search.
        relative_error: float, the root mean square of the errors, divided by that of the model's
            outputs.
        scale: float, the root mean square of the model's outputs.
        worst_error: float, the relative error of the row with the largest errors.
        top_1: float, the share of positions, 0 to 1, where file and model have the same argmax of
            the last axis (the class, the next token); for "generate", the share of equal tokens.
            None if no output has several values per row.
        top_1_gap: float, where the argmax differs, the largest difference between the model's
            maximum and its value at the file's argmax, divided by `scale`.
        ms: float, median latency in milliseconds of a call, or of a step of "decode", with one
            thread.
        tolerance: float, the largest allowed `relative_error`.
        graph_error: float, the `worst_error` of the file's graph with the model's own, unrounded
            weights, and caches in float32.
        graph_tolerance: float, the largest allowed `graph_error`.
    """

    signature: str
    rows: int
    max_error: float
    mean_error: float
    relative_error: float
    scale: float
    worst_error: float
    top_1: float | None
    top_1_gap: float
    ms: float
    tolerance: float = 0.0
    graph_error: float = 0.0
    graph_tolerance: float = 0.0

    @property
    def failure(self) -> str | None:
        """The tolerance that is exceeded, in one sentence; None if the check passed."""
        # "not <=" instead of ">": NaN must fail, too.
        if not self.relative_error <= self.tolerance:
            return (
                f"{self.signature}: expected a relative error of at most {self.tolerance:.2g}, "
                f"got {self.relative_error:.2g} (largest absolute error {self.max_error:.2g})"
            )
        if not self.graph_error <= self.graph_tolerance:
            return (
                f"{self.signature}: with unrounded weights expected a relative error of at most "
                f"{self.graph_tolerance:.2g}, got {self.graph_error:.2g}: a weight or an operator "
                "differs from the model's"
            )
        # The argmax changes where the errors of two values add up to their margin. Among many
        # values, the largest errors are six times as large as usual.
        noise = max(2 * self.tolerance, 12 * self.relative_error)
        if not self.top_1_gap <= noise:
            return (
                f"{self.signature}: expected a different top-1 only where the model's margin is at "
                f"most {noise:.2g}, got {self.top_1_gap:.2g}"
            )
        return None


def check(
    name: str,
    rows: int,
    errors: list[np.ndarray],
    wanted: list[np.ndarray],
    gaps: list[np.ndarray],
    ms: list[float],
) -> Check:
    """The check of signature `name`.

    Args:
        name: the signature.
        rows: int, number of rows that were compared.
        errors: flat arrays of differences, one for each row.
        wanted: flat arrays of the model's values, whose root mean square is the scale of errors.
        gaps: flat arrays, the model's maximum minus its value at the file's argmax.
        ms: latencies in milliseconds.
    """
    count = sum(x.size for x in errors)
    finite = [np.isfinite(x) for x in wanted]
    squared = sum(_sum(x, 2, where) for x, where in zip(wanted, finite, strict=True))
    root = (squared / max(1, sum(int(x.sum()) for x in finite))) ** 0.5
    # Not Python's `max`, which drops the NaN of a later row.
    worst = float(np.max([root_mean_square(x) for x in errors], initial=0.0))
    # NaN: nothing was compared.
    squares = (sum(_sum(x, 2) for x in errors) / count) ** 0.5 if count else float("nan")
    all_gaps = np.concatenate(gaps) if gaps else np.zeros(0)
    return Check(
        signature=name,
        rows=rows,
        max_error=float(np.max([_largest(x) for x in errors], initial=0.0)),
        mean_error=sum(_sum(x, 1) for x in errors) / count if count else 0.0,
        relative_error=squares / max(root, 1e-6),
        scale=max(root, 1e-6),
        worst_error=worst / max(root, 1e-6),
        top_1=float((all_gaps == 0.0).mean()) if len(all_gaps) else None,
        top_1_gap=float(all_gaps.max(initial=0.0)) / max(root, 1e-6),
        ms=float(np.median(ms)),
    )


def _sum(values: np.ndarray, power: int, where: np.ndarray | bool = True) -> float:
    """The sum of powers of absolute values, in float64."""
    total, flat, where = 0.0, values.ravel(), np.broadcast_to(where, values.shape).ravel()
    for start in range(0, flat.size, 1 << 20):  # a copy in float64 would be large
        part = slice(start, start + (1 << 20))
        total += float(np.sum(np.abs(flat[part].astype("float64")) ** power, where=where[part]))
    return total


def _largest(values: np.ndarray) -> float:
    return float(np.abs(values).max(initial=0.0))


def root_mean_square(values: np.ndarray) -> float:
    """The root mean square of an array; 0 if it is empty."""
    return float((_sum(values, 2) / values.size) ** 0.5) if values.size else 0.0


def difference(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """`found` - `wanted`, flat; 0 for equal infinities, NaN where either is NaN."""
    dtype = np.result_type(found, wanted, "float32")
    found, wanted = (x.astype(dtype, copy=False).ravel() for x in (found, wanted))
    result = np.zeros_like(found)
    with np.errstate(over="ignore"):
        return np.subtract(found, wanted, out=result, where=found != wanted)


def top_1_gaps(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The maximum of `wanted` minus its value at the argmax of `found`, along the last axis; flat.

    >>> import numpy as np
    >>> from keras_tfm.export.verification.checks import top_1_gaps
    >>> top_1_gaps(np.array([[1, 2], [4, 3]]), np.array([[5.0, 7.0], [1.0, 4.0]])).tolist()
    [0.0, 3.0]
    """
    return gaps_of(np.argmax(found, -1), wanted)


def gaps_of(chosen: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The maximum of `wanted` minus its value at `chosen`, along the last axis; flat."""
    taken = np.take_along_axis(wanted, chosen[..., np.newaxis], axis=-1)[..., 0]
    largest = wanted.max(axis=-1)
    # Equal values are skipped: the difference of two infinities is NaN.
    gaps = np.subtract(largest, taken, out=np.zeros(largest.shape), where=largest != taken)
    result: np.ndarray = gaps.ravel()
    return result


def log_probability(tokens: np.ndarray, logits: np.ndarray) -> float:
    """The logarithm of the probability of tokens (T,) after the logits (T, V) before each.

    >>> import numpy as np
    >>> from keras_tfm.export.verification.checks import log_probability
    >>> round(log_probability(np.array([0, 1]), np.log([[0.5, 0.5], [0.75, 0.25]])), 3)  # ln 0.125
    -2.079
    """
    x = logits - logits.max(axis=-1, keepdims=True).astype("float64")
    chosen = np.take_along_axis(x, tokens[:, np.newaxis], axis=-1)[:, 0]
    return float(np.sum(chosen - np.log(np.exp(x).sum(axis=-1))))


def time_call(run: Callable[[], Result]) -> tuple[Result, float]:
    """The result of `run`, and its median latency in milliseconds."""
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        result = run()
        times.append(1e3 * (time.perf_counter() - start))
        if times[-1] > _SLOW:
            break
    return result, float(np.median(times))
