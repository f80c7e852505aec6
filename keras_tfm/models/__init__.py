"""Models: functional builders over the layers, one file a family."""

from keras_tfm.models.transformer import transformer
from keras_tfm.models.with_dtype import with_dtype

__all__ = ["transformer", "with_dtype"]
