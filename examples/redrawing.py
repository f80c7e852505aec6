"""Augmentations for drawings on white paper: the same thing, drawn by another artist.

Other colours (`RandomInk`), a slightly different shape (`RandomWarp`), light from elsewhere
(`RandomShading`) and dark contours (`RandomOutline`). The layers change pictures only if called
with `training=True`, and each picture of a batch differently.
"""

import keras
from keras import ops


class RandomChange(keras.layers.Layer):
    """What the augmentations share: a seed, and `changed(x)`, which only training calls."""

    def __init__(self, seed: int | None = None, **kwargs):
        super().__init__(**kwargs)
        self.seed = seed
        self.generator = keras.random.SeedGenerator(seed)

    def call(self, x, training: bool = False):
        x = ops.cast(x, self.compute_dtype)
        return self.changed(x) if training else x

    def get_config(self):
        return {**super().get_config(), "seed": self.seed}


@keras.saving.register_keras_serializable("examples")
class RandomInk(RandomChange):
    """Changes colours as if another artist had chosen them; white stays white.

    With ink = 255 - pixels, the channels of half of the pictures are permuted, those of each are
    mixed, y = ink M with rows of M that sum to 1, and a power per channel changes the tones.

    Args:
        mixing: float from 0 to 1, share of the random matrix in M.
        tones: float, standard deviation of the logarithm of the power.
        seed: int, for the random numbers.

    Call arguments:
        x: pixels (B, H, W, 3) from 0 to 255.

    Returns:
        Float tensor (B, H, W, 3), changed if `training`.

    Example:

    >>> import numpy as np
    >>> from redrawing import RandomInk
    >>> white = np.full((2, 4, 4, 3), 255, "uint8")
    >>> float(keras.ops.min(RandomInk()(white, training=True)))
    255.0
    """

    def __init__(self, mixing: float = 0.6, tones: float = 0.3, seed: int | None = None, **kwargs):
        super().__init__(seed, **kwargs)
        self.mixing = mixing
        self.tones = tones

    def changed(self, x):
        rows = ops.shape(x)[0]

        def uniform(*shape):
            return keras.random.uniform((rows, *shape), seed=self.generator)

        matrix = (1 - self.mixing) * ops.eye(3) + self.mixing * uniform(3, 3)
        matrix = matrix / ops.sum(matrix, axis=-1, keepdims=True)
        order = ops.argsort(uniform(3), axis=-1)
        order = ops.where(uniform(1) < 0.5, order, ops.arange(3, dtype=order.dtype))
        matrix = ops.take_along_axis(matrix, ops.expand_dims(order, -1), axis=1)
        ink = ops.einsum("bhwc,bdc->bhwd", 255.0 - x, matrix) / 255.0
        normal = keras.random.normal((rows, 1, 1, 3), seed=self.generator)
        paper = ops.clip(1.0 - ink, 1e-6, 1.0)
        return 255.0 * ops.power(paper, ops.exp(self.tones * normal))

    def get_config(self):
        return {**super().get_config(), "mixing": self.mixing, "tones": self.tones}


