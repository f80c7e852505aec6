"""Relative positions inside attention: T5's bias, Shaw's embeddings, ALiBi."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers.as_objects import as_initializer
from keras_tfm.layers.attention_position import AttentionPosition

Tensor = Any


@keras.saving.register_keras_serializable("keras_tfm")
class RelativePositionBias(AttentionPosition):
    """A learned bias for each head and each bucket of distances, added to the scores.

    T5 (arXiv:1910.10683), section 2.1: half of the buckets hold one distance each, the others
    ranges that grow logarithmically up to `max_distance`; the last holds all beyond. Attention that
    is not causal has a half of the buckets for keys before the query, and a half for those after.
    T5 gives one part to all layers of a stack, and does not scale its scores.

    Args:
        num_buckets: how many buckets.
        max_distance: where the last bucket begins.
        initializer: of the table (num_buckets, H).

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
        initializer: Any = "glorot_uniform",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_integer("num_buckets", num_buckets)
        check_integer("max_distance", max_distance)
        if num_buckets < 4 or num_buckets % 4 or max_distance <= num_buckets // 2:
            raise ValueError(
                "num_buckets must be a multiple of 4 and max_distance more than half of it, "
                f"got {num_buckets} and {max_distance}"
            )
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.initializer = as_initializer("initializer", initializer)

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

    def bias(self, query: Tensor, distances: Tensor, causal: bool) -> Tensor:
        """(1, H, T, S)."""
        reach = self.max_distance
        buckets = ops.convert_to_tensor(self.buckets(np.arange(-reach, reach + 1), causal))
        index = ops.take(buckets, ops.clip(distances, -reach, reach) + reach, axis=0)  # (T, S)
        return ops.expand_dims(ops.transpose(ops.take(self.table, index, axis=0), (2, 0, 1)), 0)

    def buckets(self, distances: np.ndarray, causal: bool) -> np.ndarray:
        """The bucket of each distance, int32. In float32, as every T5 was trained."""
        buckets, before = self.num_buckets, np.maximum(-distances, 0)
        offset = np.zeros_like(distances)
        if not causal:
            buckets //= 2
            offset, before = np.where(distances > 0, buckets, 0), np.abs(distances)
        exact = buckets // 2
        ratio = np.log(np.maximum(before, 1).astype("float32") / np.float32(exact))
        step = ratio / np.float32(math.log(self.max_distance / exact))
        far = exact + (step * np.float32(buckets - exact)).astype("int32")
        near = np.where(before < exact, before, np.minimum(far, buckets - 1))
        return (offset + near).astype("int32")

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "num_buckets": self.num_buckets,
            "max_distance": self.max_distance,
            "initializer": keras.initializers.serialize(self.initializer),
        }


@keras.saving.register_keras_serializable("keras_tfm")
class RelativePositionEmbedding(AttentionPosition):
    """A learned vector for each distance, added to the keys and to the values.

    e_ts = q_t (k_s + a^K_{s-t}) / sqrt(K), z_t = sum_s alpha_ts (v_s + a^V_{s-t}), distances
    clipped to `max_distance`: Shaw et al. (arXiv:1803.02155). All heads share the vectors.

    Args:
        max_distance: distances beyond count as this one.
        values: whether values get vectors too.
        initializer: of both tables (2 max_distance + 1, K).

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
        initializer: Any = "glorot_uniform",
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

    def scores(self, query: Tensor, distances: Tensor) -> Tensor:
        """q_t a^K_{s-t}, scaled as the query is: (B, H, T, S)."""
        batch, num_heads, length, _ = ops.shape(query)
        table = ops.cast(self.key_table, query.dtype)
        scores = ops.matmul(query, ops.transpose(table))  # (B, H, T, rows)
        index = ops.broadcast_to(
            self._rows(distances), (batch, num_heads, length, ops.shape(distances)[1])
        )
        return ops.take_along_axis(scores, index, axis=-1)

    def values(self, weights: Tensor, distances: Tensor) -> Tensor | None:
        """sum_s alpha_ts a^V_{s-t}: (B, H, T, V)."""
        if not self.with_values:
            return None
        batch, num_heads, length, keys = ops.shape(weights)
        table = ops.cast(self.value_table, weights.dtype)
        vectors = ops.take(table, self._rows(distances), axis=0)  # (T, S, V)
        by_query = ops.reshape(ops.transpose(weights, (2, 0, 1, 3)), (length, -1, keys))
        mixed = ops.matmul(by_query, vectors)  # (T, B*H, V)
        mixed = ops.reshape(mixed, (length, batch, num_heads, table.shape[-1]))
        return ops.transpose(mixed, (1, 2, 0, 3))

    def _rows(self, distances: Tensor) -> Tensor:
        return ops.clip(distances, -self.max_distance, self.max_distance) + self.max_distance

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "max_distance": self.max_distance,
            "values": self.with_values,
            "initializer": keras.initializers.serialize(self.initializer),
        }


@keras.saving.register_keras_serializable("keras_tfm")
class ALiBi(AttentionPosition):
    """A penalty that grows with the distance, steeper in one head than in the next.

    score_ts - m_h |s - t|, m_h = 2^(-8 h / H) for h = 1 .. H: "Train Short, Test Long"
    (arXiv:2108.12409). For an H that is no power of two, the slopes of the next lower power and
    every other one of the next higher, as in the authors' code. Nothing is learned.

    Example:

    >>> from keras_tfm.layers import ALiBi
    >>> ALiBi().slopes(8).tolist()[:3]
    [0.5, 0.25, 0.125]
    """

    def bias(self, query: Tensor, distances: Tensor, causal: bool) -> Tensor:
        """(1, H, T, S)."""
        slopes = self.slopes(query.shape[1]).astype("float32")[:, np.newaxis, np.newaxis]
        penalty = ops.convert_to_tensor(-slopes) * ops.cast(ops.abs(distances), "float32")
        return ops.expand_dims(penalty, 0)

    @staticmethod
    def slopes(num_heads: int) -> np.ndarray:
        """m_h for each head: (H,)."""
        lower = 2 ** int(math.log2(num_heads))
        slopes = 2.0 ** (-8.0 * np.arange(1, lower + 1) / lower)
        between = 2.0 ** (-8.0 * np.arange(1, 2 * lower + 1, 2) / (2 * lower))
        return np.concatenate([slopes, between[: num_heads - lower]])
