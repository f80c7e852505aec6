"""Learned positions."""

from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers.as_objects import as_initializer
from keras_tfm.layers.decoding_scope import DecodingScope
from keras_tfm.layers.dropout import Dropout
from keras_tfm.layers.rematerialized import RematerializedLayer

Tensor = Any


@keras.saving.register_keras_serializable("keras_tfm")
class PositionEmbedding(RematerializedLayer):
    """Adds a learned vector for each position to its input.

    y_t = x_t + P_t: "Convolutional Sequence to Sequence Learning" (arXiv:1705.03122), BERT
    (arXiv:1810.04805), GPT. Inside a `DecodingScope` positions start at the scope's.

    Args:
        max_length: how many positions the table holds. Longer inputs are an error.
        initializer: of the table; normal with standard deviation 0.02 by default, as in BERT.
        dropout: rate of the dropout of the sum.

    Call arguments:
        inputs: (B, T, D), T at most `max_length`.

    Returns:
        (B, T, D).

    Raises:
        ValueError: more positions than the table holds, where the length is known when the graph
            is made. Otherwise TensorFlow raises InvalidArgumentError, and names both.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import PositionEmbedding
    >>> tuple(PositionEmbedding(max_length=8)(np.zeros((2, 5, 4), "float32")).shape)
    (2, 5, 4)
    """

    def __init__(
        self, max_length: int, initializer: Any = None, dropout: float = 0.0, **kwargs: Any
    ):
        super().__init__(**kwargs)
        check_integer("max_length", max_length)
        self.max_length = max_length
        if initializer is None:
            initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.initializer = as_initializer("initializer", initializer)
        self.dropout = dropout
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy)
        self.supports_masking = True

    def build(self, inputs_shape: Any) -> None:
        """Creates the table for inputs of width D."""
        if len(inputs_shape) != 3 or inputs_shape[-1] is None:
            raise ValueError(f"PositionEmbedding expects (B, T, D), got shape {inputs_shape}")
        self.positions = self.add_weight(
            name="positions",
            shape=(self.max_length, inputs_shape[-1]),
            initializer=self.initializer,
        )
        self.built = True

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        length, dim = ops.shape(inputs)[1:]
        scope = DecodingScope.current()
        start = 0 if scope is None else scope.position
        table = ops.cast(self.positions, inputs.dtype)
        if isinstance(length, int) and length > self.max_length:
            raise ValueError(
                f"{self.name}: got {length} positions, the table holds max_length={self.max_length}"
            )
        rows_read = length if scope is None else scope.span(length)
        known = isinstance(rows_read, int) and (scope is None or scope.padding is None)
        if known and isinstance(start, int) and start + rows_read <= self.max_length:
            rows = table[start : start + rows_read]
        elif known and scope is not None and scope.length + rows_read - 1 <= self.max_length:
            rows = ops.slice(table, (start, 0), (rows_read, dim))
        else:
            positions = ops.arange(length, dtype="int32") + start
            if scope is not None and scope.padding is not None:
                positions = scope.positions(length)  # (B, T)
            index = positions
            if scope is not None:
                # An encoder inside the scope, whose output no later step reads, is run at the
                # tokens' position: beyond its table is no error there.
                index = ops.minimum(positions, self.max_length - 1)
            # XLA clamps an index that is too large: NaN, not the last row in silence.
            beyond = ops.where(positions < self.max_length, 0.0, float("nan"))
            rows = ops.take(table, index, axis=0)
            rows = rows + ops.expand_dims(ops.cast(beyond, rows.dtype), -1)
        return self.dropout_layer(inputs + rows, training=training)

    def compute_output_shape(self, inputs_shape: Any) -> Any:
        """The input's."""
        return inputs_shape

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "max_length": self.max_length,
            "initializer": keras.initializers.serialize(self.initializer),
            "dropout": self.dropout,
        }
