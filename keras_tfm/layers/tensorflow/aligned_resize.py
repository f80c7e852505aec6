"""Bilinear resizing with aligned corners on TensorFlow, where it is one operator, in LiteRT too."""

import tensorflow as tf

from keras_tfm.layers.types import Size, Tensor


def resize_aligned(x: Tensor, height: Size, width: Size) -> Tensor:
    """(B, H, W, C) -> (B, height, width, C); the corners' values stay the same."""
    dtype = x.dtype
    y = tf.raw_ops.ResizeBilinear(
        images=tf.cast(x, tf.float32), size=tf.stack([height, width]), align_corners=True
    )
    return tf.cast(y, dtype)
