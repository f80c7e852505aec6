"""The outer product mean: from an alignment to pairs of residues."""

from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer, check_positive
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.finite_padding import finite_padding
from keras_tfm.layers.gallery.gated_attention import normal
from keras_tfm.layers.gallery.pair_shapes import check_alignment, check_mask
from keras_tfm.layers.layer_normalization import LayerNormalization
from keras_tfm.layers.multi_head_attention.blockwise import cut
from keras_tfm.layers.multi_head_attention.heads import swap
from keras_tfm.layers.types import Shape, Size, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class OuterProductMean(RematerializedLayer):
    """Projects the mean over sequences of the outer products of two residues.

    z_ij = (flatten(sum_s a_si b_sj^T) W + b) / (count_ij + 0.001), where a and b are projections of
    x, normalised, and count_ij is the number of sequences in which neither residue is padding:
    AlphaFold 2 (Jumper et al. 2021, doi:10.1038/s41586-021-03819-2), supplement, algorithm 10. As
    in the authors' code, the bias is divided too. For long alignments the outer products (N, N,
    C^2) are computed in blocks of residues, which the backward pass recomputes.

    Args:
        dim: int, width of the output (E).
        hidden_dim: int, width of both projections (C).
        epsilon: float, epsilon of the normalisation.

    Call arguments:
        x: float tensor (B, S, N, D), an alignment of S sequences and N residues.
        mask: (B, S, N), boolean, True = residue or gap, False = padding.

    Returns:
        Float tensor (B, N, N, E), without the residual connection.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or an input that is not (B, S, N, D).

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import OuterProductMean
    >>> tuple(OuterProductMean(dim=4, hidden_dim=2)(np.ones((1, 3, 5, 8), "float32")).shape)
    (1, 5, 5, 4)
    """

    def __init__(self, dim: int, hidden_dim: int = 32, epsilon: float = 1e-5, **kwargs: Any):
        super().__init__(**kwargs)
        check_integer("dim", dim)
        check_integer("hidden_dim", hidden_dim)
        check_positive("epsilon", epsilon)
        self.dim, self.hidden_dim, self.epsilon = dim, hidden_dim, epsilon
        self.use_bias = True
        self.kernel_initializer = normal()
        self.bias_initializer = keras.initializers.Zeros()
        self.norm = LayerNormalization(epsilon=epsilon, dtype=self.dtype_policy, name="norm")

    def build(self, x_shape: Shape) -> None:
        """Creates the projections for inputs of width D."""
        check_alignment(self.name, x_shape)
        batch, _, length, _ = x_shape
        self.norm.build(x_shape)
        self.projections = self._dense("projections", 2 * self.hidden_dim)
        self.projections.build(x_shape)
        self.output_projection = self._dense(
            "output_projection", self.dim, kernel_initializer="zeros"
        )
        self.output_projection.build((batch, length, length, self.hidden_dim**2))
        self.built = True

    def compute_mask(self, x: Tensor, previous_mask: Tensor | None = None) -> None:
        """None: the mask of the sequences is not one of pairs."""
        return

    def call(self, x: Tensor, mask: Tensor | None = None, training: bool | None = None) -> Tensor:
        """(B, S, N, D) -> (B, N, N, E)."""
        mask = check_mask(self.name, mask, x)
        x = finite_padding(x, mask)
        both = self.projections(self.norm(x, training=training), training=training)
        count: Size = x.shape[1] if isinstance(x.shape[1], int) else ops.shape(x)[1]
        if mask is not None:
            seen = ops.cast(mask, "float32")
            count = ops.expand_dims(ops.matmul(swap(seen, 1, 2), seen), -1)  # (B, N, N, 1)
            both = both * ops.cast(ops.expand_dims(mask, -1), both.dtype)
        first, second = ops.split(both, 2, axis=-1)  # (B, S, N, C)
        total = self._project(swap(first, 1, 2), second, training)
        inverse = 1.0 / (ops.cast(count, "float32") + 1e-3)
        return ops.cast(ops.cast(total, "float32") * inverse, self.compute_dtype)

    def _project(self, first: Tensor, second: Tensor, training: bool | None) -> Tensor:
        """(B, N, S, C), (B, S, N, C) -> (B, N, N, E), in blocks of residues where it is large."""
        residues = second.shape[2]
        each = residues * self.hidden_dim**2 if isinstance(residues, int) else None
        parts = cut(residues, each)
        if len(parts) == 1:
            return self.output_projection(_products(first, second), training=training)
        dense = self.output_projection
        kernel, bias = (ops.cast(x, first.dtype) for x in (dense.kernel, dense.bias))

        def one(first: Tensor, second: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
            return ops.matmul(_products(first, second), kernel) + bias

        # `remat` differentiates only its arguments.
        results = [keras.remat(one)(first[:, rows], second, kernel, bias) for rows in parts]
        return ops.concatenate(results, axis=1)

    def compute_output_shape(self, x_shape: Shape) -> Shape:
        """(B, N, N, E)."""
        return (x_shape[0], x_shape[2], x_shape[2], self.dim)


def _products(first: Tensor, second: Tensor) -> Tensor:
    """Sums of outer products over S: (B, M, S, C), (B, S, N, C) -> (B, M, N, C C)."""
    _, count, rows, width = _sizes(first)
    length = _sizes(second)[2]
    # One product of two matrices for each alignment: (M C, S) times (S, N C).
    left = ops.reshape(swap(first, -1, -2), (-1, count * width, rows))
    right = ops.reshape(second, (-1, rows, length * width))
    products = ops.reshape(ops.matmul(left, right), (-1, count, width, length, width))
    products = ops.transpose(products, (0, 1, 3, 2, 4))
    return ops.reshape(products, (-1, count, length, width * width))


def _sizes(x: Tensor) -> list[Size]:
    """The dimensions of `x`: integers where they are known, scalar tensors elsewhere."""
    known = tuple(x.shape)
    if None not in known[1:]:
        return list(known)
    return [a if a is not None else b for a, b in zip(known, ops.shape(x), strict=True)]
