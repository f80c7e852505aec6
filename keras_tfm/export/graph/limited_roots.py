"""Inverse roots of 0 that are finite on XNNPACK, if the graph limits them.

XNNPACK's inverse root of 0, and of numbers too small for a normal float32, is NaN, not infinite. So
`keras.layers.UnitNormalization`, x min(1 / |x|, 1e12), made NaN of a row of zeros.
"""

from keras_tfm.export.graph.graph_editor import GraphEditor
from keras_tfm.export.graph.schema import ModelT, OperatorT

# Of limits: the inverse of a square is then a normal number in float32.
_LARGEST = 1e18


def limit_roots(model: ModelT) -> None:
    """Limits what an inverse root reads, not its result.

    With a constant c > 0 and x >= 0,

        min(1 / sqrt(x), c) = 1 / sqrt(max(x, 1 / c^2))

    Args:
        model: a file from `flatbuffer.read`.

    Example:

    >>> import tempfile
    >>> from pathlib import Path
    >>> import keras
    >>> import numpy as np
    >>> from keras_tfm import export, runtime
    >>> x = keras.Input((3,), name="x")
    >>> model = keras.Model(x, keras.layers.UnitNormalization()(x))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     report = export.export_tflite(model, folder + "/unit.tflite", verify=False)
    ...     file = runtime.load(report.path)
    ...     file.predict({"x": np.zeros((1, 3), "float32")})["output"].tolist()
    [[0.0, 0.0, 0.0]]
    """
    for graph in model.subgraphs:
        _Limits(model, graph).apply()


class _Limits(GraphEditor):
    """Rewrites the inverse roots of one graph."""

    def apply(self) -> None:
        """Puts each limit before its inverse root."""
        operators = self._graph.operators
        read = [int(i) for x in operators for i in x.inputs]
        read += [int(i) for i in self._graph.outputs]
        roots = {int(x.outputs[0]): i for i, x in enumerate(operators) if self._kind(x) == "RSQRT"}
        for i, operator in enumerate(operators):
            found = self._limit_of(operator, roots) if self._kind(operator) == "MINIMUM" else None
            if found is None or read.count(found[0]) != 1:
                continue
            root, limit = found
            least = self._constant(limit**-2, "float32")
            options = "MaximumMinimumOptions"
            source = int(operators[roots[root]].inputs[0])
            operators[roots[root]] = self._operator("MAXIMUM", [source, least], root, options)
            operators[i] = self._operator("RSQRT", [root], int(operator.outputs[0]))

    def _limit_of(self, minimum: OperatorT, roots: dict[int, int]) -> tuple[int, float] | None:
        """The inverse root that a minimum with a constant limits, and the constant."""
        first, second = (int(i) for i in minimum.inputs)
        for root, other in ((first, second), (second, first)):
            limit = self._scalar(other) if root in roots else None
            if limit is not None and 0 < limit <= _LARGEST:
                return root, limit
        return None