@keras.saving.register_keras_serializable("examples")
class RandomWarp(RandomChange):
    """Moves the points of a picture by a smooth random field.

    y[p] = x[p + d(p)], bilinear, where d is a grid of normal numbers, resized bicubically. Points
    outside take the nearest pixel inside.

    Args:
        pixels: float, standard deviation of the numbers in the grid, in pixels.
        grid: int, rows and columns of the grid: the more, the finer the changes.
        seed: int, for the random numbers.

    Call arguments:
        x: pixels (B, H, W, C), H and W fixed.

    Returns:
        Float tensor (B, H, W, C), changed if `training`.

    Example:

    >>> import numpy as np
    >>> from redrawing import RandomWarp
    >>> keras.ops.shape(RandomWarp(1.5)(np.zeros((2, 8, 8, 3), "uint8"), training=True))
    (2, 8, 8, 3)
    """

    def __init__(self, pixels: float = 1.5, grid: int = 4, seed: int | None = None, **kwargs):
        super().__init__(seed, **kwargs)
        self.pixels = pixels
        self.grid = grid

    def changed(self, x):
        height, width, channels = x.shape[1:]
        shape = (ops.shape(x)[0], self.grid, self.grid, 2)
        field = self.pixels * keras.random.normal(shape, seed=self.generator)
        field = ops.image.resize(field, (height, width), interpolation="bicubic")
        row = ops.clip(
            ops.reshape(ops.arange(height, dtype="float32"), (-1, 1)) + field[..., 0], 0, height - 1
        )
        column = ops.clip(ops.arange(width, dtype="float32") + field[..., 1], 0, width - 1)
        above = ops.minimum(ops.floor(row), height - 2)
        left = ops.minimum(ops.floor(column), width - 2)
        down, right = ops.expand_dims(row - above, -1), ops.expand_dims(column - left, -1)
        first = ops.reshape(ops.cast(above * width + left, "int32"), (-1, height * width, 1))
        points = ops.reshape(x, (-1, height * width, channels))

        def at(offset):
            taken = ops.take_along_axis(points, first + offset, axis=1)
            return ops.reshape(taken, (-1, height, width, channels))

        upper = (1 - right) * at(0) + right * at(1)
        lower = (1 - right) * at(width) + right * at(width + 1)
        return (1 - down) * upper + down * lower

    def get_config(self):
        return {**super().get_config(), "pixels": self.pixels, "grid": self.grid}


@keras.saving.register_keras_serializable("examples")
class RandomShading(RandomChange):
    """Makes the ink lighter and darker, smoothly over the picture; white stays white.

    ink' = ink exp(f), ink = 255 - pixels, where f is a grid of 3 x 3 normal numbers, resized
    bicubically. What would be below 0 is 0.

    Args:
        amount: float, standard deviation of the numbers in the grid.
        seed: int, for the random numbers.

    Call arguments:
        x: pixels (B, H, W, C) from 0 to 255, H and W fixed.

    Returns:
        Float tensor (B, H, W, C), changed if `training`.
    """

    def __init__(self, amount: float = 0.3, seed: int | None = None, **kwargs):
        super().__init__(seed, **kwargs)
        self.amount = amount

    def changed(self, x):
        field = keras.random.normal((ops.shape(x)[0], 3, 3, 1), seed=self.generator)
        field = ops.image.resize(self.amount * field, x.shape[1:3], interpolation="bicubic")
        return ops.maximum(255.0 - (255.0 - x) * ops.exp(field), 0.0)

    def get_config(self):
        return {**super().get_config(), "amount": self.amount}


@keras.saving.register_keras_serializable("examples")
class RandomOutline(RandomChange):
    """Draws dark contours where colours change, in some pictures.

    y = x (1 - s min(1, 1.5 e)), where e is the range of the pixels in a window of 3 x 3, from 0 to
    1, the largest of the channels, and s a random strength from 0 to 1.

    Args:
        factor: float, the share of pictures with contours.
        seed: int, for the random numbers.

    Call arguments:
        x: pixels (B, H, W, C) from 0 to 255.

    Returns:
        Float tensor (B, H, W, C), changed if `training`.
    """

    def __init__(self, factor: float = 0.5, seed: int | None = None, **kwargs):
        super().__init__(seed, **kwargs)
        self.factor = factor

    def changed(self, x):
        highest = ops.max_pool(x, 3, 1, "same")
        lowest = -ops.max_pool(-x, 3, 1, "same")
        edges = ops.max(highest - lowest, axis=-1, keepdims=True) / 255.0
        drawn = keras.random.uniform((2, ops.shape(x)[0], 1, 1, 1), seed=self.generator)
        strength = drawn[0] * ops.cast(drawn[1] < self.factor, x.dtype)
        return x * (1.0 - strength * ops.minimum(1.5 * edges, 1.0))

    def get_config(self):
        return {**super().get_config(), "factor": self.factor}
