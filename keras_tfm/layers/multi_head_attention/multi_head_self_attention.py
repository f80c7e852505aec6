"""Multi-head self-attention."""

from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.keras_internals import layout_of
from keras_tfm.layers.arguments import check_sequence
from keras_tfm.layers.decoding.cache import (
    Entry,
    as_cached,
    heads_and_columns,
    key_of,
    make_entry,
    value_of,
)
from keras_tfm.layers.decoding.scope import columns_of, current_scope, positions_of
from keras_tfm.layers.decoding.source_scope import SourceScope, refuse_mask
from keras_tfm.layers.decoding.visibility import Extended, Visible
from keras_tfm.layers.embeddings.lookup import as_integers
from keras_tfm.layers.finite_padding import finite_padding
from keras_tfm.layers.multi_head_attention import masks
from keras_tfm.layers.multi_head_attention.attention import attention, joined_bias
from keras_tfm.layers.multi_head_attention.attention_probe import current_probe
from keras_tfm.layers.multi_head_attention.base import MultiHeadAttention, normalize_heads
from keras_tfm.layers.multi_head_attention.heads import merge_heads, split_heads, split_last
from keras_tfm.layers.multi_head_attention.stepped_attention import stepped_attention
from keras_tfm.layers.positions.attention_position import (
    AttentionPosition,
    Positions,
    PositionTerms,
    as_tensor,
)
from keras_tfm.layers.target import current_target
from keras_tfm.layers.types import Shape, Size, Tensor, Window

