"""Learned segment (token type) embeddings."""

from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers.arguments import as_initializer, check_sequence
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.embeddings.lookup import as_integers, lookup
from keras_tfm.layers.types import Initializer, Shape, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class SegmentEmbedding(RematerializedLayer):
    """Adds a learned vector for each token's segment (token type) to its input.

    y_t = x_t + S[segment_t]: BERT (arXiv:1810.04805), figure 2, where the first of two texts is
    segment 0 and the second segment 1. The output carries the mask of `inputs`, which adding two
    embeddings with `keras.layers.Add` would drop.

    Args:
        num_segments: int, number of segments.
        initializer: initializer of the table (num_segments, D). Default: normal with standard
            deviation 0.02, as in BERT.

    Call arguments:
        inputs: float tensor (B, T, D).
        segments: (B, T), integers from 0 to num_segments - 1. Default: segment 0 for all tokens.

    Returns:
        Float tensor (B, T, D).

    Raises:
        TypeError: `segments` are not integers.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import SegmentEmbedding
    >>> x = np.zeros((1, 3, 4), "float32")
    >>> tuple(SegmentEmbedding(num_segments=2)(x, np.array([[0, 0, 1]])).shape)
    (1, 3, 4)
    """

    def __init__(
        self, num_segments: int = 2, initializer: Initializer | None = None, **kwargs: Any
    ):
        super().__init__(**kwargs)
        check_integer("num_segments", num_segments)
        self.num_segments = num_segments
        if initializer is None:
            initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.initializer = as_initializer("initializer", initializer)

    def build(self, inputs_shape: Shape, segments_shape: Shape | None = None) -> None:
        """Creates the table for inputs of width D."""
        check_sequence(self, "inputs", inputs_shape)
        self.segments = self.add_weight(
            name="segments",
            shape=(self.num_segments, inputs_shape[-1]),
            initializer=self.initializer,
        )
        self.built = True

    def call(self, inputs: Tensor, segments: Tensor | None = None) -> Tensor:
        """(B, T, D), (B, T) -> (B, T, D)."""
        table = ops.cast(self.segments, inputs.dtype)
        if segments is None:
            return inputs + table[0]
        return inputs + lookup(table, as_integers(segments, f"{self.name}: segments"))
