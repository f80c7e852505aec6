"""Learned position embeddings."""

from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers.arguments import as_initializer, check_sequence
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.decoding.scope import current_scope, positions_of
from keras_tfm.layers.decoding.source_scope import SourceScope
from keras_tfm.layers.dropout import Dropout
from keras_tfm.layers.embeddings.lookup import is_traced, lookup
from keras_tfm.layers.positions.attention_position import Span, as_tensor
from keras_tfm.layers.target import current_target
from keras_tfm.layers.types import Initializer, Shape, Tensor


class PositionTable(RematerializedLayer):
    """The base of layers that add a learned vector for each of `max_length` positions.

    A subclass sets `max_length`, creates the weights and defines `table`.
    """

    max_length: int

    def __init__(self, initializer: Initializer | None, dropout: float, **kwargs: Any):
        super().__init__(**kwargs)
        if initializer is None:
            initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.initializer = as_initializer("initializer", initializer)
        self.dropout = dropout
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy)

    def table(self) -> Tensor:
        """The vectors of all positions, (max_length, D)."""
        raise NotImplementedError(f"{type(self).__name__} does not define table()")

    def call(
        self, inputs: Tensor, positions: Tensor | None = None, training: bool | None = None
    ) -> Tensor:
        """(..., T, D) -> (..., T, D)."""
        rows = _position_rows(self.name, self.table(), inputs, positions)
        return self.dropout_layer(inputs + rows, training=training)


@keras.saving.register_keras_serializable("keras_tfm")
class PositionEmbedding(PositionTable):
    """Adds a learned vector for each position to its input.

    y_t = x_t + P_t: "Convolutional Sequence to Sequence Learning" (arXiv:1705.03122), BERT
    (arXiv:1810.04805), GPT.

    Args:
        max_length: int, number of positions in the table. Longer inputs are an error.
        initializer: initializer of the table (offset + max_length, D). Default: normal with
            standard deviation 0.02, as in BERT.
        dropout: float, dropout rate of the sum.
        offset: int, number of rows before that of position 0, as in the checkpoints of RoBERTa and
            BART. They are part of the table, and unused.

    Call arguments:
        inputs: float tensor (..., T, D), with T up to `max_length`.
        positions: int32, (T,) or (B, T), positions of the tokens, for instance those of
            `text.PackedBatches`. Default: 0 to T - 1, or the scope's positions inside a
            `DecodingScope`.

    Returns:
        Float tensor (..., T, D).

    Raises:
        TypeError: `positions` are not integers.
        ValueError: `positions` have the wrong shape, or T is known when the graph is made and above
            `max_length`; in eager calls, a position outside 0 to `max_length` - 1. In a compiled
            graph, TensorFlow raises InvalidArgumentError on a CPU, and XLA returns NaN.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import PositionEmbedding
    >>> tuple(PositionEmbedding(max_length=8)(np.zeros((2, 5, 4), "float32")).shape)
    (2, 5, 4)
    """

    def __init__(
        self,
        max_length: int,
        initializer: Initializer | None = None,
        dropout: float = 0.0,
        offset: int = 0,
        **kwargs: Any,
    ):
        super().__init__(initializer, dropout, **kwargs)
        check_integer("max_length", max_length)
        check_integer("offset", offset, minimum=0)
        self.max_length = max_length
        self.offset = offset

    def build(self, inputs_shape: Shape, positions_shape: Shape | None = None) -> None:
        """Creates the table for inputs of width D."""
        check_sequence(self, "inputs", inputs_shape)
        self.positions = self.add_weight(
            name="positions",
            shape=(self.offset + self.max_length, inputs_shape[-1]),
            initializer=self.initializer,
        )
        self.built = True

    def table(self) -> Tensor:
        """The vectors of all positions, (max_length, D)."""
        return self.positions[self.offset :]


def _position_rows(name: str, table: Tensor, inputs: Tensor, given: Tensor | None) -> Tensor:
    """The vectors of the tokens' positions: (..., T, D), or (..., 1, D) if all tokens share one.

    Args:
        name: str, the layer's name, for errors.
        table: (max_length, D).
        inputs: (..., T, D), the tokens.
        given: int32, positions that the caller gave; optional.

    Raises:
        ValueError: T is known when the graph is made and above `max_length`; in eager calls, a
            position that the caller gave is outside the table.
    """
    if isinstance(current_scope.get(), SourceScope):
        raise ValueError(
            f"{name}: a source that is read in pieces may be longer than a table of positions: use "
            "sinusoids, or positions in attention"
        )
    length, max_length = inputs.shape[-2], table.shape[0]
    if given is None and isinstance(length, int) and length > max_length:
        raise ValueError(f"{name}: got {length} positions, the table holds max_length={max_length}")
    table = ops.cast(table, inputs.dtype)
    positions = positions_of(inputs, given)
    if given is not None and not is_traced(positions):
        values = ops.convert_to_numpy(positions)
        if values.size and (values.min() < 0 or values.max() >= max_length):
            raise ValueError(
                f"{name}: positions must be in 0..{max_length - 1}, "
                f"got {values.min()}..{values.max()}"
            )
    limit = None
    if isinstance(positions, Span):
        start, count, limit = positions.start, positions.count, positions.limit
        if positions.is_static and start + count <= max_length:
            return table[start : start + count]
        fits = limit is not None and limit <= max_length and positions.padding is None
        one = isinstance(count, int) and count == 1
        if fits and one and current_target.get().name == "gpu-edge":
            return lookup(table, ops.reshape(start, (1,)))  # slices of constants are refused
        if fits and one:
            return ops.slice(table, (start, 0), (1, table.shape[1]))
        if fits and not isinstance(start, int):
            # Only padding at the end of a step exceeds the table. A slice that ends behind the
            # table would start earlier, for tokens too.
            index = ops.minimum(as_tensor(positions), max_length - 1)
            return ops.take(table, index, axis=0)
    index = positions = as_tensor(positions)
    if limit is not None:
        # A finished row is stepped along with the others, even past the table: not an error.
        index = ops.minimum(positions, max_length - 1)
    # `take` reads another row for an index outside the table: return NaN instead.
    inside = ops.logical_and(positions >= 0, positions < max_length)
    beyond = ops.where(inside, 0.0, float("nan"))
    return ops.take(table, index, axis=0) + ops.expand_dims(ops.cast(beyond, table.dtype), -1)
