"""What a part passed to self-attention as `position=` may do."""

from typing import Any

import keras

Tensor = Any


class AttentionPosition(keras.layers.Layer):
    """The base of the parts that tell self-attention where queries and keys stand.

    `MultiHeadSelfAttention(position=...)` calls the methods below; a part overrides those it needs.
    One part may be given to several layers, which then share its weights.

    Example, a part of one's own:

    >>> import numpy as np
    >>> from keras import ops
    >>> from keras_tfm.layers import AttentionPosition, MultiHeadSelfAttention
    >>> class Nearby(AttentionPosition):
    ...     def bias(self, query, distances, causal):
    ...         return -ops.cast(ops.abs(distances), "float32")[None, None]
    >>> layer = MultiHeadSelfAttention(num_heads=2, position=Nearby())
    >>> tuple(layer(np.ones((1, 3, 4), "float32")).shape)
    (1, 3, 4)
    """

    def build_for(self, num_heads: int, head_dim: int, value_dim: int) -> None:
        """Creates the weights, for H heads of width K and values of width V."""
        self.built = True

    def rotate(self, x: Tensor) -> Tensor:
        """Queries, or keys before they are cached: (B, H, T, K) -> (B, H, T, K)."""
        return x

    def scores(self, query: Tensor, distances: Tensor) -> Tensor | None:
        """What is added to the products of queries and keys: (B, H, T, S), or None.

        Args:
            query: (B, H, T, K), scaled as the products are.
            distances: (T, S), int32, the key's position minus the query's.
        """
        return None

    def bias(self, query: Tensor, distances: Tensor, causal: bool) -> Tensor | None:
        """What is added to the scaled and capped scores: (B | 1, H, T, S), or None.

        Args:
            query: (B, H, T, K), not scaled.
            distances: (T, S), int32, the key's position minus the query's.
            causal: whether keys after the query are masked.
        """
        return None

    def values(self, weights: Tensor, distances: Tensor) -> Tensor | None:
        """What is added to the result: attention weights (B, H, T, S) -> (B, H, T, V), or None."""
        return None


def serialize_position(position: AttentionPosition | None) -> dict[str, Any] | None:
    """The configuration of a part, marked so that layers which share it share it when loaded.

    Keras marks an object at its second serialisation, and the configuration of the first, which it
    has copied by then, stays without the mark: so each layer serialises it twice.
    """
    keras.saving.serialize_keras_object(position)
    return keras.saving.serialize_keras_object(position)
