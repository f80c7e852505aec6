"""Names for the objects of a .tflite file, whose generated classes have no types.

They are those of LiteRT's `schema_py_generated`, which `runtime.flatbuffer.read` makes.
"""

from typing import Any, TypeAlias

ModelT: TypeAlias = Any  # the file
SubGraphT: TypeAlias = Any  # one of its graphs
OperatorT: TypeAlias = Any
TensorT: TypeAlias = Any
SignatureDefT: TypeAlias = Any
TensorMapT: TypeAlias = Any  # an argument or a result of a signature
