"""Self-attention with several heads."""

from typing import Any

import keras
from keras import ops

from keras_tfm.layers import masks
from keras_tfm.layers.attention import split_heads
from keras_tfm.layers.decoding_scope import DecodingScope
from keras_tfm.layers.multi_head_attention import (
    MultiHeadAttention,
    attention_mask_of,
    check_sequence,
    key_mask,
)

Tensor = Any


@keras.saving.register_keras_serializable("keras_tfm")
class MultiHeadSelfAttention(MultiHeadAttention):
    """Multi-head self-attention with one fused projection of queries, keys and values.

    y = concat(head_1, ..., head_H) W_o, head_h = softmax(q_h k_h^T / sqrt(K)) v_h, where q, k, v
    are x W_qkv, split. "Attention Is All You Need" (arXiv:1706.03762), section 3.2. With
    `num_key_value_heads` below `num_heads`, several query heads share a key head
    (arXiv:2305.13245).

    Args:
        num_heads: H.
        head_dim: K, the width of a query and of a key; D / H by default.
        value_dim: the width of a head's values; `head_dim` by default.
        num_key_value_heads: G; H by default. Must divide H.
        causal: a position sees itself and those before it.
        dropout: rate of the dropout of the attention weights.
        use_bias: whether the projections add a bias.
        kernel_initializer, bias_initializer: of the two projections.

    Call arguments:
        x: (B, T, D).
        mask: (B, T), boolean, True = a real position. By default the mask that `x` carries
            (`mask_zero`); an explicit one wins.
        attention_mask: (B, T, T), boolean, True = the query sees the key. Applied on top of `mask`
            and of causality.
        x_mask: filled by Keras with the mask that `x` carries when the call has several tensors.

    Returns:
        (B, T, D). A query that sees no key attends to nothing and gets the output bias alone.

    Inside a `DecodingScope` a causal layer keeps its keys and values in the scope's cache.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import MultiHeadSelfAttention
    >>> layer = MultiHeadSelfAttention(num_heads=3, causal=True)
    >>> tuple(layer(np.ones((2, 5, 12), "float32")).shape)
    (2, 5, 12)
    """

    def __init__(self, num_heads: int, causal: bool = False, **kwargs: Any):
        super().__init__(num_heads, **kwargs)
        self.causal = causal

    def build(self, x_shape: Any) -> None:
        """Creates the projections for inputs of width D."""
        check_sequence(self, "x", x_shape)
        query_width, key_width, value_width = self._widths(x_shape[-1])
        self._cuts = (query_width, query_width + key_width)
        self.query_key_value = self._projection("query_key_value", self._cuts[1] + value_width)
        self.query_key_value.build(x_shape)
        self._build_output(x_shape, value_width)
        self.built = True

    def call(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        x_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        mask = key_mask("mask", x_mask if mask is None else mask, x)
        query, key, value = ops.split(self.query_key_value(x), self._cuts, axis=-1)
        shared = self.num_key_value_heads or self.num_heads
        query = split_heads(query, self.num_heads)
        key, value = split_heads(key, shared), split_heads(value, shared)

        causal = None
        if self.causal:
            position: Any = 0
            scope = DecodingScope.current()
            if scope is not None:
                position = scope.position
                key, value, mask = scope.extend(self.name, key, value, mask)
            causal = masks.causal(ops.shape(query)[2], ops.shape(key)[2], position)
        keep = masks.combine(
            causal,
            None if mask is None else masks.from_keys(mask),
            attention_mask_of(attention_mask, query, key),
        )
        return self._attend(query, key, value, keep, training)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "causal": self.causal}
