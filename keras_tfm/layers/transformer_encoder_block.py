"""A block of a Transformer's encoder."""

import functools
from typing import Any

import keras

from keras_tfm.layers.multi_head_self_attention import MultiHeadSelfAttention
from keras_tfm.layers.transformer_block import TransformerBlock

Tensor = Any


@keras.saving.register_keras_serializable("keras_tfm")
class TransformerEncoderBlock(TransformerBlock):
    """Self-attention, then a feed-forward network, each in a residual connection.

    "Attention Is All You Need" (arXiv:1706.03762), figure 1, left. Post-norm as there, or pre-norm
    (arXiv:2002.04745) with `normalize_first`.

    Args:
        intermediate_dim: F, the inner width of the feed-forward network.
        num_heads: H.
        dropout: rate after each sublayer, and of the attention weights.
        activation: of the feed-forward network.
        layer_norm_epsilon: of both normalisations.
        normalize_first: normalise a sublayer's input rather than the sum.
        head_dim: K, the width of a query and of a key; D / H by default.
        value_dim: the width of a head's values; `head_dim` by default.
        num_key_value_heads: G; H by default.
        attention_dropout: rate of the dropout of the attention weights; `dropout` by default.
        use_bias: whether the projections add a bias.
        kernel_initializer, bias_initializer: of every projection.

    Call arguments:
        x: (B, T, D).
        mask: (B, T), boolean, True = a real position; by default the mask that `x` carries.
        attention_mask: (B, T, T), boolean, True = the query sees the key.

    Returns:
        (B, T, D).

    Example:

    >>> import keras
    >>> from keras_tfm.layers import TransformerEncoderBlock
    >>> x = keras.Input((None, 12))
    >>> y = TransformerEncoderBlock(intermediate_dim=16, num_heads=3, dropout=0.1)(x)
    >>> y.shape
    (None, None, 12)
    """

    def __init__(self, intermediate_dim: int, num_heads: int, **kwargs: Any):
        super().__init__(intermediate_dim, num_heads, **kwargs)
        self.self_attention = self._attention(MultiHeadSelfAttention, "self_attention")
        self.self_attention_residual = self._residual("self_attention_residual")

    def build(self, x_shape: Any) -> None:
        """Creates the weights for inputs of width D."""
        self._build_shared(x_shape)
        self.self_attention.build(x_shape)
        self.self_attention_residual.build(x_shape)
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
        mask = x_mask if mask is None else mask

        attend = functools.partial(
            self.self_attention, mask=mask, attention_mask=attention_mask, training=training
        )
        x = self.self_attention_residual(x, sublayer=attend, training=training)
        return self.feed_forward_residual(x, sublayer=self.feed_forward, training=training)
