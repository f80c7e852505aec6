"""Shaw's relative positions: a learned vector for each distance."""

import functools
from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers.arguments import as_initializer
from keras_tfm.layers.multi_head_attention.heads import swap
from keras_tfm.layers.positions.attention_position import (
    AttentionInputs,
    AttentionPosition,
    PositionTerms,
)
from keras_tfm.layers.types import Config, Initializer, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class RelativePositionEmbedding(AttentionPosition):
    """A learned vector for each distance, added to the keys and to the values.

    e_ts = q_t (k_s + a^K_{s-t}) / sqrt(K), z_t = sum_s alpha_ts (v_s + a^V_{s-t}), distances
    clipped to `max_distance`: Shaw et al. (arXiv:1803.02155). All heads share the vectors.

    Args:
        max_distance: int, larger distances are clipped to this one.
        values: bool, whether vectors are added to the values too.
        initializer: initializer of both tables, (2 max_distance + 1, K) and
            (2 max_distance + 1, V).

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import MultiHeadSelfAttention, RelativePositionEmbedding
    >>> position = RelativePositionEmbedding(max_distance=3)
    >>> layer = MultiHeadSelfAttention(num_heads=2, position=position)
    >>> tuple(layer(np.ones((1, 5, 8), "float32")).shape)
    (1, 5, 8)
    """

    def __init__(
        self,
        max_distance: int,
        values: bool = True,
        initializer: Initializer = "glorot_uniform",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_integer("max_distance", max_distance)
        self.max_distance = max_distance
        self._widths: tuple[int, int] = (0, 0)
        self.with_values = values
        self.initializer = as_initializer("initializer", initializer)

    def build_for(self, num_heads: int, head_dim: int, value_dim: int) -> None:
        """Creates the tables."""
        if self.built:
            if self._widths != (head_dim, value_dim):
                raise ValueError(
                    f"{self.name} is shared by layers of different widths: head_dim "
                    f"{self._widths[0]} and {head_dim}, value_dim {self._widths[1]} and {value_dim}"
                )
            return
        self._widths = (head_dim, value_dim)
        rows = 2 * self.max_distance + 1
        self.key_table = self.add_weight(
            name="key_table", shape=(rows, head_dim), initializer=self.initializer.clone()
        )
        if self.with_values:
            self.value_table = self.add_weight(
                name="value_table", shape=(rows, value_dim), initializer=self.initializer.clone()
            )
        self.built = True

    def terms(self, inputs: AttentionInputs) -> PositionTerms:
        """q_t a^K_{s-t}, and sum_s alpha_ts a^V_{s-t}."""
        distances = inputs.positions.distances()
        rows = ops.clip(distances, -self.max_distance, self.max_distance) + self.max_distance
        values = functools.partial(self._values, rows=rows) if self.with_values else None
        return PositionTerms(scores=self._scores(inputs.query, rows), values=values)

    def _scores(self, query: Tensor, rows: Tensor) -> Tensor:
        """(..., H, T, K), (..., T, S) -> (..., H, T, S)."""
        table = ops.cast(self.key_table, query.dtype)
        scores = ops.matmul(query, ops.transpose(table))  # (..., H, T, rows)
        index = rows if len(rows.shape) == 2 else ops.expand_dims(rows, -3)  # same for all heads
        index = ops.broadcast_to(index, (*ops.shape(query)[:-1], ops.shape(rows)[-1]))
        return ops.take_along_axis(scores, index, axis=-1)

    def _values(self, weights: Tensor, rows: Tensor) -> Tensor:
        """(..., H, T, S), (..., T, S) -> (..., H, T, V)."""
        if len(rows.shape) == 3 and rows.shape[0] == 1 and weights.shape[0] != 1:
            # TensorFlow on a CPU (oneDNN) writes out of bounds in products
            # (B, 1, H, S) @ (1, 1, S, V) with B >= 3.
            rows = ops.squeeze(rows, 0)
        vectors = ops.take(ops.cast(self.value_table, weights.dtype), rows, axis=0)
        if len(rows.shape) > 2:  # positions differ by row
            return swap(ops.matmul(swap(weights, -3, -2), vectors), -3, -2)
        by_query = ops.moveaxis(weights, -2, 0)  # (T, ..., H, S)
        length, *others, keys = ops.shape(by_query)
        mixed = ops.matmul(ops.reshape(by_query, (length, -1, keys)), vectors)
        mixed = ops.reshape(mixed, (length, *others, vectors.shape[-1]))
        return ops.moveaxis(mixed, 0, -2)

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "max_distance": self.max_distance,
            "values": self.with_values,
            "initializer": keras.initializers.serialize(self.initializer),
        }
