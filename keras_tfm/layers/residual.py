"""The residual connection around a sublayer, and the places of its normalisations."""

from collections.abc import Callable
from typing import Any

import keras

from keras_tfm.arguments import check_number, check_rate
from keras_tfm.layers.arguments import as_norm, serialize_part
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.decoding.scope import current_scope
from keras_tfm.layers.decoding.source_scope import SourceScope
from keras_tfm.layers.dropout import Dropout
from keras_tfm.layers.types import Config, Shape, Tensor

NORMS = ("input_norm", "output_norm", "sum_norm")


@keras.saving.register_keras_serializable("keras_tfm")
class Residual(RematerializedLayer):
    """A residual connection: sum_norm(a x + b dropout(output_norm(f(input_norm(x))))).

    Each norm is optional. The usual orders are:

    - `sum_norm`, post-norm: "Attention Is All You Need" (arXiv:1706.03762), section 5.4. With
      `residual_scale` a: DeepNorm (arXiv:2203.00555).
    - `input_norm`, pre-norm: arXiv:2002.04745. A stack of pre-norm blocks needs one more
      normalisation after the last block.
    - `output_norm`: OLMo 2 (arXiv:2501.00656).
    - `input_norm` and `output_norm`, the sandwich: arXiv:2105.13290, as in Gemma 2.

    Args:
        input_norm: layer that normalises the sublayer's input. Default: no normalisation.
        output_norm: layer that normalises the sublayer's output f(x). Default: no normalisation.
        sum_norm: layer that normalises the sum. Default: no normalisation.
        dropout: float, dropout rate of the sublayer's output f(x).
        drop_path: float, rate at which f(x) is dropped for a whole row of the batch in training
            (stochastic depth, arXiv:1603.09382).
        residual_scale: float, the factor a.
        output_scale: float, the factor b, as in Granite.
        layer_scale: float, initial value of a learned vector (D,) that multiplies f(x)
            (arXiv:2103.17239). Default: no such vector.

    Call arguments:
        x: float tensor (..., T, D).
        sublayer: layer or function f from (..., T, D) to (..., T, D). If it returns a tuple, f(x)
            is the first of its tensors.
        base: (..., T, D), the x of the sum, if it is not the sublayer's input: what another
            sublayer with the same input returned. Default: x.

    Returns:
        Float tensor (..., T, D); a tuple of it and the sublayer's other tensors, if there are some.

    Raises:
        TypeError: an argument of the wrong type, such as a norm that is no layer; a call without
            a sublayer.
        ValueError: an argument out of range, or one layer as two norms.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import Residual, RMSNormalization
    >>> residual = Residual(input_norm=RMSNormalization())
    >>> y = residual(np.array([[[3.0, -4.0]]], "float32"), sublayer=lambda x: 0 * x)
    >>> y.numpy().tolist()
    [[[3.0, -4.0]]]
    """

    def __init__(
        self,
        input_norm: keras.Layer | Config | None = None,
        output_norm: keras.Layer | Config | None = None,
        sum_norm: keras.Layer | Config | None = None,
        dropout: float = 0.0,
        drop_path: float = 0.0,
        residual_scale: float = 1.0,
        layer_scale: float | None = None,
        output_scale: float = 1.0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_rate("drop_path", drop_path)
        check_number("residual_scale", residual_scale)
        check_number("output_scale", output_scale)
        check_number("layer_scale", layer_scale, optional=True)
        self.input_norm = as_norm("input_norm", input_norm)
        self.output_norm = as_norm("output_norm", output_norm)
        self.sum_norm = as_norm("sum_norm", sum_norm)
        norms = [id(norm) for norm in self._norms()]
        if len(set(norms)) < len(norms):
            raise ValueError(f"{self.name}: each norm must be another layer, got one twice")
        self.dropout = dropout
        self.drop_path = drop_path
        self.residual_scale = residual_scale
        self.layer_scale = layer_scale
        self.output_scale = output_scale
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy)
        self.drop_path_layer = Dropout(drop_path, dtype=self.dtype_policy)

    def _norms(self) -> list[keras.Layer]:
        norms = [self.input_norm, self.output_norm, self.sum_norm]
        return [norm for norm in norms if norm is not None]

    def build(self, x_shape: Shape) -> None:
        """Creates the normalisations' weights."""
        for norm in self._norms():
            if not norm.built:
                norm.build(x_shape)
        self.drop_path_layer.noise_shape = (None, *(1,) * (len(x_shape) - 1))
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
        self,
        x: Tensor,
        *,
        sublayer: Callable[[Tensor], Tensor] | None = None,
        base: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor | tuple[Tensor, ...]:
        """(..., T, D) -> (..., T, D)."""
        if sublayer is None:
            raise TypeError(f"{self.name} must be called with sublayer=, a layer or a function")
        scope = current_scope.get()
        place = scope.place if isinstance(scope, SourceScope) else None
        y = sublayer(x if self.input_norm is None else self.input_norm(x))
        others: tuple[Tensor, ...] = ()
        if isinstance(y, tuple):
            y, others = y[0], y[1:]
        if self.output_norm is not None:
            y = self.output_norm(y)
        if self.dropout:
            y = self.dropout_layer(y, training=training)
        if self.layer_scale is not None:
            y = y * self.scale
        if self.output_scale != 1.0:
            y = y * self.output_scale
        if self.drop_path:
            y = self.drop_path_layer(y, training=training)
        base = x if base is None else base
        if place is not None and isinstance(scope, SourceScope):
            base = scope.late(self.name, base, scope.place.delay - place.delay)
        y = (base if self.residual_scale == 1.0 else base * self.residual_scale) + y
        y = y if self.sum_norm is None else self.sum_norm(y)
        return (y, *others) if others else y

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            **{name: serialize_part(getattr(self, name)) for name in NORMS},
            "dropout": self.dropout,
            "drop_path": self.drop_path,
            "residual_scale": self.residual_scale,
            "layer_scale": self.layer_scale,
            "output_scale": self.output_scale,
        }
