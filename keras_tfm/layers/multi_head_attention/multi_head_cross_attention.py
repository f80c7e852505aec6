"""Multi-head attention from one sequence to another."""

from typing import Any

import keras
from keras import ops

from keras_tfm.layers.arguments import check_sequence
from keras_tfm.layers.decoding.cache import (
    Entry,
    as_cached,
    heads_and_columns,
    is_int8,
    key_of,
    value_of,
)
from keras_tfm.layers.decoding.scope import columns_of, current_scope, positions_of
from keras_tfm.layers.decoding.visibility import visible_context
from keras_tfm.layers.finite_padding import finite_padding
from keras_tfm.layers.multi_head_attention import masks
from keras_tfm.layers.multi_head_attention.attention import joined_bias
from keras_tfm.layers.multi_head_attention.attention_probe import current_probe
from keras_tfm.layers.multi_head_attention.base import MultiHeadAttention, normalize_heads
from keras_tfm.layers.multi_head_attention.heads import merge_heads, split_heads
from keras_tfm.layers.multi_head_attention.stepped_attention import stepped_attention
from keras_tfm.layers.positions.attention_position import Positions, Span, check_positions
from keras_tfm.layers.target import current_target
from keras_tfm.layers.types import Config, Shape, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class MultiHeadCrossAttention(MultiHeadAttention):
    """Multi-head cross-attention: queries from `x`, keys and values from `context`.

    y = concat(head_1, ..., head_H) W_o, head_h = softmax(q_h k_h^T / sqrt(K)) v_h, where
    q = x W_q, k = context W_k, v = context W_v. "Attention Is All You Need" (arXiv:1706.03762),
    section 3.2.3.

    Args:
        num_heads: int, number of attention heads (H).
        fused_key_value: bool, whether keys and values have one projection `key_value`, the columns
            of the keys first, as in checkpoints of GPT-2. Default: each has its own.
        **kwargs: the other arguments are those of `MultiHeadAttention`.

    Call arguments:
        x: float tensor (..., T, D).
        context: float tensor (..., S, C), an encoder's output or any other sequence, with the same
            leading axes.
        context_mask: (..., S), boolean, True = token, False = padding. Default: the mask that
            `context` carries.
        attention_mask: (..., T, S), boolean, True = the query sees the key. Combined with
            `context_mask`.
        attention_bias: float tensor, broadcastable to (..., H, T, S), added to the scaled scores.
        key: (..., S, C), input of the key projection. Default: `context`. Use it to add positions
            to keys but not to values, as in DETR (arXiv:2005.12872).
        positions: int32, (T,), (..., T) or (..., T, C), positions of `x` for the position part.
            Default: 0 to T - 1, or the scope's positions inside a `DecodingScope`.
        context_positions: likewise, positions of `context`. Default: 0 to S - 1.

    Returns:
        Float tensor (..., T, D). A query that sees no key gets only the output bias.

    Inside a `DecodingScope` the context is projected in the first step only. Later steps read keys,
    values and mask from the scope's cache and ignore `context`.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import MultiHeadCrossAttention
    >>> layer = MultiHeadCrossAttention(num_heads=3)
    >>> x, context = np.ones((2, 5, 12), "float32"), np.ones((2, 7, 10), "float32")
    >>> tuple(layer(x, context).shape)
    (2, 5, 12)
    """

    def __init__(self, *args: Any, fused_key_value: bool = False, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.fused_key_value = fused_key_value

    def build(self, x_shape: Shape, context_shape: Shape) -> None:
        """Creates the projections for queries of width D and a context of width C."""
        check_sequence(self, "x", x_shape)
        check_sequence(self, "context", context_shape)
        query_width, key_width, value_width = self._build_heads(x_shape)
        self.query = self._projection("query", query_width, x_shape)
        self._key_width = key_width
        if self.fused_key_value:
            biased = self._biased & {"key", "value"}
            if len(biased) == 1:
                raise ValueError(
                    f"{self.name}: use_bias must have both of key and value or neither with "
                    f"fused_key_value=True, got {self.use_bias}"
                )
            self.key_value = self._dense(
                "key_value", key_width + value_width, use_bias=bool(biased)
            )
            self.key_value.build(context_shape)
        else:
            # Splitting a fused projection copies the keys and values of a whole context.
            self.key = self._projection("key", key_width, context_shape)
            self.value = self._projection("value", value_width, context_shape)
        self.built = True

    def call(
        self,
        x: Tensor,
        context: Tensor,
        context_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        attention_bias: Tensor | None = None,
        key: Tensor | None = None,
        positions: Tensor | None = None,
        context_positions: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        """(..., T, D), (..., S, C) -> (..., T, D)."""
        mask = masks.key_mask("context_mask", context_mask, context)
        position = self.position
        where: Any = None
        if position is not None:
            here = (positions_of if self._is_absolute else columns_of)(x, positions)
            where = Positions(here, _of_context(context, context_positions))
        q = split_heads(self.query(x), self.num_heads)
        q = self._normalize_and_rotate(q, self.query_norm, None if where is None else where.query)
        q = self._scaled_query(q, x, positions)

        def project() -> tuple[Tensor, Tensor]:
            values = finite_padding(context, mask)
            keys = values if key is None else finite_padding(key, mask)
            projected = self._project_context(keys, values)
            k, v = (split_heads(y, self._groups) for y in projected)
            k = self._normalize_and_rotate(k, self.key_norm, None if where is None else where.key)
            if self.value_norm is not None:
                v = normalize_heads(self.value_norm, v)
            return as_cached(k), as_cached(v)

        scope = current_scope.get()
        entry = None
        if scope is not None:
            entry, mask = scope.recall(self.name, mask, project)
        if entry is not None and is_int8(entry):
            columns = heads_and_columns(entry)[1]
            pairs = self._check_pairs(attention_mask, attention_bias, x, columns)
            where = where or Positions(columns_of(x, positions), Span(0, columns))
            y = self._step(q, entry, mask, *pairs, where, training)
        else:
            k, v = project() if entry is None else (key_of(entry), value_of(entry))
            pairs = self._check_pairs(attention_mask, attention_bias, x, k.shape[-2])
            y = self._attend(q, k, v, mask, *pairs, where, training)
        y = self._apply_gate(y, self.gate_projection(x)) if self.gate else merge_heads(y)
        return self.output_projection(y)

    def _project_context(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs of the projections (..., S, C) -> keys (..., S, G K), values (..., S, G V)."""
        if not self.fused_key_value:
            return self.key(keys), self.value(values)
        if keys is values:  # slices: XNNPACK supports them but no split
            both = self.key_value(values)
            return both[..., : self._key_width], both[..., self._key_width :]
        return self._project_key(keys), self.key_value.columns(values, self._key_width, None)

    def _project_key(self, x: Tensor) -> Tensor:
        """(..., N, C) -> (..., N, G K)."""
        return (
            self.key_value.columns(x, 0, self._key_width) if self.fused_key_value else self.key(x)
        )

    def _step(
        self,
        query: Tensor,
        entry: Entry,
        mask: Tensor | None,
        attention_mask: Tensor | None,
        attention_bias: Tensor | None,
        positions: Positions,
        training: bool | None,
    ) -> Tensor:
        """Attention to a cache entry in int8: (B, H, T, K) -> (B, H, T, V)."""
        seen = masks.combine(None if mask is None else ops.expand_dims(mask, 1), attention_mask)
        visible = visible_context(seen, positions, current_target.get().masked_score)
        scaled, scale, terms = self._terms(
            query, positions, lambda: key_of(entry), self._position_seed(training)
        )
        if attention_bias is not None:
            terms = terms._replace(bias=joined_bias(attention_bias, terms.bias))
        probed = current_probe.get() is not None or training
        pairs = None if seen is None else ops.expand_dims(seen, 1)
        y = stepped_attention(
            scaled,
            None,
            None,
            entry,
            visible,
            scale=scale,
            soft_cap=self.soft_cap,
            terms=terms,
            weights=self._weights(training)(pairs, 0) if probed else None,
        )
        return ops.cast(y, query.dtype)

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {**super().get_config(), "fused_key_value": self.fused_key_value}


def _of_context(context: Tensor, positions: Tensor | None) -> Span | Tensor:
    length = context.shape[-2]
    if positions is not None:
        leading = tuple(context.shape[:-2])
        return check_positions("context_positions", positions, length, leading, coordinates=True)
    return Span(0, length if isinstance(length, int) else ops.shape(context)[-2])
