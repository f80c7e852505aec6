"""Self-attention with several heads."""

from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers.attention import split_heads
from keras_tfm.layers.attention_position import AttentionPosition, serialize_position
from keras_tfm.layers.decoding_scope import DecodingScope, Keys, for_device
from keras_tfm.layers.multi_head_attention import MultiHeadAttention, check_sequence, key_mask

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
        causal: a position sees itself and those before it.
        position: `RotaryEmbedding`, `RelativePositionBias`, `RelativePositionEmbedding`, `ALiBi` or
            another `AttentionPosition`; None: positions come with `x`, or not at all.
        window: a position sees those less than `window` away (sliding window, arXiv:2004.05150).
        head_dim: K, the width of a query and of a key; D / H by default.
        value_dim: the width of a head's values; `head_dim` by default.
        num_key_value_heads: G; H by default. Must divide H.
        dropout: rate of the dropout of the attention weights.
        use_bias: whether the projections add a bias.
        query_key_norm: RMS normalisation of each head's queries and keys, before they are rotated
            (arXiv:2010.04245, as in Qwen 3 and Gemma 3).
        soft_cap: c in c tanh(score / c).
        scale: factor of the scores; 1/sqrt(K) by default.
        kernel_initializer, bias_initializer: of the two projections.

    Call arguments:
        x: (B, T, D).
        mask: (B, T), boolean, True = a real position. By default the mask that `x` carries
            (`mask_zero`); an explicit one wins.
        attention_mask: (B, T, T), boolean, True = the query sees the key. Applied on top of `mask`
            and of causality.
        attention_bias: (B | 1, H | 1, T, T), float, added to the scaled scores.
        x_mask: filled by Keras with the mask that `x` carries when the call has several tensors.

    Returns:
        (B, T, D). A query that sees no key attends to nothing and gets the output bias alone.

    Inside a `DecodingScope` a causal layer keeps its keys and values in the scope's cache. Beyond
    two million scores a head, where lengths are known when the graph is made, attention is computed
    in blocks that are recomputed in the backward pass: memory grows with T and not with T^2.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import MultiHeadSelfAttention
    >>> layer = MultiHeadSelfAttention(num_heads=3, causal=True)
    >>> tuple(layer(np.ones((2, 5, 12), "float32")).shape)
    (2, 5, 12)
    """

    def __init__(
        self,
        num_heads: int,
        causal: bool = False,
        position: AttentionPosition | None = None,
        window: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(num_heads, **kwargs)
        if isinstance(position, dict):
            position = keras.saving.deserialize_keras_object(position)
        if position is not None and not isinstance(position, AttentionPosition):
            raise TypeError(
                f"position must be an AttentionPosition such as RotaryEmbedding(), got {position!r}"
            )
        check_integer("window", window, optional=True)
        self.causal = causal
        self.position = position
        self.window = window

    def build(self, x_shape: Any) -> None:
        """Creates the projections for inputs of width D."""
        check_sequence(self, "x", x_shape)
        query_width, key_width, value_width = self._build_heads(x_shape)
        self._cuts = (query_width, query_width + key_width)
        self.query_key_value = self._dense("query_key_value", self._cuts[1] + value_width)
        self.query_key_value.build(x_shape)
        self.built = True

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
        mask = key_mask("mask", x_mask if mask is None else mask, x)
        query, key, value = self._heads(self.query_key_value(x))
        if self.query_key_norm:
            query, key = self.query_norm(query), self.key_norm(key)
        if self.position is not None:
            query, key = self.position.rotate(query), self.position.rotate(key)
        keys = Keys(key, value, mask)
        scope = DecodingScope.current()
        if self.causal and scope is not None:
            keys = scope.extend(self.name, key, value, mask)
        return self._attend(query, keys, attention_mask, attention_bias, training)

    def _heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T, Q) -> (B, H, T, K), (B, G, T, K) and (B, G, T, V)."""
        first, second = self._cuts
        shared = self.num_key_value_heads or self.num_heads
        if for_device():  # XNNPACK cuts slices, and leaves a split to the interpreter
            parts = x[..., :first], x[..., first:second], x[..., second:]
        elif (second, x.shape[-1]) == (2 * first, 3 * first):  # one transposition for all three
            batch, length, width = ops.shape(x)
            x = ops.reshape(x, (batch, length, 3, shared, width // (3 * shared)))
            return tuple(ops.unstack(ops.transpose(x, (2, 0, 3, 1, 4)), 3))
        else:
            parts = ops.split(x, [first, second], axis=-1)
        heads = self.num_heads, shared, shared
        return tuple(split_heads(part, number) for part, number in zip(parts, heads, strict=True))

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "causal": self.causal,
            "position": serialize_position(self.position),
            "window": self.window,
        }
