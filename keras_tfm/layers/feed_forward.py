"""The position-wise feed-forward network of a Transformer block."""

from collections.abc import Collection
from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer, check_number
from keras_tfm.layers.arguments import as_activation, as_initializer, biased_parts, check_sequence
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.dropout import Dropout
from keras_tfm.layers.target import current_target
from keras_tfm.layers.types import Activation, Initializer, Shape, Tensor

_LAYERS = ("inner", "outer")


@keras.saving.register_keras_serializable("keras_tfm")
class FeedForward(RematerializedLayer):
    """Two dense layers, applied to each position separately.

    y = activation(x W_1 + b_1) W_2 + b_2. "Attention Is All You Need" (arXiv:1706.03762),
    section 3.3. With `gated`, y = (activation(x W_g + b_g) * (x W_1 + b_1)) W_2 + b_2, "GLU
    Variants Improve Transformer" (arXiv:2002.05202): SwiGLU with activation "silu", GEGLU with
    "gelu", GLU with "sigmoid". W_g and W_1 are stored in one kernel, gate first.

    Args:
        intermediate_dim: int, width of the first layer's output (F).
        activation: str or function, activation of the first layer, or of the gate.
        gated: bool, whether the first layer's output is multiplied by a gate.
        gate_scale: float, factor of x W_g + b_g, as in Falcon-H1; 1.0 without `gated`.
        dropout: float, dropout rate after the activation (0 in the paper).
        use_bias: bool, whether both layers add a bias, or a list of those that do: any of "inner"
            and "outer".
        kernel_initializer: initializer of both kernels.
        bias_initializer: initializer of both biases.

    Call arguments:
        x: float tensor (..., T, D).

    Returns:
        Float tensor (..., T, D).

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or an input without a sequence axis.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import FeedForward
    >>> tuple(FeedForward(intermediate_dim=16)(np.ones((2, 5, 4), "float32")).shape)
    (2, 5, 4)
    """

    def __init__(
        self,
        intermediate_dim: int,
        activation: Activation = "relu",
        gated: bool = False,
        dropout: float = 0.0,
        use_bias: bool | Collection[str] = True,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        gate_scale: float = 1.0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_integer("intermediate_dim", intermediate_dim)
        self.intermediate_dim = intermediate_dim
        self.activation = as_activation("activation", activation)
        check_number("gate_scale", gate_scale)
        if gate_scale != 1.0 and not gated:
            raise ValueError(f"gate_scale must be 1.0 without gated, got {gate_scale}")
        self.gated = gated
        self.gate_scale = gate_scale
        self.dropout = dropout
        self._biased = biased_parts(use_bias, _LAYERS)
        self.use_bias = use_bias if isinstance(use_bias, bool) else sorted(use_bias)
        self.kernel_initializer = as_initializer("kernel_initializer", kernel_initializer)
        self.bias_initializer = as_initializer("bias_initializer", bias_initializer)
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy)

    def build(self, x_shape: Shape) -> None:
        """Creates both layers for inputs of width D."""
        check_sequence(self, "x", x_shape)
        widths = 2 if self.gated else 1
        self.inner = self._dense("inner", widths * self.intermediate_dim, "inner" in self._biased)
        self.inner.build(x_shape)
        self.outer = self._dense("outer", x_shape[-1], "outer" in self._biased)
        self.outer.build((*x_shape[:-1], self.intermediate_dim))
        self.built = True

    def call(self, x: Tensor, training: bool | None = None) -> Tensor:
        """(..., T, D) -> (..., T, D)."""
        is_float = getattr(self.inner, "quantization_mode", None) is None
        if self.gated and is_float and current_target.get().is_edge:
            # Two products with constant kernels: XNNPACK would copy both halves of one product.
            gate = self.inner.columns(x, 0, self.intermediate_dim)
            y = self._gate(gate) * self.inner.columns(x, self.intermediate_dim, None)
        elif self.gated:
            gate, y = ops.split(self.inner(x), 2, axis=-1)
            y = self._gate(gate) * y
        else:
            y = self.activation(self.inner(x))
        if self.dropout:
            y = self.dropout_layer(y, training=training)
        return self.outer(y)

    def _gate(self, x: Tensor) -> Tensor:
        return self.activation(x if self.gate_scale == 1.0 else x * self.gate_scale)
