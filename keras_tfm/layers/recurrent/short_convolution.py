"""The gated short convolution of LFM2."""

from typing import Any

import keras

from keras_tfm.arguments import check_integer
from keras_tfm.layers.recurrent.causal_convolution import causal_convolution
from keras_tfm.layers.recurrent.token_mixer import TokenMixer
from keras_tfm.layers.types import Shape, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class ShortConvolution(TokenMixer):
    """A causal convolution of a few tokens between two gates: LFM2 (arXiv:2511.23404).

    b, c, h = x W_in, split; z_t = sum_j w_j (b h)_(t - N + 1 + j); y = (c z) W_out. Products of
    gates are elementwise, and the convolution is of each channel alone. Inside a `DecodingScope`
    its state is the last N - 1 inputs of the convolution, whatever the number of tokens.

    Args:
        kernel_size: int, number of tokens that the convolution reads (N), the last one itself.
        use_bias: bool, whether the projections and the convolution add a bias.
        **kwargs: `kernel_initializer` and `bias_initializer`, of the projections and the
            convolution, and the arguments of `keras.layers.Layer`.

    Call arguments:
        x: float tensor (B, T, D).
        mask: (B, T), boolean, True = token, False = padding, which counts as zeros in the
            convolution. Default: the mask that `x` carries.

    Returns:
        Float tensor (B, T, D).

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument out of range, or an input of another rank.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import ShortConvolution
    >>> tuple(ShortConvolution()(np.ones((2, 5, 12), "float32")).shape)
    (2, 5, 12)
    """

    def __init__(self, kernel_size: int = 3, use_bias: bool = False, **kwargs: Any):
        super().__init__(**kwargs)
        check_integer("kernel_size", kernel_size, minimum=2)
        self.kernel_size = kernel_size
        self.use_bias = use_bias

    def build(self, x_shape: Shape) -> None:
        """Creates the weights for inputs of width D."""
        self._check_input(x_shape)
        dim = x_shape[-1]
        self.input_projection = self._dense("input_projection", 3 * dim)
        self.input_projection.build(x_shape)
        self.kernel = self.add_weight(
            shape=(self.kernel_size, 1, dim), initializer=self.kernel_initializer.clone(),
            name="kernel",
        )  # fmt: skip
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(
                shape=(dim,), initializer=self.bias_initializer.clone(), name="bias"
            )
        self.output_projection = self._dense("output_projection", dim)
        self.output_projection.build(x_shape)
        self.built = True

    def _mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        before, after, h = self._project(self.input_projection, x, *[x.shape[-1]] * 3)
        z = causal_convolution(self.name, before * h, self.kernel, self.bias, mask)
        return self.output_projection(after * z)
