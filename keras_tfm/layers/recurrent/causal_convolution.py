"""A causal convolution of each channel, in a full pass and in a step."""

import keras
from keras import ops

from keras_tfm.layers.decoding.scope import current_scope
from keras_tfm.layers.target import current_target
from keras_tfm.layers.types import Tensor


def causal_convolution(
    name: str,
    x: Tensor,
    kernel: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """y_t = sum_j w_j x_(t - N + 1 + j) + b, of each channel alone: (B, T, D) -> (B, T, D).

    Before the first token are zeros, or inside a `DecodingScope` the inputs of the steps before.

    Args:
        name: str, the layer's name.
        x: (B, T, D).
        kernel: (N, 1, D), its last entry for the token itself.
        bias: (D,), optional.
        mask: (B, T), boolean, True = token, False = padding, which counts as zeros; optional.

    >>> import numpy as np
    >>> from keras_tfm.layers.recurrent.causal_convolution import causal_convolution
    >>> x, kernel = np.array([[[1.0], [2.0], [3.0]]]), np.array([[[10.0]], [[1.0]]])
    >>> np.array(causal_convolution("sum", x, kernel)).ravel().tolist()
    [1.0, 12.0, 23.0]
    """
    size, _, dim = kernel.shape
    kernel = ops.reshape(kernel, (size, dim, 1))

    def convolve(x: Tensor) -> Tensor:
        if x.shape[1] == size and keras.backend.backend() == "jax":
            # XLA on a CPU aborts (JAX 0.10) where it compiles a depthwise convolution with one
            # output, as in a step, and channels that are divided between devices.
            y = ops.sum(x * kernel[..., 0], axis=1, keepdims=True)
        else:
            y = ops.depthwise_conv(x, kernel, padding="valid")
        return y if bias is None else y + bias

    if mask is not None:
        x = zero_padding(x, mask)
    scope = current_scope.get()
    if scope is not None:
        return scope.convolve(name, convolve, x, size - 1)
    return convolve(ops.pad(x, [(0, 0), (size - 1, 0), (0, 0)]))


def zero_padding(x: Tensor, mask: Tensor) -> Tensor:
    """`x` (B, T, ...) with zeros at padding.

    >>> import numpy as np
    >>> from keras_tfm.layers.recurrent.causal_convolution import zero_padding
    >>> np.array(zero_padding(np.ones((1, 2, 1)), np.array([[True, False]]))).ravel().tolist()
    [1.0, 0.0]
    """
    mask = ops.reshape(mask, (*ops.shape(mask), *(1 for _ in x.shape[2:])))
    if current_target.get().is_edge:  # XNNPACK does not delegate a select
        return x * ops.cast(mask, x.dtype)
    return ops.where(mask, x, ops.zeros_like(x))
