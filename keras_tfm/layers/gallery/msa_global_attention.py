"""Global attention within the columns of an alignment, for alignments of many sequences."""

from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.finite_padding import finite_padding
from keras_tfm.layers.gallery.pair_shapes import check_alignment, check_mask
from keras_tfm.layers.layer_normalization import LayerNormalization
from keras_tfm.layers.multi_head_attention.attention import attention
from keras_tfm.layers.multi_head_attention.heads import merge_heads, split_heads, swap
from keras_tfm.layers.multi_head_attention.masks import from_keys
from keras_tfm.layers.types import Shape, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class MSAGlobalAttention(RematerializedLayer):
    """Attention of one averaged query of each column to the column's sequences.

    With x normalised, head h of column i is o_i = sum_t softmax_t(mean_s(x_si) W_q x_ti W_k /
    sqrt(K)) x_ti W_v, and y_si = (sigmoid(x_si W_g + b_g) o_i) W_o + b_o. All heads share keys and
    values. Memory grows with the number of sequences and not with its square: AlphaFold 2 (Jumper
    et al. 2021, doi:10.1038/s41586-021-03819-2), supplement, algorithm 19, of the stack of extra
    sequences.

    Args:
        num_heads: int, number of attention heads (H).
        head_dim: int, width of a head (K). Default: D / H.
        epsilon: float, epsilon of the normalisation.

    Call arguments:
        x: float tensor (B, S, N, D), an alignment of S sequences and N residues.
        mask: (B, S, N), boolean, True = residue or gap, False = padding.

    Returns:
        Float tensor (B, S, N, D), without the residual connection.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or an input that is not (B, S, N, D).

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import MSAGlobalAttention
    >>> tuple(MSAGlobalAttention(num_heads=2)(np.ones((1, 3, 5, 8), "float32")).shape)
    (1, 3, 5, 8)
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int | None = None,
        epsilon: float = 1e-5,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_integer("num_heads", num_heads)
        check_integer("head_dim", head_dim, optional=True)
        self.num_heads, self.head_dim, self.epsilon = num_heads, head_dim, epsilon
        self.use_bias = False
        self.kernel_initializer = keras.initializers.GlorotUniform()
        self.bias_initializer = keras.initializers.Zeros()
        self.norm = LayerNormalization(epsilon=epsilon, dtype=self.dtype_policy, name="norm")

    def build(self, x_shape: Shape) -> None:
        """Creates the projections for inputs of width D."""
        check_alignment(self.name, x_shape)
        dim = x_shape[-1]
        if self.head_dim is None and dim % self.num_heads:
            raise ValueError(
                f"num_heads ({self.num_heads}) must divide dim ({dim}), unless head_dim is given"
            )
        head_dim = self.head_dim or dim // self.num_heads
        width = self.num_heads * head_dim
        self.query = self._dense("query", width)
        self.key_value = self._dense("key_value", 2 * head_dim)
        self.gate_projection = self._dense("gate", width, True, "zeros", "ones")
        self.output_projection = self._dense("output_projection", dim, True, "zeros")
        self.norm.build(x_shape)
        for layer in (self.query, self.key_value, self.gate_projection):
            layer.build(x_shape)
        self.output_projection.build((*x_shape[:-1], width))
        self.built = True

    def call(self, x: Tensor, mask: Tensor | None = None, training: bool | None = None) -> Tensor:
        """(B, S, N, D) -> (B, S, N, D)."""
        mask = check_mask(self.name, mask, x)
        x = self.norm(finite_padding(x, mask), training=training)
        query = split_heads(self.query(_mean_of_columns(x, mask)), self.num_heads)
        columns = ops.expand_dims(swap(self.key_value(x), 1, 2), 2)  # (B, N, 1, S, 2 K)
        key, value = ops.split(columns, 2, axis=-1)
        keys = None if mask is None else from_keys(swap(mask, 1, 2))
        y = merge_heads(attention(query, key, value, mask=keys))  # (B, N, 1, H K)
        gate = ops.sigmoid(self.gate_projection(x))
        return self.output_projection(gate * swap(y, 1, 2))


def _mean_of_columns(x: Tensor, mask: Tensor | None) -> Tensor:
    """The mean over the sequences that are no padding: (B, S, N, D) -> (B, N, 1, D)."""
    total = ops.cast(x, "float32")
    if mask is None:
        mean = ops.mean(total, axis=1)
    else:
        seen = ops.cast(ops.expand_dims(mask, -1), "float32")
        count = ops.maximum(ops.sum(seen, axis=1), 1.0)
        mean = ops.sum(total * seen, axis=1) / count
    return ops.cast(ops.expand_dims(mean, 2), x.dtype)
