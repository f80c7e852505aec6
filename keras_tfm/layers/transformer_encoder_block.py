"""An encoder block of a Transformer."""

from typing import Any

import keras

from keras_tfm.layers.finite_padding import finite_padding
from keras_tfm.layers.multi_head_attention import masks
from keras_tfm.layers.transformer_block import TransformerBlock

Tensor = Any


@keras.saving.register_keras_serializable("keras_tfm")
class TransformerEncoderBlock(TransformerBlock):
    """Self-attention, then a feed-forward network, each in a residual connection.

    "Attention Is All You Need" (arXiv:1706.03762), figure 1, left. Post-norm as in the paper, or
    pre-norm (arXiv:2002.04745) with `normalize_first`.

    The arguments are those of `TransformerBlock`: `intermediate_dim`, `num_heads`, `dropout` and so
    on, or the parts `self_attention`, `feed_forward` and `residual`.

    Call arguments:
        x: float tensor (..., T, D).
        mask: (..., T), boolean, True = token, False = padding. Default: the mask that `x` carries.
        attention_mask: (..., T, T), boolean, True = the query sees the key. Combined with `mask`.
        attention_bias: float tensor, broadcastable to (..., H, T, T), added to the scaled scores.
        positions: int32, (T,), (..., T) or (..., T, C), positions of the tokens for the position
            part of the self-attention.
        position_encoding: (..., T, D), added to the inputs of the query and key projections, but
            not to values (DETR, arXiv:2005.12872).

    Returns:
        Float tensor (..., T, D).

    Example:

    >>> import keras
    >>> from keras_tfm.layers import TransformerEncoderBlock
    >>> x = keras.Input((None, 12))
    >>> y = TransformerEncoderBlock(intermediate_dim=16, num_heads=3, dropout=0.1)(x)
    >>> y.shape
    (None, None, 12)

    A block made of parts, with rotary positions, RMS pre-norm and SwiGLU:

    >>> from keras_tfm.layers import FeedForward, MultiHeadSelfAttention
    >>> from keras_tfm.layers import Residual, RMSNormalization, RotaryEmbedding
    >>> block = TransformerEncoderBlock(
    ...     self_attention=MultiHeadSelfAttention(3, position=RotaryEmbedding()),
    ...     feed_forward=FeedForward(16, activation="silu", gated=True),
    ...     residual=Residual(input_norm=RMSNormalization()),
    ... )
    >>> block(x).shape
    (None, None, 12)
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if self.cross_attention is not None:
            raise ValueError(
                f"{self.name}: an encoder block has no cross_attention, use TransformerDecoderBlock"
            )

    def build(self, x_shape: Any) -> None:
        """Creates the weights for inputs of width D."""
        self._build(x_shape)

    def call(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        attention_bias: Tensor | None = None,
        positions: Tensor | None = None,
        position_encoding: Tensor | None = None,
        x_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        """(..., T, D) -> (..., T, D)."""
        mask = x_mask if mask is None else mask
        x = self._attend(
            finite_padding(x, masks.key_mask("mask", mask, x)),
            position_encoding,
            mask=mask,
            attention_mask=attention_mask,
            attention_bias=attention_bias,
            positions=positions,
            training=training,
        )
        return self._feed_forward(x, training)
