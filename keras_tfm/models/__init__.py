"""Models: functional builders over the layers, one file a family."""

from keras_tfm.models.transformer import transformer

__all__ = ["transformer"]
