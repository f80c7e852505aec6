"""Multi-head self-attention."""

from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.keras_internals import layout_of
from keras_tfm.layers.arguments import check_sequence
from keras_tfm.layers.decoding.cache import as_cached, heads_and_columns, key_of
from keras_tfm.layers.decoding.scope import columns_of, current_scope, positions_of
from keras_tfm.layers.decoding.visibility import Extended, Visible
from keras_tfm.layers.finite_padding import finite_padding
from keras_tfm.layers.multi_head_attention import masks
from keras_tfm.layers.multi_head_attention.attention import joined_bias
from keras_tfm.layers.multi_head_attention.attention_probe import current_probe
from keras_tfm.layers.multi_head_attention.base import MultiHeadAttention, normalize_heads
from keras_tfm.layers.multi_head_attention.heads import merge_heads, split_heads, split_last
from keras_tfm.layers.multi_head_attention.stepped_attention import stepped_attention
from keras_tfm.layers.positions.attention_position import AttentionPosition, PositionTerms
from keras_tfm.layers.positions.coordinates import Positions, as_tensor
from keras_tfm.layers.target import current_target
from keras_tfm.layers.types import Config, Shape, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class MultiHeadSelfAttention(MultiHeadAttention):
    """Multi-head self-attention with one fused projection of queries, keys and values.

    y = concat(head_1, ..., head_H) W_o, head_h = softmax(q_h k_h^T / sqrt(K)) v_h, where q, k, v
    are x W_qkv, split. "Attention Is All You Need" (arXiv:1706.03762), section 3.2.

    Args:
        num_heads: int, number of attention heads (H).
        causal: bool, whether a position sees only itself and earlier positions.
        position: `AttentionPosition`, adds positions to attention, such as `RotaryEmbedding()`.
        window: int, a position sees only positions less than `window` away (sliding window,
            arXiv:2004.05150). Default: no window.
        **kwargs: the other arguments of `MultiHeadAttention`.

    Call arguments:
        x: float tensor (..., T, D). With several leading axes (the rows or columns of an alignment,
            for instance) attention is within each sequence.
        mask: (..., T), boolean, True = token, False = padding. Default: the mask that `x` carries
            (`mask_zero`).
        attention_mask: (..., T, T), boolean, True = the query sees the key. Combined with `mask`
            and causality.
        attention_bias: float tensor, broadcastable to (..., H, T, T), added to the scaled scores.
        query: (..., T, D), input of the query projection. Default: `x`. Use `query` and `key` to
            add positions to queries and keys but not to values, as in DETR (arXiv:2005.12872).
        key: (..., T, D), input of the key projection. Default: `x`.
        positions: int32, (T,), (..., T), or (..., T, C) for C coordinates: positions of the tokens
            for the position part. Default: 0 to T - 1, or the scope's positions inside a
            `DecodingScope`.
        x_mask: boolean, the mask that `x` carries; filled in by Keras when a call has several
            tensors.

    Returns:
        Float tensor (..., T, D). A query that sees no key gets only the output bias.

    Inside a `DecodingScope` a causal layer stores its keys and values in the scope's KV cache.
    Above two million scores per head, if the lengths are known when the graph is made, attention is
    computed in blocks that the backward pass recomputes: memory grows with T instead of T^2.

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
        super().__init__(num_heads, position=position, **kwargs)
        check_integer("window", window, optional=True)
        self.causal = causal
        self.window = window

    def build(self, x_shape: Shape) -> None:
        """Creates the projections for inputs of width D."""
        check_sequence(self, "x", x_shape)
        query_width, key_width, value_width = self._build_heads(x_shape)
        self._cuts = (query_width, query_width + key_width)
        biased = self._biased & {"query", "key", "value"}
        self._is_fused = len(biased) in (0, 3)
        if self._is_fused:
            self.query_key_value = self._dense(
                "query_key_value", self._cuts[1] + value_width, use_bias=bool(biased)
            )
            self.query_key_value.build(x_shape)
        else:
            self.query = self._projection("query", query_width, x_shape)
            self.key = self._projection("key", key_width, x_shape)
            self.value = self._projection("value", value_width, x_shape)
        self.built = True

    def call(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        attention_bias: Tensor | None = None,
        query: Tensor | None = None,
        key: Tensor | None = None,
        positions: Tensor | None = None,
        x_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        """(..., T, D) -> (..., T, D)."""
        mask = x_mask if mask is None else mask
        scope = current_scope.get()
        if mask is not None:
            mask = masks.key_mask("mask", mask, x)
        if mask is not None or (self.causal and scope is not None and scope.padding is not None):
            x, query, key = (
                y if y is None else finite_padding(y, mask, self.causal) for y in (x, query, key)
            )
        where = None
        if self.position is not None:
            here = (positions_of if self.position.absolute else columns_of)(x, positions)
            where = Positions(here, here)
        q, k, v = self._rotated_heads(x, query, key, where)
        if self.causal:
            k, v = as_cached(k), as_cached(v)
        step = None
        if self.causal and scope is not None:
            joined = self.position is not None and self.position.reads_keys
            step = scope.extend(self.name, k, v, mask, self.window, joined)
            mask = step.mask
        if step is not None and step.entry is not None:
            y = self._step(q, k, v, step, attention_mask, attention_bias, where, training)
        else:
            pairs = self._check_pairs(attention_mask, attention_bias, x, x.shape[-2])
            y = self._attend(q, k, v, mask, *pairs, where, training)
        y = merge_heads(y)
        if self.gate:
            y = y * ops.sigmoid(self.gate_projection(x))
        return self.output_projection(y)

    def _step(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        step: Extended,
        attention_mask: Tensor | None,
        attention_bias: Tensor | None,
        positions: Positions | None,
        training: bool | None,
    ) -> Tensor:
        """Attention to the cache and to the step's own tokens: (B, H, T, V).

        The last axis of the mask (B, T, S) and of the bias (B | 1, H | 1, T, S) is the position.
        """
        entry, visible = step.entry, step.visible
        assert entry is not None and visible is not None
        if attention_mask is not None or attention_bias is not None:
            visible, attention_bias = self._over_cache(
                step, attention_mask, attention_bias, query.shape
            )
        scale, terms = self._scale, PositionTerms()
        if self._adds_terms:
            assert positions is not None
            query, scale, terms = self._terms(
                query,
                Positions(positions.query, self._key_positions(positions.query, visible)),
                lambda: (
                    key_of(entry)
                    if visible.write_first
                    else ops.concatenate([key_of(entry), key], axis=-2)
                ),
                self._position_seed(training),
            )
        if attention_bias is not None:
            terms = terms._replace(bias=joined_bias(attention_bias, terms.bias))
        return stepped_attention(
            query,
            key,
            value,
            entry,
            visible,
            scale=scale,
            soft_cap=self.soft_cap,
            terms=terms,
            weights=self._weights(training)(ops.expand_dims(visible.mask, 1), 0)
            if current_probe.get() is not None or training
            else None,
        )

    def _key_positions(self, query: Tensor, visible: Visible) -> Tensor:
        """The positions of cached and new keys, (S + N,), or (B, S + N) without left padding."""
        keys, padding = visible.positions.key, getattr(query, "padding", None)
        if self.position is None or not self.position.absolute or padding is None:
            return keys
        shifted = ops.expand_dims(as_tensor(keys), 0) - ops.expand_dims(padding, 1)
        return ops.maximum(shifted, 0)

    def _over_cache(
        self,
        step: Extended,
        attention_mask: Tensor | None,
        attention_bias: Tensor | None,
        shape: Shape,
    ) -> tuple[Visible, Tensor | None]:
        """`Visible` restricted by the mask, and the bias, both for the columns of the scores."""
        assert step.entry is not None and step.visible is not None
        capacity = heads_and_columns(step.entry)[1]
        x = keras.KerasTensor((shape[0], shape[2], 1))
        attention_mask, attention_bias = self._check_pairs(
            attention_mask, attention_bias, x, capacity
        )
        if attention_bias is not None:
            attention_bias = ops.take(attention_bias, step.visible.positions.key, axis=-1)
        return step.visible.also(attention_mask), attention_bias

    def _rotated_heads(
        self, x: Tensor, query: Tensor | None, key: Tensor | None, positions: Positions | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values by head: (..., H, T, K), (..., G, T, K), (..., G, T, V)."""
        where = None if positions is None else positions.query
        position = self.position if self._rotates and where is not None else None
        has_norm = self.query_norm is not None or self.key_norm is not None
        fused = self._is_fused and query is None and key is None and not has_norm
        if position is not None and fused and self._is_sliced(x):
            # Queries and keys lie side by side: one rotation takes half the operators of two.
            x, count = self.query_key_value(x), self.num_heads + self._groups
            both = position.rotate(split_heads(x[..., : self._cuts[1]], count), where)
            value = split_heads(x[..., self._cuts[1] :], self._groups)
            return both[..., : self.num_heads, :, :], both[..., self.num_heads :, :, :], value
        q, k, v = self._heads(x, query, key)
        if self.query_norm is not None:
            q = normalize_heads(self.query_norm, q)
        if self.key_norm is not None:
            k = normalize_heads(self.key_norm, k)
        if position is not None:
            q, k = position.rotate(q, where), position.rotate(k, where)
        return q, k, v

    def _heads(
        self, x: Tensor, query: Tensor | None, key: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(..., T, D) -> (..., H, T, K), (..., G, T, K) and (..., G, T, V)."""
        heads = self.num_heads, self._groups, self._groups
        if self._is_fused and query is None and key is None:
            parts = self._parts(self.query_key_value(x))
            if not isinstance(parts, tuple):  # already split into heads
                return tuple(ops.unstack(parts, 3))
        else:
            of_value = (self._cuts[1], None)
            parts = (
                self._project_query(x if query is None else query),
                self._project_key(x if key is None else key),
                self.query_key_value.columns(x, *of_value) if self._is_fused else self.value(x),
            )
        return tuple(split_heads(part, number) for part, number in zip(parts, heads, strict=True))

    def _parts(self, x: Tensor) -> tuple[Tensor, ...] | Tensor:
        """Queries, keys and values: (..., T, H K) each, or together (3, ..., H, T, K)."""
        first, second = self._cuts
        if self._is_sliced(x):
            return x[..., :first], x[..., first:second], x[..., second:]
        # One transposition for all three; XLA would first copy all columns of a divided kernel's
        # product to every device.
        if (second, x.shape[-1]) == (2 * first, 3 * first) and not self._is_divided:
            x = split_last(x, 3, self.num_heads, first // self.num_heads)
            rank = len(x.shape)
            return ops.transpose(x, (rank - 3, *range(rank - 4), rank - 2, rank - 4, rank - 1))
        return tuple(ops.split(x, [first, second], axis=-1))

    @staticmethod
    def _is_sliced(x: Tensor) -> bool:
        """Whether the fused projection is cut by slices.

        XNNPACK supports them but no split. For one token they need no transpose.
        """
        return x.shape[-2] == 1 or current_target.get().is_edge

    @property
    def _is_divided(self) -> bool:
        """Whether `keras.distribution` has divided the fused kernel between devices."""
        if keras.backend.backend() != "jax":
            return False
        kernels = (x for x in self.query_key_value.variables if x.name == "kernel")
        return any(layout is not None and any(layout.axes) for layout in map(layout_of, kernels))

    def _project_query(self, x: Tensor) -> Tensor:
        """(..., N, D) -> (..., N, H K)."""
        return (
            self.query_key_value.columns(x, 0, self._cuts[0]) if self._is_fused else self.query(x)
        )

    def _project_key(self, x: Tensor) -> Tensor:
        """(..., N, D) -> (..., N, G K)."""
        return self.query_key_value.columns(x, *self._cuts) if self._is_fused else self.key(x)

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {**super().get_config(), "causal": self.causal, "window": self.window}
