"""Replaces the operators of a graph in a .tflite file."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from keras_tfm.export.graph.schema import ModelT, OperatorT, SubGraphT
from keras_tfm.runtime import flatbuffer
from keras_tfm.runtime.manifest.storage import import_litert


class GraphEditor:
    """Makes tensors and operators of one graph.

    Args:
        model: a file, as `runtime.flatbuffer.read` gives it.
        graph: one of its subgraphs.
    """

    def __init__(self, model: ModelT, graph: SubGraphT):
        self._schema = import_litert("schema_py_generated")
        self._model, self._graph = model, graph
        self._operators: list[OperatorT] = []
        codes = vars(self._schema.BuiltinOperator)
        self._kinds = {code: name for name, code in codes.items() if name[0] != "_"}

    def _kind(self, operator: OperatorT) -> str:
        """The name of an operator in the schema."""
        code = self._model.operatorCodes[operator.opcodeIndex]
        return self._kinds[max(code.builtinCode, code.deprecatedBuiltinCode)]

    def _cast(self, source: int, result: int) -> OperatorT:
        cast = self._operator("CAST", [source], result, "CastOptions")
        cast.builtinOptions.inDataType = self._dtype(source)
        cast.builtinOptions.outDataType = self._dtype(result)
        return cast

    def _shape(self, index: int) -> list[int]:
        shape = self._graph.tensors[index].shape
        return [] if shape is None else [int(d) for d in shape]

    def _dtype(self, index: int) -> int:
        return int(self._graph.tensors[index].type)

    def _is_constant(self, index: int) -> bool:
        return self._model.buffers[self._graph.tensors[index].buffer].data is not None

    def _append_reshape(self, index: int, shape: Sequence[int]) -> int:
        """A tensor in another shape; a constant without an operator."""
        source = self._graph.tensors[index]
        if self._is_constant(index):
            result = self._tensor(shape, source.type, source.buffer)
            self._graph.tensors[result].quantization = source.quantization
            return result
        result = self._tensor(shape, source.type)
        self._operators.append(self._reshape(index, shape, result))
        return result

    def _reshape(self, source: int, shape: Sequence[int], result: int) -> OperatorT:
        inputs = [source, self._constant(shape)]
        reshape = self._operator("RESHAPE", inputs, result, "ReshapeOptions")
        reshape.builtinOptions.newShape = np.array(shape, "int32")
        return reshape

    def _values(self, index: int) -> list[int]:
        """A constant of integers."""
        data = self._model.buffers[self._graph.tensors[index].buffer].data
        return [int(x) for x in np.asarray(data, "uint8").view("int32")]

    def _scalar(self, index: int) -> float | None:
        """A constant of one number; None if a tensor is something else."""
        tensor = self._graph.tensors[index]
        data = self._model.buffers[tensor.buffer].data
        if data is None or tensor.type != self._schema.TensorType.FLOAT32 or len(data) != 4:
            return None
        return float(np.asarray(data, "uint8").view("float32")[0])

    def _tensor(self, shape: Sequence[int], dtype: int, buffer: int = 0) -> int:
        """The index of a new tensor."""
        tensor = self._schema.TensorT()
        tensor.shape, tensor.type, tensor.buffer = np.array(shape, "int32"), dtype, buffer
        tensor.name = b"new_%d" % len(self._graph.tensors)
        self._graph.tensors.append(tensor)
        return len(self._graph.tensors) - 1

    def _constant(self, values: npt.ArrayLike, dtype: str = "int32") -> int:
        """The index of a new tensor of constants in int32 or float32."""
        values = np.array(values, dtype)
        buffer = self._schema.BufferT()
        buffer.data = values.ravel().view("uint8")
        self._model.buffers.append(buffer)
        kind = getattr(self._schema.TensorType, dtype.upper())
        return self._tensor(values.shape, kind, len(self._model.buffers) - 1)

    def _strided_slice(
        self,
        source: int,
        begins: Sequence[int],
        ends: Sequence[int],
        strides: Sequence[int],
        result: int,
    ) -> OperatorT:
        inputs = [source, *map(self._constant, (begins, ends, strides))]
        return self._operator("STRIDED_SLICE", inputs, result, "StridedSliceOptions")

    def _operator(
        self, kind: str, inputs: Sequence[int], output: int, options: str | None = None
    ) -> OperatorT:
        """A new operator of a builtin kind, with default options of a type of the schema."""
        code = getattr(self._schema.BuiltinOperator, kind)
        operator = self._schema.OperatorT()
        operator.opcodeIndex = flatbuffer.operator_code(self._model, code, 1)
        operator.inputs, operator.outputs = np.array(inputs, "int32"), np.array([output], "int32")
        if options is not None:
            operator.builtinOptionsType = getattr(self._schema.BuiltinOptions, options)
            operator.builtinOptions = getattr(self._schema, f"{options}T")()
        return operator
