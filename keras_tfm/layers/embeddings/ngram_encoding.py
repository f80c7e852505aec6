"""DeBERTa v2's convolution beside the first block."""

from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_integer
from keras_tfm.layers.arguments import as_activation, as_initializer, check_sequence
from keras_tfm.layers.base_layer import RematerializedLayer
from keras_tfm.layers.dropout import Dropout
from keras_tfm.layers.finite_padding import finite_padding
from keras_tfm.layers.layer_normalization import LayerNormalization
from keras_tfm.layers.types import Activation, Initializer, Shape, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class NGramEncoding(RematerializedLayer):
    """Adds a convolution over the embeddings to the output of the first block, and normalises.

    norm(x + activation(dropout(conv(embedded)))), where the embeddings of padding are zeros: nGiE,
    "n-gram induced input encoding" of DeBERTa v2 (arXiv:2006.03654).

    Args:
        kernel_size: int, number of tokens in the window, odd.
        activation: str or function, activation of the convolution.
        dropout: float, dropout rate before the activation.
        layer_norm_epsilon: float, epsilon of the normalisation.
        kernel_initializer: initializer of the kernel.

    Call arguments:
        x: float tensor (B, T, D), output of the first block.
        embedded: float tensor (B, T, D), its input.
        mask: (B, T), boolean, True = token, False = padding. Default: the mask that `x` carries.

    Returns:
        Float tensor (B, T, D).

    Raises:
        ValueError: an even `kernel_size`.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import NGramEncoding
    >>> x = np.ones((1, 5, 4), "float32")
    >>> tuple(NGramEncoding(kernel_size=3)(x, x).shape)
    (1, 5, 4)
    """

    def __init__(
        self,
        kernel_size: int = 3,
        activation: Activation = "tanh",
        dropout: float = 0.0,
        layer_norm_epsilon: float = 1e-7,
        kernel_initializer: Initializer = "glorot_uniform",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_integer("kernel_size", kernel_size)
        if kernel_size % 2 == 0:
            raise ValueError(f"kernel_size must be odd, got {kernel_size}")
        self.kernel_size = kernel_size
        self.activation = as_activation("activation", activation)
        self.dropout = dropout
        self.layer_norm_epsilon = layer_norm_epsilon
        self.kernel_initializer = as_initializer("kernel_initializer", kernel_initializer)
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy)
        self.norm = LayerNormalization(
            epsilon=layer_norm_epsilon, dtype=self.dtype_policy, name="norm"
        )

    def build(self, x_shape: Shape, embedded_shape: Shape) -> None:
        """Creates the kernel and the normalisation's weights."""
        check_sequence(self, "embedded", embedded_shape)
        self.convolution = keras.layers.Conv1D(
            x_shape[-1],
            self.kernel_size,
            padding="same",
            kernel_initializer=self.kernel_initializer,
            dtype=self.dtype_policy,
            name="convolution",
        )
        self.convolution.build(embedded_shape)
        self.norm.build(x_shape)
        self.built = True

    def call(
        self,
        x: Tensor,
        embedded: Tensor,
        mask: Tensor | None = None,
        x_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        """(B, T, D), (B, T, D) -> (B, T, D)."""
        mask = x_mask if mask is None else mask
        if mask is not None:
            x, embedded = finite_padding(x, mask), finite_padding(embedded, mask)
            embedded = embedded * ops.expand_dims(ops.cast(mask, embedded.dtype), -1)
        y = self.dropout_layer(self.convolution(embedded), training=training)
        return self.norm(x + self.activation(y))
