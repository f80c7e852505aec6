"""Activations that Keras has no string identifier for."""

import keras

from keras_tfm.layers.types import Tensor


@keras.saving.register_keras_serializable("keras_tfm")
def gelu_tanh(x: Tensor) -> Tensor:
    """The tanh approximation of GELU, used by GPT-2, T5 1.1 and most models after BERT.

    0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))): "Gaussian Error Linear Units"
    (arXiv:1606.08415), section 2. It differs from the exact `"gelu"` by up to 5e-4.

    Args:
        x: float tensor of any shape.

    Returns:
        A tensor of the same shape and dtype.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import FeedForward, gelu_tanh
    >>> round(float(gelu_tanh(np.float32(1.0))), 4)
    0.8412
    >>> layer = FeedForward(intermediate_dim=16, activation=gelu_tanh)
    """
    return keras.activations.gelu(x, approximate=True)


@keras.saving.register_keras_serializable("keras_tfm")
def quick_gelu(x: Tensor) -> Tensor:
    """The sigmoid approximation of GELU, used by CLIP: x sigmoid(1.702 x).

    "Gaussian Error Linear Units" (arXiv:1606.08415), section 2. It differs from the exact `"gelu"`
    by up to 0.02.

    Args:
        x: float tensor of any shape.

    Returns:
        A tensor of the same shape and dtype.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import FeedForward, quick_gelu
    >>> round(float(quick_gelu(np.float32(1.0))), 4)
    0.8458
    >>> layer = FeedForward(intermediate_dim=16, activation=quick_gelu)
    """
    x = keras.ops.convert_to_tensor(x)
    return x * keras.ops.sigmoid(x * keras.ops.cast(1.702, x.dtype))


@keras.saving.register_keras_serializable("keras_tfm")
def squared_relu(x: Tensor) -> Tensor:
    """max(x, 0)^2, used by Nemotron: "Primer" (arXiv:2109.08668), section 3.

    Args:
        x: float tensor of any shape.

    Returns:
        A tensor of the same shape and dtype.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import FeedForward, squared_relu
    >>> float(squared_relu(np.float32(3.0)))
    9.0
    >>> layer = FeedForward(intermediate_dim=16, activation=squared_relu)
    """
    return keras.ops.square(keras.ops.relu(x))
