"""DeBERTa's disentangled attention: scores of contents with relative positions."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.layers.arguments import as_initializer
from keras_tfm.layers.base_layer import Projection
from keras_tfm.layers.multi_head_attention.heads import leading, split_heads, swap
from keras_tfm.layers.positions.attention_position import (
    AttentionInputs,
    AttentionPosition,
    Positions,
    PositionTerms,
    Span,
    note_use,
    serialize_shared,
)
from keras_tfm.layers.positions.relative_position_table import RelativePositionTable
from keras_tfm.layers.types import Config, Initializer, Size, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class DisentangledPositionEmbedding(AttentionPosition):
    """Scores between the content of a token and the relative position of another.

    "DeBERTa: Decoding-enhanced BERT with Disentangled Attention" (arXiv:2006.03654), equation 4,
    with the sign that the authors' code and all checkpoints have:

    e_ts = (q_t k_s + q_t K_r(t-s) + k_s Q_r(t-s)) / sqrt(3 K)

    K_r and Q_r are the row of the distance t - s in `table`, projected. The part adds the second
    term (content to position) and the third (position to content). The attention layer scales all
    of them alike: give it `scale=(3 * K) ** -0.5`, or `(2 * K) ** -0.5` with only one of the terms.

    Args:
        table: `RelativePositionTable`, shared by all layers of a model.
        content_to_position: bool, whether the second term is added.
        position_to_content: bool, whether the third term is added. It reads the keys, which in a
            decoding step is a copy of the cache.
        own_projections: bool, project the table with kernels of the part's own, instead of those of
            the layer's queries and keys (`share_att_key=False` in `transformers`). Then each layer
            has a part of its own with the same table.
        kernel_initializer: initializer of these kernels.

    Raises:
        TypeError: `table` is not a `RelativePositionTable`.
        ValueError: neither of the two terms is chosen; when the layer is built, a part with its own
            projections is shared by layers with other widths.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import MultiHeadSelfAttention
    >>> from keras_tfm.layers import DisentangledPositionEmbedding, RelativePositionTable
    >>> position = DisentangledPositionEmbedding(RelativePositionTable(dim=8, max_distance=6))
    >>> layers = [MultiHeadSelfAttention(2, position=position, scale=12**-0.5) for _ in range(2)]
    >>> tuple(layers[1](layers[0](np.ones((1, 5, 8), "float32"))).shape)
    (1, 5, 8)
    """

    def __init__(
        self,
        table: RelativePositionTable,
        content_to_position: bool = True,
        position_to_content: bool = True,
        own_projections: bool = False,
        kernel_initializer: Initializer = "glorot_uniform",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if isinstance(table, dict):
            table = keras.saving.deserialize_keras_object(table)
        if not isinstance(table, RelativePositionTable):
            raise TypeError(f"table must be a RelativePositionTable, got {table!r}")
        if not (content_to_position or position_to_content):
            raise ValueError("content_to_position or position_to_content must be True, got neither")
        self.table = table
        self.content_to_position = content_to_position
        self.position_to_content = position_to_content
        self.reads_keys = position_to_content
        self.own_projections = own_projections
        self.kernel_initializer = as_initializer("kernel_initializer", kernel_initializer)

    def build_for(self, num_heads: int, head_dim: int, value_dim: int) -> None:
        """Creates the table, and projections if the part has its own."""
        width = num_heads * head_dim
        if not self.built:
            note_use(self.table, self)
            if not self.table.built:
                self.table.build()
            if self.own_projections and self.content_to_position:
                self.position_key = self._projection("position_key", width)
            if self.own_projections and self.position_to_content:
                self.position_query = self._projection("position_query", width)
            self._width = width
            self.built = True
        if self.own_projections and self._width != width:
            raise ValueError(
                f"{self.name} is shared by layers of different widths: all heads together have "
                f"{self._width} and {width}"
            )

    def _projection(self, name: str, width: int) -> Projection:
        initializer = self.kernel_initializer.clone()
        layer = Projection(
            width, kernel_initializer=initializer, dtype=self.dtype_policy, name=name
        )
        layer.build((None, self.table.dim))
        return layer

    def draw(self) -> Tensor | None:
        """The seed of the table's dropout."""
        return self.table.draw()

    def terms(self, inputs: AttentionInputs) -> PositionTerms:
        """q_t K_r(t-s) + k_s Q_r(t-s), scaled: (..., H, T, S)."""
        query, heads = inputs.query, inputs.query.shape[-3]
        scores = []

        def projected_keys(vectors: Tensor) -> Tensor:
            if self.own_projections:
                return split_heads(self.position_key(vectors), heads)
            return _repeat(inputs.project_key(vectors), heads)

        def projected_queries(vectors: Tensor) -> Tensor:
            if self.own_projections:
                y = split_heads(self.position_query(vectors), heads)
            else:
                y = inputs.project_query(vectors)
            return y * ops.cast(inputs.scale, y.dtype)  # the scale of `query`

        if self.content_to_position:
            scores.append(self._scores(query, projected_keys, inputs, 1))
        if self.position_to_content:
            keys = ops.cast(_repeat(inputs.keys(), heads), query.dtype)
            scores.append(swap(self._scores(keys, projected_queries, inputs, -1), -1, -2))
        return PositionTerms(scores=scores[0] if len(scores) == 1 else scores[0] + scores[1])

    def _scores(
        self, x: Tensor, project: Callable[[Tensor], Tensor], inputs: AttentionInputs, sign: int
    ) -> Tensor:
        """Products of M contents with the vectors of their distances to N others.

        Args:
            x: (..., H, M, K), the queries, or the keys.
            project: function from vectors of the table (R, D) to (H, R, K).
            inputs: the part's inputs.
            sign: 1 if `x` are the queries, -1 if they are the keys.

        Returns:
            Float tensor (..., H, M, N).
        """
        here, there = inputs.positions[::sign]

        def products(rows: Tensor) -> Tensor:
            vectors = ops.cast(project(self.table(rows, seed=inputs.seed)), x.dtype)
            vectors = swap(vectors, -1, -2)  # (H, K, rows)
            if vectors.shape[0] == 1:
                # TensorFlow 2.21 on a CPU (oneDNN) writes out of bounds in products
                # (B, 1, M, K) @ (1, K, N) with B >= 3. With a matrix, Keras multiplies in 2D.
                vectors = ops.squeeze(vectors, 0)
            return ops.matmul(x, vectors)

        if _is_consecutive(here) and _is_consecutive(there):
            # One column for each distance: row i reads its N columns from column M - 1 - i on.
            width = here.length + there.length
            first = here.start - there.start + here.length - 1
            if isinstance(width, int):
                distances = sign * (first - np.arange(width))
            else:
                distances = sign * (first - ops.arange(width, dtype="int32"))
            return skew(products(self.table.rows_of(distances)), there.length)
        distances = -sign * Positions(here, there).distances()
        rows = self.table.rows_of(distances)
        every = products(np.arange(2 * self.table.reach, dtype="int32"))
        index = rows if len(rows.shape) == 2 else ops.expand_dims(rows, -3)  # same for all heads
        index = ops.broadcast_to(index, (*ops.shape(x)[:-1], ops.shape(rows)[-1]))
        return ops.take_along_axis(every, index, axis=-1)

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "table": serialize_shared(self.table),
            "content_to_position": self.content_to_position,
            "position_to_content": self.position_to_content,
            "own_projections": self.own_projections,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }


def skew(x: Tensor, length: Size) -> Tensor:
    """y[i, j] = x[i, M - 1 - i + j]: (..., M, M + N) -> (..., M, N), without a gather.

    "Music Transformer" (arXiv:1809.04281), section 3.4.1. In the flattened matrix the rows of y
    begin M + N - 1 values apart.

    Args:
        x: (..., M, M + N).
        length: int or int32 scalar tensor, N.
    """
    rows, width = ops.shape(x)[-2:]
    before = leading(x, len(x.shape) - 2)
    flat = ops.reshape(x, (*before, rows * width))
    flat = flat[..., rows - 1 : rows * width - 1]
    return ops.reshape(flat, (*before, rows, width - 1))[..., :length]


def _repeat(x: Tensor, heads: int) -> Tensor:
    """(..., G, N, K) -> (..., H, N, K): each key head for all query heads that share it."""
    groups = x.shape[-3]
    return x if groups == heads else ops.repeat(x, heads // groups, axis=-3)


def _is_consecutive(positions: Span | Tensor) -> bool:
    """Whether the positions are one after the other, from one that is known."""
    return (
        isinstance(positions, Span)
        and isinstance(positions.start, int)
        and positions.padding is None
        and not positions.together
    )
