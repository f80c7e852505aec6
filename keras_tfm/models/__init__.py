"""Models: functional builders over the layers, one file a family, and the class they return."""

from keras_tfm.models.model import Model
from keras_tfm.models.transformer import transformer
from keras_tfm.models.with_dtype import with_dtype

__all__ = ["Model", "transformer", "with_dtype"]
