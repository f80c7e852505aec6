"""Rewrites a converted file for LiteRT's GPU delegate; the results on a CPU stay the same.

The converter moves transposes into products (`adj_y`), which the delegate ignores, removes axes in
STRIDED_SLICE, which it refuses, and drops leading axes of size 1 before a constant is added, whose
first axis the delegate then takes for the batch. Here each of these becomes operators that the
delegate computes as they are. RMS normalizations stay plain operators: beside their composites the
delegate ends the process. All normalizations are kept in float16's range (`float16_norms`).
"""

from collections.abc import Callable

import numpy as np

from keras_tfm.export.graph.float16_norms import bound_norms
from keras_tfm.export.graph.gpu_axes import AxisFolder
from keras_tfm.export.graph.gpu_integers import IntegerNarrower
from keras_tfm.export.graph.gpu_splits import SplitReplacer
from keras_tfm.export.graph.gpu_weights import WeightRewriter
from keras_tfm.export.graph.graph_editor import GraphEditor
from keras_tfm.export.graph.schema import ModelT, OperatorT
from keras_tfm.runtime.inspection import gpu_support
from keras_tfm.runtime.manifest.storage import import_litert

# Of the input of a STRIDED_SLICE.
_LEAST_AXES = 3
_MOST_AXES = 4


def rewrite_for_gpu(model: ModelT) -> None:
    """Gives a file operators that the GPU delegate takes.

    `model`: a file from `flatbuffer.read`.
    """
    bound_norms(model)
    tables: dict[int, int] = {}
    for graph in model.subgraphs:
        WeightRewriter(model, graph, tables).rewrite()
        SplitReplacer(model, graph).replace()
        IntegerNarrower(model, graph).narrow()
        AxisFolder(model, graph).fold()
        _Rewriter(model, graph).rewrite()
    _drop_replaced(model, tables)
    schema = import_litert("schema_py_generated")
    kinds = {code: name for name, code in vars(schema.BuiltinOperator).items()}
    for code in model.operatorCodes:
        kind = kinds[max(code.builtinCode, code.deprecatedBuiltinCode)]
        # Raised by tensors of more axes, or of another type; a CPU computes all versions alike.
        code.version = min(code.version, gpu_support.VERSIONS.get(kind, code.version))


def _drop_replaced(model: ModelT, tables: dict[int, int]) -> None:
    """Drops the buffers of tables that no operator reads any more."""
    used = set()
    for graph in model.subgraphs:
        read = {int(i) for x in graph.operators for i in x.inputs if i >= 0}
        for index, tensor in enumerate(graph.tensors):
            if index in read:
                used.add(int(tensor.buffer))
            elif int(tensor.buffer) in tables:
                tensor.buffer = 0
    for buffer in set(tables) - used:
        model.buffers[buffer].data = None


