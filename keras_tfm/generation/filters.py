"""What sampling may draw: functions of logits (B, V), float32, that set some to -inf."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

Tensor = Any
NEVER = float("-inf")


def top_k(logits: Tensor, k: int) -> Tensor:
    """Keeps the k largest (more, where several are equal)."""
    k = min(k, logits.shape[-1])
    least = ops.top_k(logits, k=k)[0][:, -1:]
    return ops.where(logits < least, NEVER, logits)


def top_p(logits: Tensor, p: float) -> Tensor:
    """Keeps the most probable until their probabilities add up to p; always the first."""
    descending = ops.top_k(logits, k=logits.shape[-1])[0]
    probabilities = ops.softmax(descending, axis=-1)
    before = ops.cumsum(probabilities, axis=-1) - probabilities
    # The first has nothing before it, rounding or not.
    kept = ops.where(before < p, descending, float("inf"))
    least = ops.minimum(ops.min(kept, axis=-1, keepdims=True), descending[:, :1])
    return ops.where(logits < least, NEVER, logits)


def min_p(logits: Tensor, p: float) -> Tensor:
    """Keeps those at least p times as probable as the most probable."""
    least = ops.max(logits, axis=-1, keepdims=True) + float(np.log(p))
    return ops.where(logits < least, NEVER, logits)


def banned(logits: Tensor, ids: Sequence[int]) -> Tensor:
    """Sets these ids to -inf."""
    forbidden = np.zeros((1, logits.shape[-1]), bool)
    forbidden[0, list(ids)] = True
    return ops.where(forbidden, NEVER, logits)


def repetition_penalty(logits: Tensor, tokens: Tensor, written: Tensor, penalty: float) -> Tensor:
    """Divides positive logits of the tokens (B, T) that are `written` by `penalty`, multiplies
    negative ones."""
    batch, vocabulary = ops.shape(logits)[0], logits.shape[-1]
    length = tokens.shape[1]
    # What is not written yet points beyond the vocabulary, to a column that is cut off again.
    columns = ops.where(written, tokens, vocabulary)
    rows = ops.repeat(ops.expand_dims(ops.arange(batch, dtype="int32"), 1), length, axis=1)
    places = ops.reshape(ops.stack([rows, columns], axis=-1), (batch * length, 2))
    seen = ops.zeros((batch, vocabulary + 1), dtype="float32")
    seen = ops.scatter_update(seen, places, ops.ones((batch * length,), dtype="float32"))
    penalised = ops.where(logits > 0, logits / penalty, logits * penalty)
    return ops.where(seen[:, :vocabulary] > 0, penalised, logits)
