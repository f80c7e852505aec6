"""The residual connection around a sublayer: where pre-norm and post-norm are decided."""

from collections.abc import Callable
from typing import Any

import keras

Tensor = Any


class Residual(keras.layers.Layer):
    """x + dropout(sublayer(x)), with a layer normalisation before or after.

    post-norm: LayerNorm(x + Dropout(Sublayer(x))), "Attention Is All You Need" (arXiv:1706.03762),
    section 5.4; pre-norm: x + Dropout(Sublayer(LayerNorm(x))), arXiv:2002.04745. A stack of
    pre-norm blocks wants one more normalisation after its last.

    Args:
        normalize_first: pre-norm.
        epsilon: of the normalisation.
        dropout: rate of the dropout of the sublayer's output.
    """

    def __init__(
        self,
        normalize_first: bool = False,
        epsilon: float = 1e-5,
        dropout: float = 0.0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.normalize_first = normalize_first
        self.norm = keras.layers.LayerNormalization(
            epsilon=epsilon, dtype=self.dtype_policy, name="norm"
        )
        self.dropout_layer = keras.layers.Dropout(dropout, dtype=self.dtype_policy)
        self.supports_masking = True

    def build(self, x_shape: Any) -> None:
        """Creates the normalisation's weights."""
        self.norm.build(x_shape)
        self.built = True

    def call(
        self, x: Tensor, *, sublayer: Callable[[Tensor], Tensor], training: bool | None = None
    ) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        if self.normalize_first:
            return x + self.dropout_layer(sublayer(self.norm(x)), training=training)
        return self.norm(x + self.dropout_layer(sublayer(x), training=training))
