"""Attention within the columns of an alignment."""

from typing import Any

import keras

from keras_tfm.arguments import check_integer
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.finite_padding import finite_padding
from keras_tfm.layers.gallery.gated_attention import GatedAttention
from keras_tfm.layers.gallery.pair_shapes import check_alignment, check_mask
from keras_tfm.layers.layer_normalization import LayerNormalization
from keras_tfm.layers.multi_head_attention.heads import swap
from keras_tfm.layers.types import Shape, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class MSAColumnAttention(RematerializedLayer):
    """Gated self-attention within each column of an alignment, over its sequences.

    With x normalised, head h of column i is y_si = sigmoid(x_si W_g + b_g)
    sum_t softmax_t(q_si k_ti / sqrt(K)) v_ti: AlphaFold 2 (Jumper et al. 2021,
    doi:10.1038/s41586-021-03819-2), supplement, algorithm 8. No position distinguishes the rows.

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
    >>> from keras_tfm.layers import MSAColumnAttention
    >>> tuple(MSAColumnAttention(num_heads=2)(np.ones((1, 3, 5, 8), "float32")).shape)
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
        policy = self.dtype_policy
        self.norm = LayerNormalization(epsilon=epsilon, dtype=policy, name="norm")
        self.attention = GatedAttention(num_heads, head_dim, dtype=policy, name="attention")

    def build(self, x_shape: Shape) -> None:
        """Creates the projections for inputs of width D."""
        check_alignment(self.name, x_shape)
        batch, rows, columns, dim = x_shape
        self.norm.build(x_shape)
        self.attention.build((batch, columns, rows, dim))
        self.built = True

    def call(self, x: Tensor, mask: Tensor | None = None, training: bool | None = None) -> Tensor:
        """(B, S, N, D) -> (B, S, N, D)."""
        mask = check_mask(self.name, mask, x)
        x = finite_padding(x, mask)
        mask = None if mask is None else swap(mask, 1, 2)
        x = swap(self.norm(x, training=training), 1, 2)
        return swap(self.attention(x, mask=mask, training=training), 1, 2)
