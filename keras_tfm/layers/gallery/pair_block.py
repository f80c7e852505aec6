"""The half of an Evoformer block that updates the pairs of residues."""

from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer, check_rate
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.finite_padding import finite_padding
from keras_tfm.layers.gallery.gated_attention import Transition, shared_dropout
from keras_tfm.layers.gallery.outer_product_mean import OuterProductMean
from keras_tfm.layers.gallery.pair_shapes import check_alignment, check_mask, check_pairs
from keras_tfm.layers.gallery.triangle_attention import TriangleAttention
from keras_tfm.layers.gallery.triangle_multiplication import TriangleMultiplication
from keras_tfm.layers.layer_normalization import LayerNormalization
from keras_tfm.layers.multi_head_attention.heads import swap
from keras_tfm.layers.types import Shape, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class PairBlock(RematerializedLayer):
    """The second half of an Evoformer block: it updates the pairs from the alignment and triangles.

    z += OuterProductMean(x); then, each added after dropout, `TriangleMultiplication` of outgoing
    and of incoming edges and `TriangleAttention` around the starting and the ending node;
    z += transition(z): AlphaFold 2 (Jumper et al. 2021, doi:10.1038/s41586-021-03819-2),
    supplement, lines 5 to 10 of algorithm 6. The dropout masks are shared by all rows; that of the
    attention around the ending node by all columns. A new block is the identity.

    Args:
        num_heads: int, number of heads of the triangle attention (H).
        head_dim: int, width of a head (K). Default: E / H.
        outer_dim: int, width of the factors of the outer product mean.
        hidden_dim: int, width of the triangle multiplications. Default: E.
        transition_factor: int, inner width of the transition, as a multiple of E.
        dropout: float, dropout rate of the triangle layers' results.
        epsilon: float, epsilon of every normalisation.

    Call arguments:
        pairs: float tensor (B, N, N, E), the pair representation.
        x: float tensor (B, S, N, D), an alignment of S sequences and N residues.
        mask: (B, S, N), boolean, True = residue or gap, False = padding. The first sequence is the
            target: a pair is padding if one of its residues is padding there.

    Returns:
        Float tensor (B, N, N, E).

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or shapes that do not match.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import PairBlock
    >>> pairs, x = np.ones((1, 5, 5, 4), "float32"), np.ones((1, 3, 5, 8), "float32")
    >>> tuple(PairBlock(num_heads=2, outer_dim=2)(pairs, x).shape)
    (1, 5, 5, 4)
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int | None = None,
        outer_dim: int = 32,
        hidden_dim: int | None = None,
        transition_factor: int = 4,
        dropout: float = 0.25,
        epsilon: float = 1e-5,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_integer("outer_dim", outer_dim)
        check_integer("transition_factor", transition_factor)
        check_rate("dropout", dropout)
        self.num_heads, self.head_dim = num_heads, head_dim
        self.outer_dim, self.hidden_dim = outer_dim, hidden_dim
        self.transition_factor = transition_factor
        self.dropout, self.epsilon = dropout, epsilon
        policy = self.dtype_policy

        def multiplication(name: str, incoming: bool) -> TriangleMultiplication:
            return TriangleMultiplication(hidden_dim, incoming, epsilon, dtype=policy, name=name)

        def attention(name: str, ending: bool) -> TriangleAttention:
            return TriangleAttention(num_heads, head_dim, ending, epsilon, dtype=policy, name=name)

        self.outgoing = multiplication("outgoing", incoming=False)
        self.incoming = multiplication("incoming", incoming=True)
        self.starting = attention("starting", ending=False)
        self.ending = attention("ending", ending=True)
        self.outgoing_dropout = shared_dropout(dropout, 1, policy, "outgoing_dropout")
        self.incoming_dropout = shared_dropout(dropout, 1, policy, "incoming_dropout")
        self.starting_dropout = shared_dropout(dropout, 1, policy, "starting_dropout")
        self.ending_dropout = shared_dropout(dropout, 2, policy, "ending_dropout")
        self.transition_norm = LayerNormalization(
            epsilon=epsilon, dtype=policy, name="transition_norm"
        )

    def build(self, pairs_shape: Shape, x_shape: Shape) -> None:
        """Creates the parts for pairs of width E and rows of width D."""
        check_alignment(self.name, x_shape)
        check_pairs(self.name, pairs_shape, x_shape[2])
        dim, policy = pairs_shape[-1], self.dtype_policy
        self.outer_product = OuterProductMean(
            dim, self.outer_dim, self.epsilon, dtype=policy, name="outer_product"
        )
        self.outer_product.build(x_shape)
        for layer in (self.outgoing, self.incoming, self.starting, self.ending):
            layer.build(pairs_shape)
        self.transition_norm.build(pairs_shape)
        self.transition = Transition(self.transition_factor * dim, dtype=policy, name="transition")
        self.transition.build(pairs_shape)
        self.built = True

    def compute_mask(self, pairs: Tensor, previous_mask: Tensor | None = None) -> None:
        """None: the mask of the sequences is not one of pairs."""
        return

    def call(
        self,
        pairs: Tensor,
        x: Tensor,
        mask: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        """(B, N, N, E), (B, S, N, D) -> (B, N, N, E)."""
        mask = check_mask(self.name, mask, x)
        seen = None if mask is None else pair_mask(mask)
        z = finite_padding(pairs, seen) + self.outer_product(x, mask=mask, training=training)
        for layer, dropout in (
            (self.outgoing, self.outgoing_dropout),
            (self.incoming, self.incoming_dropout),
            (self.starting, self.starting_dropout),
            (self.ending, self.ending_dropout),
        ):
            z = z + dropout(layer(z, mask=seen, training=training), training=training)
        y = self.transition_norm(z, training=training)
        return z + self.transition(y, training=training)


def pair_mask(mask: Tensor) -> Tensor:
    """The mask of pairs of residues of the first sequence: (B, S, N) -> (B, N, N)."""
    first = mask[:, :1]  # a slice: an index would remove the axis, which LiteRT delegates cannot
    return ops.logical_and(swap(first, 1, 2), first)
