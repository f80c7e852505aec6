"""Embedding lookup.

Example:

>>> import numpy as np
>>> from keras_tfm.layers.embeddings.lookup import as_integers
>>> as_integers(np.array([0.5], "float32"), "ids")
Traceback (most recent call last):
TypeError: ids must be integers, got float32
"""

import keras
import numpy as np
from keras import ops

from keras_tfm.keras_internals import in_symbolic_scope
from keras_tfm.layers.target import current_target
from keras_tfm.layers.types import Tensor


def lookup(table: Tensor, ids: Tensor) -> Tensor:
    """Looks up rows of `table` (V, D) by integer `ids` of any shape: (*ids.shape, D)."""
    if keras.backend.backend() != "tensorflow":
        return ops.take(table, ids, axis=0)
    if current_target.get().is_edge:
        from keras_tfm.layers.tensorflow.embedding_lookup import embedding_lookup

        return embedding_lookup(table, ids)
    import tensorflow as tf

    # Not `ops.take`, which would count negative ids from the end: three more operations per lookup,
    # and a wrong vector where an error is due.
    if ids.dtype not in (tf.int32, tf.int64):  # the only dtypes with a kernel on all devices
        ids = tf.cast(ids, tf.int64 if ids.dtype.size > 2 else tf.int32)
    return tf.gather(table, ids)


def as_integers(x: Tensor, name: str, floats: bool = False) -> Tensor:
    """Integers as they are, floats as int32 where Keras makes them of integers.

    Keras builds a subclassed model that it loads with float placeholders. A `Sequential` without an
    `Input` casts its ids to float32.

    Args:
        x: of any shape.
        name: in errors.
        floats: whether whole numbers in float32 are accepted outside of building, too. Where the
            values cannot be seen, fractions are dropped.

    Raises:
        TypeError: floats that are not accepted.
    """
    if is_integer(x):
        return x
    got = dtype = keras.backend.standardize_dtype(x.dtype)
    if "float" in dtype and in_symbolic_scope():
        return ops.cast(x, "int32")
    if floats and dtype in ("float32", "float64"):  # half precision would have rounded ids
        values = np.zeros(0) if is_traced(x) else ops.convert_to_numpy(x)
        fractions = values[values != np.floor(values)]
        if not fractions.size:
            return ops.cast(x, "int32")
        got = f"{dtype} {fractions[0]}"
    raise TypeError(f"{name} must be integers, got {got}")


def is_integer(x: Tensor) -> bool:
    """Whether the dtype of `x` is one of integers."""
    return "int" in keras.backend.standardize_dtype(x.dtype)


def is_traced(x: Tensor) -> bool:
    """Whether the values of `x` are not known yet: symbolic, or inside a graph."""
    if isinstance(x, keras.KerasTensor):
        return True
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return bool(tf.is_symbolic_tensor(x))
    if keras.backend.backend() == "jax":
        import jax

        return isinstance(x, jax.core.Tracer)
    return getattr(getattr(x, "device", None), "type", None) == "meta"  # PyTorch
