"""Copies the results of loops that are outputs of a graph, for LiteRT's `CompiledModel`.

The interpreter allocates the results of WHILE and IF when they run, since their shapes may change.
A `CompiledModel`, and so LiteRT.js, gives outputs memory of its own before that, which it cannot do
for such a tensor: its run fails, or returns what was in memory. The last state of an LSTM is one. A
RESHAPE to the shape that the tensor has anyway makes the output a tensor like others.
"""

from keras_tfm.export.graph.graph_editor import GraphEditor
from keras_tfm.export.graph.schema import ModelT

_LOOPS = ("WHILE", "IF")


def copy_loop_outputs(model: ModelT) -> None:
    """Puts a RESHAPE between each loop and the outputs of a signature that it makes.

    Args:
        model: a file from `flatbuffer.read`.
    """
    for index in {int(x.subgraphIndex) for x in model.signatureDefs or ()}:
        _Copies(model, model.subgraphs[index]).add()


class _Copies(GraphEditor):
    def add(self) -> None:
        outputs = {int(x) for x in self._graph.outputs}
        for operator in self._graph.operators:
            self._operators.append(operator)
            if self._kind(operator) not in _LOOPS:
                continue
            results = [int(x) for x in operator.outputs]
            operator.outputs = [self._copy_of(x) if x in outputs else x for x in results]
            for made, result in zip(operator.outputs, results, strict=True):
                if made != result:
                    self._operators.append(self._reshape(made, self._shape(result), result))
        self._graph.operators = self._operators

    def _copy_of(self, result: int) -> int:
        """A tensor like an output, for the loop to make."""
        made = self._tensor(self._shape(result), self._dtype(result))
        self._graph.tensors[made].quantization = self._graph.tensors[result].quantization
        return made
