"""Attention within the rows of an alignment, with a bias from pairs of residues."""

from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.finite_padding import finite_padding
from keras_tfm.layers.gallery.gated_attention import GatedAttention, normal
from keras_tfm.layers.gallery.pair_shapes import check_alignment, check_mask, check_pairs
from keras_tfm.layers.layer_normalization import LayerNormalization
from keras_tfm.layers.types import Shape, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class MSARowAttention(RematerializedLayer):
    """Gated self-attention within each row of an alignment, biased by the pair representation.

    With x and z normalised, head h of row s is y_si = sigmoid(x_si W_g + b_g)
    sum_j softmax_j(q_si k_sj / sqrt(K) + z_ij w_h) v_sj: AlphaFold 2 (Jumper et al. 2021,
    doi:10.1038/s41586-021-03819-2), supplement, algorithm 7. All rows share the bias.

    Args:
        num_heads: int, number of attention heads (H).
        head_dim: int, width of a head (K). Default: D / H.
        epsilon: float, epsilon of both normalisations.

    Call arguments:
        x: float tensor (B, S, N, D), an alignment of S sequences and N residues.
        pairs: float tensor (B, N, N, E), the pair representation.
        mask: (B, S, N), boolean, True = residue or gap, False = padding.

    Returns:
        Float tensor (B, S, N, D), without the residual connection.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or shapes that do not match.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import MSARowAttention
    >>> x, pairs = np.ones((1, 3, 5, 8), "float32"), np.ones((1, 5, 5, 4), "float32")
    >>> tuple(MSARowAttention(num_heads=2)(x, pairs).shape)
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
        self.kernel_initializer = normal()
        self.bias_initializer = keras.initializers.Zeros()
        policy = self.dtype_policy
        self.norm = LayerNormalization(epsilon=epsilon, dtype=policy, name="norm")
        self.pair_norm = LayerNormalization(epsilon=epsilon, dtype=policy, name="pair_norm")
        self.attention = GatedAttention(num_heads, head_dim, dtype=policy, name="attention")

    def build(self, x_shape: Shape, pairs_shape: Shape) -> None:
        """Creates the projections for rows of width D and pairs of width E."""
        check_alignment(self.name, x_shape)
        check_pairs(self.name, pairs_shape, x_shape[2])
        self.norm.build(x_shape)
        self.pair_norm.build(pairs_shape)
        self.pair_bias = self._dense("pair_bias", self.num_heads)
        self.pair_bias.build(pairs_shape)
        self.attention.build(x_shape)
        self.built = True

    def call(
        self,
        x: Tensor,
        pairs: Tensor,
        mask: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        """(B, S, N, D), (B, N, N, E) -> (B, S, N, D)."""
        check_pairs(self.name, pairs.shape, x.shape[2])
        mask = check_mask(self.name, mask, x)
        x = self.norm(finite_padding(x, mask), training=training)
        bias = self.pair_bias(self.pair_norm(pairs, training=training), training=training)
        bias = ops.expand_dims(ops.transpose(bias, (0, 3, 1, 2)), 1)  # (B, 1, H, N, N)
        return self.attention(x, mask=mask, attention_bias=bias, training=training)
