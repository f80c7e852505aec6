"""RMS normalisation."""

from typing import Any

import keras


@keras.saving.register_keras_serializable("keras_tfm")
class RMSNormalization(keras.layers.RMSNormalization):
    """`keras.layers.RMSNormalization` that passes on the mask of its input.

    y = gamma x / sqrt(mean(x^2) + epsilon) over the last axis: "Root Mean Square Layer
    Normalization" (arXiv:1910.07467). Arguments and weight are those of
    `keras.layers.RMSNormalization`, which would drop the mask with a warning.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import RMSNormalization
    >>> y = RMSNormalization()(np.array([[3.0, -4.0]], "float32"))
    >>> [round(float(v), 3) for v in y[0]]
    [0.849, -1.131]
    """

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.supports_masking = True
