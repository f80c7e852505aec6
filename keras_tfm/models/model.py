"""The model class of this library: Keras's, with what training on several devices needs."""

from typing import Any

import keras

Base: Any
if keras.backend.backend() == "tensorflow":
    from keras_tfm.distributed.distributed_model import DistributedModel as Base
else:
    Base = keras.Model


@keras.saving.register_keras_serializable("keras_tfm")
class Model(Base):
    """A `keras.Model` that trains alike on one device, on several, and on several machines.

    It is composed, compiled, saved and exported like any other: `keras_tfm.Model(inputs, outputs)`.
    On Keras's TensorFlow backend it adds:

    - `fit`, `evaluate` and `predict` under every strategy of `keras_tfm.training.distribution`;
    - losses divided by what all replicas count together, so that the number of replicas and the
      padding of each change nothing; Keras averages the means of the replicas, where a token among
      many weighs less than one among few;
    - `compile(..., gradient_accumulation_steps=k)`: each batch is taken in k parts, one after the
      other, which need the memory of one, and gives the gradient of the whole;
    - early errors for what Keras 3.15 starts and cannot finish there.

    A loss of your own whose mean is not over rows, masked labels or sample weights has a method
    `count(y_true, y_pred, sample_weight)`, which gives the divisor.

    Example:

    >>> import keras, keras_tfm
    >>> from keras_tfm import layers
    >>> ids = keras.Input((None,), dtype="int32", name="tokens")
    >>> embedding = layers.TokenEmbedding(11, dim=8, mask_zero=True)
    >>> x = layers.TransformerEncoderBlock(16, num_heads=2)(embedding(ids))
    >>> model = keras_tfm.Model(ids, embedding(x, reverse=True))
    >>> model.output.shape
    (None, None, 11)
    """
