"""Moves FILL, which stands for a large constant, into the loops that read its result.

The converter keeps constants in the body of a loop, but not FILL: its result is a variable of the
loop. XNNPACK packs no such weight, and LiteRT has no right product for one in 4 bits.
"""

from collections import Counter
from copy import copy

from keras_tfm.export.graph.schema import ModelT, OperatorT, SubGraphT
from keras_tfm.runtime import flatbuffer

_GRAPHS = {
    "WHILE": ("condSubgraphIndex", "bodySubgraphIndex"),
    "IF": ("thenSubgraphIndex", "elseSubgraphIndex"),
}


def move_fills(model: ModelT) -> None:
    """Lets loops and branches compute FILL of constants themselves. `model` is changed.

    A loop must return the value as it is. A graph that several operators call stays as it is.
    """
    calls = Counter(
        number
        for graph in model.subgraphs
        for operator in graph.operators
        for number in _called(model, operator)
    )
    waiting = list(model.subgraphs)
    while waiting:
        graph = waiting.pop(0)
        fills = {
            int(x.outputs[0]): x
            for x in graph.operators
            if flatbuffer.is_operator(model, x, "FILL")
        }
        for operator in graph.operators:
            called = _called(model, operator)
            if not called or any(calls[x] > 1 for x in called):
                continue
            parts = [model.subgraphs[x] for x in called]
            is_loop = flatbuffer.is_operator(model, operator, "WHILE")
            if _move(model, graph, operator, parts, is_loop, fills):
                waiting += parts


def _called(model: ModelT, operator: OperatorT) -> list[int]:
    """The numbers of the graphs that a loop or a branch runs."""
    for name, options in _GRAPHS.items():
        if flatbuffer.is_operator(model, operator, name):
            return [int(getattr(operator.builtinOptions, x)) for x in options]
    return []


def _move(
    model: ModelT,
    graph: SubGraphT,
    operator: OperatorT,
    parts: list[SubGraphT],
    is_loop: bool,
    fills: dict[int, OperatorT],
) -> bool:
    """Moves what one loop or branch can take; whether there was any."""
    first = 0 if is_loop else 1  # IF has its condition before what the branches read
    inputs, outputs = [int(x) for x in operator.inputs], [int(x) for x in operator.outputs]
    moved = False
    for position in reversed(range(len(inputs) - first)):
        source = inputs[first + position]
        fill = fills.get(source)
        if fill is None or not all(_is_constant(model, graph, int(x)) for x in fill.inputs):
            continue
        if is_loop:
            body = parts[1]
            if int(body.outputs[position]) != int(body.inputs[position]):
                continue
            _replace(graph, outputs.pop(position), source)
            body.outputs = [int(x) for i, x in enumerate(body.outputs) if i != position]
        del inputs[first + position]
        for part in parts:
            result = int(part.inputs[position])
            part.inputs = [int(x) for i, x in enumerate(part.inputs) if i != position]
            _insert(graph, part, fill, result)
        moved = True
    operator.inputs, operator.outputs = inputs, outputs
    return moved


def _is_constant(model: ModelT, graph: SubGraphT, index: int) -> bool:
    data = model.buffers[graph.tensors[index].buffer].data
    return data is not None and len(data) > 0


def _replace(graph: SubGraphT, old: int, new: int) -> None:
    """Lets everything in `graph` read the tensor `new` in place of `old`."""
    for operator in graph.operators:
        operator.inputs = [new if int(x) == old else int(x) for x in operator.inputs]
    graph.outputs = [new if int(x) == old else int(x) for x in graph.outputs]


def _insert(graph: SubGraphT, part: SubGraphT, fill: OperatorT, result: int) -> None:
    """Adds FILL, an operator of `graph`, to `part`, if anything there reads `result`."""
    used = {int(x) for operator in part.operators for x in operator.inputs}
    if result not in used | {int(x) for x in part.outputs}:
        return
    made = copy(fill)
    part.tensors += [copy(graph.tensors[x]) for x in fill.inputs]
    made.inputs = [len(part.tensors) - 2, len(part.tensors) - 1]
    made.outputs = [result]
    part.operators.insert(0, made)
