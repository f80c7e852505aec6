"""The first pair representation: residues and their distance along the chain."""

from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers.arguments import as_initializer
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.embeddings.lookup import as_integers, lookup
from keras_tfm.layers.embeddings.token_embedding import TokenEmbedding
from keras_tfm.layers.multi_head_attention.masks import distances
from keras_tfm.layers.types import Initializer, Shape, Size, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class PairEmbedding(RematerializedLayer):
    """Embeds pairs of residues: both residues, and the clipped distance between them.

    z_ij = L[token_i] + R[token_j] + P[clip(index_i - index_j, -M, M) + M]: AlphaFold 2 (Jumper et
    al. 2021, doi:10.1038/s41586-021-03819-2), supplement, algorithms 3 and 4, whose linear layers
    of one-hot vectors are these tables.

    Args:
        vocabulary_size: int, number of token ids (V).
        dim: int, width of a pair (E).
        max_distance: int, distance along the chain from which on all are alike (M).
        initializer: initializer of the tables (V, E), (V, E) and (2 M + 1, E).

    Call arguments:
        tokens: (B, N), integers, the residues of the target sequence.
        residue_index: (B, N), integers, number of each residue along the chain. Default: 0 to
            N - 1.

    Returns:
        Float tensor (B, N, N, E).

    Raises:
        TypeError: an argument of the wrong type; tokens or an index that are not integers.
        ValueError: an argument out of range.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import PairEmbedding
    >>> layer = PairEmbedding(vocabulary_size=24, dim=4)
    >>> tuple(layer(np.array([[1, 5, 20]])).shape)
    (1, 3, 3, 4)
    """

    def __init__(
        self,
        vocabulary_size: int,
        dim: int,
        max_distance: int = 32,
        initializer: Initializer = "lecun_normal",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.supports_masking = False  # the output has another shape
        check_integer("vocabulary_size", vocabulary_size)
        check_integer("dim", dim)
        check_integer("max_distance", max_distance)
        self.vocabulary_size, self.dim, self.max_distance = vocabulary_size, dim, max_distance
        self.initializer = as_initializer("initializer", initializer)

        def table(name: str) -> TokenEmbedding:
            return TokenEmbedding(
                vocabulary_size,
                dim,
                embeddings_initializer=self.initializer.clone(),
                dtype=self.dtype_policy,
                name=name,
            )

        self.left, self.right = table("left"), table("right")

    def build(self, tokens_shape: Shape, residue_index_shape: Shape | None = None) -> None:
        """Creates the tables."""
        self.left.build(tokens_shape)
        self.right.build(tokens_shape)
        self.positions = self.add_weight(
            name="positions",
            shape=(2 * self.max_distance + 1, self.dim),
            initializer=self.initializer.clone(),
        )
        self.built = True

    def call(self, tokens: Tensor, residue_index: Tensor | None = None) -> Tensor:
        """(B, N) -> (B, N, N, E)."""
        if residue_index is None:
            length: Size = tokens.shape[1] if isinstance(tokens.shape[1], int) else None
            length = ops.shape(tokens)[1] if length is None else length
            apart = -distances(length, length, 0)  # (N, N)
        else:
            index = as_integers(residue_index, f"{self.name}: residue_index")
            apart = ops.expand_dims(index, 2) - ops.expand_dims(index, 1)
        bins = ops.clip(apart, -self.max_distance, self.max_distance) + self.max_distance
        table = ops.cast(self.positions, self.compute_dtype)
        z = lookup(table, bins)
        z = ops.expand_dims(self.left(tokens), 2) + z
        return z + ops.expand_dims(self.right(tokens), 1)

    def compute_output_shape(
        self, tokens_shape: Shape, residue_index_shape: Shape | None = None
    ) -> Shape:
        """(B, N, N, E)."""
        return (*tokens_shape, tokens_shape[1], self.dim)
