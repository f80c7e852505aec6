"""The residual connection around a sublayer, with pre-norm, post-norm or both."""

from collections.abc import Callable
from typing import Any

import keras

from keras_tfm.arguments import check_number, check_rate
from keras_tfm.layers.dropout import Dropout
from keras_tfm.layers.layer_normalization import LayerNormalization
from keras_tfm.layers.rematerialized import RematerializedLayer
from keras_tfm.layers.rms_normalization import RMSNormalization

Tensor = Any

NORMS = ("layer_norm", "rms_norm")
ORDERS = ("post", "pre", "sandwich")


def make_norm(kind: str, epsilon: float, dtype: Any, name: str) -> keras.layers.Layer:
    """Makes a normalisation layer of the last axis; `kind` is "layer_norm" or "rms_norm"."""
    check_number("layer_norm_epsilon", epsilon)
    if epsilon < 0:
        raise ValueError(f"layer_norm_epsilon must not be negative, got {epsilon}")
    if kind == "layer_norm":
        return LayerNormalization(epsilon=epsilon, dtype=dtype, name=name)
    if kind == "rms_norm":
        return RMSNormalization(epsilon=epsilon, dtype=dtype, name=name)
    raise ValueError(f"norm must be one of {list(NORMS)}, got {kind!r}")


@keras.saving.register_keras_serializable("keras_tfm")
class Residual(RematerializedLayer):
    """A residual connection, x + dropout(sublayer(x)), normalised before, after, or both.

    - "post": norm(a x + f(x)), "Attention Is All You Need" (arXiv:1706.03762), section 5.4. With
      `residual_scale` a: DeepNorm (arXiv:2203.00555).
    - "pre": a x + f(norm(x)), arXiv:2002.04745. A stack of pre-norm blocks needs one more
      normalisation after the last block.
    - "sandwich": a x + norm'(f(norm(x))), arXiv:2105.13290, as in Gemma 2.

    Args:
        order: str, "post", "pre" or "sandwich".
        norm: str, "layer_norm" or "rms_norm" (arXiv:1910.07467).
        epsilon: float, epsilon of the normalisation.
        dropout: float, dropout rate of the sublayer's output f(x).
        drop_path: float, rate at which f(x) is dropped for a whole row of the batch in training
            (stochastic depth, arXiv:1603.09382).
        residual_scale: float, the factor a.
        layer_scale: float, initial value of a learned vector (D,) that multiplies f(x)
            (arXiv:2103.17239). Default: no such vector.

    Call arguments:
        x: float tensor (..., T, D).
        sublayer: layer or function f from (..., T, D) to (..., T, D).

    Returns:
        Float tensor (..., T, D).

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an unknown `order` or `norm`, or an argument out of range.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import Residual
    >>> residual = Residual("pre", norm="rms_norm")
    >>> y = residual(np.array([[[3.0, -4.0]]], "float32"), sublayer=lambda x: 0 * x)
    >>> y.numpy().tolist()
    [[[3.0, -4.0]]]
    """

    def __init__(
        self,
        order: str = "post",
        norm: str = "layer_norm",
        epsilon: float = 1e-5,
        dropout: float = 0.0,
        drop_path: float = 0.0,
        residual_scale: float = 1.0,
        layer_scale: float | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if order not in ORDERS:
            raise ValueError(f"order must be one of {list(ORDERS)}, got {order!r}")
        check_rate("drop_path", drop_path)
        check_number("residual_scale", residual_scale)
        check_number("layer_scale", layer_scale, optional=True)
        self.order = order
        self.epsilon = epsilon
        self.dropout = dropout
        self.drop_path = drop_path
        self.norm_kind = norm
        self.residual_scale = residual_scale
        self.layer_scale = layer_scale
        self.norm = make_norm(norm, epsilon, self.dtype_policy, "norm")
        if order == "sandwich":
            self.output_norm = make_norm(norm, epsilon, self.dtype_policy, "output_norm")
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy)
        self.drop_path_layer = Dropout(drop_path, dtype=self.dtype_policy)
        self.supports_masking = True

    def build(self, x_shape: Any) -> None:
        """Creates the normalisations' weights."""
        self.norm.build(x_shape)
        self.drop_path_layer.noise_shape = (None, *(1,) * (len(x_shape) - 1))
        if self.order == "sandwich":
            self.output_norm.build(x_shape)
        if self.layer_scale is not None:
            self.scale = self.add_weight(
                name="scale",
                shape=(x_shape[-1],),
                initializer=keras.initializers.Constant(self.layer_scale),
            )
        self.built = True

    def compute_mask(self, x: Tensor, previous_mask: Tensor | None = None) -> None:
        """None: the enclosing block sets the mask of its output."""
        return

    def call(
        self, x: Tensor, *, sublayer: Callable[[Tensor], Tensor], training: bool | None = None
    ) -> Tensor:
        """(..., T, D) -> (..., T, D)."""
        y = sublayer(x if self.order == "post" else self.norm(x))
        if self.order == "sandwich":
            y = self.output_norm(y)
        y = self.dropout_layer(y, training=training)
        if self.layer_scale is not None:
            y = y * self.scale
        y = self.drop_path_layer(y, training=training)
        y = (x if self.residual_scale == 1.0 else x * self.residual_scale) + y
        return self.norm(y) if self.order == "post" else y

    def compute_output_shape(self, x_shape: Any, **_: Any) -> Any:
        """The shape of the input."""
        return x_shape

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "order": self.order,
            "norm": self.norm_kind,
            "epsilon": self.epsilon,
            "dropout": self.dropout,
            "drop_path": self.drop_path,
            "residual_scale": self.residual_scale,
            "layer_scale": self.layer_scale,
        }
