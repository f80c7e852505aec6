"""Rewrites a converted file for LiteRT's GPU delegate; the results on a CPU stay the same.

The converter moves transposes into products (`adj_y`), which the delegate ignores, removes axes in
STRIDED_SLICE, which it refuses, and drops leading axes of size 1 before a constant is added, whose
first axis the delegate then takes for the batch. Here each of these becomes operators that the
delegate computes as they are. RMS normalizations stay plain operators: beside their composites the
delegate ends the process. All normalizations are kept in float16's range (`float16_norms`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_tfm.export.float16_norms import bound_norms
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
    bound_norms(model)
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
        kinds = {code: name for name, code in vars(self._schema.BuiltinOperator).items()}
        passes: dict[str, Callable[[Any], Any]] = {
            "BATCH_MATMUL": self._rewrite_product,
            "STRIDED_SLICE": self._rewrite_slice,
            "GATHER": self._rewrite_gather,
            "CUMSUM": self._rewrite_cumulative_sum,
            "MIRROR_PAD": self._rewrite_padding,
            **dict.fromkeys(gpu_support.TWO_OPERANDS, self._rewrite_constant),
        }
        for operator in self._graph.operators:
            code = self._model.operatorCodes[operator.opcodeIndex]
            kind = kinds[max(code.builtinCode, code.deprecatedBuiltinCode)]
            after = passes[kind](operator) if kind in passes else None
            self._operators.append(operator)
            if after is not None:
                self._operators.append(after)
        self._graph.operators = self._operators

    # Each pass appends the operators that precede its operator. It returns the one that follows, if
    # there is one.

    def _rewrite_product(self, operator: Any) -> Any:
        self._transpose_operands(operator)
        left, right = operator.inputs
        is_float32 = self._dtype(left) == self._schema.TensorType.FLOAT32
        if self._is_constant(right) or not self._is_constant(left) or not is_float32:
            return None
        # Only the right operand may be a constant: A B = (B^T A^T)^T.
        final = operator.outputs[0]
        result = self._tensor(_swapped(self._shape(final)), self._dtype(final))
        operator.inputs = np.array(
            [self._transposed(right), self._constant_transposed(left)], "int32"
        )
        operator.outputs = np.array([result], "int32")
        return self._transpose(result, final)

    def _rewrite_slice(self, operator: Any) -> Any:
        return self._keep_axes(operator) if self._is_refused(operator) else None

    def _rewrite_gather(self, operator: Any) -> Any:
        """Reads rows by indices of one axis."""
        indices, final = operator.inputs[1], operator.outputs[0]
        shape = self._shape(indices)
        if len(shape) == 1 or operator.builtinOptions.axis or operator.builtinOptions.batchDims:
            return None
        count = int(np.prod(shape))
        flat = self._reshaped(indices, [count])
        rows = self._tensor([count, *self._shape(operator.inputs[0])[1:]], self._dtype(final))
        operator.inputs = np.array([operator.inputs[0], flat], "int32")
        operator.outputs = np.array([rows], "int32")
        return self._reshape(rows, self._shape(final), final)

    def _rewrite_cumulative_sum(self, operator: Any) -> Any:
        """Adds in float32, which is exact up to 2^24."""
        source, final = operator.inputs[0], operator.outputs[0]
        types = self._schema.TensorType
        if self._dtype(source) == types.FLOAT32:
            return None
        numbers = self._tensor(self._shape(source), types.FLOAT32)
        sums = self._tensor(self._shape(final), types.FLOAT32)
        self._operators.append(self._cast(source, numbers))
        operator.inputs = np.array([numbers, operator.inputs[1]], "int32")
        operator.outputs = np.array([sums], "int32")
        return self._cast(sums, final)

    def _rewrite_padding(self, operator: Any) -> Any:
        """Pads a tensor of four axes."""
        source, final = operator.inputs[0], operator.outputs[0]
        missing = _MOST_AXES - len(self._shape(source))
        if missing < 2 or not self._is_constant(operator.inputs[1]):
            return None
        # The last axis is that of channels, which is not mirrored.
        pads = np.reshape(self._values(operator.inputs[1]), (-1, 2))
        pads = np.concatenate([np.zeros((missing - 1, 2)), pads, np.zeros((1, 2))]).astype("int32")
        ones = [1] * (missing - 1)
        wide = self._reshaped(source, [*ones, *self._shape(source), 1])
        result = self._tensor([*ones, *self._shape(final), 1], self._dtype(final))
        operator.inputs = np.array([wide, self._constant(pads)], "int32")
        operator.outputs = np.array([result], "int32")
        return self._reshape(result, self._shape(final), final)

    def _rewrite_constant(self, operator: Any) -> Any:
        dtype = self._dtype(operator.inputs[0])
        shapes = [self._shape(i) for i in operator.inputs]
        constant = [self._is_constant(i) for i in operator.inputs]
        if not gpu_support.has_misread_constant(shapes, constant, dtype):
            return None
        wide = [_widened(shape) for shape in shapes]
        if gpu_support.has_misread_constant(wide, constant, dtype):  # a batch of constants
            return None
        return self._widen(operator)

    def _transpose_operands(self, operator: Any) -> None:
        """Transposes the operands of a product before it."""
        options = operator.builtinOptions
        inputs = list(operator.inputs)
        for number, attribute in enumerate(("adjX", "adjY")):
            if getattr(options, attribute):
                inputs[number] = self._transposed(inputs[number])
                setattr(options, attribute, False)
        operator.inputs = np.array(inputs, "int32")

    def _transposed(self, index: int) -> int:
        """A tensor with its last two axes exchanged."""
        result = self._tensor(_swapped(self._shape(index)), self._dtype(index))
        self._operators.append(self._transpose(index, result))
        return result

    def _transpose(self, source: int, result: int) -> Any:
        order = _swapped(list(range(len(self._shape(source)))))
        transpose = self._operator("TRANSPOSE", [source, self._constant(order)], result)
        transpose.builtinOptionsType = self._schema.BuiltinOptions.TransposeOptions
        transpose.builtinOptions = self._schema.TransposeOptionsT()
        return transpose

    def _constant_transposed(self, index: int) -> int:
        """A constant of float32 with its last two axes exchanged."""
        shape = self._shape(index)
        data = self._model.buffers[self._graph.tensors[index].buffer].data
        values = np.asarray(data, "uint8").view("float32").reshape(shape)
        buffer = self._schema.BufferT()
        buffer.data = np.ascontiguousarray(np.swapaxes(values, -1, -2)).view("uint8").ravel()
        self._model.buffers.append(buffer)
        return self._tensor(_swapped(shape), self._dtype(index), len(self._model.buffers) - 1)

    def _cast(self, source: int, result: int) -> Any:
        cast = self._operator("CAST", [source], result)
        cast.builtinOptionsType = self._schema.BuiltinOptions.CastOptions
        cast.builtinOptions = self._schema.CastOptionsT()
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

    def _reshaped(self, index: int, shape: Sequence[int]) -> int:
        """A tensor in another shape; a constant without an operator."""
        source = self._graph.tensors[index]
        if self._is_constant(index):
            result = self._tensor(shape, source.type, source.buffer)
            self._graph.tensors[result].quantization = source.quantization
            return result
        result = self._tensor(shape, source.type)
        self._operators.append(self._reshape(index, shape, result))
        return result

    def _widen(self, operator: Any) -> Any:
        """Gives both operands four axes, of which the first are 1.

        Returns:
            A reshape to the result's shape, which comes after the operator.
        """
        inputs, final = list(operator.inputs), operator.outputs[0]
        for number, index in enumerate(inputs):
            inputs[number] = self._reshaped(index, _widened(self._shape(index)))
        sizes = self._shape(final)
        whole = self._tensor(_widened(sizes), self._dtype(final))
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

    def _constant(self, values: Any) -> int:
        """The index of a new tensor of constant integers."""
        values = np.array(values, "int32")
        buffer = self._schema.BufferT()
        buffer.data = values.ravel().view("uint8")
        self._model.buffers.append(buffer)
        return self._tensor(
            values.shape, self._schema.TensorType.INT32, len(self._model.buffers) - 1
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


def _swapped(sizes: list[int]) -> list[int]:
    """The last two exchanged."""
    return [*sizes[:-2], sizes[-1], sizes[-2]]


def _widened(shape: list[int]) -> list[int]:
    """A shape of four axes, of which the first are 1."""
    return [1] * (_MOST_AXES - len(shape)) + shape
