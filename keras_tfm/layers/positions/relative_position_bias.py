"""T5's relative positions: a learned bias for each bucket of distances."""

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers.arguments import as_initializer
from keras_tfm.layers.positions.attention_position import (
    AttentionInputs,
    AttentionPosition,
    PositionTerms,
)
from keras_tfm.layers.types import Config, Initializer

BucketFunction = Callable[[np.ndarray, int, int, bool], np.ndarray]


@keras.saving.register_keras_serializable("keras_tfm")
def t5_buckets(
    distances: np.ndarray, num_buckets: int, max_distance: int, causal: bool
) -> np.ndarray:
    """Assigns distances to buckets as in T5: exact when near, logarithmic ranges further away.

    "Exploring the Limits of Transfer Learning" (arXiv:1910.10683), section 2.1. Half of the buckets
    hold one distance each, the others ranges that grow up to `max_distance`; the last one holds all
    larger distances. Without causality, half of the buckets are for keys before the query and half
    for keys after it. Computed in float32, like all released T5 models.

    Args:
        distances: integers of any shape, the key's position minus the query's.
        num_buckets: int, number of buckets, at least 2, or 4 without causality.
        max_distance: int, start of the last bucket.
        causal: bool, whether keys after the query are masked.

    Returns:
        int32 array of the same shape, from 0 to num_buckets - 1.

    Raises:
        ValueError: too few buckets, or a `max_distance` that the exact buckets already cover.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import t5_buckets
    >>> t5_buckets(np.array([0, -1, -5, 5]), num_buckets=14, max_distance=8, causal=False).tolist()
    [0, 1, 5, 12]
    """
    buckets, before = num_buckets, np.maximum(-distances, 0)
    offset = np.zeros_like(distances)
    if not causal:
        buckets //= 2
        offset, before = np.where(distances > 0, buckets, 0), np.abs(distances)
    exact = buckets // 2
    if exact < 1 or max_distance <= exact:
        raise ValueError(
            f"num_buckets must be at least {2 if causal else 4} and max_distance more than "
            f"{max(exact, 1)}, a bucket for each near distance, got {num_buckets} and "
            f"{max_distance}"
        )
    ratio = np.log(np.maximum(before, 1).astype("float32") / np.float32(exact))
    step = ratio / np.float32(math.log(max_distance / exact))
    far = exact + (step * np.float32(buckets - exact)).astype("int32")
    near = np.where(before < exact, before, np.minimum(far, buckets - 1))
    return (offset + near).astype("int32")


@keras.saving.register_keras_serializable("keras_tfm")
class RelativePositionBias(AttentionPosition):
    """A learned bias for each head and each bucket of distances, added to the scores.

    score_ts + b_h[bucket(s - t)]: T5 (arXiv:1910.10683), section 2.1. In T5 all layers of a stack
    share one part, and scores are not scaled.

    Args:
        num_buckets: int, number of buckets.
        max_distance: int, start of the last bucket.
        initializer: initializer of the table (num_buckets, H).
        bucket_function: function of distances (NumPy integers), `num_buckets`, `max_distance` and
            `causal` (bool) that returns buckets. Default: `t5_buckets`. Register your own with
            `keras.saving.register_keras_serializable`, so that it can be saved.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range; when the layer is called, numbers that
            `bucket_function` rejects.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import MultiHeadSelfAttention, RelativePositionBias
    >>> bias = RelativePositionBias(num_buckets=8, max_distance=16)
    >>> layers = [MultiHeadSelfAttention(num_heads=2, position=bias) for _ in range(2)]
    >>> y = layers[1](layers[0](np.ones((1, 5, 8), "float32")))
    >>> tuple(bias.table.shape)
    (8, 2)
    """

    def __init__(
        self,
        num_buckets: int = 32,
        max_distance: int = 128,
        initializer: Initializer = "glorot_uniform",
        bucket_function: BucketFunction | Config = t5_buckets,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_integer("num_buckets", num_buckets, minimum=2)
        check_integer("max_distance", max_distance)
        if isinstance(bucket_function, dict):
            bucket_function = keras.saving.deserialize_keras_object(bucket_function)
        if not callable(bucket_function):
            raise TypeError(f"bucket_function must be a function, got {bucket_function!r}")
        if max_distance <= num_buckets // 4:
            raise ValueError(
                f"max_distance must be more than a quarter of num_buckets ({num_buckets}), "
                f"got {max_distance}"
            )
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.initializer = as_initializer("initializer", initializer)
        self.bucket_function = bucket_function

    def build_for(self, num_heads: int, head_dim: int, value_dim: int) -> None:
        """Creates the table."""
        if not self.built:
            self.table = self.add_weight(
                name="table", shape=(self.num_buckets, num_heads), initializer=self.initializer
            )
            self.built = True
        if self.table.shape[1] != num_heads:
            raise ValueError(
                f"{self.name} is shared by layers of {self.table.shape[1]} and {num_heads} heads"
            )

    def terms(self, inputs: AttentionInputs) -> PositionTerms:
        """The bias (..., H, T, S)."""
        reach = self.max_distance
        buckets = ops.convert_to_tensor(self.buckets(np.arange(-reach, reach + 1), inputs.causal))
        distances = ops.clip(inputs.positions.distances(), -reach, reach) + reach
        index = ops.take(buckets, distances, axis=0)  # (..., T, S)
        bias = ops.take(self.table, index, axis=0)
        rank = len(bias.shape)
        bias = ops.transpose(bias, (*range(rank - 3), rank - 1, rank - 3, rank - 2))
        # The TFLite converter fails on a 3D bias that two loops use.
        return PositionTerms(bias=bias if rank > 3 else ops.expand_dims(bias, 0))

    def buckets(self, distances: np.ndarray, causal: bool) -> np.ndarray:
        """The bucket of each distance, int32."""
        return self.bucket_function(distances, self.num_buckets, self.max_distance, causal)

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "num_buckets": self.num_buckets,
            "max_distance": self.max_distance,
            "initializer": keras.initializers.serialize(self.initializer),
            "bucket_function": keras.saving.serialize_keras_object(self.bucket_function),
        }
