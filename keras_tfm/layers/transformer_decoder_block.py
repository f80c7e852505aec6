"""A block of a Transformer's decoder."""

from typing import Any

import keras

from keras_tfm.layers.transformer_block import Part, TransformerBlock, present

Tensor = Any


@keras.saving.register_keras_serializable("keras_tfm")
class TransformerDecoderBlock(TransformerBlock):
    """Causal self-attention, cross-attention to a context, then a feed-forward network.

    "Attention Is All You Need" (arXiv:1706.03762), figure 1, right. Without cross-attention it is
    the block of a decoder-only model.

    The arguments are those of `TransformerBlock`: `intermediate_dim`, `num_heads`, `dropout` and so
    on, or the parts `self_attention`, `cross_attention`, `feed_forward` and `residual`. `causal`
    and `cross_attention` are True by default.

    Call arguments:
        x: (..., T, D). A position sees itself and those before it, with or without masks.
        context: (..., S, C), what the block attends to, needed with `cross_attention`.
        mask: (..., T), boolean, True = a real position; by default the mask that `x` carries.
        context_mask: (..., S), boolean; by default the mask that `context` carries.
        attention_mask: (..., T, T), boolean, True = the query sees the key, on top of causality.
        attention_bias: broadcastable to (..., H, T, T), float, added to the scores of the
            self-attention.
        positions: int32, (T,), (..., T) or (..., T, C), where the tokens of `x` stand, for the
            position parts.
        position_encoding: (..., T, D), added to what the queries of both attentions and the keys of
            the self-attention are projected from, and not to values (DETR, arXiv:2005.12872).
        context_position_encoding: (..., S, C), added to what the keys of the cross-attention are
            projected from.

    Returns:
        (..., T, D).

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
        x = self._attend(
            x,
            position_encoding,
            mask=x_mask if mask is None else mask,
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
                "call it as block(x, context), or make it with cross_attention=False"
            )
        if self.cross_attention is None and context is not None:
            raise ValueError(f"{self.name}: cross_attention=False takes no context, got one")