# The `gate` that is projected together with the queries.
GATED_QUERY = "query"


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
            arXiv:2004.05150); or a pair, without `causal`: less than the first before it, and less
            than the second after it. Default: no window.
        tied_values: bool, whether keys and values are one projection: values are the keys before
            `key_norm` and before they are rotated (Gemma 4).
        key_value: str, where keys and values are from. "own" (default): they are projected from
            `x`, or `key`. "returned": likewise, and the layer returns them, too, for layers with
            "given", which have no projections of keys and values, and no KV cache: sharing across
            layers, as in Gemma 4 (arXiv:2405.12981). Only with `causal`.
        merged: bool, whether queries also see the tokens of a memory, in the same softmax, with
            keys and values from the same projections, and without positions (merged attention of
            T5Gemma 2, arXiv:2512.14856).
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
        value: (..., T, C), input of the value projection. Default: `x`. Its width C may differ from
            D and is that of the first call, as in MobileBERT (arXiv:2004.02984), whose queries and
            keys are projected from a narrower bottleneck.
        positions: int32, (T,), (..., T), or (..., T, C) for C coordinates: positions of the tokens
            for the position part. Default: 0 to T - 1, or the scope's positions inside a
            `DecodingScope`.
        keys, values: (..., T, G K) and (..., T, G V), what a layer with the same window returned,
            with `key_value="given"`.
        memory: (..., S, D), the context of a layer with `merged=True`, such as an encoder's output.
            The masks and the bias of pairs are for `x` alone: every token sees the whole memory.
        memory_mask: (..., S), boolean, True = token, False = padding. Default: the mask that
            `memory` carries.
        groups: (B, T), int32, the number of each token's group; 0 = none. With `causal`, the tokens
            of a group see each other, also later ones, as those of a picture in Gemma 3 do
            (arXiv:2503.19786). A window hides earlier keys of a group, too. In a step, groups are
            those of its own tokens, so a group must be in one step.
        x_mask: boolean, the mask that `x` carries; filled in by Keras when a call has several
            tensors.

    Returns:
        Float tensor (..., T, D). A query that sees no key gets only the output bias. With
        `key_value="returned"` a tuple of it, the keys (..., T, G K) and the values (..., T, G V).

    Inside a `DecodingScope` a causal layer stores its keys and values in the scope's KV cache. A
    memory is projected in the first step only.
    Above two million scores per head, if the lengths are known when the graph is made, attention is
    computed in blocks that the backward pass recomputes: memory grows with T instead of T^2.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import MultiHeadSelfAttention
    >>> layer = MultiHeadSelfAttention(num_heads=3, causal=True)
    >>> tuple(layer(np.ones((2, 5, 12), "float32")).shape)
    (2, 5, 12)
    """

    _GATES = (*MultiHeadAttention._GATES, GATED_QUERY)

    def __init__(
        self,
        num_heads: int,
        causal: bool = False,
        position: AttentionPosition | None = None,
        window: Window | None = None,
        tied_values: bool = False,
        key_value: str = "own",
        merged: bool = False,
        **kwargs: Any,
    ):
        super().__init__(num_heads, position=position, **kwargs)
        self.causal = causal
        self.window = self._checked_window(window)
        self.tied_values = tied_values
        self.key_value = key_value
        self.merged = merged
        self._check_sharing()

    def _checked_window(self, window: Any) -> Window | None:
        if not isinstance(window, list | tuple):
            check_integer("window", window, optional=True)
            return window
        if self.causal:
            raise ValueError(
                f"{self.name}: window must be an integer with causal=True, got {window}"
            )
        if len(window) != 2:
            raise ValueError(f"{self.name}: window must be one or two integers, got {window}")
        for distance in window:
            check_integer("window", distance)
        return window[0], window[1]

    def _check_sharing(self) -> None:
        if self.key_value not in ("own", "returned", "given"):
            raise ValueError(
                f'{self.name}: key_value must be "own", "returned" or "given", got '
                f"{self.key_value!r}"
            )
        if self.key_value != "own" and (not self.causal or self._adds_terms):
            raise ValueError(
                f"{self.name}: key_value={self.key_value!r} needs causal=True and a position part "
                "that only rotates"
            )
        if self.key_value == "given" and (self.key_norm or self.value_norm or self.tied_values):
            raise ValueError(
                f"{self.name}: key_norm, value_norm and tied_values are those of the layer with "
                'key_value="returned"'
            )
        if self.gate == GATED_QUERY and (
            self._adds_terms or self.key_value == "given" or self.value_dim is not None
        ):
            raise ValueError(
                f'{self.name}: gate="query" needs projected keys, values as wide as queries, and a '
                "position part that only rotates"
            )
        if self.merged and (self.key_value != "own" or self._adds_terms):
            raise ValueError(
                f'{self.name}: merged=True needs key_value="own" and a position part that only '
                "rotates"
            )
        if self.tied_values and self.value_dim not in (None, self.head_dim):
            raise ValueError(
                f"{self.name}: value_dim must be head_dim ({self.head_dim}) with tied_values=True, "
                f"got {self.value_dim}"
            )

    def build(self, x_shape: Shape, value_shape: Shape | None = None) -> None:
        """Creates the projections for inputs of width D, and of width C for values."""
        check_sequence(self, "x", x_shape)
        value_shape = x_shape if value_shape is None else value_shape
        check_sequence(self, "value", value_shape)
        query_width, key_width, value_width = self._build_heads(x_shape)
        if self.gate == GATED_QUERY:
            query_width *= 2
        self._cuts = (query_width, query_width + key_width)
        widths = {"query": query_width, "key": key_width, "value": value_width}
        if self.tied_values:
            del widths["value"]
        if self.key_value == "given":
            del widths["key"], widths["value"]
        biased = self._biased & widths.keys()
        # A memory has no queries: a part of a fused kernel would be stored twice in files.
        self._is_fused = len(widths) > 1 and len(biased) in (0, len(widths)) and not self.merged
        self._is_fused = self._is_fused and value_shape[-1] == x_shape[-1]
        if self._is_fused:
            self.query_key_value = self._dense(
                "query_key_value", sum(widths.values()), use_bias=bool(biased)
            )
            self.query_key_value.build(x_shape)
        else:
            for name, width in widths.items():
                shape = value_shape if name == "value" else x_shape
                setattr(self, name, self._projection(name, width, shape))
        self.built = True

    def call(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        attention_bias: Tensor | None = None,
        query: Tensor | None = None,
        key: Tensor | None = None,
        value: Tensor | None = None,
        positions: Tensor | None = None,
        keys: Tensor | None = None,
        values: Tensor | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        groups: Tensor | None = None,
        x_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        """(..., T, D) -> (..., T, D)."""
        is_given = self.key_value == "given"
        if is_given != (keys is not None and values is not None):
            raise ValueError(
                f"{self.name}: keys and values are "
                + ('required with key_value="given"' if is_given else 'for key_value="given"')
            )
        self._check_memory(x, memory)
        self._check_value(x, value)
        groups = self._checked_groups(x, groups)
        mask = x_mask if mask is None else mask
        scope = current_scope.get()
        if mask is not None:
            mask = masks.key_mask("mask", mask, x)
        if mask is not None or (self.causal and scope is not None and scope.padding is not None):
            x, query, key, value = (
                y if y is None else finite_padding(y, mask, self.causal)
                for y in (x, query, key, value)
            )
        where = None
        if self.position is not None:
            here = (positions_of if self._is_absolute else columns_of)(x, positions)
            where = Positions(here, here)
        step = gate = None
        if isinstance(scope, SourceScope):
            refuse_mask(self.name, mask)
            q, k, v, gate = self._rotated_heads(x, query, key, value, where)
            q = self._scaled_query(q, x, positions)
            return self.output_projection(self._attend_around(scope, x, (q, k, v, gate)))
        if is_given:
            q = self._scaled_query(self._rotated_query(x, query, where), x, positions)
            k, v = split_heads(keys, self._groups), split_heads(values, self._groups)
            if scope is not None:
                step = scope.extended_by(self.name, keys)
        else:
            q, k, v, gate = self._rotated_heads(x, query, key, value, where)
            if self._scales_query:
                q = self._scaled_query(q, x, positions)
            if self.causal:
                k, v = as_cached(k), as_cached(v)
            if self.causal and scope is not None:
                joined = self.position is not None and self.position.reads_keys
                step = scope.extend(self.name, k, v, mask, self.window, joined, groups)
        if self.key_value == "returned":
            keys, values = merge_heads(k), merge_heads(v)
            if scope is not None:
                scope.share(keys, step)
        if step is not None:
            mask = step.mask
        other = None if memory is None else self._cached_memory(memory, memory_mask)
        if step is not None and step.entry is not None:
            y = self._step(q, k, v, step, attention_mask, attention_bias, where, training, other)
        else:
            pairs = self._check_pairs(attention_mask, attention_bias, x, x.shape[-2])
            if groups is not None:
                sight = masks.combine(masks.in_groups(groups, self.window), pairs[0])
                y = self._attend(q, k, v, mask, sight, pairs[1], where, training, has_sight=True)
            elif other is None:
                y = self._attend(q, k, v, mask, *pairs, where, training)
            else:
                merged = self._merge(k, v, mask, *pairs, *other)
                y = self._attend(q, *merged, where, training, has_sight=True)
        if not self.gate:
            y = merge_heads(y)
        elif self.gate == GATED_QUERY:
            y = merge_heads(y * ops.sigmoid(gate))
        else:
            y = self._apply_gate(y, self.gate_projection(x))
        y = self.output_projection(y)
        return (y, keys, values) if self.key_value == "returned" else y

    def _attend_around(
        self,
        scope: SourceScope,
        x: Tensor,
        heads: tuple[Tensor, Tensor, Tensor, Tensor | None],
    ) -> Tensor:
        """Attention of a piece of the source, before the output projection, (B, N, H V)."""
        query, key, value, gate = heads
        if self.window is None or self.key_value != "own" or self.merged:
            raise ValueError(
                f"{self.name}: attention to a source that is read in pieces needs a window, got "
                + ("window=None" if self.window is None else "keys of another layer or a memory")
            )
        place = scope.place
        around = scope.look_around(self.name, query, key, value, self.causal, self.window)
        positions = Positions(around.query_span, around.key_span)
        query, scale, terms = self._terms(around.query, positions, lambda: around.key, None)
        y = attention(
            query,
            around.key,
            around.value,
            mask=ops.expand_dims(around.mask, (0, 1)),
            bias=terms.bias,
            scale=scale,
            soft_cap=self.soft_cap,
            extra_scores=terms.scores,
            extra_values=terms.values,
        )
        if not self.gate:
            return merge_heads(y)
        gate = self.gate_projection(x) if gate is None else merge_heads(gate)
        gate = scope.late(self.name, gate, scope.place.delay - place.delay)
        return self._apply_gate(y, gate)

    def _check_memory(self, x: Tensor, memory: Tensor | None) -> None:
        if self.merged != (memory is not None):
            raise ValueError(
                f"{self.name}: a memory is "
                + ("required with merged=True" if self.merged else "for merged=True")
            )
        if memory is not None:
            expected = (*x.shape[:-2], memory.shape[-2], x.shape[-1])
            masks.check_shape(memory, "memory", expected, "(..., S, D)")

    def _checked_groups(self, x: Tensor, groups: Tensor | None) -> Tensor | None:
        if groups is None:
            return None
        if not self.causal or self.merged or self.key_value != "own" or self._adds_terms:
            raise ValueError(
                f'{self.name}: groups need causal=True, merged=False, key_value="own" and a '
                "position part that only rotates"
            )
        if isinstance(current_scope.get(), SourceScope):
            raise ValueError(f"{self.name}: groups are not for a source that is read in pieces")
        groups = as_integers(groups, f"{self.name}: groups")
        masks.check_shape(groups, "groups", tuple(x.shape[:-1]), "(B, T)")
        return groups

    def _check_value(self, x: Tensor, value: Tensor | None) -> None:
        if value is None:
            return
        if self.tied_values or self.key_value == "given" or self.merged:
            raise ValueError(
                f"{self.name}: a value is not for tied_values=True, merged=True or "
                'key_value="given"'
            )
        masks.check_shape(value, "value", (*x.shape[:-1], value.shape[-1]), "(..., T, C)")

    def _cached_memory(self, memory: Tensor, mask: Tensor | None) -> tuple[Entry, Tensor | None]:
        """Keys and values of a memory, a cache entry, and its mask (..., S).

        Outside of a `DecodingScope` the entry is made in every call.
        """
        mask = masks.key_mask("memory_mask", mask, memory)

        def project() -> tuple[Tensor, Tensor]:
            x = finite_padding(memory, mask)
            key = split_heads(self._project_key(x), self._groups)
            value = split_heads(self._project_value(x), self._groups)
            if self.key_norm is not None:
                key = normalize_heads(self.key_norm, key)
            if self.value_norm is not None:
                value = normalize_heads(self.value_norm, value)
            return as_cached(key), as_cached(value)

        scope = current_scope.get()
        if scope is None or not self.causal:
            return make_entry(*project(), transposed=False), mask
        return scope.recall(self.memory_name, mask, project)

    @property
    def memory_name(self) -> str:
        """The name of the cache entries of a memory."""
        return f"{self.name}_memory"

    def _merge(
        self,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        attention_mask: Tensor | None,
        attention_bias: Tensor | None,
        entry: Entry,
        context_mask: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """Keys, values, and what hides them or is added to their scores, followed by a context's.

        Of T keys and S of the context: (..., G, T + S, K), (..., G, T + S, V), and if needed the
        masks (..., T + S) and (..., T, T + S), and the bias (..., H, T, T + S).
        """
        keys, values = key_of(entry), value_of(entry)
        length, more = (ops.shape(x)[-2] for x in (key, keys))
        if mask is not None or context_mask is not None:
            leading = ops.shape(key)[:-3]
            mask, context_mask = (
                ops.ones((*leading, count), "bool") if x is None else x
                for x, count in ((mask, length), (context_mask, more))
            )
            mask = ops.concatenate([mask, context_mask], axis=-1)
        sight = masks.visible(length, self.causal, self.window)
        attention_mask = masks.combine(sight, attention_mask)
        if attention_mask is not None:
            whole = ops.ones((*ops.shape(attention_mask)[:-1], more), "bool")
            attention_mask = ops.concatenate([attention_mask, whole], axis=-1)
        if attention_bias is not None:
            attention_bias = _with_zeros(attention_bias, more)
        key = ops.concatenate([key, ops.cast(keys, key.dtype)], axis=-2)
        value = ops.concatenate([value, ops.cast(values, value.dtype)], axis=-2)
        return key, value, mask, attention_mask, attention_bias

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
        other: tuple[Entry, Tensor | None] | None,
    ) -> Tensor:
        """Attention to the cache and to the step's own tokens: (B, H, T, V).

        The last axis of the mask (B, T, S) and of the bias (B | 1, H | 1, T, S) is the position.
        `other` is a context that the queries see, too, and its mask.
        """
        entry, visible = step.entry, step.visible
        assert entry is not None and visible is not None
        if attention_mask is not None or attention_bias is not None:
            visible, attention_bias = self._over_cache(
                step, attention_mask, attention_bias, query.shape
            )
        context = None
        if other is not None:
            context, context_mask = other
            count = heads_and_columns(context)[1]
            scope = current_scope.get()
            assert scope is not None
            visible = scope.see_context(visible, context_mask, count)
            if attention_bias is not None:
                attention_bias = _with_zeros(attention_bias, count)
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
            context=context,
        )

    def _key_positions(self, query: Tensor, visible: Visible) -> Tensor:
        """The positions of cached and new keys, (S + N,), or (B, S + N) without left padding."""
        keys, padding = visible.positions.key, getattr(query, "padding", None)
        if not self._is_absolute or padding is None:
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
        self,
        x: Tensor,
        query: Tensor | None,
        key: Tensor | None,
        value: Tensor | None,
        positions: Positions | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Queries, keys and values by head: (..., H, T, K), (..., G, T, K), (..., G, T, V).

        And the gate (..., H, T, K), if it is projected with the queries.
        """
        where = None if positions is None else positions.query
        position = self.position if self._rotates and where is not None else None
        norms = (self.query_norm, self.key_norm, self.value_norm)
        has_norm = any(norm is not None for norm in norms)
        fused = self._is_fused and query is None and key is None and value is None
        fused = fused and not has_norm and not self.tied_values and self.gate != GATED_QUERY
        if position is not None and fused and self._is_sliced(x):
            # Queries and keys lie side by side: one rotation takes half the operators of two.
            x, count = self.query_key_value(x), self.num_heads + self._groups
            both = position.rotate(split_heads(x[..., : self._cuts[1]], count), where)
            v = split_heads(x[..., self._cuts[1] :], self._groups)
            q, k = both[..., : self.num_heads, :, :], both[..., self.num_heads :, :, :]
            return q, k, v, None
        q, k, v = self._heads(x, query, key, value)
        gate = None
        if self.gate == GATED_QUERY:
            width = q.shape[-1] // 2
            q, gate = q[..., :width], q[..., width:]
        if has_norm:
            here = None if position is None else where
            q = self._normalize_and_rotate(q, self.query_norm, here)
            k = self._normalize_and_rotate(k, self.key_norm, here)
        elif position is not None:
            q, k = position.rotate(q, where), position.rotate(k, where)
        if self.value_norm is not None:
            v = normalize_heads(self.value_norm, v)
        return q, k, v, gate

    def _rotated_query(
        self, x: Tensor, query: Tensor | None, positions: Positions | None
    ) -> Tensor:
        """Queries by head, (..., H, T, K), if keys are given."""
        q = split_heads(self.query(x if query is None else query), self.num_heads)
        return self._normalize_and_rotate(
            q, self.query_norm, None if positions is None else positions.query
        )

    def _heads(
        self, x: Tensor, query: Tensor | None, key: Tensor | None, value: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(..., T, D) -> (..., H, T, K), (..., G, T, K) and (..., G, T, V)."""
        heads = self.num_heads, self._groups, self._groups
        if self._is_fused and query is None and key is None and value is None:
            parts = self._parts(self.query_key_value(x))
            if not isinstance(parts, tuple):  # already split into heads
                return tuple(ops.unstack(parts, 3))
        else:
            parts = (
                self._project_query(x if query is None else query),
                self._project_key(x if key is None else key),
                self._project_value(x if value is None else value),
            )
        return tuple(split_heads(part, number) for part, number in zip(parts, heads, strict=True))

    def _parts(self, x: Tensor) -> tuple[Tensor, ...] | Tensor:
        """Queries, keys and values: (..., T, H K) each, or together (3, ..., H, T, K)."""
        first, second = self._cuts
        if self.tied_values:
            query, key = x[..., :first], x[..., first:]
            return query, key, key
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

    def _project_value(self, x: Tensor) -> Tensor:
        """(..., N, D) -> (..., N, G V)."""
        if self.tied_values:
            return self._project_key(x)
        return (
            self.query_key_value.columns(x, self._cuts[1], None)
            if self._is_fused
            else self.value(x)
        )

    def compute_output_shape(self, x_shape: Shape, *_: object, **__: object) -> Any:
        """The shape of the first input, and of keys and values if they are returned."""
        if self.key_value != "returned":
            return x_shape
        key_dim = self.head_dim or x_shape[-1] // self.num_heads
        value_dim = self.value_dim or key_dim
        widths = (self._groups * key_dim, self._groups * value_dim)
        return (x_shape, *((*x_shape[:-1], width) for width in widths))


def _with_zeros(bias: Tensor, count: Size) -> Tensor:
    """A bias of scores (..., S) with `count` zeros more."""
    zeros = ops.zeros((*ops.shape(bias)[:-1], count), bias.dtype)
    return ops.concatenate([bias, zeros], axis=-1)
