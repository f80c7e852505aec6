"""Rewrites operators with weights of 8 or 16 bits for LiteRT's GPU delegate."""

import numpy as np

from keras_tfm.export.graph.graph_editor import GraphEditor
from keras_tfm.export.graph.schema import ModelT, OperatorT, SubGraphT
from keras_tfm.runtime import flatbuffer

# The operators that look up rows of a table.
LOOKUPS = ("EMBEDDING_LOOKUP", "GATHER")


class WeightRewriter(GraphEditor):
    """Replaces operators of one graph.

    Args:
        model, graph: as those of `GraphEditor`.
        tables: dict of the buffers in float32 that replace those in float16. Graphs of one file
            share it, as they share their weights.
    """

    def __init__(self, model: ModelT, graph: SubGraphT, tables: dict[int, int]):
        super().__init__(model, graph)
        self._tables = tables

    def rewrite(self) -> None:
        """Replaces the graph's operators."""
        self._widen_tables()
        for operator in self._graph.operators:
            kind, after = self._kind(operator), None
            if kind == "FULLY_CONNECTED":
                after = self._keep_axes(operator)
            if kind == "CONV_2D":
                self._select_pixels(operator)
            self._operators += [operator] if after is None else [operator, after]
        self._graph.operators = self._operators

    def _widen_tables(self) -> None:
        """Stores tables in float32 from which rows are looked up.

        The delegate takes none in float16.
        """
        read = {
            int(x.inputs[flatbuffer.WEIGHT_INPUT[kind]])
            for x in self._graph.operators
            if (kind := self._kind(x)) in LOOKUPS
        }
        kept = []
        for operator in self._graph.operators:
            source, result = int(operator.inputs[0]), int(operator.outputs[0])
            half = self._dtype(source) == self._schema.TensorType.FLOAT16
            if (
                self._kind(operator) == "DEQUANTIZE"
                and half
                and result in read
                and self._is_constant(source)
            ):
                self._graph.tensors[result].buffer = self._widen(source)
            else:
                kept.append(operator)
        self._graph.operators = kept

    def _widen(self, index: int) -> int:
        """The buffer of a constant in float32."""
        buffer = int(self._graph.tensors[index].buffer)
        if buffer not in self._tables:
            data = np.asarray(self._model.buffers[buffer].data, "uint8")
            added = self._schema.BufferT()
            added.data = data.view("float16").astype("float32").view("uint8")
            self._model.buffers.append(added)
            self._tables[buffer] = len(self._model.buffers) - 1
        return self._tables[buffer]

    def _keep_axes(self, operator: OperatorT) -> OperatorT:
        """Gives a projection the axes of its input; the delegate mixes them up in int8."""
        final = operator.outputs[0]
        shape, sizes = self._shape(operator.inputs[0]), self._shape(final)
        whole = [*shape[:-1], sizes[-1]]
        if whole == sizes or np.prod(whole) != np.prod(sizes):
            return None
        result = self._tensor(whole, self._dtype(final))
        operator.builtinOptions.keepNumDims = True
        operator.outputs = np.array([result], "int32")
        return self._reshape(result, sizes, final)

    def _select_pixels(self, operator: OperatorT) -> None:
        """Removes the strides of a convolution of single pixels, which are wrong in int8."""
        options, (x, kernel) = operator.builtinOptions, (int(i) for i in operator.inputs[:2])
        strides = [options.strideH, options.strideW]
        single = self._shape(kernel)[1:3] == [1, 1] and max(strides) > 1
        if not single or self._dtype(kernel) != self._schema.TensorType.INT8:
            return
        batch, height, width, channels = self._shape(x)
        sizes = [-(-n // stride) for n, stride in zip((height, width), strides, strict=True)]
        chosen = self._tensor([batch, *sizes, channels], self._dtype(x))
        limits = ([0, 0, 0, 0], [batch, height, width, channels], [1, *strides, 1])
        self._operators.append(self._strided_slice(x, *limits, chosen))
        options.strideH = options.strideW = 1
        operator.inputs = np.array([chosen, *operator.inputs[1:]], "int32")
