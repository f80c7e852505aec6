"""Replaces SPLIT, SPLIT_V and UNPACK by slices for LiteRT's GPU delegate.

An operator by element, or a concatenation, of two results of one of these is wrong there.
"""

from keras_tfm.export.graph.graph_editor import GraphEditor


class SplitReplacer(GraphEditor):
    """Replaces them in one graph."""

    def replace(self) -> None:
        """Replaces those along a known axis."""
        for operator in self._graph.operators:
            inputs = [int(i) for i in operator.inputs]
            kind, axis = self._kind(operator), None
            if kind == "UNPACK":
                axis = operator.builtinOptions.axis
            elif kind in ("SPLIT", "SPLIT_V"):
                source, known = inputs[::-1] if kind == "SPLIT" else (inputs[0], inputs[2])
                inputs = [source]
                axis = self._values(known)[0] if self._is_constant(known) else None
            if axis is None:
                self._operators.append(operator)
            else:
                self._slice(inputs[0], axis, [int(i) for i in operator.outputs])
        self._graph.operators = self._operators

    def _slice(self, source: int, axis: int, results: list[int]) -> None:
        """Appends a slice for each result, whose axis UNPACK removes."""
        shape = self._shape(source)
        axis %= len(shape)
        begin = 0
        for result in results:
            sizes = self._shape(result)
            is_part = len(sizes) == len(shape)
            begins, ends = [0] * len(shape), list(shape)
            begins[axis], ends[axis] = begin, begin + (sizes[axis] if is_part else 1)
            begin = ends[axis]
            part = result
            if not is_part:
                part = self._tensor([*sizes[:axis], 1, *sizes[axis:]], self._dtype(source))
            strides = [1] * len(shape)
            self._operators.append(self._strided_slice(source, begins, ends, strides, part))
            if not is_part:
                self._operators.append(self._reshape(part, sizes, result))
