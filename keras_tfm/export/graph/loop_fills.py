"""Moves FILL, which stands for a large constant, into the loops that read its result.

The converter keeps constants in the body of a loop, but moves FILL out of it: its result is then a
variable of the loop. XNNPACK packs no such weight, and LiteRT has no right product for one in 4
bits.
"""

from collections import Counter
from copy import copy

from keras_tfm.export.graph.schema import ModelT, OperatorT, SubGraphT
from keras_tfm.runtime import flatbuffer


def move_fills(model: ModelT) -> None:
    """Lets loops compute FILL of constants themselves, if they return its result as it is.

    `model` is changed. A graph that is of several loops stays as it is.
    """
    calls = Counter(
        number
        for graph in model.subgraphs
        for operator in graph.operators
        for number in _graphs_of(model, operator)
    )
    waiting = list(model.subgraphs)
    while waiting:
        graph = waiting.pop(0)
        fills = {
            int(x.outputs[0]): x
            for x in graph.operators
            if flatbuffer.is_operator(model, x, "FILL")
            and all(_is_constant(model, graph, int(i)) for i in x.inputs)
        }
        for operator in graph.operators:
            parts = _graphs_of(model, operator)
            if parts and all(calls[x] == 1 for x in parts):
                condition, body = (model.subgraphs[x] for x in parts)
                if _move(graph, operator, condition, body, fills):
                    waiting += [condition, body]


def _graphs_of(model: ModelT, operator: OperatorT) -> list[int]:
    """The numbers of a loop's condition and body; of other operators, none."""
    if not flatbuffer.is_operator(model, operator, "WHILE"):
        return []
    options = operator.builtinOptions
    return [int(options.condSubgraphIndex), int(options.bodySubgraphIndex)]


def _is_constant(model: ModelT, graph: SubGraphT, index: int) -> bool:
    data = model.buffers[graph.tensors[index].buffer].data
    return data is not None and len(data) > 0


def _move(
    graph: SubGraphT,
    loop: OperatorT,
    condition: SubGraphT,
    body: SubGraphT,
    fills: dict[int, OperatorT],
) -> bool:
    """Moves what a loop can take of `fills`, FILL by its result; whether there was any."""
    kept = []
    for position, source in enumerate(map(int, loop.inputs)):
        if source not in fills or int(body.outputs[position]) != int(body.inputs[position]):
            kept.append(position)
            continue
        _replace(graph, int(loop.outputs[position]), source)
        for part in (condition, body):
            _insert(graph, part, fills[source], position)
    if len(kept) == len(loop.inputs):
        return False
    loop.inputs, loop.outputs = ([int(x[i]) for i in kept] for x in (loop.inputs, loop.outputs))
    condition.inputs, body.inputs, body.outputs = (
        [int(x[i]) for i in kept] for x in (condition.inputs, body.inputs, body.outputs)
    )
    return True


def _replace(graph: SubGraphT, old: int, new: int) -> None:
    """Lets everything in `graph` read the tensor `new` in place of `old`."""
    for operator in graph.operators:
        operator.inputs = [new if int(x) == old else int(x) for x in operator.inputs]
    graph.outputs = [new if int(x) == old else int(x) for x in graph.outputs]


def _insert(graph: SubGraphT, part: SubGraphT, fill: OperatorT, position: int) -> None:
    """Lets `part` compute its input at a position by FILL, an operator of `graph`, if it reads it.

    That it returns the input at the same position is no reading.
    """
    result = int(part.inputs[position])
    read = {int(i) for x in part.operators for i in x.inputs}
    read |= {int(x) for i, x in enumerate(part.outputs) if i != position}
    if result not in read:
        return
    made = copy(fill)
    part.tensors += [copy(graph.tensors[x]) for x in fill.inputs]
    made.inputs = [len(part.tensors) - 2, len(part.tensors) - 1]
    made.outputs = [result]
    part.operators.insert(0, made)
