"""The half of an Evoformer block that updates the alignment."""

from typing import Any

import keras

from keras_tfm.arguments import check_integer, check_rate
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.finite_padding import finite_padding
from keras_tfm.layers.gallery.gated_attention import Transition, shared_dropout
from keras_tfm.layers.gallery.msa_column_attention import MSAColumnAttention
from keras_tfm.layers.gallery.msa_global_attention import MSAGlobalAttention
from keras_tfm.layers.gallery.msa_row_attention import MSARowAttention
from keras_tfm.layers.gallery.pair_block import pair_mask
from keras_tfm.layers.gallery.pair_shapes import check_alignment, check_mask
from keras_tfm.layers.layer_normalization import LayerNormalization
from keras_tfm.layers.types import Shape, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class MSABlock(RematerializedLayer):
    """The first half of an Evoformer block: it updates the alignment from itself and the pairs.

    x += dropout(MSARowAttention(x, pairs)); x += MSAColumnAttention(x); x += transition(x):
    AlphaFold 2 (Jumper et al. 2021, doi:10.1038/s41586-021-03819-2), supplement, lines 2 to 4 of
    algorithm 6. `PairBlock` is the second half. The dropout mask is shared by all rows. A new block
    is the identity.

    Args:
        num_heads: int, number of attention heads (H).
        head_dim: int, width of a head (K). Default: D / H.
        transition_factor: int, inner width of the transition, as a multiple of D.
        global_attention: bool, whether the columns get `MSAGlobalAttention`, as in the stack of
            extra sequences (algorithm 18).
        dropout: float, dropout rate of the row attention's result.
        epsilon: float, epsilon of every normalisation.

    Call arguments:
        x: float tensor (B, S, N, D), an alignment of S sequences and N residues.
        pairs: float tensor (B, N, N, E), the pair representation.
        mask: (B, S, N), boolean, True = residue or gap, False = padding.

    Returns:
        Float tensor (B, S, N, D).

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or shapes that do not match.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import MSABlock
    >>> x, pairs = np.ones((1, 3, 5, 8), "float32"), np.ones((1, 5, 5, 4), "float32")
    >>> tuple(MSABlock(num_heads=2)(x, pairs).shape)
    (1, 3, 5, 8)
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int | None = None,
        transition_factor: int = 4,
        global_attention: bool = False,
        dropout: float = 0.15,
        epsilon: float = 1e-5,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_integer("transition_factor", transition_factor)
        check_rate("dropout", dropout)
        self.num_heads, self.head_dim = num_heads, head_dim
        self.transition_factor = transition_factor
        self.global_attention = global_attention
        self.dropout, self.epsilon = dropout, epsilon
        policy = self.dtype_policy
        heads = num_heads, head_dim, epsilon
        columns = MSAGlobalAttention if global_attention else MSAColumnAttention
        self.row_attention = MSARowAttention(*heads, dtype=policy, name="row_attention")
        self.column_attention = columns(*heads, dtype=policy, name="column_attention")
        self.row_dropout = shared_dropout(dropout, 1, policy, "row_dropout")
        self.transition_norm = LayerNormalization(
            epsilon=epsilon, dtype=policy, name="transition_norm"
        )

    def build(self, x_shape: Shape, pairs_shape: Shape) -> None:
        """Creates the parts for rows of width D and pairs of width E."""
        check_alignment(self.name, x_shape)
        self.row_attention.build(x_shape, pairs_shape)
        self.column_attention.build(x_shape)
        self.transition_norm.build(x_shape)
        self.transition = Transition(
            self.transition_factor * x_shape[-1], dtype=self.dtype_policy, name="transition"
        )
        self.transition.build(x_shape)
        self.built = True

    def call(
        self,
        x: Tensor,
        pairs: Tensor,
        mask: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        """(B, S, N, D), (B, N, N, E) -> (B, S, N, D)."""
        if mask is not None:
            mask = check_mask(self.name, mask, x)
            x, pairs = finite_padding(x, mask), finite_padding(pairs, pair_mask(mask))
        y = self.row_attention(x, pairs, mask=mask, training=training)
        x = x + self.row_dropout(y, training=training)
        x = x + self.column_attention(x, mask=mask, training=training)
        y = self.transition_norm(x, training=training)
        return x + self.transition(y, training=training)
