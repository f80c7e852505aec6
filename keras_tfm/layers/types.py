"""The names of types in annotations. Keras has none for tensors, shapes and configurations."""

from collections.abc import Callable
from typing import Any, TypeAlias

import keras

# A tensor of the backend, a symbolic one, or a NumPy array.
Tensor: TypeAlias = Any
# A number of entries: an int, or an int32 scalar tensor if it is known only at run time.
Size: TypeAlias = Any
# The sizes of a tensor: an int for each axis; None for an unknown size.
Shape: TypeAlias = tuple[Any, ...]
# What `get_config` returns, and the serialized form of an object that takes its place.
Config: TypeAlias = dict[str, Any]
# Keyword arguments of a call.
Arguments: TypeAlias = dict[str, Any]

# A query sees keys at smaller distances than this, on both sides, or before and after it.
Window: TypeAlias = int | tuple[int, int]

Initializer: TypeAlias = str | Config | keras.Initializer
Activation: TypeAlias = str | Config | Callable[[Tensor], Tensor]
DType: TypeAlias = str | Config | keras.DTypePolicy | None
