"""Normalisation of pixel values, inside the model."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.arguments import check_number, check_positive
from keras_tfm.layers.types import Config, Shape, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class ImageNormalization(keras.layers.Layer):
    """Scales pixel values and normalises each channel.

    y = (x scale - mean) / std, with one mean and one standard deviation per channel. As a layer of
    the model it cannot be forgotten on-device: an exported file takes the uint8 pixels of a picture
    as they are, if this layer is the only one that reads the input. It computes in float32 under
    any dtype policy, because float16 and bfloat16 cannot hold all products.

    Args:
        mean: list of float, mean of each channel after scaling.
        std: list of float, standard deviation of each channel after scaling.
        scale: float, factor of the pixel values. Default: 1 / 255.

    Call arguments:
        pixels: (..., H, W, C), values from 0 to 255, of any numeric dtype.

    Returns:
        Float tensor (..., H, W, C), float32.

    Raises:
        TypeError: an argument that is not a number.
        ValueError: a standard deviation or scale that is not positive, `mean` and `std` of
            different lengths, or pixels with another number of channels.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import ImageNormalization
    >>> layer = ImageNormalization(mean=[0.5], std=[0.25])
    >>> np.ravel(layer(np.array([[[0], [255]]], "uint8"))).tolist()
    [-2.0, 2.0]
    """

    def __init__(
        self,
        mean: Sequence[float] = (0.5, 0.5, 0.5),
        std: Sequence[float] = (0.5, 0.5, 0.5),
        scale: float = 1 / 255,
        **kwargs: Any,
    ):
        kwargs.pop("dtype", None)
        super().__init__(dtype="float32", autocast=False, **kwargs)
        for i, value in enumerate(mean):
            check_number(f"mean[{i}]", value)
        for i, value in enumerate(std):
            check_positive(f"std[{i}]", value)
        check_positive("scale", scale)
        if len(mean) != len(std) or len(mean) < 1:
            raise ValueError(
                "mean and std must have one value per channel, "
                f"got {len(mean)} and {len(std)} values"
            )
        self.mean = [float(x) for x in mean]
        self.std = [float(x) for x in std]
        self.scale = float(scale)
        self.built = True

    def call(self, pixels: Tensor) -> Tensor:
        """(..., H, W, C) -> the same shape, float32."""
        self._check_channels(pixels)
        factor = self.scale / np.array(self.std)
        offset = -np.array(self.mean) / np.array(self.std)
        factor, offset = (ops.convert_to_tensor(x.astype("float32")) for x in (factor, offset))
        return ops.cast(pixels, "float32") * factor + offset

    def _check_channels(self, pixels: Tensor) -> None:
        if len(pixels.shape) < 3 or pixels.shape[-1] != len(self.mean):
            raise ValueError(
                f"{self.name}: pixels must have shape (B, H, W, {len(self.mean)}), channels last, "
                f"got {tuple(pixels.shape)}"
            )

    def compute_output_shape(self, pixels_shape: Shape) -> Shape:
        """The shape of the input."""
        return pixels_shape

    def get_config(self) -> Config:
        """The constructor's arguments."""
        config = dict(super().get_config())
        return {**config, "mean": self.mean, "std": self.std, "scale": self.scale}
