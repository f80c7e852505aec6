"""A decoder block of a Transformer."""

from typing import Any

import keras

from keras_tfm.layers.finite_padding import finite_padding
from keras_tfm.layers.multi_head_attention import masks
from keras_tfm.layers.transformer_block import Part, TransformerBlock, present

Tensor = Any


@keras.saving.register_keras_serializable("keras_tfm")
class TransformerDecoderBlock(TransformerBlock):
    """Causal self-attention, cross-attention to a context, then a feed-forward network.

    "Attention Is All You Need" (arXiv:1706.03762), figure 1, right. With `cross_attention=False` it
    is the block of a decoder-only model.

    The arguments are those of `TransformerBlock`: `intermediate_dim`, `num_heads`, `dropout` and so
    on, or the parts `self_attention`, `cross_attention`, `feed_forward` and `residual`. `causal`
    and `cross_attention` are True by default.

    Call arguments:
        x: float tensor (..., T, D). A position sees only itself and earlier positions.
        context: float tensor (..., S, C), the sequence that cross-attention attends to. Required
            with `cross_attention`.
        mask: (..., T), boolean, True = token, False = padding. Default: the mask that `x` carries.
        context_mask: (..., S), boolean, likewise. Default: the mask that `context` carries.
        attention_mask: (..., T, T), boolean, True = the query sees the key. Combined with `mask`
            and causality.
        attention_bias: float tensor, broadcastable to (..., H, T, T), added to the scores of the
            self-attention.
        positions: int32, (T,), (..., T) or (..., T, C), positions of `x` for the position parts.
        position_encoding: (..., T, D), added to the inputs of the query projections of both
            attentions and of the key projection of the self-attention, but not to values (DETR,
            arXiv:2005.12872).
        context_position_encoding: (..., S, C), added to the input of the key projection of the
            cross-attention.

    Returns:
        Float tensor (..., T, D).

    Example:

    >>> import keras
    >>> from keras_tfm.layers import TransformerDecoderBlock
    >>> x, context = keras.Input((None, 12)), keras.Input((None, 10))
    >>> TransformerDecoderBlock(intermediate_dim=16, num_heads=3)(x, context).shape
    (None, None, 12)
    """

    def __init__(
        self,
        intermediate_dim: int | None = None,
        num_heads: int | None = None,
        cross_attention: Part = True,
        causal: bool = True,
        **kwargs: Any,
    ):
        super().__init__(
            intermediate_dim, num_heads, cross_attention=cross_attention, causal=causal, **kwargs
        )

    def build(self, x_shape: Any, context_shape: Any = None) -> None:
        """Creates the weights for inputs of width D and a context of width C."""
        self._check_context(context_shape)
        self._build(x_shape, context_shape)

    def call(
        self,
        x: Tensor,
        context: Tensor | None = None,
        mask: Tensor | None = None,
        context_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        attention_bias: Tensor | None = None,
        positions: Tensor | None = None,
        position_encoding: Tensor | None = None,
        context_position_encoding: Tensor | None = None,
        x_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        """(..., T, D), (..., S, C) -> (..., T, D)."""
        self._check_context(context)
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
        if self.cross_attention is not None:
            keys = (
                None if context_position_encoding is None else context + context_position_encoding
            )
            given = {"context_mask": context_mask, "key": keys, "positions": positions}

            def attend_to_context(y: Tensor) -> Tensor:
                y = y if position_encoding is None else y + position_encoding
                return self.cross_attention(y, context, training=training, **present(given))

            x = self.cross_attention_residual(x, sublayer=attend_to_context, training=training)
        return self._feed_forward(x, training)

    def _check_context(self, context: Any) -> None:
        if self.cross_attention is not None and context is None:
            raise ValueError(
                f"{self.name}: cross_attention=True needs a context, got none; "
                "call block(x, context), or create the block with cross_attention=False"
            )
        if self.cross_attention is None and context is not None:
            raise ValueError(f"{self.name}: cross_attention=False takes no context, got one")
