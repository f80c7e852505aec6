"""A block of a Transformer's encoder."""

import functools
from typing import Any

import keras

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
        layer_norm_epsilon: of every normalisation.
        normalize_first: normalise a sublayer's input rather than the sum (pre-norm,
            arXiv:2002.04745).
        sandwich_norm: with `normalize_first`, normalise a sublayer's output too (arXiv:2105.13290).
        norm: "layer_norm" or "rms_norm" (arXiv:1910.07467).
        gated: a gated feed-forward network; with activation "silu" SwiGLU (arXiv:2002.05202).
        position: a part of the self-attention, `RotaryEmbedding` for instance.
        window: self-attention sees positions less than `window` away.
        head_dim: K, the width of a query and of a key; D / H by default.
        value_dim: the width of a head's values; `head_dim` by default.
        num_key_value_heads: G; H by default.
        query_key_norm: RMS normalisation of each head's queries and keys.
        soft_cap: c in c tanh(score / c).
        attention_scale: factor of the scores; 1/sqrt(K) by default.
        attention_dropout: rate of the dropout of the attention weights; `dropout` by default.
        feed_forward_dropout: rate of the dropout inside the feed-forward network.
        drop_path: rate at which a whole sublayer is dropped for a row (arXiv:1603.09382).
        residual_scale: factor of the residual (DeepNorm, arXiv:2203.00555).
        layer_scale: where a learned factor of each sublayer's output starts (arXiv:2103.17239);
            None: there is none.
        use_bias: whether the projections add a bias.
        kernel_initializer, bias_initializer: of every projection.

    Call arguments:
        x: (B, T, D).
        mask: (B, T), boolean, True = a real position; by default the mask that `x` carries.
        attention_mask: (B, T, T), boolean, True = the query sees the key.
        attention_bias: (B | 1, H | 1, T, T), float, added to the scaled scores.

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

    def call(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        attention_bias: Tensor | None = None,
        x_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        mask = x_mask if mask is None else mask

        attend = functools.partial(
            self.self_attention,
            mask=mask,
            attention_mask=attention_mask,
            attention_bias=attention_bias,
            training=training,
        )
        x = self.self_attention_residual(x, sublayer=attend, training=training)
        return self.feed_forward_residual(x, sublayer=self.feed_forward, training=training)
