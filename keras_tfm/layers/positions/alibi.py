"""ALiBi: a linear penalty on distances."""

import math

import keras
import numpy as np
from keras import ops

from keras_tfm.layers.positions.attention_position import (
    AttentionInputs,
    AttentionPosition,
    PositionTerms,
)


@keras.saving.register_keras_serializable("keras_tfm")
class ALiBi(AttentionPosition):
    """Attention with linear biases: a penalty proportional to the distance, with a slope per head.

    score_ts - m_h |s - t|, m_h = 2^(-8 h / H) for h = 1 .. H: "Train Short, Test Long"
    (arXiv:2108.12409). If H is not a power of two, the slopes are those of the next lower power,
    followed by every other slope of the next higher power, as in the authors' code. There are no
    weights.

    Example:

    >>> from keras_tfm.layers import ALiBi
    >>> ALiBi().slopes(8).tolist()[:3]
    [0.5, 0.25, 0.125]
    """

    def terms(self, inputs: AttentionInputs) -> PositionTerms:
        """-m_h |s - t|: (H, T, S)."""
        slopes = self.slopes(inputs.query.shape[-3]).astype("float32")
        distances = ops.cast(ops.abs(inputs.positions.distances()), "float32")
        slopes = ops.convert_to_tensor(-slopes[:, np.newaxis, np.newaxis])
        return PositionTerms(bias=slopes * ops.expand_dims(distances, -3))

    @staticmethod
    def slopes(num_heads: int) -> np.ndarray:
        """The slope m_h of each head: (H,)."""
        lower = 2 ** int(math.log2(num_heads))
        slopes = 2.0 ** (-8.0 * np.arange(1, lower + 1) / lower)
        between = 2.0 ** (-8.0 * np.arange(1, 2 * lower + 1, 2) / (2 * lower))
        return np.concatenate([slopes, between[: num_heads - lower]])
