"""One vector for a sequence: attention from a learned vector, and a feed-forward network."""

from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer, check_positive
from keras_tfm.layers.arguments import as_activation, as_initializer, check_sequence
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.feed_forward import FeedForward
from keras_tfm.layers.finite_padding import finite_padding
from keras_tfm.layers.layer_normalization import LayerNormalization
from keras_tfm.layers.multi_head_attention import masks
from keras_tfm.layers.multi_head_attention.base import MultiHeadAttention
from keras_tfm.layers.multi_head_attention.heads import merge_heads, split_heads
from keras_tfm.layers.types import Activation, Config, Initializer, Shape, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class AttentionPooling(RematerializedLayer):
    """Pools a sequence (B, S, D) into one vector (B, D): the pooling of SigLIP's images.

    A learned vector p, the probe, attends to the sequence:

        a = MultiHeadAttention(query=p, key=x, value=x)
        y = a + FeedForward(LayerNormalization(a))

    "Scaling Vision Transformers" (arXiv:2106.04560), section 3.1, where it is called MAP;
    "Sigmoid Loss for Language Image Pre-Training" (arXiv:2303.15343).

    Args:
        num_heads: int, number of attention heads (H). Must divide D.
        intermediate_dim: int, inner width of the feed-forward network (F).
        activation: str or function, activation of the feed-forward network.
        dropout: float, dropout rate of the attention weights.
        layer_norm_epsilon: float, epsilon of the normalisation.
        kernel_initializer: initializer of the probe and of all kernels.
        bias_initializer: initializer of all biases.

    Call arguments:
        x: float tensor (B, S, D).
        mask: (B, S), boolean, True = token, False = padding. Default: the mask that `x` carries.

    Returns:
        Float tensor (B, D). A row of padding alone gets what the biases make of zeros.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or `num_heads` does not divide D.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import AttentionPooling
    >>> layer = AttentionPooling(num_heads=3, intermediate_dim=16)
    >>> tuple(layer(np.ones((2, 5, 12), "float32")).shape)
    (2, 12)
    """

    def __init__(
        self,
        num_heads: int,
        intermediate_dim: int,
        activation: Activation = "gelu",
        dropout: float = 0.0,
        layer_norm_epsilon: float = 1e-6,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_integer("num_heads", num_heads)
        check_integer("intermediate_dim", intermediate_dim)
        check_positive("layer_norm_epsilon", layer_norm_epsilon)
        self.num_heads = num_heads
        self.intermediate_dim = intermediate_dim
        self.activation = as_activation("activation", activation)
        self.dropout = dropout
        self.layer_norm_epsilon = layer_norm_epsilon
        self.kernel_initializer = as_initializer("kernel_initializer", kernel_initializer)
        self.bias_initializer = as_initializer("bias_initializer", bias_initializer)
        self.attention = _ProbeAttention(
            num_heads, dropout=dropout, name="attention", **self._options()
        )
        self.norm = LayerNormalization(
            epsilon=layer_norm_epsilon, dtype=self.dtype_policy, name="norm"
        )
        self.feed_forward = FeedForward(
            intermediate_dim, self.activation, name="feed_forward", **self._options()
        )

    def _options(self) -> Config:
        return {
            "kernel_initializer": self.kernel_initializer.clone(),
            "bias_initializer": self.bias_initializer.clone(),
            "dtype": self.dtype_policy,
        }

    def build(self, x_shape: Shape, mask_shape: Shape | None = None) -> None:
        """Creates the probe and the sublayers for a sequence of width D."""
        check_sequence(self, "x", x_shape)
        dim = x_shape[-1]
        self.probe = self.add_weight(
            name="probe", shape=(1, dim), initializer=self.kernel_initializer.clone()
        )
        vector = (x_shape[0], 1, dim)
        self.attention.build(x_shape)
        self.norm.build(vector)
        self.feed_forward.build(vector)
        self.built = True

    def compute_mask(self, x: Tensor, mask: Tensor | None = None) -> None:
        """None: the result has no sequence axis."""
        return

    def call(self, x: Tensor, mask: Tensor | None = None, training: bool | None = None) -> Tensor:
        """(B, S, D), (B, S) -> (B, D)."""
        probe = ops.cast(ops.expand_dims(self.probe, 0), x.dtype)
        probe = ops.broadcast_to(probe, (ops.shape(x)[0], 1, x.shape[-1]))
        a = self.attention(x, probe, mask, training=training)
        y = a + self.feed_forward(self.norm(a), training=training)
        return ops.reshape(y, (-1, x.shape[-1]))

    def compute_output_shape(self, x_shape: Shape, mask_shape: Shape | None = None) -> Shape:
        """(B, D)."""
        return (x_shape[0], x_shape[-1])


class _ProbeAttention(MultiHeadAttention):
    """Attention from one vector to a sequence; made by its layer, and not saved alone.

    Queries, keys and values share a kernel, as in the checkpoints.
    """

    def build(self, x_shape: Shape) -> None:
        """Creates the projections for a sequence of width D."""
        widths = self._build_heads(x_shape)
        self._ends = (widths[0], widths[0] + widths[1])
        self.query_key_value = self._dense("query_key_value", sum(widths), use_bias=True)
        self.query_key_value.build(x_shape)
        self.built = True

    def call(
        self, x: Tensor, probe: Tensor, mask: Tensor | None, training: bool | None = None
    ) -> Tensor:
        """(B, S, D), (B, 1, D), (B, S) -> (B, 1, D)."""
        mask = masks.key_mask("mask", mask, x)
        x = finite_padding(x, mask)
        end, last = self._ends
        query, key, value = (
            split_heads(self.query_key_value.columns(inputs, start, stop), self.num_heads)
            for inputs, start, stop in ((probe, 0, end), (x, end, last), (x, last, None))
        )
        y = self._attend(query, key, value, mask, None, None, None, training)
        return self.output_projection(merge_heads(y))
