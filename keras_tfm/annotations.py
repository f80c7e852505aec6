"""Names in annotations for what Keras, TensorFlow and NumPy leave untyped.

A type checker sees `Any`: these packages have no types that it could check. The names are for the
reader.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

# A tensor of the backend, a NumPy array, or a symbolic `keras.KerasTensor`.
Tensor: TypeAlias = Any
# The shape of a tensor, with None for an axis without a fixed length.
Shape: TypeAlias = Sequence[int | None]
# "float32", a NumPy or TensorFlow dtype, or a `keras.DTypePolicy` and its name.
DType: TypeAlias = Any
# A name that `keras.activations.get` takes, or a function of a tensor.
Activation: TypeAlias = Any
# A name that `keras.initializers.get` takes, or an initializer.
Initializer: TypeAlias = Any
# The arguments of an object, as `get_config` returns them.
Config: TypeAlias = dict[str, Any]
# What `fit` tells its callbacks.
Logs: TypeAlias = Mapping[str, Any]
