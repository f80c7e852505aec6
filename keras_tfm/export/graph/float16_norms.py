"""Normalizations whose squares stay in float16's range, in which GPUs compute by default.

The square of a number of more than 256 exceeds float16's largest number, 65504: the norm of such a
row is infinite, and the row becomes zeros. The residual stream of SmolLM2-135M reaches 24,886.
"""

from typing import NamedTuple

import numpy as np

from keras_tfm.export.graph.graph_editor import GraphEditor
from keras_tfm.export.graph.schema import ModelT, OperatorT, SubGraphT

# The smallest float16 with all its digits. Some GPUs take smaller ones for zero.
_SMALLEST = 2.0**-14
# Of the numbers that are squared, which are at most 128 for rows of up to 16384 numbers.
_LARGEST = 128
# Of float16.
LARGEST = 65504.0


def bound_norms(model: ModelT) -> None:
    """Divides what normalizations square by a size of the row, which their results do not change.

    With a the mean of |x| plus a constant, and c = D/128 for rows of D numbers (1 for short ones):

        1 / sqrt(mean(x^2) + epsilon) = 1 / sqrt(mean((x / ca)^2) + epsilon / (ca)^2) / ca

    An x / ca is at most 128, and the mean of the squares at least 1 / c^2, except for rows near
    zero. In exact arithmetic nothing changes. It finds RMS and layer normalizations over any axes.
    So with x / |x| (`keras.layers.UnitNormalization`), whose limit of 1 / |x| is 1e12, which is
    infinite in float16: 0 / |0| would be NaN. Its vectors shorter than 1e-6 become shorter than 1.

    Args:
        model: a file from `flatbuffer.read`.

    Example:

    >>> import tempfile
    >>> from pathlib import Path
    >>> from keras_tfm import export, models
    >>> from keras_tfm.export.graph.float16_norms import bound_norms
    >>> from keras_tfm.runtime import flatbuffer
    >>> bert = models.bert(7, dim=4, num_layers=1, num_heads=2, intermediate_dim=4)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = export.export_tflite(bert, folder + "/bert.tflite", source_length=3)
    ...     file = flatbuffer.read(Path(report.path).read_bytes())
    >>> before = len(file.subgraphs[0].operators)
    >>> bound_norms(file)
    >>> len(file.subgraphs[0].operators) > before
    True
    """
    for graph in model.subgraphs:
        _Bounds(model, graph).apply()


class _Norm(NamedTuple):
    """The operators of a normalization, and the products of its inverse root with the rows x."""

    square: OperatorT
    reduction: OperatorT  # the mean, or of x / |x| the sum
    after: OperatorT  # the sum with epsilon, or of x / |x| the minimum with a limit
    rsqrt: OperatorT
    epsilon: float | None  # None: x / |x|
    # Each with the operator that multiplies x before, or itself. Empty if there are other readers.
    products: list[tuple[OperatorT, OperatorT]]


