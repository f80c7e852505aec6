"""A block of a Transformer's decoder."""

import functools
from typing import Any

import keras

from keras_tfm.layers.multi_head_cross_attention import MultiHeadCrossAttention
from keras_tfm.layers.transformer_block import TransformerBlock

Tensor = Any


@keras.saving.register_keras_serializable("keras_tfm")
class TransformerDecoderBlock(TransformerBlock):
    """Causal self-attention, cross-attention to a context, then a feed-forward network.

    "Attention Is All You Need" (arXiv:1706.03762), figure 1, right. Without cross-attention it is
    the block of a decoder-only model.

    Args:
        intermediate_dim: F, the inner width of the feed-forward network.
        num_heads: H.
        cross_attention: whether the block attends to a context.
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
        x: (B, T, D). A position sees itself and those before it, with or without masks.
        context: (B, S, C), what the block attends to, needed with `cross_attention`.
        mask: (B, T), boolean, True = a real position; by default the mask that `x` carries.
        context_mask: (B, S), boolean; by default the mask that `context` carries.
        attention_mask: (B, T, T), boolean, True = the query sees the key, on top of causality.
        attention_bias: (B | 1, H | 1, T, T), float, added to the scores of the self-attention.

    Returns:
        (B, T, D).

    Example:

    >>> import keras
    >>> from keras_tfm.layers import TransformerDecoderBlock
    >>> x, context = keras.Input((None, 12)), keras.Input((None, 10))
    >>> TransformerDecoderBlock(intermediate_dim=16, num_heads=3)(x, context).shape
    (None, None, 12)
    """

    causal = True

    def __init__(
        self, intermediate_dim: int, num_heads: int, cross_attention: bool = True, **kwargs: Any
    ):
        super().__init__(intermediate_dim, num_heads, **kwargs)
        self.cross_attention = None
        if cross_attention:
            self.cross_attention = self._attention(MultiHeadCrossAttention, "cross_attention")
            self.cross_attention_residual = self._residual("cross_attention_residual")

    def build(self, x_shape: Any, context_shape: Any = None) -> None:
        """Creates the weights for inputs of width D and a context of width C."""
        self._check_context(context_shape)
        super().build(x_shape)
        if self.cross_attention is not None:
            self.cross_attention.build(x_shape, context_shape)
            self.cross_attention_residual.build(x_shape)

    def call(
        self,
        x: Tensor,
        context: Tensor | None = None,
        mask: Tensor | None = None,
        context_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        attention_bias: Tensor | None = None,
        x_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        """(B, T, D), (B, S, C) -> (B, T, D)."""
        self._check_context(context)
        mask = x_mask if mask is None else mask

        attend = functools.partial(
            self.self_attention,
            mask=mask,
            attention_mask=attention_mask,
            attention_bias=attention_bias,
            training=training,
        )
        x = self.self_attention_residual(x, sublayer=attend, training=training)
        if self.cross_attention is not None:
            attend_to_context = functools.partial(
                self.cross_attention, context=context, context_mask=context_mask, training=training
            )
            x = self.cross_attention_residual(x, sublayer=attend_to_context, training=training)
        return self.feed_forward_residual(x, sublayer=self.feed_forward, training=training)

    def _check_context(self, context: Any) -> None:
        if self.cross_attention is not None and context is None:
            raise ValueError(
                f"{self.name}: cross_attention=True needs a context, got none; "
                "call it as block(x, context), or make it with cross_attention=False"
            )
        if self.cross_attention is None and context is not None:
            raise ValueError(f"{self.name}: cross_attention=False takes no context, got one")

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "cross_attention": self.cross_attention is not None}
