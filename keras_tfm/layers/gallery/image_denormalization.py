"""Pixel values of normalised ones, inside the model."""

import keras
import numpy as np
from keras import ops

from keras_tfm.layers.images.image_normalization import ImageNormalization
from keras_tfm.layers.types import Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class ImageDenormalization(ImageNormalization):
    """Turns normalised pixels into pixel values: the inverse of `ImageNormalization`.

    y = (x std + mean) / scale, clipped to 0 and 1 / scale, with one mean and one standard deviation
    per channel. It computes in float32 under any dtype policy.

    The arguments and their errors are those of `ImageNormalization`: `mean`, `std` and `scale`.

    Call arguments:
        pixels: float tensor (..., H, W, C), normalised.

    Returns:
        Float tensor (..., H, W, C), float32, values from 0 to 255 with the default scale.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import ImageDenormalization
    >>> layer = ImageDenormalization(mean=[0.5], std=[0.25])
    >>> np.ravel(layer(np.array([[[-2.0], [9.0]]], "float32"))).tolist()
    [0.0, 255.0]
    """

    def call(self, pixels: Tensor) -> Tensor:
        """(..., H, W, C) -> the same shape, float32."""
        self._check_channels(pixels)
        factor, offset = np.array(self.std) / self.scale, np.array(self.mean) / self.scale
        factor, offset = (ops.convert_to_tensor(x.astype("float32")) for x in (factor, offset))
        return ops.clip(ops.cast(pixels, "float32") * factor + offset, 0.0, 1.0 / self.scale)
