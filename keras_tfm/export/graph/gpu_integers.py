"""Replaces integers of 64 bits, which LiteRT's GPU delegate refuses, by those of 32."""

import numpy as np

from keras_tfm.export.graph.graph_editor import GraphEditor
from keras_tfm.runtime.inspection import gpu_support

# What the converter makes of integers beside the delegate's operators.
_OTHERS = ("ARG_MIN", "BROADCAST_TO", "RANGE", "SHAPE")
_LIMITS = np.iinfo("int32")


class IntegerNarrower(GraphEditor):
    """Replaces integers of 64 bits in one graph."""

    def narrow(self) -> None:
        """Replaces all of them, unless an operator may need 64 bits, or the caller sees them.

        Indices, lengths and ids, which layers compute in 64 bits, are far below 2^31.
        """
        wide = [
            i for i, x in enumerate(self._graph.tensors) if x.type == self._schema.TensorType.INT64
        ]
        if not wide or not self._can_be_narrow(set(wide)):
            return
        for i in wide:
            tensor = self._graph.tensors[i]
            tensor.type = self._schema.TensorType.INT32
            if self._is_constant(i):
                values = np.asarray(self._model.buffers[tensor.buffer].data, "uint8").view("int64")
                tensor.buffer = self._graph.tensors[self._constant(values)].buffer
        same: dict[int, int] = {}
        for operator in self._graph.operators:
            operator.inputs = np.array([same.get(int(x), int(x)) for x in operator.inputs], "int32")
            options, kind = operator.builtinOptions, self._kind(operator)
            if kind in ("ARG_MAX", "ARG_MIN"):
                options.outputType = self._dtype(operator.outputs[0])
            if kind == "SHAPE":
                options.outType = self._dtype(operator.outputs[0])
            if kind == "CAST":
                source, result = int(operator.inputs[0]), int(operator.outputs[0])
                if options is not None:
                    options.inDataType, options.outDataType = map(self._dtype, (source, result))
                if self._dtype(source) == self._dtype(result) and result not in self._graph.outputs:
                    same[result] = source
                    continue
            self._operators.append(operator)
        self._graph.operators = self._operators

    def _can_be_narrow(self, wide: set[int]) -> bool:
        if wide & {int(x) for x in (*self._graph.inputs, *self._graph.outputs)}:
            return False
        for operator in self._graph.operators:
            kind = self._kind(operator)
            touched = wide & {int(x) for x in (*operator.inputs, *operator.outputs)}
            if touched and kind not in gpu_support.OPERATORS and kind not in _OTHERS:
                return False
        for i in wide:
            if self._is_constant(i):
                data = self._model.buffers[self._graph.tensors[i].buffer].data
                values = np.asarray(data, "uint8").view("int64")
                if values.size and (values.min() < _LIMITS.min or values.max() > _LIMITS.max):
                    return False
        return True
