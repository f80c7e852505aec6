"""What self-attention and cross-attention share: arguments, projections, masks, blocks."""

import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer, check_number, check_positive
from keras_tfm.layers import masks
from keras_tfm.layers.as_objects import as_initializer
from keras_tfm.layers.attention import attention, merge_heads
from keras_tfm.layers.attention_position import AttentionPosition
from keras_tfm.layers.attention_probe import AttentionProbe
from keras_tfm.layers.blockwise import WHOLE, Span, spans
from keras_tfm.layers.decoding_scope import Keys
from keras_tfm.layers.dropout import DrawnDropout, Dropout
from keras_tfm.layers.rematerialized import RematerializedLayer

Tensor = Any


class MultiHeadAttention(RematerializedLayer):
    """The base of `MultiHeadSelfAttention` and `MultiHeadCrossAttention`; not used by itself."""

    def __init__(
        self,
        num_heads: int,
        head_dim: int | None = None,
        value_dim: int | None = None,
        num_key_value_heads: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        query_key_norm: bool = False,
        soft_cap: float | None = None,
        scale: float | None = None,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        # What self-attention sets. Not on the class, where PyTorch would find it before a sublayer.
        self.causal = False
        self.window: int | None = None
        self.position: AttentionPosition | None = None
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
        self.dropout = dropout
        self.use_bias = use_bias
        self.query_key_norm = query_key_norm
        self.soft_cap = soft_cap
        self.scale = scale
        self.kernel_initializer = as_initializer("kernel_initializer", kernel_initializer)
        self.bias_initializer = as_initializer("bias_initializer", bias_initializer)
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy)
        self.supports_masking = True

    def _build_heads(self, x_shape: Any) -> tuple[int, int, int]:
        """Builds all but the input projections; the widths of all queries, keys and values."""
        dim = x_shape[-1]
        if self.head_dim is None and dim % self.num_heads:
            raise ValueError(
                f"num_heads ({self.num_heads}) must divide dim ({dim}), or head_dim be given"
            )
        head_dim = self.head_dim or dim // self.num_heads
        value_dim = self.value_dim or head_dim
        shared = self.num_key_value_heads or self.num_heads
        if self.query_key_norm:
            self.query_norm = keras.layers.RMSNormalization(
                epsilon=1e-6, dtype=self.dtype_policy, name="query_norm"
            )
            self.key_norm = keras.layers.RMSNormalization(
                epsilon=1e-6, dtype=self.dtype_policy, name="key_norm"
            )
            self.query_norm.build((None, self.num_heads, None, head_dim))
            self.key_norm.build((None, shared, None, head_dim))
        if self.position is not None:
            self.position.build_for(self.num_heads, head_dim, value_dim)
        self.output_projection = self._dense("output_projection", dim)
        self.output_projection.build((*x_shape[:-1], self.num_heads * value_dim))
        return self.num_heads * head_dim, shared * head_dim, shared * value_dim

    def _attend(
        self,
        query: Tensor,
        keys: Keys,
        attention_mask: Tensor | None,
        attention_bias: Tensor | None,
        training: bool | None,
    ) -> Tensor:
        """Masks, attention, output projection.

        Queries (B, H, T, K), keys, a mask (B, T, S), a bias (B | 1, H | 1, T, S) -> (B, T, D). In a
        step that reads a cache the mask and the bias are of the cache's positions.
        """
        stepped = keys.positions is not None
        first = keys.key[0] if stepped else keys.key
        shape = (ops.shape(query)[0], ops.shape(query)[2], ops.shape(first)[2])
        if attention_mask is not None:
            attention_mask = masks.as_boolean(attention_mask, "attention_mask")
            masks.check_shape(attention_mask, "attention_mask", shape, "(B, T, S)")
        if attention_bias is not None:
            attention_bias = ops.convert_to_tensor(attention_bias)
            if "float" not in keras.backend.standardize_dtype(attention_bias.dtype):
                raise TypeError(f"attention_bias must be a float, got {attention_bias.dtype}")
            batch, heads = (
                1 if size == 1 else expected
                for size, expected in zip(
                    (*attention_bias.shape, None, None), (shape[0], self.num_heads), strict=False
                )
            )
            masks.check_shape(
                attention_bias, "attention_bias", (batch, heads, *shape[1:]), "(B | 1, H | 1, T, S)"
            )
        if stepped:
            attention_mask, attention_bias = (
                None if x is None else ops.take(x, keys.positions, axis=-1)
                for x in (attention_mask, attention_bias)
            )
        cuts = [WHOLE]
        if AttentionProbe.current() is None and not stepped:
            cuts = spans(*shape[1:], self.causal, self.window)
        dropout = self._dropout(training)

        def attend(
            query: Tensor, key: Any, value: Any, *bias: Tensor, span: Span, number: int
        ) -> Tensor:
            visible = self._visible(query, key, span, keys, attention_mask, bias)
            return attention(
                query,
                key,
                value,
                dropout=dropout(visible["mask"], number),
                scale=self.scale,
                soft_cap=self.soft_cap,
                own=keys.own,
                **visible,
            )

        if len(cuts) == 1:
            biases = () if attention_bias is None else (attention_bias,)
            y = attend(query, keys.key, keys.value, *biases, span=cuts[0], number=0)
        else:
            blocks = []
            for number, span in enumerate(cuts):
                # Kept for the backward pass: the slices. Recomputed there: scores and weights.
                block = keras.remat(functools.partial(attend, span=span, number=number))
                rows, columns = span.rows, span.columns
                # What is to have a gradient has to be an argument of what is recomputed.
                biases = () if attention_bias is None else (attention_bias[:, :, rows, columns],)
                slices = query[:, :, rows], keys.key[:, :, columns], keys.value[:, :, columns]
                blocks.append(block(*slices, *biases))
            y = ops.concatenate(blocks, axis=2)
        return self.output_projection(merge_heads(y))

    def _visible(
        self,
        query: Tensor,
        key: Any,
        span: Span,
        keys: Keys,
        attention_mask: Tensor | None,
        biases: tuple[Tensor, ...],
    ) -> dict[str, Any]:
        """The mask, the bias and the extra values of the queries and keys of one span."""
        rows, columns = span.rows, span.columns
        if span is not WHOLE:  # a slice of everything would be in the graph
            attention_mask = None if attention_mask is None else attention_mask[:, rows, columns]
            keys = keys._replace(mask=None if keys.mask is None else keys.mask[:, columns])
        distances = keys.distances
        positional = self.causal or self.window is not None or self.position is not None
        if distances is None and positional:
            offset = (rows.start or 0) - (columns.start or 0)
            distances = masks.distances(ops.shape(query)[2], ops.shape(key)[2], offset)
        extra_scores = extra_values = None
        if self.position is not None:
            relative = self.position.bias(query, distances, self.causal)
            biases = biases if relative is None else (*biases, relative)
            extra_scores = functools.partial(self.position.scores, distances=distances)
            if type(self.position).values is not AttentionPosition.values:
                extra_values = functools.partial(self.position.values, distances=distances)
        bias = None
        for part in biases:
            part = ops.cast(part, "float32")
            bias = part if bias is None else bias + part
        # Where the keys to see are told one by one, those after a query are not among them.
        causal = self.causal and keys.pairs is None
        mask = masks.combine(
            None if distances is None else masks.from_distances(distances, causal, self.window),
            None if keys.mask is None else masks.from_keys(keys.mask),
            None if keys.pairs is None else masks.from_pairs(keys.pairs),
            None if attention_mask is None else masks.from_pairs(attention_mask),
        )
        return {
            "mask": mask, "bias": bias, "extra_scores": extra_scores, "extra_values": extra_values
        }  # fmt: skip

    def _dropout(self, training: bool | None) -> Callable[[Tensor | None, int], Any]:
        """From a mask and the number of a block, what is done to the weights of that block.

        They are recorded by a probe, then dropped out.
        """
        probe = AttentionProbe.current()
        # Drawn once, here: a block that is recomputed must drop the same weights again.
        seed = self.dropout_layer.draw() if self.dropout and training else None

        def dropout(mask: Tensor | None, number: int) -> Callable[[Tensor], Tensor] | None:
            drop = None
            if seed is not None:
                # Far apart: PyTorch adds both words of a seed, and calls count up by one.
                drop = DrawnDropout(self.dropout_layer, seed + number * 1_000_003)
            if probe is None:
                return drop

            def recorded(weights: Tensor) -> Tensor:
                seen = 1.0 if mask is None else ops.any(mask, axis=-1, keepdims=True)
                probe.record(self.name, weights * ops.cast(seen, weights.dtype))
                return weights if drop is None else drop(weights)

            return recorded

        return dropout

    def compute_output_shape(self, x_shape: Any, *_: Any, **__: Any) -> Any:
        """The first input's."""
        return x_shape

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "head_dim": self.head_dim,
            "value_dim": self.value_dim,
            "num_key_value_heads": self.num_key_value_heads,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "query_key_norm": self.query_key_norm,
            "soft_cap": self.soft_cap,
            "scale": self.scale,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
        }


def check_sequence(layer: keras.layers.Layer, name: str, shape: Any) -> None:
    """Raises unless `shape` is (B, T, D) with a known width."""
    if len(shape) != 3 or shape[-1] is None:
        raise ValueError(
            f"{layer.name}: {name} must have shape (B, T, D) with D known, got {tuple(shape)}"
        )


def key_mask(name: str, mask: Tensor | None, keys: Tensor) -> Tensor | None:
    """The padding mask of `keys` (B, S, D), checked: (B, S), boolean, or None."""
    if mask is None:
        return None
    mask = masks.as_boolean(mask, name)
    masks.check_shape(mask, name, tuple(ops.shape(keys)[:2]), "(B, S)")
    return mask