class _Bounds(GraphEditor):
    """Rewrites the normalizations of one graph."""

    def __init__(self, model: ModelT, graph: SubGraphT):
        super().__init__(model, graph)
        self._maker = {int(y): x for x in graph.operators for y in x.outputs}
        self._readers: dict[int, list[OperatorT]] = {int(x): [None] for x in graph.outputs}
        for operator in graph.operators:
            for x in {int(x) for x in operator.inputs}:
                self._readers.setdefault(x, []).append(operator)

    def apply(self) -> None:
        """Replaces the operators of each normalization."""
        operators = list(self._graph.operators)
        roots = [x for x in operators if self._is(x, "RSQRT")]
        norms = [norm for x in roots if (norm := self._normalization(x)) is not None]
        squares = {id(norm.square): norm for norm in norms}
        moved = {id(x) for norm in norms for x in (norm.reduction, norm.after, norm.rsqrt)}
        # A product of x with gamma may come before the square.
        before = {id(x): first for norm in norms for x, first in norm.products if first is not x}
        moved |= {id(first) for first in before.values()}
        for operator in operators:
            if id(operator) in squares:
                self._bound_norm(squares[id(operator)])
            elif id(operator) not in moved:
                if id(operator) in before:
                    self._operators.append(before[id(operator)])
                self._operators.append(operator)
        self._graph.operators = self._operators

    def _normalization(self, rsqrt: OperatorT) -> _Norm | None:
        """The normalization of an inverse root; None if this is something else."""
        add, epsilon, final = self._made_by(rsqrt.inputs[0], "ADD"), None, rsqrt
        if add is not None:
            reduction = self._made_by(add.inputs[0], "MEAN")
            epsilon, after = self._scalar(add.inputs[1]), add
        else:
            reduction = self._made_by(rsqrt.inputs[0], "SUM")
            readers = self._readers.get(int(rsqrt.outputs[0]), [])
            after = final = readers[0] if len(readers) == 1 else None
            if not after or not self._is(after, "MINIMUM"):
                return None
            if (self._scalar(after.inputs[1]) or 0.0) < LARGEST:
                return None
        if reduction is None or not reduction.builtinOptions.keepDims:
            return None
        square = self._made_by(reduction.inputs[0], "SQUARE", "MUL", "SQUARED_DIFFERENCE")
        if square is None or (self._is(square, "MUL") and square.inputs[0] != square.inputs[1]):
            return None
        products = self._products(int(final.outputs[0]), square)
        if not (epsilon if add is not None else products):
            return None
        return _Norm(square, reduction, after, rsqrt, epsilon, products)

    def _products(self, root: int, square: OperatorT) -> list[tuple[OperatorT, OperatorT]]:
        """The products of an inverse root with x; empty if it has other readers."""
        products: list[tuple[OperatorT, OperatorT]] = []
        for reader in self._readers.get(root, []):
            first = reader and self._product(reader, root, square)
            if not first:
                return []
            products.append((reader, first))
        return products

    def _product(self, reader: OperatorT, root: int, square: OperatorT) -> OperatorT:
        """The operator that multiplies x, which is the reader of the root or the one before."""
        if not self._is(reader, "MUL"):
            return None
        other = [int(i) for i in reader.inputs if int(i) != root]
        if len(other) != 1:
            return None
        if self._is_row(other[0], square):
            return reader
        scaled = self._made_by(other[0], "MUL")
        rows = [] if scaled is None else [self._is_row(i, square) for i in scaled.inputs]
        return scaled if sum(rows) == 1 else None

    def _is_row(self, index: int, square: OperatorT) -> bool:
        """Whether a tensor is what is squared."""
        if not self._is(square, "SQUARED_DIFFERENCE"):
            return bool(index == square.inputs[0])
        maker = self._maker.get(int(index))
        return bool(maker and self._is(maker, "SUB") and list(maker.inputs) == list(square.inputs))

    def _bound_norm(self, norm: _Norm) -> None:
        """Appends the normalization of x / ca, and lets the products read that."""
        square, reduction = norm.square, norm.reduction
        x = int(square.inputs[0])
        if self._is(square, "SQUARED_DIFFERENCE"):
            x = self._new("SUB", [x, int(square.inputs[1])], square.outputs[0])
        # Absolute values have a mean that float16 holds; the sum may exceed it.
        absolute = self._new("ABS", [x], x)
        size = self._new("MEAN", [absolute, int(reduction.inputs[1])], reduction.outputs[0])
        self._operators[-1].builtinOptionsType = reduction.builtinOptionsType
        self._operators[-1].builtinOptions = reduction.builtinOptions
        root = (norm.epsilon or 0.0) ** 0.5
        size = self._new("ADD", [size, self._number(max(root, _SMALLEST))], size)
        shapes = [self._shape(i) for i in (x, size)]
        count = float(max(1.0, np.prod(shapes[0]) / np.prod(shapes[1]) / _LARGEST))
        rows = self._times(self._new("DIV", [x, size], x), 1 / count)
        self._new("MUL", [rows, rows], rows, square.outputs[0])
        if norm.epsilon is None:
            self._operators.append(reduction)
            total = int(reduction.outputs[0])
            total = self._new("MAXIMUM", [total, self._number(_SMALLEST)], total)
            norm.rsqrt.inputs = np.array([total], "int32")
            norm.rsqrt.outputs = norm.after.outputs
            self._operators.append(norm.rsqrt)
        else:
            ratio = self._new("DIV", [self._number(root / count), size], size)
            squared = self._new("MUL", [ratio, ratio], ratio)
            norm.after.inputs = np.array([norm.after.inputs[0], squared], "int32")
            self._operators += [reduction, norm.after, norm.rsqrt]
        if not norm.products:
            final = int(norm.rsqrt.outputs[0])
            norm.rsqrt.outputs = np.array([self._like(final)], "int32")
            inverse = self._times(int(norm.rsqrt.outputs[0]), 1 / count)
            self._new("DIV", [inverse, size], final, final)
        for _, first in norm.products:
            first.inputs = np.array(
                [rows if self._is_row(i, square) else int(i) for i in first.inputs], "int32"
            )

    def _times(self, index: int, factor: float) -> int:
        """A tensor times a constant; itself for 1."""
        return index if factor == 1 else self._new("MUL", [index, self._number(factor)], index)

    def _is(self, operator: OperatorT, name: str) -> bool:
        return self._kind(operator) == name

    def _made_by(self, index: int, *names: str) -> OperatorT:
        """The operator that computes a tensor of one reader, if it is of one of these kinds."""
        maker = self._maker.get(int(index))
        if maker is None or len(self._readers[int(index)]) != 1:
            return None
        return maker if any(self._is(maker, name) for name in names) else None

    def _new(self, name: str, inputs: list[int], like: int, output: int | None = None) -> int:
        """Appends an operator; its result, of the shape of `like`, is a new tensor by default."""
        result = self._like(int(like)) if output is None else int(output)
        has_options = name in ("ADD", "DIV", "MUL", "SUB")
        options = f"{name.capitalize()}Options" if has_options else None
        self._operators.append(self._operator(name, inputs, result, options))
        return result

    def _like(self, index: int) -> int:
        """The index of a new tensor of another's shape and type, with its layer's name."""
        result = self._tensor(self._shape(index), self._dtype(index))
        name = self._graph.tensors[index].name or b""
        self._graph.tensors[result].name = name + b"/bounded_%d" % result
        return result

    def _number(self, value: float) -> int:
        """The index of a new constant of one number."""
        return self._constant(value, "float32")
