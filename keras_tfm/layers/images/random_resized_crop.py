"""Random crops of pictures, resized to one size."""

import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_tfm.arguments import check_positive
from keras_tfm.layers.images.patch_embedding import as_pair, height_and_width
from keras_tfm.layers.types import Config, Shape, Size, Tensor


@keras.saving.register_keras_serializable("keras_tfm")
class RandomResizedCrop(keras.layers.Layer):
    """Cuts a random part out of each picture and resizes it, in training.

    "Going Deeper with Convolutions" (arXiv:1409.4842), section 6: the part has a random share of
    the area and a random aspect ratio, both from a uniform distribution, the latter of its
    logarithm. Outside training the whole picture is resized. Resizing is bilinear, with the filter
    widened when a picture is reduced, as two products with matrices: the same on all backends.

    Args:
        size: int or (height, width) of the result, in pixels.
        scale: (float, float), smallest and largest share of the picture's area.
        aspect_ratio: (float, float), smallest and largest ratio of width to height.
        seed: int, seed of the random numbers.

    Call arguments:
        pixels: (B, H, W, C), any numeric dtype.

    Returns:
        Float tensor (B, height, width, C).

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: a range that is not positive, or descends.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.layers import RandomResizedCrop
    >>> crop = RandomResizedCrop(8, scale=(0.2, 0.5), seed=1)
    >>> tuple(crop(np.zeros((2, 16, 20, 3), "float32"), training=True).shape)
    (2, 8, 8, 3)
    """

    def __init__(
        self,
        size: int | Sequence[int],
        scale: Sequence[float] = (0.08, 1.0),
        aspect_ratio: Sequence[float] = (3 / 4, 4 / 3),
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.size = as_pair("size", size)
        for name, bounds in (("scale", scale), ("aspect_ratio", aspect_ratio)):
            if len(bounds) != 2:
                raise ValueError(f"{name} must be two numbers, got {bounds!r}")
            for x in bounds:
                check_positive(name, x)
            if bounds[0] > bounds[1]:
                raise ValueError(f"{name} must ascend, got {tuple(bounds)}")
        if scale[1] > 1:
            raise ValueError(f"scale must be at most 1, got {tuple(scale)}")
        self.scale = (float(scale[0]), float(scale[1]))
        self.aspect_ratio = (float(aspect_ratio[0]), float(aspect_ratio[1]))
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)
        self.built = True

    def call(self, pixels: Tensor, training: bool | None = None) -> Tensor:
        """(B, H, W, C) -> (B, height, width, C)."""
        if len(pixels.shape) != 4:
            raise ValueError(f"{self.name}: pixels must be (B, H, W, C), got {tuple(pixels.shape)}")
        x = ops.cast(pixels, self.compute_dtype)
        batch, (height, width) = ops.shape(x)[0], height_and_width(x)
        if training:
            top, left, high, wide = self._draw(batch, height, width)
        else:
            top = left = ops.zeros((batch,))
            high, wide = (ops.ones((batch,)) * ops.cast(n, "float32") for n in (height, width))
        rows = ops.cast(_bilinear(height, self.size[0], top, high), x.dtype)
        columns = ops.cast(_bilinear(width, self.size[1], left, wide), x.dtype)
        channels = x.shape[-1]
        # (B, h, H) (B, H, W C), then (B, w, W) (B, W, h C).
        x = ops.matmul(rows, ops.reshape(x, (-1, height, width * channels)))
        x = ops.reshape(x, (-1, self.size[0], width, channels))
        x = ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (-1, width, self.size[0] * channels))
        x = ops.reshape(ops.matmul(columns, x), (-1, self.size[1], self.size[0], channels))
        return ops.transpose(x, (0, 2, 1, 3))

    def _draw(self, batch: Size, height: Size, width: Size) -> tuple[Tensor, ...]:
        """Top, left, height and width of each crop, (B,) each, in pixels."""
        height, width = ops.cast(height, "float32"), ops.cast(width, "float32")

        def uniform(low: Tensor, high: Tensor) -> Tensor:
            share = keras.random.uniform((batch,), seed=self.seed_generator)
            return low + (high - low) * share

        area = uniform(*self.scale) * (height * width)
        ratio = ops.exp(uniform(*map(math.log, self.aspect_ratio)))
        high = ops.minimum(ops.sqrt(area / ratio), height)
        wide = ops.minimum(ops.sqrt(area * ratio), width)
        return uniform(0.0, height - high), uniform(0.0, width - wide), high, wide

    def compute_output_shape(self, pixels_shape: Shape) -> Shape:
        """(B, height, width, C)."""
        return (pixels_shape[0], *self.size, pixels_shape[-1])

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "size": self.size,
            "scale": self.scale,
            "aspect_ratio": self.aspect_ratio,
            "seed": self.seed,
        }


def _bilinear(size: Size, new_size: int, start: Tensor, length: Tensor) -> Tensor:
    """Matrices (B, new_size, size) that resample `length` pixels from `start`, (B,) each."""
    step = ops.reshape(length / new_size, (-1, 1, 1))
    new = ops.cast(ops.reshape(ops.arange(new_size), (1, -1, 1)), "float32")
    old = ops.cast(ops.reshape(ops.arange(size), (1, 1, -1)), "float32")
    centre = ops.reshape(start, (-1, 1, 1)) + (new + 0.5) * step - 0.5
    weights = ops.relu(1.0 - ops.abs(old - centre) / ops.maximum(step, 1.0))
    return weights / ops.sum(weights, axis=-1, keepdims=True)
