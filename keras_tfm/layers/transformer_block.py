"""What encoder and decoder blocks share: their arguments and how sublayers are made of them."""

from typing import Any

import keras

from keras_tfm.arguments import check_number, check_rate
from keras_tfm.layers.arguments import as_activation, as_initializer
from keras_tfm.layers.attention_position import AttentionPosition, serialize_position
from keras_tfm.layers.feed_forward import FeedForward
from keras_tfm.layers.multi_head_attention import MultiHeadAttention, check_sequence
from keras_tfm.layers.multi_head_self_attention import MultiHeadSelfAttention
from keras_tfm.layers.rematerialized import RematerializedLayer
from keras_tfm.layers.residual import Residual

Tensor = Any


class TransformerBlock(RematerializedLayer):
    """The base of `TransformerEncoderBlock` and `TransformerDecoderBlock`; not used by itself.

    Args:
        intermediate_dim: F, the inner width of the feed-forward network.
        num_heads: H.
        dropout: rate after each sublayer, and of the attention weights.
        activation: of the feed-forward network.
        layer_norm_epsilon: of every normalisation.
        normalize_first: normalise a sublayer's input rather than the sum (pre-norm,
            arXiv:2002.04745).
        sandwich_norm: with `normalize_first`, normalise a sublayer's output too (arXiv:2105.13290).
        norm: "layer_norm" or "rms_norm" (arXiv:1910.07467).
        gated: a gated feed-forward network; with activation "silu" SwiGLU (arXiv:2002.05202).
        position: a part of the self-attention, `RotaryEmbedding` for instance.
        window: self-attention sees positions less than `window` away.
        head_dim: K, the width of a query and of a key; D / H by default.
        value_dim: the width of a head's values; `head_dim` by default.
        num_key_value_heads: G; H by default.
        query_key_norm: RMS normalisation of each head's queries and keys.
        soft_cap: c in c tanh(score / c).
        attention_scale: factor of the scores; 1/sqrt(K) by default.
        attention_dropout: rate of the dropout of the attention weights; `dropout` by default.
        feed_forward_dropout: rate of the dropout inside the feed-forward network.
        drop_path: rate at which a whole sublayer is dropped for a row (arXiv:1603.09382).
        residual_scale: factor of the residual (DeepNorm, arXiv:2203.00555).
        layer_scale: where a learned factor of each sublayer's output starts (arXiv:2103.17239);
            None: there is none.
        use_bias: whether the projections add a bias.
        kernel_initializer, bias_initializer: of every projection.
    """

    # What a decoder block overrides.
    causal = False

    def __init__(
        self,
        intermediate_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        activation: Any = "relu",
        layer_norm_epsilon: float = 1e-5,
        normalize_first: bool = False,
        sandwich_norm: bool = False,
        norm: str = "layer_norm",
        gated: bool = False,
        position: AttentionPosition | None = None,
        window: int | None = None,
        head_dim: int | None = None,
        value_dim: int | None = None,
        num_key_value_heads: int | None = None,
        query_key_norm: bool = False,
        soft_cap: float | None = None,
        attention_scale: float | None = None,
        attention_dropout: float | None = None,
        feed_forward_dropout: float = 0.0,
        drop_path: float = 0.0,
        residual_scale: float = 1.0,
        layer_scale: float | None = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if sandwich_norm and not normalize_first:
            raise ValueError("sandwich_norm=True needs normalize_first=True")
        if isinstance(position, dict):
            position = keras.saving.deserialize_keras_object(position)
        check_number("attention_scale", attention_scale, optional=True)
        check_rate("attention_dropout", attention_dropout, optional=True)
        check_rate("feed_forward_dropout", feed_forward_dropout)
        self.intermediate_dim = intermediate_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.activation = as_activation("activation", activation)
        self.layer_norm_epsilon = layer_norm_epsilon
        self.normalize_first = normalize_first
        self.sandwich_norm = sandwich_norm
        self.norm = norm
        self.gated = gated
        self.window = window
        self.head_dim = head_dim
        self.value_dim = value_dim
        self.num_key_value_heads = num_key_value_heads
        self.query_key_norm = query_key_norm
        self.soft_cap = soft_cap
        self.attention_scale = attention_scale
        self.attention_dropout = attention_dropout
        self.feed_forward_dropout = feed_forward_dropout
        self.drop_path = drop_path
        self.residual_scale = residual_scale
        self.layer_scale = layer_scale
        self.use_bias = use_bias
        self.kernel_initializer = as_initializer("kernel_initializer", kernel_initializer)
        self.bias_initializer = as_initializer("bias_initializer", bias_initializer)
        self.supports_masking = True

        self.self_attention = self._attention(
            MultiHeadSelfAttention,
            "self_attention",
            causal=self.causal,
            position=position,
            window=window,
        )
        self.self_attention_residual = self._residual("self_attention_residual")
        self.feed_forward = FeedForward(
            intermediate_dim,
            activation=self.activation,
            gated=gated,
            dropout=feed_forward_dropout,
            use_bias=use_bias,
            kernel_initializer=self.kernel_initializer,
            bias_initializer=self.bias_initializer,
            dtype=self.dtype_policy,
            name="feed_forward",
        )
        self.feed_forward_residual = self._residual("feed_forward_residual")

    def _attention(self, cls: type[MultiHeadAttention], name: str, **kwargs: Any) -> Any:
        dropout = self.dropout if self.attention_dropout is None else self.attention_dropout
        return cls(
            self.num_heads,
            head_dim=self.head_dim,
            value_dim=self.value_dim,
            num_key_value_heads=self.num_key_value_heads,
            dropout=dropout,
            use_bias=self.use_bias,
            query_key_norm=self.query_key_norm,
            soft_cap=self.soft_cap,
            scale=self.attention_scale,
            kernel_initializer=self.kernel_initializer,
            bias_initializer=self.bias_initializer,
            dtype=self.dtype_policy,
            name=name,
            **kwargs,
        )

    def _residual(self, name: str) -> Residual:
        pre = "sandwich" if self.sandwich_norm else "pre"
        return Residual(
            pre if self.normalize_first else "post",
            norm=self.norm,
            epsilon=self.layer_norm_epsilon,
            dropout=self.dropout,
            drop_path=self.drop_path,
            residual_scale=self.residual_scale,
            layer_scale=self.layer_scale,
            dtype=self.dtype_policy,
            name=name,
        )

    def build(self, x_shape: Any) -> None:
        """Creates the weights for inputs of width D."""
        check_sequence(self, "x", x_shape)
        self.self_attention.build(x_shape)
        self.self_attention_residual.build(x_shape)
        self.feed_forward.build(x_shape)
        self.feed_forward_residual.build(x_shape)
        self.built = True

    def compute_output_shape(self, x_shape: Any, *_: Any, **__: Any) -> Any:
        """The first input's."""
        return x_shape

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "intermediate_dim": self.intermediate_dim,
            "num_heads": self.num_heads,
            "dropout": self.dropout,
            "activation": keras.activations.serialize(self.activation),
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "normalize_first": self.normalize_first,
            "sandwich_norm": self.sandwich_norm,
            "norm": self.norm,
            "gated": self.gated,
            "position": serialize_position(self.self_attention.position),
            "window": self.window,
            "head_dim": self.head_dim,
            "value_dim": self.value_dim,
            "num_key_value_heads": self.num_key_value_heads,
            "query_key_norm": self.query_key_norm,
            "soft_cap": self.soft_cap,
            "attention_scale": self.attention_scale,
            "attention_dropout": self.attention_dropout,
            "feed_forward_dropout": self.feed_forward_dropout,
            "drop_path": self.drop_path,
            "residual_scale": self.residual_scale,
            "layer_scale": self.layer_scale,
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
        }
