"""DeBERTa's table of relative positions: a learned vector for each distance or range of them."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers.arguments import as_initializer
from keras_tfm.layers.dropout import Dropout
from keras_tfm.layers.layer_normalization import LayerNormalization
from keras_tfm.layers.types import Config, Initializer, Shape, Tensor

# No attention of T x S scores has sequences of this length.
_LONGEST = 2**20


def log_buckets(distances: np.ndarray, num_buckets: int, max_distance: int) -> np.ndarray:
    """Assigns distances to buckets as in DeBERTa: exact when near, logarithmic further away.

    With m = num_buckets // 2, a distance d of at most m is its own bucket, and a larger one is in
    sign(d) (m + ceil(log(|d| / m) / log((max_distance - 1) / m) (m - 1))). Computed in float32, as
    in `transformers`.

    Args:
        distances: integers of any shape, the query's position minus the key's.
        num_buckets: int, number of buckets of each direction, at least 2.
        max_distance: int, more than num_buckets // 2 + 1; `max_distance - 1` is in the last bucket.

    Returns:
        int32 array of the same shape, in which -b is the bucket of the opposite distances of b.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers.positions.relative_position_table import log_buckets
    >>> log_buckets(np.array([0, 3, 4, 5, 11, -11]), num_buckets=8, max_distance=12).tolist()
    [0, 3, 4, 5, 7, -7]
    """
    middle = num_buckets // 2
    size = np.maximum(np.abs(distances), middle).astype("float32")
    ratio = np.log(size / np.float32(middle)) / np.log(np.float32((max_distance - 1) / middle))
    far = (np.ceil(ratio * np.float32(middle - 1)) + middle) * np.sign(distances)
    return np.where(np.abs(distances) <= middle, distances, far).astype("int32")


@keras.saving.register_keras_serializable("keras_tfm")
class RelativePositionTable(keras.layers.Layer):
    """A learned vector for each relative position, normalised: the table of DeBERTa.

    `DisentangledPositionEmbedding` uses it; all layers of a model share one. The row of a distance
    d, the query's position minus the key's, is min(max(b(d) + k, 0), 2k - 1), where b(d) is d
    and k is `max_distance`, or with `num_buckets` b is `log_buckets` and k is `num_buckets`
    ("DeBERTa", arXiv:2006.03654, equation 3).

    Args:
        dim: int, width of the vectors: the width D of the attention layers' input.
        max_distance: int, larger distances share the first or the last row.
        num_buckets: int, number of buckets of each direction. Default: a row for each distance.
        normalize: bool, whether the vectors are layer-normalised.
        layer_norm_epsilon: float, epsilon of the normalisation.
        dropout: float, dropout rate of the vectors.
        initializer: initializer of the table (2k, D). Default: normal with standard deviation 0.02.

    Call arguments:
        rows: int32 (N,), rows of the table.
        seed: tensor, seed of the dropout, from `draw`. Default: no dropout.

    Returns:
        Float tensor (N, D).

    Raises:
        ValueError: an argument out of range.

    Example:

    >>> from keras_tfm.layers import RelativePositionTable
    >>> table = RelativePositionTable(dim=8, max_distance=12, num_buckets=6)
    >>> rows = table.rows_of([-30, -2, 0, 2, 30])
    >>> rows.tolist(), tuple(table(rows).shape)
    ([0, 4, 6, 8, 11], (5, 8))
    """

    def __init__(
        self,
        dim: int,
        max_distance: int,
        num_buckets: int | None = None,
        normalize: bool = True,
        layer_norm_epsilon: float = 1e-7,
        dropout: float = 0.0,
        initializer: Initializer | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_integer("dim", dim)
        check_integer("max_distance", max_distance)
        check_integer("num_buckets", num_buckets, minimum=2, optional=True)
        if num_buckets is not None and max_distance <= num_buckets // 2 + 1:
            raise ValueError(
                f"max_distance must be more than {num_buckets // 2 + 1} with num_buckets="
                f"{num_buckets}, whose first half holds one distance each, got {max_distance}"
            )
        if initializer is None:
            initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.dim = dim
        self.max_distance = max_distance
        self.num_buckets = num_buckets
        self.normalize = normalize
        self.layer_norm_epsilon = layer_norm_epsilon
        self.dropout = dropout
        self.initializer = as_initializer("initializer", initializer)
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy)
        if normalize:
            self.norm = LayerNormalization(
                epsilon=layer_norm_epsilon, dtype=self.dtype_policy, name="norm"
            )

    @property
    def reach(self) -> int:
        """Half of the number of rows (k)."""
        return self.num_buckets or self.max_distance

    def build(self, rows_shape: Shape | None = None) -> None:
        """Creates the table."""
        shape = (2 * self.reach, self.dim)
        self.table = self.add_weight(name="table", shape=shape, initializer=self.initializer)
        if self.normalize:
            self.norm.build(shape)
        self.built = True

    def get_build_config(self) -> None:
        """None: the first attention layer builds the table, within its own path."""

    def call(self, rows: Tensor, seed: Tensor | None = None) -> Tensor:
        """(N,) -> (N, D)."""
        vectors = ops.convert_to_tensor(self.table)
        if self.normalize:
            vectors = self.norm(vectors)
        if seed is not None:
            vectors = self.dropout_layer.with_seed(vectors, seed)
        return ops.take(vectors, rows, axis=0)

    def draw(self) -> Tensor | None:
        """Draws a seed for one call of a layer in training; None without dropout."""
        return self.dropout_layer.draw() if self.dropout else None

    def rows_of(self, distances: Tensor) -> Tensor:
        """The rows of distances, the query's position minus the key's.

        Args:
            distances: integers of any shape, as a NumPy array, a list or a tensor.

        Returns:
            int32 of the same shape: a NumPy array, or for a tensor a tensor.
        """
        if ops.is_tensor(distances):
            largest = self._largest()
            rows = ops.convert_to_tensor(self.rows_of(np.arange(-largest, largest + 1)))
            return ops.take(rows, ops.clip(distances, -largest, largest) + largest, axis=0)
        distances = np.asarray(distances)
        if self.num_buckets is not None:
            distances = log_buckets(distances, self.num_buckets, self.max_distance)
        return np.clip(distances + self.reach, 0, 2 * self.reach - 1).astype("int32")

    def _largest(self) -> int:
        """A distance from which on the row does not change."""
        largest, last = self.reach, self.rows_of([-_LONGEST, _LONGEST]).tolist()
        while self.rows_of([-largest, largest]).tolist() != last:
            largest *= 2
        return largest

    def compute_output_shape(self, rows_shape: Shape, **_: object) -> Shape:
        """(N,) -> (N, D)."""
        return (*rows_shape, self.dim)

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "dim": self.dim,
            "max_distance": self.max_distance,
            "num_buckets": self.num_buckets,
            "normalize": self.normalize,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "dropout": self.dropout,
            "initializer": keras.initializers.serialize(self.initializer),
        }
