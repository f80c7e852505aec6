"""What encoder and decoder blocks share: their arguments and how sublayers are made of them."""

from typing import Any

import keras

from keras_tfm.layers.feed_forward import FeedForward
from keras_tfm.layers.multi_head_attention import MultiHeadAttention, check_sequence
from keras_tfm.layers.residual import Residual

Tensor = Any


class TransformerBlock(keras.layers.Layer):
    """The base of `TransformerEncoderBlock` and `TransformerDecoderBlock`; not used by itself."""

    def __init__(
        self,
        intermediate_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        activation: Any = "relu",
        layer_norm_epsilon: float = 1e-5,
        normalize_first: bool = False,
        head_dim: int | None = None,
        value_dim: int | None = None,
        num_key_value_heads: int | None = None,
        attention_dropout: float | None = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.intermediate_dim = intermediate_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.activation = keras.activations.get(activation)
        self.layer_norm_epsilon = layer_norm_epsilon
        self.normalize_first = normalize_first
        self.head_dim = head_dim
        self.value_dim = value_dim
        self.num_key_value_heads = num_key_value_heads
        self.attention_dropout = attention_dropout
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.supports_masking = True

        self.feed_forward = FeedForward(
            intermediate_dim,
            activation=self.activation,
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
            kernel_initializer=self.kernel_initializer,
            bias_initializer=self.bias_initializer,
            dtype=self.dtype_policy,
            name=name,
            **kwargs,
        )

    def _residual(self, name: str) -> Residual:
        return Residual(
            self.normalize_first,
            epsilon=self.layer_norm_epsilon,
            dropout=self.dropout,
            dtype=self.dtype_policy,
            name=name,
        )

    def _build_shared(self, x_shape: Any) -> None:
        check_sequence(self, "x", x_shape)
        self.feed_forward.build(x_shape)
        self.feed_forward_residual.build(x_shape)

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
            "head_dim": self.head_dim,
            "value_dim": self.value_dim,
            "num_key_value_heads": self.num_key_value_heads,
            "attention_dropout": self.attention_dropout,
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
        }
