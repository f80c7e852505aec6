"""Triangle attention: pairs that share a residue attend to each other."""

from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.finite_padding import finite_padding
from keras_tfm.layers.gallery.gated_attention import GatedAttention, normal
from keras_tfm.layers.gallery.pair_shapes import check_mask, check_pairs
from keras_tfm.layers.layer_normalization import LayerNormalization
from keras_tfm.layers.multi_head_attention.heads import swap
from keras_tfm.layers.types import Shape, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class TriangleAttention(RematerializedLayer):
    """Gated self-attention among the pairs with the same starting or ending residue.

    With z normalised, head h is y_ij = sigmoid(z_ij W_g + b_g)
    sum_k softmax_k(q_ij k_ik / sqrt(K) + z_jk w_h) v_ik: attention around the starting node,
    algorithm 13 of AlphaFold 2 (Jumper et al. 2021, doi:10.1038/s41586-021-03819-2), supplement.
    With `ending=True`, algorithm 14, the same of the transposed pairs: keys k_kj, values v_kj and
    the bias z_ki w_h.

    Args:
        num_heads: int, number of attention heads (H).
        head_dim: int, width of a head (K). Default: E / H.
        ending: bool, whether pairs with the same ending residue attend to each other.
        epsilon: float, epsilon of the normalisation.

    Call arguments:
        pairs: float tensor (B, N, N, E), the pair representation.
        mask: (B, N, N), boolean, True = neither residue is padding.

    Returns:
        Float tensor (B, N, N, E), without the residual connection.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or pairs that are not (B, N, N, E).

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import TriangleAttention
    >>> tuple(TriangleAttention(num_heads=2)(np.ones((1, 5, 5, 4), "float32")).shape)
    (1, 5, 5, 4)
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int | None = None,
        ending: bool = False,
        epsilon: float = 1e-5,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_integer("num_heads", num_heads)
        check_integer("head_dim", head_dim, optional=True)
        self.num_heads, self.head_dim = num_heads, head_dim
        self.ending, self.epsilon = ending, epsilon
        self.use_bias = False
        self.kernel_initializer = normal()
        self.bias_initializer = keras.initializers.Zeros()
        policy = self.dtype_policy
        self.norm = LayerNormalization(epsilon=epsilon, dtype=policy, name="norm")
        self.attention = GatedAttention(num_heads, head_dim, dtype=policy, name="attention")

    def build(self, pairs_shape: Shape) -> None:
        """Creates the projections for pairs of width E."""
        check_pairs(self.name, pairs_shape)
        self.norm.build(pairs_shape)
        self.pair_bias = self._dense("pair_bias", self.num_heads)
        self.pair_bias.build(pairs_shape)
        self.attention.build(pairs_shape)
        self.built = True

    def call(
        self, pairs: Tensor, mask: Tensor | None = None, training: bool | None = None
    ) -> Tensor:
        """(B, N, N, E) -> (B, N, N, E)."""
        check_pairs(self.name, pairs.shape)
        mask = check_mask(self.name, mask, pairs)
        z = self.norm(finite_padding(pairs, mask), training=training)
        if self.ending:
            z = swap(z, 1, 2)
            mask = None if mask is None else swap(mask, 1, 2)
        bias = ops.transpose(self.pair_bias(z, training=training), (0, 3, 1, 2))
        y = self.attention(z, mask=mask, attention_bias=ops.expand_dims(bias, 1), training=training)
        return swap(y, 1, 2) if self.ending else y
