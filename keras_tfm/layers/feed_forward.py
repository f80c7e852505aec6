"""The position-wise network of a Transformer block."""

from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers.arguments import as_activation, as_initializer, check_sequence
from keras_tfm.layers.dropout import Dropout
from keras_tfm.layers.rematerialized import RematerializedLayer

Tensor = Any


@keras.saving.register_keras_serializable("keras_tfm")
class FeedForward(RematerializedLayer):
    """Two dense layers applied to each position alone.

    y = activation(x W_1 + b_1) W_2 + b_2. "Attention Is All You Need" (arXiv:1706.03762),
    section 3.3. With `gated`, y = (activation(x W_g + b_g) * (x W_1 + b_1)) W_2 + b_2, "GLU
    Variants Improve Transformer" (arXiv:2002.05202): activation "silu" makes it SwiGLU, "gelu"
    GEGLU, "sigmoid" GLU. W_g and W_1 are one kernel, gate first.

    Args:
        intermediate_dim: F, the width between the two.
        activation: of the first layer, or of the gate.
        gated: whether a gate multiplies the first layer.
        dropout: rate of the dropout after the activation (0 in the paper).
        use_bias: whether the layers add a bias.
        kernel_initializer, bias_initializer: of both layers.

    Call arguments:
        x: (..., T, D).

    Returns:
        (..., T, D).

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import FeedForward
    >>> tuple(FeedForward(intermediate_dim=16)(np.ones((2, 5, 4), "float32")).shape)
    (2, 5, 4)
    """

    def __init__(
        self,
        intermediate_dim: int,
        activation: Any = "relu",
        gated: bool = False,
        dropout: float = 0.0,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_integer("intermediate_dim", intermediate_dim)
        self.intermediate_dim = intermediate_dim
        self.activation = as_activation("activation", activation)
        self.gated = gated
        self.dropout = dropout
        self.use_bias = use_bias
        self.kernel_initializer = as_initializer("kernel_initializer", kernel_initializer)
        self.bias_initializer = as_initializer("bias_initializer", bias_initializer)
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy)
        self.supports_masking = True

    def build(self, x_shape: Any) -> None:
        """Creates both layers for inputs of width D."""
        check_sequence(self, "x", x_shape)
        widths = 2 if self.gated else 1
        self.inner = self._dense("inner", widths * self.intermediate_dim)
        self.inner.build(x_shape)
        self.outer = self._dense("outer", x_shape[-1])
        self.outer.build((*x_shape[:-1], self.intermediate_dim))
        self.built = True

    def call(self, x: Tensor, training: bool | None = None) -> Tensor:
        """(..., T, D) -> (..., T, D)."""
        y = self.inner(x)
        if self.gated:
            gate, y = ops.split(y, 2, axis=-1)
            y = self.activation(gate) * y
        else:
            y = self.activation(y)
        return self.outer(self.dropout_layer(y, training=training))

    def compute_output_shape(self, x_shape: Any) -> Any:
        """The input's."""
        return x_shape

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "intermediate_dim": self.intermediate_dim,
            "activation": keras.activations.serialize(self.activation),
            "gated": self.gated,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
        }