class _Rewriter(GraphEditor):
    """Replaces operators of one graph."""

    def rewrite(self) -> None:
        """Replaces the graph's operators."""
        passes: dict[str, Callable[[OperatorT], OperatorT | None]] = {
            "BATCH_MATMUL": self._rewrite_product,
            "STRIDED_SLICE": self._rewrite_slice,
            "GATHER": self._rewrite_gather,
            "BROADCAST_TO": self._rewrite_broadcast,
            "ONE_HOT": self._rewrite_one_hot,
            "TOPK_V2": self._rewrite_largest,
            **dict.fromkeys(("SELECT", "SELECT_V2"), self._rewrite_choice),
            "CUMSUM": self._rewrite_cumulative_sum,
            "MIRROR_PAD": self._rewrite_padding,
            **dict.fromkeys(gpu_support.TWO_OPERANDS, self._rewrite_constant),
        }
        for operator in self._graph.operators:
            kind = self._kind(operator)
            after = passes[kind](operator) if kind in passes else None
            self._operators.append(operator)
            if after is not None:
                self._operators.append(after)
        self._graph.operators = self._operators

    # Each pass appends the operators that precede its operator. It returns the one that follows, if
    # there is one.

    def _rewrite_product(self, operator: OperatorT) -> OperatorT:
        self._transpose_operands(operator)
        left, right = operator.inputs
        is_float32 = self._dtype(left) == self._schema.TensorType.FLOAT32
        if self._is_constant(right) or not self._is_constant(left) or not is_float32:
            return None
        # Only the right operand may be a constant: A B = (B^T A^T)^T.
        final = operator.outputs[0]
        result = self._tensor(_swap_last(self._shape(final)), self._dtype(final))
        operator.inputs = np.array(
            [self._transpose_axes(right), self._constant_transposed(left)], "int32"
        )
        operator.outputs = np.array([result], "int32")
        return self._transpose(result, final)

    def _rewrite_slice(self, operator: OperatorT) -> OperatorT:
        return self._keep_axes(operator) if self._is_refused(operator) else None

    def _rewrite_gather(self, operator: OperatorT) -> OperatorT:
        """Reads by indices of one axis, without axes of a batch."""
        options, final = operator.builtinOptions, operator.outputs[0]
        values, indices = (int(i) for i in operator.inputs)
        source, chosen = self._shape(values), self._shape(indices)
        batches, axis = options.batchDims, options.axis % len(source)
        if len(chosen) == 1 and not batches:
            return None
        if batches not in (0, axis):
            return None
        count, size = int(np.prod(source[:batches])), source[axis]
        if batches:  # rows of one table
            values = self._append_reshape(values, [count * size, *source[axis + 1 :]])
            axis = 0
            if count > 1:
                indices = self._shift(indices, [count, int(np.prod(chosen[batches:]))], size)
            options.batchDims = options.axis = 0
        number = int(np.prod(chosen))
        flat = self._append_reshape(indices, [number])
        shape = self._shape(values)
        rows = self._tensor([*shape[:axis], number, *shape[axis + 1 :]], self._dtype(final))
        operator.inputs = np.array([values, flat], "int32")
        operator.outputs = np.array([rows], "int32")
        return self._reshape(rows, self._shape(final), final)

    def _shift(self, indices: int, shape: list[int], size: int) -> int:
        """Indices of rows of several tables, one after another, each of `size` rows."""
        table = self._constant(np.arange(shape[0]).reshape(1, 1, -1, 1) * size)
        result = self._tensor([1, 1, *shape], self._dtype(indices))
        source = self._append_reshape(indices, [1, 1, *shape])
        self._operators.append(self._operator("ADD", [source, table], result, "AddOptions"))
        return result

    def _rewrite_one_hot(self, operator: OperatorT) -> OperatorT:
        """Takes indices of one axis."""
        shape, final = self._shape(operator.inputs[0]), operator.outputs[0]
        if len(shape) <= gpu_support.ONE_HOT_AXES or operator.builtinOptions.axis not in (
            -1,
            len(shape),
        ):
            return None
        count = int(np.prod(shape))
        rows = self._tensor([count, self._shape(final)[-1]], self._dtype(final))
        operator.inputs = np.array(
            [self._append_reshape(operator.inputs[0], [count]), *operator.inputs[1:]], "int32"
        )
        operator.builtinOptions.axis = -1
        operator.outputs = np.array([rows], "int32")
        return self._reshape(rows, self._shape(final), final)

    def _rewrite_largest(self, operator: OperatorT) -> OperatorT:
        """Finds the largest number, and its index, without TOPK_V2."""
        source, count = operator.inputs
        if not self._is_constant(count) or self._values(count) != [1]:
            return None
        shape, (largest, where) = self._shape(source), operator.outputs
        axis = self._constant(len(shape) - 1)
        reduce = self._operator("REDUCE_MAX", [source, axis], largest, "ReducerOptions")
        reduce.builtinOptions.keepDims = True
        index = self._tensor(shape[:-1], self._dtype(where))
        find = self._operator("ARG_MAX", [source, axis], index, "ArgMaxOptions")
        find.builtinOptions.outputType = self._dtype(where)
        self._operators.append(reduce)
        _become(operator, find)
        return self._reshape(index, self._shape(where), where)

    def _rewrite_choice(self, operator: OperatorT) -> None:
        """Gives both values the shape of the result, except constants of one element."""
        final = self._shape(operator.outputs[0])
        condition, *values = (int(i) for i in operator.inputs)
        for n, index in enumerate(values):
            shape = self._shape(index)
            single = self._is_constant(index) and int(np.prod(shape)) == 1
            if shape == final or single or len(final) > _MOST_AXES:
                continue
            if self._is_constant(index):
                values[n] = self._repeat(index, final)
            else:
                values[n] = self._tensor(final, self._dtype(index))
                self._operators += self._tiles(index, values[n])
        operator.inputs = np.array([condition, *values], "int32")

    def _rewrite_broadcast(self, operator: OperatorT) -> None:
        final = operator.outputs[0]
        if len(self._shape(final)) > _MOST_AXES:
            return
        *before, last = self._tiles(operator.inputs[0], final)
        self._operators += before
        _become(operator, last)

    def _tiles(self, source: int, final: int) -> list[OperatorT]:
        """Operators that repeat a tensor along axes of size 1; booleans as numbers."""
        sizes, shape = self._shape(final), self._shape(source)
        shape = [1] * (len(sizes) - len(shape)) + shape
        source = self._append_reshape(source, shape)
        times = self._constant([b // a for a, b in zip(shape, sizes, strict=True)])
        types = self._schema.TensorType
        if self._dtype(final) != types.BOOL:
            return [self._operator("TILE", [source, times], final)]
        numbers, whole = self._tensor(shape, types.FLOAT32), self._tensor(sizes, types.FLOAT32)
        tile = self._operator("TILE", [numbers, times], whole)
        return [self._cast(source, numbers), tile, self._cast(whole, final)]

    def _repeat(self, index: int, shape: list[int]) -> int:
        """A constant, broadcast."""
        old = self._shape(index)
        data = np.asarray(self._model.buffers[self._graph.tensors[index].buffer].data, "uint8")
        # The bytes of an element as its last axis.
        values = data.reshape(*old, -1)
        buffer = self._schema.BufferT()
        whole = np.broadcast_to(values, (*shape, values.shape[-1]))
        buffer.data = np.ascontiguousarray(whole).ravel()
        self._model.buffers.append(buffer)
        return self._tensor(shape, self._dtype(index), len(self._model.buffers) - 1)

    def _rewrite_cumulative_sum(self, operator: OperatorT) -> OperatorT:
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

    def _rewrite_padding(self, operator: OperatorT) -> OperatorT:
        """Pads a tensor of four axes."""
        source, final = operator.inputs[0], operator.outputs[0]
        missing = _MOST_AXES - len(self._shape(source))
        if missing < 2 or not self._is_constant(operator.inputs[1]):
            return None
        # The last axis is that of channels, which is not mirrored.
        pads = np.reshape(self._values(operator.inputs[1]), (-1, 2))
        pads = np.concatenate([np.zeros((missing - 1, 2)), pads, np.zeros((1, 2))]).astype("int32")
        ones = [1] * (missing - 1)
        wide = self._append_reshape(source, [*ones, *self._shape(source), 1])
        result = self._tensor([*ones, *self._shape(final), 1], self._dtype(final))
        operator.inputs = np.array([wide, self._constant(pads)], "int32")
        operator.outputs = np.array([result], "int32")
        return self._reshape(result, self._shape(final), final)

    def _rewrite_constant(self, operator: OperatorT) -> OperatorT:
        dtype = self._dtype(operator.inputs[0])
        shapes = [self._shape(i) for i in operator.inputs]
        constant = [self._is_constant(i) for i in operator.inputs]
        if not gpu_support.has_misread_constant(shapes, constant, dtype):
            return None
        wide = [_four_axes(shape) for shape in shapes]
        if gpu_support.has_misread_constant(wide, constant, dtype):  # a batch of constants
            return None
        return self._widen(operator)

    def _transpose_operands(self, operator: OperatorT) -> None:
        """Transposes the operands of a product before it."""
        options = operator.builtinOptions
        inputs = list(operator.inputs)
        for number, attribute in enumerate(("adjX", "adjY")):
            if getattr(options, attribute):
                inputs[number] = self._transpose_axes(inputs[number])
                setattr(options, attribute, False)
        operator.inputs = np.array(inputs, "int32")

    def _transpose_axes(self, index: int) -> int:
        """A tensor with its last two axes exchanged."""
        result = self._tensor(_swap_last(self._shape(index)), self._dtype(index))
        self._operators.append(self._transpose(index, result))
        return result

    def _transpose(self, source: int, result: int) -> OperatorT:
        order = _swap_last(list(range(len(self._shape(source)))))
        return self._operator(
            "TRANSPOSE", [source, self._constant(order)], result, "TransposeOptions"
        )

    def _constant_transposed(self, index: int) -> int:
        """A constant of float32 with its last two axes exchanged."""
        shape = self._shape(index)
        data = self._model.buffers[self._graph.tensors[index].buffer].data
        values = np.asarray(data, "uint8").view("float32").reshape(shape)
        buffer = self._schema.BufferT()
        buffer.data = np.ascontiguousarray(np.swapaxes(values, -1, -2)).view("uint8").ravel()
        self._model.buffers.append(buffer)
        return self._tensor(_swap_last(shape), self._dtype(index), len(self._model.buffers) - 1)

    def _widen(self, operator: OperatorT) -> OperatorT:
        """Gives both operands four axes, of which the first are 1.

        Returns:
            A reshape to the result's shape, which comes after the operator.
        """
        inputs, final = list(operator.inputs), operator.outputs[0]
        for number, index in enumerate(inputs):
            inputs[number] = self._append_reshape(index, _four_axes(self._shape(index)))
        sizes = self._shape(final)
        whole = self._tensor(_four_axes(sizes), self._dtype(final))
        operator.inputs, operator.outputs = np.array(inputs, "int32"), np.array([whole], "int32")
        return self._reshape(whole, sizes, final)

    def _is_refused(self, operator: OperatorT) -> bool:
        """Whether a slice removes axes or has too few, and is of constant size."""
        few = len(self._graph.tensors[operator.inputs[0]].shape) < _LEAST_AXES
        tensors = [self._graph.tensors[i] for i in operator.inputs[1:]]
        known = all(self._model.buffers[x.buffer].data is not None for x in tensors)
        return known and bool(few or operator.builtinOptions.shrinkAxisMask)

    def _keep_axes(self, operator: OperatorT) -> OperatorT:
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


def _become(operator: OperatorT, other: OperatorT) -> None:
    """Gives an operator the kind, the tensors and the options of another."""
    for name in ("opcodeIndex", "inputs", "outputs", "builtinOptions", "builtinOptionsType"):
        setattr(operator, name, getattr(other, name))


def _swap_last(sizes: list[int]) -> list[int]:
    """The last two exchanged."""
    return [*sizes[:-2], sizes[-1], sizes[-2]]


def _four_axes(shape: list[int]) -> list[int]:
    """A shape of four axes, of which the first are 1."""
    return [1] * (_MOST_AXES - len(shape)) + shape
