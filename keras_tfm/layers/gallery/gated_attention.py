"""The gated self-attention and the transition of an Evoformer block.

Example:

>>> import numpy as np
>>> from keras_tfm.layers.gallery.gated_attention import GatedAttention
>>> layer, x = GatedAttention(num_heads=2), np.ones((1, 3, 5, 4), "float32")
>>> float(np.abs(layer(x)).max())  # the output projection starts as zeros
0.0
"""

from typing import Any

import keras
from keras import ops

from keras_tfm.layers.base_layer import Projection
from keras_tfm.layers.dropout import Dropout
from keras_tfm.layers.feed_forward import FeedForward
from keras_tfm.layers.multi_head_attention.blockwise import cut
from keras_tfm.layers.multi_head_attention.multi_head_self_attention import MultiHeadSelfAttention
from keras_tfm.layers.types import DType, Initializer, Shape, Tensor


class GatedAttention(MultiHeadSelfAttention):
    """Self-attention with a gate, biases and initial weights as in AlphaFold 2.

    Only the gate and the output have a bias. The gate starts open (kernel 0, bias 1) and the output
    projection as zeros, so that a block starts as the identity (supplement 1.11.4).
    """

    def __init__(self, num_heads: int, head_dim: int | None = None, **kwargs: Any):
        super().__init__(
            num_heads, head_dim=head_dim, gate=True, use_bias=("gate", "output"), **kwargs
        )

    def _projection(
        self, kind: str, units: int, input_shape: Shape, name: str | None = None
    ) -> Projection:
        starts_at_zero = kind in ("gate", "output")
        layer = self._dense(
            name or kind,
            units,
            use_bias=starts_at_zero,
            kernel_initializer="zeros" if starts_at_zero else None,
            bias_initializer="ones" if kind == "gate" else None,
        )
        layer.build(input_shape)
        return layer


class Transition(FeedForward):
    """A feed-forward network with ReLU whose output starts as zeros (algorithms 9 and 15)."""

    def __init__(self, intermediate_dim: int, **kwargs: Any):
        super().__init__(intermediate_dim, kernel_initializer="he_normal", **kwargs)

    def _dense(
        self,
        name: str,
        units: int,
        use_bias: bool | None = None,
        kernel_initializer: Initializer | None = None,
        bias_initializer: Initializer | None = None,
    ) -> Projection:
        kernel = "zeros" if name == "outer" else kernel_initializer
        return super()._dense(name, units, use_bias, kernel, bias_initializer)

    def call(self, x: Tensor, training: bool | None = None) -> Tensor:
        """(B, R, C, D) -> (B, R, C, D), in blocks of rows where they are many."""
        length = x.shape[2]
        each = length * self.intermediate_dim if isinstance(length, int) else None
        rows = cut(x.shape[1], each)
        if len(rows) == 1:
            return super().call(x, training=training)
        results = [super(Transition, self).call(x[:, part], training=training) for part in rows]
        return ops.concatenate(results, axis=1)


def shared_dropout(rate: float, axis: int, dtype: DType, name: str) -> Dropout:
    """Dropout whose mask is shared along one axis of (B, R, C, D): row- or column-wise.

    Axis 1 is row-wise dropout: all rows drop the same values. Supplement 1.11.6.
    """
    shape: list[int | None] = [None, None, None, None]
    shape[axis] = 1
    return Dropout(rate, noise_shape=tuple(shape), dtype=dtype, name=name)


def normal() -> keras.initializers.Initializer:
    """AlphaFold's initializer of kernels that no rule is given for: LeCun's."""
    return keras.initializers.LecunNormal()
