"""Replaces SPLIT and SPLIT_V by slices for LiteRT's GPU delegate.

An operator by element, or a concatenation, of two results of one SPLIT is wrong there.
"""

from typing import Any

import numpy as np

from keras_tfm.export.graph_editor import GraphEditor


class SplitReplacer(GraphEditor):
    """Replaces them in one graph."""

    def replace(self) -> None:
        """Replaces those along a known axis."""
        for operator in self._graph.operators:
            kind = self._kind(operator)
            if kind not in ("SPLIT", "SPLIT_V"):
                self._operators.append(operator)
                continue
            inputs = [int(i) for i in operator.inputs]
            axis, source = inputs if kind == "SPLIT" else (inputs[2], inputs[0])
            if self._is_constant(axis):
                self._slice(source, self._values(axis)[0], operator.outputs)
            else:
                self._operators.append(operator)
        self._graph.operators = self._operators

    def _slice(self, source: int, axis: int, results: Any) -> None:
        shape = self._shape(source)
        axis %= len(shape)
        begin = 0
        for result in results:
            begins, ends = [0] * len(shape), list(shape)
            begins[axis], ends[axis] = begin, begin + self._shape(result)[axis]
            begin = ends[axis]
            inputs = [source, *map(self._constant, (begins, ends, np.ones(len(shape))))]
            select = self._operator("STRIDED_SLICE", inputs, int(result))
            select.builtinOptionsType = self._schema.BuiltinOptions.StridedSliceOptions
            select.builtinOptions = self._schema.StridedSliceOptionsT()
            self._operators.append(select)
