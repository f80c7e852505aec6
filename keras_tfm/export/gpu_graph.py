"""Rewrites a converted file for LiteRT's GPU delegate; the results on a CPU stay the same.

The converter moves transposes into products (`adj_y`), which the delegate ignores, removes axes in
STRIDED_SLICE, which it refuses, and drops leading axes of size 1 before a constant is added, whose
first axis the delegate then takes for the batch. Here each of these becomes operators that the
delegate computes as they are. RMS normalizations stay plain operators: beside their composites the
delegate ends the process.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_tfm.runtime import flatbuffer, gpu_support
from keras_tfm.runtime.manifest import import_litert

# Of the input of a STRIDED_SLICE.
_LEAST_AXES = 3
# The delegate refuses every STRIDED_SLICE of a higher version, which one slice of booleans causes.
_SLICE_VERSION = 2
_MOST_AXES = 4


def for_gpu(content: bytes) -> bytes:
    """The .tflite file `content` with operators that the GPU delegate takes."""
    model = flatbuffer.read(content)
    slices = import_litert("schema_py_generated").BuiltinOperator.STRIDED_SLICE
    for code in model.operatorCodes:
        if max(code.builtinCode, code.deprecatedBuiltinCode) == slices:
            code.version = min(code.version, _SLICE_VERSION)
    for graph in model.subgraphs:
        _Rewriter(model, graph).rewrite()
    return flatbuffer.write(model)


class _Rewriter:
    """Replaces operators of one graph."""

    def __init__(self, model: Any, graph: Any):
        self._schema = import_litert("schema_py_generated")
        self._model, self._graph = model, graph
        self._operators: list[Any] = []

    def rewrite(self) -> None:
        """Replaces the graph's operators."""
        known = vars(self._schema.BuiltinOperator)
        elementwise = {known[name] for name in gpu_support.ELEMENTWISE}
        for operator in self._graph.operators:
            code = self._model.operatorCodes[operator.opcodeIndex]
            kind, after = max(code.builtinCode, code.deprecatedBuiltinCode), None
            if kind == known["BATCH_MATMUL"]:
                self._transpose_operands(operator)
            elif kind == known["STRIDED_SLICE"] and self._is_refused(operator):
                after = self._keep_axes(operator)
            elif kind in elementwise and self._has_misread_constant(operator):
                after = self._widen(operator)
            self._operators.append(operator)
            if after is not None:
                self._operators.append(after)
        self._graph.operators = self._operators

    def _transpose_operands(self, operator: Any) -> None:
        """Transposes the operands of a product before it."""
        options = operator.builtinOptions
        inputs = list(operator.inputs)
        for number, attribute in enumerate(("adjX", "adjY")):
            if not getattr(options, attribute):
                continue
            source = self._graph.tensors[inputs[number]]
            shape = [int(d) for d in source.shape]
            order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
            result = self._tensor([shape[i] for i in order], source.type)
            transpose = self._operator("TRANSPOSE", [inputs[number], self._constant(order)], result)
            transpose.builtinOptionsType = self._schema.BuiltinOptions.TransposeOptions
            transpose.builtinOptions = self._schema.TransposeOptionsT()
            self._operators.append(transpose)
            inputs[number] = result
            setattr(options, attribute, False)
        operator.inputs = np.array(inputs, "int32")

    def _has_misread_constant(self, operator: Any) -> bool:
        tensors = [self._graph.tensors[i] for i in operator.inputs]
        return gpu_support.has_misread_constant(
            [tuple(x.shape) for x in tensors],
            [self._model.buffers[x.buffer].data is not None for x in tensors],
        )

    def _widen(self, operator: Any) -> Any:
        """Gives both operands four axes, of which the first are 1.

        Returns:
            A reshape to the result's shape, which comes after the operator.
        """
        inputs, final = list(operator.inputs), operator.outputs[0]
        for number, index in enumerate(inputs):
            source = self._graph.tensors[index]
            shape = [1] * (_MOST_AXES - len(source.shape)) + [int(d) for d in source.shape]
            if self._model.buffers[source.buffer].data is not None:
                inputs[number] = self._tensor(shape, source.type, source.buffer)
                self._graph.tensors[inputs[number]].quantization = source.quantization
            else:
                inputs[number] = self._tensor(shape, source.type)
                self._operators.append(self._reshape(index, shape, inputs[number]))
        sizes = [int(d) for d in self._graph.tensors[final].shape]
        whole = self._tensor(
            [1] * (_MOST_AXES - len(sizes)) + sizes, self._graph.tensors[final].type
        )
        operator.inputs, operator.outputs = np.array(inputs, "int32"), np.array([whole], "int32")
        return self._reshape(whole, sizes, final)

    def _is_refused(self, operator: Any) -> bool:
        """Whether a slice removes axes or has too few, and is of constant size."""
        few = len(self._graph.tensors[operator.inputs[0]].shape) < _LEAST_AXES
        tensors = [self._graph.tensors[i] for i in operator.inputs[1:]]
        known = all(self._model.buffers[x.buffer].data is not None for x in tensors)
        return known and bool(few or operator.builtinOptions.shrinkAxisMask)

    def _keep_axes(self, operator: Any) -> Any:
        """Lets a slice take three axes or more and keep those that it removes.

        Returns:
            A reshape to the result's shape, which comes after the slice.
        """
        options, inputs = operator.builtinOptions, list(operator.inputs)
        source, final = self._graph.tensors[inputs[0]], operator.outputs[0]
        added = max(0, _LEAST_AXES - len(source.shape))
        shape = [1] * added + [int(d) for d in source.shape]
        begin, end, strides = (
            [one] * added + self._values(i) for one, i in zip((0, 1, 1), inputs[1:], strict=True)
        )
        for mask in ("beginMask", "endMask", "shrinkAxisMask"):
            setattr(options, mask, getattr(options, mask) << added)
        removed = [i for i in range(len(begin)) if options.shrinkAxisMask >> i & 1]
        for i in removed:
            begin[i] %= shape[i]
            end[i] = begin[i] + 1
            options.beginMask &= ~(1 << i)
            options.endMask &= ~(1 << i)
        options.shrinkAxisMask = 0
        if added:
            larger = self._tensor(shape, source.type)
            self._operators.append(self._reshape(inputs[0], shape, larger))
            inputs[0] = larger
        sizes = [int(d) for d in self._graph.tensors[final].shape]
        kept = [1] * added + sizes
        for i in removed:
            kept.insert(i, 1)
        whole = self._tensor(kept, source.type)
        constants = [self._constant(x) for x in (begin, end, strides)]
        operator.inputs = np.array([inputs[0], *constants], "int32")
        operator.outputs = np.array([whole], "int32")
        return self._reshape(whole, sizes, final)

    def _reshape(self, source: int, shape: Sequence[int], result: int) -> Any:
        reshape = self._operator("RESHAPE", [source, self._constant(shape)], result)
        reshape.builtinOptionsType = self._schema.BuiltinOptions.ReshapeOptions
        reshape.builtinOptions = self._schema.ReshapeOptionsT()
        reshape.builtinOptions.newShape = np.array(shape, "int32")
        return reshape

    def _values(self, index: int) -> list[int]:
        """A constant of integers."""
        data = self._model.buffers[self._graph.tensors[index].buffer].data
        return [int(x) for x in np.asarray(data, "uint8").view("int32")]

    def _tensor(self, shape: Sequence[int], dtype: int, buffer: int = 0) -> int:
        """The index of a new tensor."""
        tensor = self._schema.TensorT()
        tensor.shape, tensor.type, tensor.buffer = np.array(shape, "int32"), dtype, buffer
        tensor.name = f"gpu_{len(self._graph.tensors)}"
        self._graph.tensors.append(tensor)
        return len(self._graph.tensors) - 1

    def _constant(self, values: Sequence[int]) -> int:
        """The index of a new tensor of constant integers."""
        buffer = self._schema.BufferT()
        buffer.data = np.array(values, "int32").view("uint8")
        self._model.buffers.append(buffer)
        return self._tensor(
            [len(values)], self._schema.TensorType.INT32, len(self._model.buffers) - 1
        )

    def _operator(self, kind: str, inputs: Sequence[int], output: int) -> Any:
        """A new operator of a builtin kind, without options."""
        code = getattr(self._schema.BuiltinOperator, kind)
        codes = [max(x.builtinCode, x.deprecatedBuiltinCode) for x in self._model.operatorCodes]
        if code not in codes:
            added = self._schema.OperatorCodeT()
            added.builtinCode = added.deprecatedBuiltinCode = code
            added.version = 1
            self._model.operatorCodes.append(added)
            codes.append(code)
        operator = self._schema.OperatorT()
        operator.opcodeIndex = codes.index(code)
        operator.inputs, operator.outputs = np.array(inputs, "int32"), np.array([output], "int32")
        return operator
