"""Attention from one sequence to another."""

from typing import Any

import keras

from keras_tfm.layers.attention import split_heads
from keras_tfm.layers.decoding_scope import DecodingScope, Keys
from keras_tfm.layers.multi_head_attention import MultiHeadAttention, check_sequence, key_mask

Tensor = Any


@keras.saving.register_keras_serializable("keras_tfm")
class MultiHeadCrossAttention(MultiHeadAttention):
    """Multi-head attention whose queries come from `x`, keys and values from `context`.

    y = concat(head_1, ..., head_H) W_o, head_h = softmax(q_h k_h^T / sqrt(K)) v_h with q = x W_q,
    k = context W_k, v = context W_v. "Attention Is All You Need" (arXiv:1706.03762), section 3.2.3.

    Args:
        num_heads: H.
        head_dim: K, the width of a query and of a key; D / H by default.
        value_dim: the width of a head's values; `head_dim` by default.
        num_key_value_heads: G; H by default. Must divide H.
        dropout: rate of the dropout of the attention weights.
        use_bias: whether the projections add a bias.
        query_key_norm: RMS normalisation of each head's queries and keys (arXiv:2010.04245).
        soft_cap: c in c tanh(score / c).
        scale: factor of the scores; 1/sqrt(K) by default.
        kernel_initializer, bias_initializer: of the projections.

    Call arguments:
        x: (B, T, D).
        context: (B, S, C), an encoder's output or any other sequence.
        context_mask: (B, S), boolean, True = a real position. By default the mask that `context`
            carries; an explicit one wins.
        attention_mask: (B, T, S), boolean, True = the query sees the key. Applied on top.
        attention_bias: (B | 1, H | 1, T, S), float, added to the scaled scores.

    Returns:
        (B, T, D). A query that sees no key attends to nothing and gets the output bias alone.

    Inside a `DecodingScope` the context is projected on the first step only; later steps read the
    keys, values and mask from the scope's cache, and nothing reads `context`.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import MultiHeadCrossAttention
    >>> layer = MultiHeadCrossAttention(num_heads=3)
    >>> x, context = np.ones((2, 5, 12), "float32"), np.ones((2, 7, 10), "float32")
    >>> tuple(layer(x, context).shape)
    (2, 5, 12)
    """

    def build(self, x_shape: Any, context_shape: Any) -> None:
        """Creates the projections for queries of width D and a context of width C."""
        check_sequence(self, "x", x_shape)
        check_sequence(self, "context", context_shape)
        query_width, key_width, value_width = self._build_heads(x_shape)
        self.query = self._dense("query", query_width)
        self.query.build(x_shape)
        # Two projections, not one that is cut: the keys and values of a whole context are large.
        self.key = self._dense("key", key_width)
        self.key.build(context_shape)
        self.value = self._dense("value", value_width)
        self.value.build(context_shape)
        self.built = True

    def call(
        self,
        x: Tensor,
        context: Tensor,
        context_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        attention_bias: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        """(B, T, D), (B, S, C) -> (B, T, D)."""
        mask = key_mask("context_mask", context_mask, context)
        query = split_heads(self.query(x), self.num_heads)
        if self.query_key_norm:
            query = self.query_norm(query)
        scope = DecodingScope.current()
        if scope is None:
            keys = Keys(*self._project(context), mask)
        else:
            keys = Keys(*scope.recall(self.name, mask, lambda: self._project(context)))
        return self._attend(query, keys, attention_mask, attention_bias, training)

    def _project(self, context: Tensor) -> tuple[Tensor, Tensor]:
        shared = self.num_key_value_heads or self.num_heads
        key, value = (
            split_heads(self.key(context), shared),
            split_heads(self.value(context), shared),
        )
        return (self.key_norm(key) if self.query_key_norm else key), value
