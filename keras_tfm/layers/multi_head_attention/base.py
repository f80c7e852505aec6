"""The base of self- and cross-attention: arguments, projections, masks and the full pass."""

import functools
from collections.abc import Callable, Collection
from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer, check_number, check_positive
from keras_tfm.layers.arguments import (
    as_initializer,
    as_norm,
    biased_parts,
    serialize_part,
    single_axis,
)
from keras_tfm.layers.base_layer import Projection, RematerializedLayer
from keras_tfm.layers.decoding.scope import positions_of
from keras_tfm.layers.dropout import DrawnDropout, Dropout
from keras_tfm.layers.multi_head_attention import masks
from keras_tfm.layers.multi_head_attention.attention import (
    attention,
    is_fused,
    joined_bias,
    stores_no_scores,
)
from keras_tfm.layers.multi_head_attention.attention_probe import AttentionProbe, current_probe
from keras_tfm.layers.multi_head_attention.blockwise import (
    WHOLE,
    Block,
    attend_in_blocks,
    attend_to_rows,
    blocks,
    row_blocks,
)
from keras_tfm.layers.multi_head_attention.heads import (
    merge_heads,
    merge_last,
    scale_query,
    split_heads,
    split_last,
)
from keras_tfm.layers.positions.attention_position import (
    AttentionInputs,
    AttentionPosition,
    Positions,
    PositionTerms,
    Span,
    as_position,
    build_position,
    refuse_separation,
    serialize_position,
)
from keras_tfm.layers.types import Config, Initializer, Shape, Size, Tensor, Window

PROJECTIONS = ("query", "key", "value", "output", "gate")
# The `gate` of one number for each head.
GATED_HEAD = "head"


