"""An augmentation for pictures on white paper: the same drawing in other colours and tones."""

import keras
from keras import ops


@keras.saving.register_keras_serializable("examples")
class RandomInk(keras.layers.Layer):
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
    >>> from random_ink import RandomInk
    >>> white = np.full((2, 4, 4, 3), 255, "uint8")
    >>> float(keras.ops.min(RandomInk()(white, training=True)))
    255.0
    """

    def __init__(self, mixing: float = 0.6, tones: float = 0.3, seed: int | None = None, **kwargs):
        super().__init__(**kwargs)
        self.mixing = mixing
        self.tones = tones
        self.seed = seed
        self.generator = keras.random.SeedGenerator(seed)

    def call(self, x, training: bool = False):
        x = ops.cast(x, self.compute_dtype)
        if not training:
            return x
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
        given = {"mixing": self.mixing, "tones": self.tones, "seed": self.seed}
        return {**super().get_config(), **given}
