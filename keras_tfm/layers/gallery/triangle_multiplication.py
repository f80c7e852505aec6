"""Triangle multiplication: pairs are updated from the two other edges of each triangle."""

from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.finite_padding import finite_padding
from keras_tfm.layers.gallery.gated_attention import normal
from keras_tfm.layers.gallery.pair_shapes import check_mask, check_pairs
from keras_tfm.layers.layer_normalization import LayerNormalization
from keras_tfm.layers.multi_head_attention.heads import swap
from keras_tfm.layers.types import Shape, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class TriangleMultiplication(RematerializedLayer):
    """Multiplies the two other edges of each triangle of residues i, j, k and sums over k.

    y_ij = sigmoid(z_ij W_g + b_g) (norm(sum_k a_ik b_jk) W_o + b_o), with z normalised, and a and b
    gated projections of it: "outgoing" edges, algorithm 11 of AlphaFold 2 (Jumper et al. 2021,
    doi:10.1038/s41586-021-03819-2), supplement. With `incoming=True`, algorithm 12: the sum of
    a_ki b_kj.

    Args:
        hidden_dim: int, width of a and b (C). Default: E.
        incoming: bool, whether the edges that come in at i and j are multiplied.
        epsilon: float, epsilon of both normalisations.

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
    >>> from keras_tfm.layers import TriangleMultiplication
    >>> tuple(TriangleMultiplication()(np.ones((1, 5, 5, 4), "float32")).shape)
    (1, 5, 5, 4)
    """

    def __init__(
        self,
        hidden_dim: int | None = None,
        incoming: bool = False,
        epsilon: float = 1e-5,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_integer("hidden_dim", hidden_dim, optional=True)
        self.hidden_dim, self.incoming, self.epsilon = hidden_dim, incoming, epsilon
        self.use_bias = True
        self.kernel_initializer = normal()
        self.bias_initializer = keras.initializers.Zeros()
        policy = self.dtype_policy
        self.norm = LayerNormalization(epsilon=epsilon, dtype=policy, name="norm")
        self.output_norm = LayerNormalization(epsilon=epsilon, dtype=policy, name="output_norm")

    def build(self, pairs_shape: Shape) -> None:
        """Creates the projections for pairs of width E."""
        check_pairs(self.name, pairs_shape)
        dim = pairs_shape[-1]
        width = self.hidden_dim or dim
        self.edges = self._dense("edges", 2 * width)  # a and b
        self.edge_gates = self._dense("edge_gates", 2 * width, True, "zeros", "ones")
        self.gate_projection = self._dense("gate", dim, True, "zeros", "ones")
        self.output_projection = self._dense("output_projection", dim, True, "zeros")
        for layer in (self.norm, self.edges, self.edge_gates, self.gate_projection):
            layer.build(pairs_shape)
        for layer in (self.output_norm, self.output_projection):
            layer.build((*pairs_shape[:-1], width))
        self.built = True

    def call(
        self, pairs: Tensor, mask: Tensor | None = None, training: bool | None = None
    ) -> Tensor:
        """(B, N, N, E) -> (B, N, N, E)."""
        check_pairs(self.name, pairs.shape)
        mask = check_mask(self.name, mask, pairs)
        z = self.norm(finite_padding(pairs, mask), training=training)
        edges = ops.sigmoid(self.edge_gates(z, training=training)) * self.edges(
            z, training=training
        )
        if mask is not None:
            edges = edges * ops.cast(ops.expand_dims(mask, -1), edges.dtype)
        edges = ops.transpose(edges, (0, 3, 1, 2))  # (B, 2 C, N, N)
        if keras.backend.standardize_dtype(edges.dtype) == "float16":
            # Sums over all residues: in float16 they lose digits, and overflow.
            edges = ops.cast(edges, "float32")
        first, second = ops.split(edges, 2, axis=1)
        if self.incoming:
            products = ops.matmul(swap(first, -1, -2), second)
        else:
            products = ops.matmul(first, swap(second, -1, -2))
        y = self.output_norm(ops.transpose(products, (0, 2, 3, 1)), training=training)
        gate = ops.sigmoid(self.gate_projection(z, training=training))
        return gate * self.output_projection(y, training=training)
