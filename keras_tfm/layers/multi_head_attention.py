"""What self-attention and cross-attention share: arguments, projections, mask handling."""

from typing import Any

import keras
from keras import ops

from keras_tfm.layers import masks
from keras_tfm.layers.attention import attention, merge_heads

Tensor = Any


class MultiHeadAttention(keras.layers.Layer):
    """The base of `MultiHeadSelfAttention` and `MultiHeadCrossAttention`; not used by itself."""

    def __init__(
        self,
        num_heads: int,
        head_dim: int | None = None,
        value_dim: int | None = None,
        num_key_value_heads: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if num_heads < 1:
            raise ValueError(f"num_heads must be at least 1, got {num_heads}")
        if num_key_value_heads is not None and (
            num_key_value_heads < 1 or num_heads % num_key_value_heads
        ):
            raise ValueError(
                f"num_key_value_heads ({num_key_value_heads}) must divide num_heads ({num_heads})"
            )
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.value_dim = value_dim
        self.num_key_value_heads = num_key_value_heads
        self.dropout = dropout
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.dropout_layer = keras.layers.Dropout(dropout, dtype=self.dtype_policy)
        self.supports_masking = True

    def _widths(self, dim: int) -> tuple[int, int, int]:
        """The widths of all queries, all keys and all values for a model of width D."""
        if self.head_dim is None and dim % self.num_heads:
            raise ValueError(
                f"num_heads ({self.num_heads}) must divide dim ({dim}), or head_dim be given"
            )
        head_dim = self.head_dim or dim // self.num_heads
        shared = self.num_key_value_heads or self.num_heads
        return self.num_heads * head_dim, shared * head_dim, shared * (self.value_dim or head_dim)

    def _build_output(self, x_shape: Any, value_width: int) -> None:
        heads_a_value = self.num_heads // (self.num_key_value_heads or self.num_heads)
        self.output_projection = self._projection("output_projection", x_shape[-1])
        self.output_projection.build((*x_shape[:-1], heads_a_value * value_width))

    def _projection(self, name: str, units: int) -> keras.layers.Dense:
        # An initializer object draws the same numbers each time it is called: one a projection.
        return keras.layers.Dense(
            units,
            use_bias=self.use_bias,
            kernel_initializer=self.kernel_initializer.clone(),
            bias_initializer=self.bias_initializer.clone(),
            dtype=self.dtype_policy,
            name=name,
        )

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, training: bool | None
    ) -> Tensor:
        """(B, H, T, K), (B, G, S, K), (B, G, S, V), mask (B, 1, T, S) -> (B, T, D)."""
        dropout = (lambda w: self.dropout_layer(w, training=training)) if self.dropout else None
        return self.output_projection(
            merge_heads(attention(query, key, value, mask=mask, dropout=dropout))
        )

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


def attention_mask_of(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """An explicit mask of pairs (B, T, S), checked: (B, 1, T, S), boolean, or None."""
    if mask is None:
        return None
    mask = masks.as_boolean(mask, "attention_mask")
    expected = (ops.shape(query)[0], ops.shape(query)[2], ops.shape(key)[2])
    masks.check_shape(mask, "attention_mask", expected, "(B, T, S)")
    return masks.from_pairs(mask)
