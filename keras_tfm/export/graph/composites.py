"""Marks RMS normalizations in a converted file, for runtimes that compute them in one operator.

The converter writes a normalization as six operators. LiteRT-LM, and LiteRT's delegates for GPUs
and NPUs, recognize it as one `STABLEHLO_COMPOSITE` with the name `odml.rms_norm`, whose six
operators are a graph of their own. Other runtimes run that graph.
"""

import copy

import numpy as np

from keras_tfm.export.graph.schema import ModelT, OperatorT, SubGraphT
from keras_tfm.runtime import flatbuffer
from keras_tfm.runtime.manifest.storage import import_litert

_NAME = b"odml.rms_norm"


def mark_rms_norms(model: ModelT) -> None:
    """Replaces RMS normalizations by composites.

    y = x / sqrt(mean(x^2) + epsilon) * gamma over the last axis, with a constant gamma. The
    operators become a graph of their own, one for all normalizations of equal shape and epsilon,
    and compute the same values.

    Args:
        model: a file from `flatbuffer.read`.
    """
    inside: dict[tuple[object, ...], int] = {}
    for graph in list(model.subgraphs):
        _Marker(model, graph, inside).mark()


class _Marker:
    """Replaces the normalizations of one graph.

    Args:
        model: the file.
        graph: one of its graphs.
        inside: the index of the graph with the operators of a normalization, by shape and epsilon;
            it grows.
    """

    def __init__(self, model: ModelT, graph: SubGraphT, inside: dict[tuple[object, ...], int]):
        self._schema = import_litert("schema_py_generated")
        self._model, self._graph, self._inside = model, graph, inside
        self._maker = {int(y): x for x in graph.operators for y in x.outputs}
        self._users: dict[int, list[OperatorT]] = {int(x): [None] for x in graph.outputs}
        for operator in graph.operators:
            for x in operator.inputs:
                self._users.setdefault(int(x), []).append(operator)

    def mark(self) -> None:
        """Replaces the last operator of each normalization, and removes the others."""
        removed: set[int] = set()
        composites: dict[int, OperatorT] = {}
        for operator in self._graph.operators:
            found = self._normalization(operator) if self._is(operator, "RSQRT") else None
            if found is not None:
                operators, x, gamma = found
                removed |= {id(one) for one in operators[:-1]}
                composites[id(operators[-1])] = self._composite(operators, x, gamma)
        self._graph.operators = [
            composites.get(id(x), x) for x in self._graph.operators if id(x) not in removed
        ]

    def _normalization(self, rsqrt: OperatorT) -> tuple[list[OperatorT], int, int] | None:
        """The operators of a normalization, in order, with the tensors x and gamma.

        None if this root belongs to something else, or if a value inside is used elsewhere.
        """
        add = self._made_by("ADD", rsqrt.inputs[0])
        mean = add and self._made_by("MEAN", add.inputs[0])
        square = mean and self._made_by("SQUARE", mean.inputs[0])
        product = self._only_user("MUL", rsqrt.outputs[0])
        if square is None or product is None or self._epsilon(add) is None:
            return None
        x, value = int(square.inputs[0]), self._factor(product, rsqrt.outputs[0])
        if value == x:  # gamma comes last
            scaled = self._only_user("MUL", product.outputs[0])
            gamma = scaled and self._factor(scaled, product.outputs[0])
            operators = [square, mean, add, rsqrt, product, scaled]
        else:  # gamma comes first
            scaled = None if value is None else self._made_by("MUL", value)
            gamma = scaled and self._factor(scaled, x)
            operators = [square, mean, add, rsqrt, scaled, product]
        if gamma is None or self._values(gamma) is None:
            return None
        if not self._is_over_last_axis(mean, x, gamma):
            return None
        if any(len(self._users.get(int(one.outputs[0]), [])) != 1 for one in operators[:-1]):
            return None
        return operators, x, gamma

    def _composite(self, operators: list[OperatorT], x: int, gamma: int) -> OperatorT:
        """The operator that stands for `operators`."""
        from flatbuffers import flexbuffers

        epsilon = self._epsilon(operators[2])
        result = operators[-1].outputs[0]
        shapes = [tuple(self._graph.tensors[i].shape) for i in (x, gamma, result)]
        key = (epsilon, *shapes, *(one.opcodeIndex for one in operators))
        if key not in self._inside:
            self._inside[key] = len(self._model.subgraphs)
            self._model.subgraphs.append(self._graph_of(operators, x, gamma))
        options = self._schema.StableHLOCompositeOptionsT()
        options.name, options.decompositionSubgraphIndex = _NAME, self._inside[key]
        attributes = flexbuffers.Dumps({"epsilon": epsilon})
        options.compositeAttributes = np.frombuffer(bytes(attributes), "uint8")
        composite = self._schema.OperatorT()
        kind = self._schema.BuiltinOperator.STABLEHLO_COMPOSITE
        composite.opcodeIndex = flatbuffer.operator_code(self._model, kind, 1)
        composite.inputs = np.array([x, gamma], "int32")
        composite.outputs = np.array([result], "int32")
        composite.builtinOptions2Type = self._schema.BuiltinOptions2.StableHLOCompositeOptions
        composite.builtinOptions2 = options
        return composite

    def _graph_of(self, operators: list[OperatorT], x: int, gamma: int) -> SubGraphT:
        """A graph with copies of `operators`, whose arguments are x and gamma."""
        graph = self._schema.SubGraphT()
        places: dict[int, int] = {}
        graph.name, graph.tensors, graph.operators = _NAME + b".impl_%d" % len(self._inside), [], []

        def place(index: int) -> int:
            if int(index) not in places:
                places[int(index)] = len(places)
                tensor = copy.copy(self._graph.tensors[index])
                tensor.buffer = 0 if index in (x, gamma) else tensor.buffer
                graph.tensors.append(tensor)
            return places[int(index)]

        graph.inputs = np.array([place(x), place(gamma)], "int32")
        for operator in operators:
            one = copy.copy(operator)
            one.inputs = np.array([place(i) for i in operator.inputs], "int32")
            one.outputs = np.array([place(i) for i in operator.outputs], "int32")
            graph.operators.append(one)
        graph.outputs = graph.operators[-1].outputs
        return graph

    def _is(self, operator: OperatorT, name: str) -> bool:
        return flatbuffer.is_operator(self._model, operator, name)

    def _made_by(self, name: str, tensor: int) -> OperatorT:
        """The operator that computes a tensor, if it is one of this kind."""
        maker = self._maker.get(int(tensor))
        return maker if maker is not None and self._is(maker, name) else None

    def _only_user(self, name: str, tensor: int) -> OperatorT:
        """The operator that reads a tensor, if it is one of this kind."""
        users = self._users.get(int(tensor), [])
        return users[0] if len(users) == 1 and users[0] and self._is(users[0], name) else None

    def _factor(self, product: OperatorT, tensor: int) -> int | None:
        """What a product multiplies `tensor` by; None if that is no factor of it."""
        factors = [int(i) for i in product.inputs]
        if int(tensor) not in factors:
            return None
        factors.remove(int(tensor))
        return factors[0]

    def _values(self, index: int) -> np.ndarray | None:
        """The values of a constant in float32 or int32; None if a tensor is something else."""
        types = self._schema.TensorType
        tensor = self._graph.tensors[index]
        dtype = {types.FLOAT32: "float32", types.INT32: "int32"}.get(tensor.type)
        data = self._model.buffers[tensor.buffer].data
        return None if dtype is None or data is None else np.asarray(data, "uint8").view(dtype)

    def _epsilon(self, add: OperatorT) -> float | None:
        """The constant that is added to the mean."""
        values = self._values(add.inputs[1])
        return None if values is None or values.size != 1 else float(values[0])

    def _is_over_last_axis(self, mean: OperatorT, x: int, gamma: int) -> bool:
        """Whether the mean is over the axis that gamma has, which is the last one."""
        shape, axes = self._graph.tensors[x].shape, self._values(mean.inputs[1])
        if axes is None or list(self._graph.tensors[gamma].shape) != list(shape[-1:]):
            return False
        last = [i % len(shape) for i in axes] == [len(shape) - 1]
        return last and bool(mean.builtinOptions.keepDims)
