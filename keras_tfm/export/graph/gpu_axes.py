"""Folds tensors of more than four axes, which LiteRT's GPU delegate refuses, into four or fewer.

The values keep their order in memory: neighboring axes are merged where an operator treats them
alike, and axes of size 1 are dropped.
"""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

from keras_tfm.export.graph.graph_editor import GraphEditor
from keras_tfm.export.graph.schema import ModelT, OperatorT, SubGraphT
from keras_tfm.runtime.inspection import gpu_support

_MOST_AXES = 4
# Operators of one operand, by element.
_ELEMENTWISE = frozenset(
    """
    ABS CAST CEIL COS ELU EXP FLOOR GELU HARD_SWISH LEAKY_RELU LOG LOGICAL_NOT LOGISTIC NEG RELU
    RELU6 ROUND RSQRT SIGN SIN SQRT SQUARE TANH
    """.split()  # noqa: SIM905
)
_REDUCTIONS = ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "REDUCE_ALL", "REDUCE_ANY")


class AxisFolder(GraphEditor):
    """Folds the tensors of one graph."""

    def __init__(self, model: ModelT, graph: SubGraphT):
        super().__init__(model, graph)
        # The folded tensor of each tensor of more than four axes.
        self._folded: dict[int, int] = {}
        self._passes: dict[str, Callable[[OperatorT], bool]] = {
            "RESHAPE": self._fold_reshape,
            "BATCH_MATMUL": self._fold_product,
            "SOFTMAX": self._fold_softmax,
            "STRIDED_SLICE": self._fold_slice,
            "TRANSPOSE": self._fold_transpose,
            "TILE": self._fold_tile,
            "CONCATENATION": self._fold_concatenation,
            **dict.fromkeys(_REDUCTIONS, self._fold_reduction),
            **dict.fromkeys(_ELEMENTWISE, self._fold_elements),
            **dict.fromkeys(
                (*gpu_support.TWO_OPERANDS, "SELECT", "SELECT_V2"), self._fold_broadcast
            ),
        }

    def fold(self) -> None:
        """Replaces operators on more than four axes, where that can be done."""
        for operator in self._graph.operators:
            tensors = [x for x in (*operator.inputs, *operator.outputs) if x >= 0]
            wide = any(len(self._shape(x)) > _MOST_AXES for x in tensors)
            fold = self._passes.get(self._kind(operator), lambda _: False)
            if not (wide and fold(operator)):
                for x in operator.inputs:
                    self._unfold(x)
                self._operators.append(operator)
        for x in self._graph.outputs:
            self._unfold(x)
        self._graph.operators = self._operators

    # Each pass appends its operator, folded; or returns False.

    def _fold_reshape(self, operator: OperatorT) -> bool:
        source, final = int(operator.inputs[0]), int(operator.outputs[0])
        if self._is_constant(source):
            return False
        if len(self._shape(final)) > _MOST_AXES:
            self._folded[final] = self._folded.get(source, source)
        else:
            self._operators.append(self._reshape(self._narrow(source), self._shape(final), final))
        return True

    def _fold_elements(self, operator: OperatorT) -> bool:
        source = self._narrow(operator.inputs[0])
        return self._append(operator, [source], [self._shape(source)])

    def _fold_softmax(self, operator: OperatorT) -> bool:
        """The last axis stays as it is."""
        sizes = _merge_first(self._shape(operator.inputs[0]))
        return self._append(operator, [self._in_shape(operator.inputs[0], sizes)], [sizes])

    def _fold_slice(self, operator: OperatorT) -> bool:
        """Axes that stay whole are merged."""
        options, (x, *limits) = operator.builtinOptions, (int(i) for i in operator.inputs)
        shape, sizes = self._shape(x), self._shape(operator.outputs[0])
        masks = options.ellipsisMask or options.newAxisMask or options.shrinkAxisMask
        if masks or not all(self._is_constant(i) for i in limits):
            return False
        whole = [a == b for a, b in zip(shape, sizes, strict=True)]
        groups = _alike(lambda i, j: whole[i] and whole[j], shape)
        values = [self._values(i) for i in limits]
        if groups is None or min(values[2]) < 1:
            return False
        begins, ends, strides = [], [], []
        for group in groups:
            i, single = group[0], not whole[group[0]]
            begin, end, stride = (x[i] for x in values)
            begins.append(begin if single and not options.beginMask >> i & 1 else 0)
            length = math.prod(shape[n] for n in group)
            ends.append(end if single and not options.endMask >> i & 1 else length)
            strides.append(stride if single else 1)
        options.beginMask = options.endMask = 0
        sources = [self._in_shape(x, _group_sizes(shape, groups))]
        sources += [self._constant(x) for x in (begins, ends, strides)]
        return self._append(operator, sources, [_group_sizes(sizes, groups)])

    def _fold_product(self, operator: OperatorT) -> bool:
        shapes = [self._shape(x) for x in operator.inputs]
        if shapes[0][:-2] != shapes[1][:-2]:
            return False
        sources = [
            self._in_shape(x, _merge_first(shape))
            for x, shape in zip(operator.inputs, shapes, strict=True)
        ]
        return self._append(operator, sources, [_merge_first(self._shape(operator.outputs[0]))])

    def _fold_broadcast(self, operator: OperatorT) -> bool:
        final = self._shape(operator.outputs[0])
        shapes = [self._shape(x) for x in operator.inputs]
        shapes = [[1] * (len(final) - len(x)) + x for x in shapes]
        if self._kind(operator) == "SELECT" and len({tuple(x) for x in shapes}) > 1:
            return False  # the condition's axes are the first ones
        ones = [tuple(x[i] == 1 for x in shapes) for i in range(len(final))]
        groups = _alike(lambda i, j: ones[i] == ones[j], final)
        if groups is None:
            return False
        sources = [
            x if not self._shape(x) else self._in_shape(x, _group_sizes(shape, groups))
            for x, shape in zip(operator.inputs, shapes, strict=True)
        ]
        return self._append(operator, sources, [_group_sizes(final, groups)])

    def _fold_transpose(self, operator: OperatorT) -> bool:
        shape = self._shape(operator.inputs[0])
        if not self._is_constant(operator.inputs[1]):
            return False
        order = [i for i in self._values(operator.inputs[1]) if shape[i] > 1] or [0]
        groups = _alike(lambda i, j: order.index(j) == order.index(i) + 1, shape)
        if groups is None:
            return False
        after = sorted(groups, key=lambda group: order.index(group[0]))
        source = self._in_shape(operator.inputs[0], _group_sizes(shape, groups))
        permutation = self._constant([groups.index(x) for x in after])
        return self._append(operator, [source, permutation], [_group_sizes(shape, after)])

    def _fold_reduction(self, operator: OperatorT) -> bool:
        x = operator.inputs[0]
        shape = self._shape(x)
        if not self._is_constant(operator.inputs[1]):
            return False
        axes = {i % len(shape) for i in self._values(operator.inputs[1])}
        groups = _alike(lambda i, j: (i in axes) == (j in axes), shape)
        if groups is None:
            return False
        sizes = _group_sizes(shape, groups)
        reduced = [n for n, group in enumerate(groups) if group[0] in axes]
        if not reduced:  # of size 1, all of them
            reduced, sizes = [0], [1, *sizes[-3:]] if len(sizes) < _MOST_AXES else []
        if not sizes:
            return False
        operator.builtinOptions.keepDims = True
        result = [1 if n in reduced else size for n, size in enumerate(sizes)]
        return self._append(operator, [self._in_shape(x, sizes), self._constant(reduced)], [result])

    def _fold_tile(self, operator: OperatorT) -> bool:
        shape = self._shape(operator.inputs[0])
        if not self._is_constant(operator.inputs[1]):
            return False
        times = self._values(operator.inputs[1])
        sizes = [a * b for a, b in zip(shape, times, strict=True)]
        groups = _alike(lambda i, j: times[i] == times[j] == 1, sizes)
        if groups is None:
            return False
        source = self._in_shape(operator.inputs[0], _group_sizes(shape, groups))
        return self._append(
            operator,
            [source, self._constant(_group_sizes(times, groups))],
            [_group_sizes(sizes, groups)],
        )

    def _fold_concatenation(self, operator: OperatorT) -> bool:
        final = self._shape(operator.outputs[0])
        axis = operator.builtinOptions.axis % len(final)
        sources = [self._in_shape(x, _around(self._shape(x), axis)) for x in operator.inputs]
        operator.builtinOptions.axis = 1
        return self._append(operator, sources, [_around(final, axis)])

    def _append(
        self, operator: OperatorT, sources: Sequence[int], shapes: Sequence[list[int]]
    ) -> bool:
        """Appends an operator with folded operands and results."""
        finals = [int(x) for x in operator.outputs]
        results = [self._tensor(s, self._dtype(x)) for s, x in zip(shapes, finals, strict=True)]
        operator.inputs = np.array(sources, "int32")
        operator.outputs = np.array(results, "int32")
        self._operators.append(operator)
        for final, result in zip(finals, results, strict=True):
            if len(self._shape(final)) > _MOST_AXES:
                self._folded[final] = result
            else:
                self._operators.append(self._reshape(result, self._shape(final), final))
        return True

    def _in_shape(self, index: int, shape: Sequence[int]) -> int:
        """A tensor's values in another shape."""
        source = self._folded.get(int(index), int(index))
        return source if self._shape(source) == list(shape) else self._append_reshape(source, shape)

    def _narrow(self, index: int) -> int:
        """A tensor's values in at most four axes."""
        source = self._folded.get(int(index), int(index))
        shape = self._shape(source)
        return source if len(shape) <= _MOST_AXES else self._in_shape(source, _merge_first(shape))

    def _unfold(self, index: int) -> None:
        """Gives an operator that stays as it is, or the caller, a tensor in its own shape."""
        if int(index) in self._folded:
            source = self._folded.pop(int(index))
            self._operators.append(self._reshape(source, self._shape(index), index))


def _merge_first(shape: list[int]) -> list[int]:
    """Four axes, of which the first is the product of the first ones."""
    first = len(shape) - _MOST_AXES + 1
    return shape if first <= 1 else [math.prod(shape[:first]), *shape[first:]]


def _around(shape: list[int], axis: int) -> list[int]:
    """Three axes: those before an axis, the axis, and those after it."""
    return [math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])]


def _alike(is_alike: Callable[[int, int], bool], sizes: Sequence[int]) -> list[list[int]] | None:
    """The axes in at most four groups, without axes of size 1; None if that cannot be done.

    `is_alike`: whether two neighboring axes can be merged.
    """
    groups = [[i] for i, size in enumerate(sizes) if size != 1] or [[0]]
    while len(groups) > _MOST_AXES:
        pairs = itertools.pairwise(groups)
        for n, (left, right) in enumerate(pairs):
            if is_alike(left[-1], right[0]):
                groups[n : n + 2] = [left + right]
                break
        else:
            return None
    return groups


def _group_sizes(sizes: Sequence[int], groups: Sequence[Sequence[int]]) -> list[int]:
    """The product of the sizes in each group."""
    return [math.prod(sizes[i] for i in group) for group in groups]
