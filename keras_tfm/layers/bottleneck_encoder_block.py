"""MobileBERT's block: attention and feed-forward networks in a narrower width than the model's."""

from typing import Any, cast

import keras

from keras_tfm.arguments import check_integer
from keras_tfm.layers.arguments import as_norm, serialize_part
from keras_tfm.layers.elementwise_affine import ElementwiseAffine
from keras_tfm.layers.multi_head_attention.multi_head_self_attention import MultiHeadSelfAttention
from keras_tfm.layers.residual import Residual
from keras_tfm.layers.transformer_block import TransformerBlock, with_finite_padding
from keras_tfm.layers.types import Config, Shape, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class BottleneckEncoderBlock(TransformerBlock):
    """A `TransformerEncoderBlock` of width W between two projections, D -> W and W -> D.

    z = norm(x W_in + b_in), s = norm(x W_s + b_s), a = z + attention(queries and keys of s, values
    of x), f = a + feed_forward(a) as many times as there are networks, and y = x + f W_out + b_out,
    each sum in a `Residual` with its norms. MobileBERT (arXiv:2004.02984), figure 1 and table 1.

    `intermediate_dim`, `num_heads`, `self_attention`, `feed_forward`, `residual` and the other
    arguments of `TransformerBlock` are those of the narrow block; but by default the norms are
    `ElementwiseAffine`, after each sum, and `dropout` is that of the attention weights and of the
    output.

    Args:
        bottleneck_dim: int, width of the narrow block (W). None: the block has the width D, and
            neither of the projections.
        query_key_bottleneck: bool, whether queries and keys have a projection of their own, s, and
            values are of x. False: all three are of z.
        num_feed_forward: int, number of feed-forward networks, one after another, each in a
            residual connection. All are as `feed_forward`, with weights of their own.
        norm: layer to copy after the projections into the bottleneck. Default:
            `ElementwiseAffine()`.
        stacked_residual: `Residual` to copy for each feed-forward network but the last. Default:
            that of the last.
        output_residual: `Residual` around the narrow block. Default: with `ElementwiseAffine()`
            after the sum, and `dropout`.
        **kwargs: the other arguments of `TransformerBlock`.

    Call arguments:
        x: float tensor (..., T, D).
        mask: (..., T), boolean, True = token, False = padding. Default: the mask that `x` carries.
        attention_mask: (..., T, T), boolean, True = the query sees the key. Combined with `mask`.
        attention_bias: float tensor, broadcastable to (..., H, T, T), added to the scaled scores.
        positions: int32, (T,), (..., T) or (..., T, C), positions of the tokens for the position
            part of the self-attention.

    Returns:
        Float tensor (..., T, D).

    Raises:
        TypeError: a part of the wrong type.
        ValueError: a part that the block cannot have, see `TransformerBlock`; a norm of the
            attention's input with `query_key_bottleneck`, which would read it nowhere.

    Example:

    >>> import keras
    >>> from keras_tfm.layers import BottleneckEncoderBlock
    >>> block = BottleneckEncoderBlock(16, num_heads=2, bottleneck_dim=8, num_feed_forward=4)
    >>> block(keras.Input((None, 24))).shape
    (None, None, 24)
    """

    def __init__(
        self,
        intermediate_dim: int | None = None,
        num_heads: int | None = None,
        bottleneck_dim: int | None = None,
        query_key_bottleneck: bool = True,
        num_feed_forward: int = 1,
        norm: keras.Layer | Config | None = None,
        stacked_residual: Residual | Config | None = None,
        output_residual: Residual | Config | None = None,
        **kwargs: Any,
    ):
        check_integer("bottleneck_dim", bottleneck_dim, optional=True)
        check_integer("num_feed_forward", num_feed_forward)
        if kwargs.get("residual") is None and not kwargs.get("normalize_first"):
            dtype = {"dtype": kwargs["dtype"]} if "dtype" in kwargs else {}
            kwargs["residual"] = Residual(sum_norm=ElementwiseAffine(name="norm", **dtype), **dtype)
        super().__init__(intermediate_dim, num_heads, **kwargs)
        self.bottleneck_dim = bottleneck_dim
        self.query_key_bottleneck = query_key_bottleneck
        self.num_feed_forward = num_feed_forward
        is_plain = (
            isinstance(self.self_attention, MultiHeadSelfAttention)
            and not self._is_merged
            and self._key_value == "own"
            and self.cross_attention is None
            and self.feed_forward is not None
            and not self.parallel
        )
        if not is_plain:
            raise ValueError(
                f"{self.name}: a bottleneck block needs a MultiHeadSelfAttention with keys and "
                "values of its own and a feed_forward, and neither cross_attention nor parallel"
            )
        self._reads_input = bottleneck_dim is not None and query_key_bottleneck
        if self._reads_input and self.self_attention_residual.input_norm is not None:
            raise ValueError(
                f"{self.name}: input_norm of the self-attention's residual connection must be None "
                "with query_key_bottleneck=True, whose queries, keys and values have other inputs"
            )
        # Configurations, as in the base: each part is a copy, in the order of the computation.
        self._norm = serialize_part(as_norm("norm", norm))
        stacked = None if stacked_residual is None else self._template(stacked_residual)
        self._stacked_residual = serialize_part(stacked)
        if output_residual is None:
            affine = ElementwiseAffine(dtype=self.dtype_policy, name="norm")
            template = Residual(sum_norm=affine, dropout=self.dropout, dtype=self.dtype_policy)
        else:
            template = self._template(output_residual)
        self._output_residual = None if output_residual is None else serialize_part(template)
        self.stacked_feed_forward = []
        self.stacked_feed_forward_residual = []
        for i in range(num_feed_forward - 1):
            self.stacked_feed_forward.append(_copy(self.feed_forward, f"feed_forward_{i}"))
            residual = self.feed_forward_residual if stacked is None else stacked
            self.stacked_feed_forward_residual.append(_copy(residual, f"feed_forward_{i}_residual"))
        if bottleneck_dim is not None:
            self.bottleneck_norm = self._copied_norm("bottleneck_norm")
            if query_key_bottleneck:
                self.query_key_norm = self._copied_norm("query_key_norm")
            self.output_residual = _copy(template, "output_residual")

    def _copied_norm(self, name: str) -> keras.Layer:
        if self._norm is None:
            return ElementwiseAffine(dtype=self.dtype_policy, name=name)
        return _copy(keras.saving.deserialize_keras_object(self._norm), name)

    def build(self, x_shape: Shape) -> None:
        """Creates the weights for inputs of width D."""
        if self.bottleneck_dim is None:
            narrow = x_shape
        else:
            narrow = (*x_shape[:-1], self.bottleneck_dim)
            self.bottleneck_projection = self._dense(
                "bottleneck_projection", self.bottleneck_dim, True
            )
            self.bottleneck_projection.build(x_shape)
            self.bottleneck_norm.build(narrow)
            if self.query_key_bottleneck:
                self.query_key_projection = self._dense(
                    "query_key_projection", self.bottleneck_dim, True
                )
                self.query_key_projection.build(x_shape)
                self.query_key_norm.build(narrow)
                if not self.self_attention.built:
                    self.self_attention.build(narrow, x_shape)
            self.expansion = self._dense("expansion", x_shape[-1], True)
            self.expansion.build(narrow)
            self.output_residual.build(x_shape)
        for part in (*self.stacked_feed_forward, *self.stacked_feed_forward_residual):
            self._build_part(part, narrow)
        self._build(narrow)

    def call(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        attention_bias: Tensor | None = None,
        positions: Tensor | None = None,
        x_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        """(..., T, D) -> (..., T, D)."""
        mask = x_mask if mask is None else mask
        x = with_finite_padding(x, mask)
        pairs = {
            "attention_mask": attention_mask,
            "attention_bias": attention_bias,
            "positions": positions,
        }

        def transform(narrow: Tensor, **inputs: Tensor) -> Tensor:
            y = self._attend(narrow, mask, None, training, **pairs, **inputs)
            for network, residual in zip(
                self.stacked_feed_forward, self.stacked_feed_forward_residual, strict=True
            ):
                y = residual(y, sublayer=network, training=training)
            return self._feed_forward(narrow, y, training)

        if self.bottleneck_dim is None:
            return transform(x)
        narrow, inputs = self.bottleneck_norm(self.bottleneck_projection(x)), dict[str, Tensor]()
        if self.query_key_bottleneck:
            shared = self.query_key_norm(self.query_key_projection(x))
            inputs = {"query": shared, "key": shared, "value": x}
        return self.output_residual(
            x,
            sublayer=lambda _: self.expansion(transform(narrow, **inputs)),
            training=training,
        )

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "bottleneck_dim": self.bottleneck_dim,
            "query_key_bottleneck": self.query_key_bottleneck,
            "num_feed_forward": self.num_feed_forward,
            "norm": self._norm,
            "stacked_residual": self._stacked_residual,
            "output_residual": self._output_residual,
        }


def _copy(part: keras.Layer, name: str) -> keras.Layer:
    """A layer with the same arguments and weights of its own."""
    return cast(keras.Layer, type(part).from_config({**part.get_config(), "name": name}))
