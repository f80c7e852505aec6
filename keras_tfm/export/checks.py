"""The error of one signature against the model, in numbers."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

# Timed runs per call; the median counts.
RUNS = 3


@dataclass
class Check:
    """One signature against the model.

    Attributes:
        signature: its name.
        rows: the number of rows that were compared.
        max_error, mean_error: of the outputs, absolute; for "generate", which returns tokens, how
            far the model's logit of a token is below its largest logit.
        relative_error: the root mean square of the errors, divided by that of the model's outputs.
        top_1: the share of positions, 0 to 1, whose largest number along the last axis (the class,
            the next token) is the model's; for "generate" the share of tokens. None if no output
            has several numbers per row.
        ms: median latency of a call, one thread; for "decode" of a step.
    """

    signature: str
    rows: int
    max_error: float
    mean_error: float
    relative_error: float
    top_1: float | None
    ms: float


def check(
    name: str,
    rows: int,
    errors: list[np.ndarray],
    wanted: list[np.ndarray],
    top: list[np.ndarray],
    ms: list[float],
) -> Check:
    """The check of signature `name`.

    Args:
        name: the signature.
        rows: the number of rows that were compared.
        errors: flat arrays of differences.
        wanted: flat arrays of the model's numbers, the scale of the errors.
        top: flat arrays of booleans: whether the largest number is the model's.
        ms: latencies.
    """
    error, scale = np.abs(np.concatenate(errors)), np.concatenate(wanted).astype("float64")
    scale = scale[np.isfinite(scale)]
    root = float(np.sqrt(np.mean(scale**2))) if len(scale) else 0.0
    squares = float(np.sqrt(np.mean(error**2))) if len(error) else 0.0
    return Check(
        signature=name,
        rows=rows,
        max_error=float(error.max(initial=0.0)),
        mean_error=float(error.mean()) if len(error) else 0.0,
        relative_error=squares / max(root, 1e-6),
        top_1=float(np.concatenate(top).mean()) if top else None,
        ms=float(np.median(ms)),
    )


def difference(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Flat, float64: 0 where both are equal, infinities too; NaN where either is NaN."""
    found, wanted = found.astype("float64").ravel(), wanted.astype("float64").ravel()
    result = np.zeros_like(found)
    return np.subtract(found, wanted, out=result, where=found != wanted)


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    """The result of `run`, and its median latency in milliseconds."""
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        result = run()
        times.append(1e3 * (time.perf_counter() - start))
    return result, float(np.median(times))
