"""Filters for sampling: functions that set some logits (B, V), float32, to -inf.

Example:

>>> from keras import ops
>>> from keras_tfm.generation.filters import top_k
>>> top_k(ops.array([[1.0, 3.0, 2.0]]), k=2).numpy().tolist()
[[-inf, 3.0, 2.0]]
"""

import numpy as np
from keras import ops

from keras_tfm.layers.types import Tensor

NEVER = float("-inf")


def top_k(logits: Tensor, k: int) -> Tensor:
    """Keeps the k largest logits, and all that are equal to the smallest of them."""
    k = min(k, logits.shape[-1])
    least = ops.top_k(logits, k=k)[0][:, -1:]
    return ops.where(logits < least, NEVER, logits)


def top_p(logits: Tensor, p: float) -> Tensor:
    """Keeps the smallest set of most probable tokens whose probabilities sum to at least p."""
    descending = ops.top_k(logits, k=logits.shape[-1])[0]
    probabilities = ops.softmax(descending, axis=-1)
    before = ops.cumsum(probabilities, axis=-1) - probabilities
    # The most probable token is always kept, whatever the rounding.
    kept = ops.where(before < p, descending, float("inf"))
    least = ops.minimum(ops.min(kept, axis=-1, keepdims=True), descending[:, :1])
    return ops.where(logits < least, NEVER, logits)


def min_p(logits: Tensor, p: float) -> Tensor:
    """Keeps tokens that are at least p times as probable as the most probable one."""
    least = ops.max(logits, axis=-1, keepdims=True) + float(np.log(p))
    return ops.where(logits < least, NEVER, logits)