class MultiHeadAttention(RematerializedLayer):
    """The arguments shared by `MultiHeadSelfAttention` and `MultiHeadCrossAttention`.

    A base class: use one of these two layers.

    Args:
        num_heads: int, number of attention heads (H). Must divide the width D, unless `head_dim` is
            given.
        head_dim: int, width of a head's queries and keys (K). Default: D / H.
        value_dim: int, width of a head's values (V). Default: `head_dim`.
        num_key_value_heads: int, number of key and value heads (G). Must divide H; query heads
            share key heads (grouped-query attention, arXiv:2305.13245). Default: H.
        dropout: float, dropout rate of the attention weights.
        use_bias: bool, whether the projections add a bias, or a list of the projections that do:
            any of "query", "key", "value", "output" and "gate".
        query_norm: layer that normalises the queries (..., T, H, K), before rotary positions are
            applied (arXiv:2010.04245): each head with `axis=-1`, as in Qwen 3 and Gemma 3, or all
            heads together with `axis=(-2, -1)`, as in OLMo 2. Default: no normalisation.
        key_norm: the same for the keys (..., S, G, K).
        value_norm: the same for the values (..., S, G, V), as in Gemma 4.
        rotate_first: bool, whether rotary positions are applied before `query_norm` and `key_norm`,
            as in HunYuan.
        soft_cap: float, c in c tanh(score / c) (Gemma 2, arXiv:2408.00118). Default: no cap.
        scale: float, factor of the scores. Default: 1/sqrt(K).
        gate: bool, whether the heads' results are multiplied by sigmoid(x W_g + b_g) before the
            output projection (AlphaFold 2, supplement 1.6.1). "head": one gate for all V numbers of
            a head, so W_g is (D, H) (LFM3). "query", of self-attention: W_g is in the projection of
            queries, which has the queries and the gate of each head side by side (Qwen3-Next and
            Qwen3.5).
        position: `RotaryEmbedding`, `RelativePositionBias`, `RelativePositionEmbedding`,
            `DisentangledPositionEmbedding`, `ALiBi` or another `AttentionPosition`. None: attention
            adds no positions.
        kernel_initializer: initializer of the projections' kernels.
        bias_initializer: initializer of the projections' biases.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range; when the layer is built, widths that do not match.
    """

    _GATES: tuple[bool | str, ...] = (False, True, GATED_HEAD)

    def __init__(
        self,
        num_heads: int,
        head_dim: int | None = None,
        value_dim: int | None = None,
        num_key_value_heads: int | None = None,
        dropout: float = 0.0,
        use_bias: bool | Collection[str] = True,
        query_norm: keras.Layer | Config | None = None,
        key_norm: keras.Layer | Config | None = None,
        value_norm: keras.Layer | Config | None = None,
        rotate_first: bool = False,
        soft_cap: float | None = None,
        scale: float | None = None,
        gate: bool | str = False,
        position: AttentionPosition | None = None,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        # Set by self-attention. Not class attributes: PyTorch would find those before a sublayer.
        self.causal = False
        self.window: Window | None = None
        check_integer("num_heads", num_heads)
        check_integer("num_key_value_heads", num_key_value_heads, optional=True)
        if num_key_value_heads is not None and num_heads % num_key_value_heads:
            raise ValueError(
                f"num_key_value_heads ({num_key_value_heads}) must divide num_heads ({num_heads})"
            )
        for name, dim in (("head_dim", head_dim), ("value_dim", value_dim)):
            check_integer(name, dim, optional=True)
        check_positive("soft_cap", soft_cap, optional=True)
        check_number("scale", scale, optional=True)
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.value_dim = value_dim
        self.num_key_value_heads = num_key_value_heads
        self._groups = num_key_value_heads or num_heads
        self.dropout = dropout
        self.use_bias = use_bias
        self._biased = biased_parts(use_bias, PROJECTIONS)
        self.query_norm = as_norm("query_norm", query_norm)
        self.key_norm = as_norm("key_norm", key_norm)
        self.value_norm = as_norm("value_norm", value_norm)
        if query_norm is not None and self.query_norm is self.key_norm:
            raise ValueError(f"{self.name}: query_norm and key_norm must be two layers, got one")
        self.rotate_first = rotate_first
        self.soft_cap = soft_cap
        self.scale = scale
        if gate not in self._GATES:
            expected = " or ".join(map(repr, self._GATES))
            raise ValueError(f"{self.name}: gate must be {expected}, got {gate!r}")
        self.gate = gate
        self.position = as_position(position)
        # Whether the part rotates queries and keys; whether it adds scores, a bias or values.
        base = AttentionPosition
        part = base if self.position is None else type(self.position)
        self._rotates = part.rotate is not base.rotate
        self._adds_terms = part.terms is not base.terms
        # Whether positions count from a row's first token, not from the padding before it. With
        # `rotate_first`, scores depend on more than distances: the gains of the norms do not turn
        # with the pairs.
        self._is_absolute = self.position is not None and (self.position.absolute or rotate_first)
        self._scales_query = self.position is not None and self.position.scales_query
        self.kernel_initializer = as_initializer("kernel_initializer", kernel_initializer)
        self.bias_initializer = as_initializer("bias_initializer", bias_initializer)
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy)

    def _build_heads(self, x_shape: Shape) -> tuple[int, int, int]:
        """Builds all but the input projections.

        Returns:
            The total widths of queries, keys and values: H K, G K and G V.
        """
        dim = x_shape[-1]
        if self.head_dim is None and dim % self.num_heads:
            raise ValueError(
                f"num_heads ({self.num_heads}) must divide dim ({dim}), unless head_dim is given"
            )
        head_dim = self.head_dim or dim // self.num_heads
        value_dim = self.value_dim or head_dim
        for norm, heads, width in (
            (self.query_norm, self.num_heads, head_dim),
            (self.key_norm, self._groups, head_dim),
            (self.value_norm, self._groups, value_dim),
        ):
            if norm is not None and not norm.built:
                norm.build((None, None, heads, width))
        if self.position is not None:
            build_position(self.position, self, self.num_heads, head_dim, value_dim)
        if self.gate in (True, GATED_HEAD):
            width = value_dim if self.gate is True else 1
            self.gate_projection = self._projection("gate", self.num_heads * width, x_shape)
        self.output_projection = self._projection(
            "output", dim, (*x_shape[:-1], self.num_heads * value_dim), "output_projection"
        )
        self._scale = head_dim**-0.5 if self.scale is None else self.scale
        return self.num_heads * head_dim, self._groups * head_dim, self._groups * value_dim

    def _projection(
        self, kind: str, units: int, input_shape: Shape, name: str | None = None
    ) -> Projection:
        """Makes and builds the projection `kind`, one of `PROJECTIONS`."""
        layer = self._dense(name or kind, units, use_bias=kind in self._biased)
        layer.build(input_shape)
        return layer

    def _normalize_and_rotate(
        self, x: Tensor, norm: keras.layers.Layer | None, positions: Span | Tensor | None
    ) -> Tensor:
        """Queries or keys by head (..., T, K), normalised and rotated by their positions, if any.

        `positions` are None without a part that rotates.
        """
        if norm is not None and not self.rotate_first:
            x = normalize_heads(norm, x)
        if positions is not None and self.position is not None:
            x = self.position.rotate(x, positions)
        if norm is not None and self.rotate_first:
            x = normalize_heads(norm, x)
        return x

    def _scaled_query(self, query: Tensor, x: Tensor, positions: Tensor | None) -> Tensor:
        """The rotated queries of `x`, scaled by their positions, if the position part does so."""
        if self.position is None or not self._scales_query:
            return query
        return self.position.scale_query(query, positions_of(x, positions))

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_mask: Tensor | None,
        attention_mask: Tensor | None,
        attention_bias: Tensor | None,
        positions: Positions | None,
        training: bool | None,
        has_sight: bool = False,
    ) -> Tensor:
        """A full pass: (..., H, T, K), (..., G, S, K), (..., G, S, V) -> (..., H, T, V).

        `key_mask` is (..., S), `attention_mask` (..., T, S), both already checked. `attention_bias`
        is broadcastable to (..., H, T, S). `has_sight`: whether `attention_mask` has causality and
        window.
        """
        causal, window = (False, None) if has_sight else (self.causal, self.window)
        # Dropout draws one seed for all rows.
        if positions is None and current_probe.get() is None and not (self.dropout and training):
            rows = row_blocks(query, key)
            if len(rows) > 1:
                attend_rows = functools.partial(
                    self._attend, positions=None, training=training, has_sight=has_sight
                )
                given = query, key, value, key_mask, attention_mask, attention_bias
                return attend_to_rows(attend_rows, rows, *given)
        cuts = [WHOLE]
        if current_probe.get() is None and not self._stores_no_scores(
            query, key, value, (key_mask, attention_mask), attention_bias, training, window
        ):
            cuts = blocks(query.shape[-2], key.shape[-2], causal, window)
        weights = self._weights(training)
        seed = self._position_seed(training)
        key_pairs = None if key_mask is None else masks.from_keys(key_mask)
        pairs = None if attention_mask is None else masks.from_pairs(attention_mask)

        def attend(
            query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, block: Block
        ) -> Tensor:
            whole = block is WHOLE
            sight = None
            if not whole and (causal or window is not None):
                distances = masks.distances(_length(query), _length(key), block.offset)
                sight = masks.in_sight(distances, causal, window)
            rows, columns = block.rows, block.columns
            mask = masks.combine(
                sight,
                key_pairs if whole or key_pairs is None else key_pairs[..., columns],
                pairs if whole or pairs is None else pairs[..., rows, columns],
            )
            here = None if positions is None else positions.part(rows, columns)
            query, scale, terms = self._terms(query, here, lambda: key, seed)
            return attention(
                query,
                key,
                value,
                mask=mask,
                bias=joined_bias(bias, terms.bias),
                scale=scale,
                soft_cap=self.soft_cap,
                causal=whole and causal,
                window=window if whole else None,
                dropout=weights(mask, block.number),
                extra_scores=terms.scores,
                extra_values=terms.values,
            )

        return attend_in_blocks(attend, cuts, query, key, value, attention_bias)

    def _apply_gate(self, y: Tensor, gate: Tensor) -> Tensor:
        """The heads' results (..., H, T, V), gated and side by side: (..., T, H V).

        `gate` is (..., T, H) or (..., T, H V), before the sigmoid.
        """
        if self.gate == GATED_HEAD:
            return merge_heads(y * ops.sigmoid(split_heads(gate, self.num_heads)))
        return merge_heads(y) * ops.sigmoid(gate)

    def _stores_no_scores(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        given: tuple[Tensor | None, ...],
        attention_bias: Tensor | None,
        training: bool | None,
        window: Window | None,
    ) -> bool:
        """Whether a full pass at once needs no more memory than one in blocks."""
        if attention_bias is not None or self._adds_terms:
            return False
        dropout = DrawnDropout(self.dropout_layer, None) if self.dropout and training else None
        if not is_fused(query, key, value, self.soft_cap, dropout, None):
            return False
        return stores_no_scores(query, key, given, window, dropout is not None)

    def _position_seed(self, training: bool | None) -> Tensor | None:
        return self.position.draw() if self.position is not None and training else None

    def _terms(
        self,
        query: Tensor,
        positions: Positions | None,
        keys: Callable[[], Tensor],
        seed: Tensor | None,
    ) -> tuple[Tensor, float, PositionTerms]:
        """The query, the scale that is still to be applied, and the position part's terms."""
        if self.position is None or query.shape[-2] == 0:
            return query, self._scale, PositionTerms()
        assert positions is not None
        dtype = query.dtype
        query = scale_query(query, self._scale)
        inputs = AttentionInputs(
            query,
            positions,
            self.causal,
            keys,
            lambda x: split_heads(self._project_query(ops.cast(x, dtype)), self.num_heads),
            lambda x: split_heads(self._project_key(ops.cast(x, dtype)), self._groups),
            self._scale,
            seed,
        )
        return query, 1.0, self.position.terms(inputs)

    def _project_query(self, x: Tensor) -> Tensor:
        """(..., N, D) -> (..., N, H K)."""
        return self.query(x)

    def _project_key(self, x: Tensor) -> Tensor:
        """(..., N, D) -> (..., N, G K)."""
        return self.key(x)

    def _check_pairs(
        self,
        attention_mask: Tensor | None,
        attention_bias: Tensor | None,
        x: Tensor,
        key_length: Size,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Checks the mask (..., T, S) and the bias against an input (..., T, D); returns both."""
        leading, length = tuple(x.shape[:-2]), x.shape[-2]
        before = "B" if len(leading) == 1 else "..."
        if attention_mask is not None:
            attention_mask = masks.as_boolean(attention_mask, "attention_mask")
            attention_mask = masks.pairs(attention_mask, (*leading, length, key_length), before)
        if attention_bias is not None:
            attention_bias = ops.convert_to_tensor(attention_bias)
            if "float" not in keras.backend.standardize_dtype(attention_bias.dtype):
                raise TypeError(f"attention_bias must be a float, got {attention_bias.dtype}")
            wanted = (*leading, self.num_heads, length, key_length)
            broadcast = tuple(
                1 if size == 1 and axis < len(leading) + 1 else expected
                for axis, (size, expected) in enumerate(
                    zip((*attention_bias.shape, *(None,) * len(wanted)), wanted, strict=False)
                )
            )
            masks.check_shape(
                attention_bias, "attention_bias", broadcast, f"({before} | 1, H | 1, T, S)"
            )
        return attention_mask, attention_bias

    def _weights(
        self, training: bool | None
    ) -> Callable[[Tensor | None, int], Callable[[Tensor], Tensor] | None]:
        """Makes a function from a block's mask and number to a function of the block's weights.

        That function records the weights if a probe is open, and applies dropout.
        """
        probe = current_probe.get()
        # Drawn once, here: a recomputed block must drop the same weights again.
        seed = self.dropout_layer.draw() if self.dropout and training else None

        def weights(mask: Tensor | None, number: int) -> Callable[[Tensor], Tensor] | None:
            drop = None
            if seed is not None:
                # Far apart: PyTorch adds both words of a seed, and each call adds one.
                drop = DrawnDropout(self.dropout_layer, seed + number * 1_000_003)
            if probe is None:
                return drop
            return functools.partial(self._record, probe, mask, drop)

        return weights

    def _record(
        self, probe: AttentionProbe, mask: Tensor | None, drop: DrawnDropout | None, weights: Tensor
    ) -> Tensor:
        seen = 1.0 if mask is None else ops.any(mask, axis=-1, keepdims=True)
        probe.record(self.name, weights * ops.cast(seen, weights.dtype))
        return weights if drop is None else drop(weights)

    @classmethod
    def from_config(cls, config: Config) -> keras.Layer:
        """The layer of a configuration."""
        refuse_separation(config)
        return super().from_config(config)

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "head_dim": self.head_dim,
            "value_dim": self.value_dim,
            "num_key_value_heads": self.num_key_value_heads,
            "dropout": self.dropout,
            "use_bias": self.use_bias if isinstance(self.use_bias, bool) else sorted(self.use_bias),
            "query_norm": serialize_part(self.query_norm),
            "key_norm": serialize_part(self.key_norm),
            "value_norm": serialize_part(self.value_norm),
            "rotate_first": self.rotate_first,
            "soft_cap": self.soft_cap,
            "scale": self.scale,
            "gate": self.gate,
            "position": serialize_position(self.position),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
        }


def normalize_heads(norm: keras.Layer, x: Tensor) -> Tensor:
    """Normalises heads (..., H, T, K); the norm is made for (..., T, H, K)."""
    if single_axis(getattr(norm, "axis", None)) == -1:
        return norm(x)  # of each head: in any order of the other axes
    *_, heads, _, width = tuple(x.shape)
    return split_heads(merge_last(norm(split_last(merge_heads(x), heads, width))), heads)


def _length(x: Tensor) -> Size:
    """T of (..., T, K)."""
    return x.shape[-2] if isinstance(x.shape[-2], int) else ops.shape(x)[-2]
