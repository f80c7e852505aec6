"""Converts a graph with stand-ins for its large weights, and writes the weights into the file.

The converter copies each weight several times, in float32. A weight that is one number everywhere
costs it nothing, so the graph is traced with such a number in place of each weight. In the
converted file, the number (in int8, the scale) tells which weight a constant stands for.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import permutations

import keras
import numpy as np
import tensorflow as tf
from tensorflow.core.framework.tensor_pb2 import TensorProto

from keras_tfm.export.graph.loop_fills import move_fills
from keras_tfm.export.graph.schema import ModelT, OperatorT, SubGraphT, TensorT
from keras_tfm.keras_internals import initialize, is_initialized, read_value
from keras_tfm.layers.base_layer import columns_read_by
from keras_tfm.models.quantization.rounding import int8_scales, round_to_int8, row_parts
from keras_tfm.runtime import flatbuffer
from keras_tfm.runtime.flatbuffer import LazyBytes
from keras_tfm.runtime.manifest.storage import import_litert

_log = logging.getLogger(__name__)

# Weights of fewer values are converted as they are.
SMALLEST = 1 << 16
# The first weight of each shape and place in a block has random signs, which tell how the converter
# arranges its axes. Of a matrix that is not square, the shape tells; without signs it takes less
# memory. Other weights of more values are converted as they are.
_LARGEST_WITH_SIGNS = 1 << 24
_LARGEST_OF_ANY_SHAPE = 1 << 18
# Up to this many values, signs are in a loop and in the graph around it, which may not need them.
_LARGEST_SIGNED_TWICE = 1 << 21
# Names of tables of positions, of which graphs have rows: these would be converted twice.
_READ_IN_PARTS = ("positions", "table", "key_table", "value_table")
# How many numbers there are.
_NUMBERS = 1 << 16
# The relative error of a number that passed through float32, divided by 127.
_PRECISION = 3e-7
# How many values of vectors are compared before all are.
_FIRST = 8
# The relative error of a bias to which the converter added a sum over a row of a weight.
_SUM_PRECISION = 1e-4


@dataclass(eq=False)
class StandIn:
    """What stands for a weight, or for columns of it, while a graph is converted.

    Attributes:
        variable: the weight.
        columns: the columns of it that a layer reads; all of them in `slice(None)`.
        number: float between 1 and 2, its absolute value everywhere, different for each stand-in.
        group: the path of the variable without numbers, with shape and columns. The converter
            arranges the axes of all weights of a group alike.
        signs: array of its shape, random -1 and 1; None: all are 1.
        signed: the operations that have them, in the graph that is being traced.
        is_kept: bool, whether a graph needs one of these operations. Graphs traced later do without
            signs: of what is not one number, the converter makes many copies. A graph that reads a
            weight for a shape alone, such as a cache's, does not need the operation, and the
            converter drops it.
    """

    variable: keras.Variable
    columns: slice
    number: float
    group: tuple[object, ...]
    signs: np.ndarray | None
    signed: list[tf.Operation] = field(default_factory=list)
    is_kept: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the columns."""
        *outer, width = self.variable.shape
        return (*outer, len(range(*self.columns.indices(width))))

    def tensor(self) -> tf.Tensor:
        """The stand-in, in the graph that is being traced."""
        graph = tf.compat.v1.get_default_graph()
        is_second = any(x.graph is not graph for x in self.signed)
        is_large = self.signs is not None and self.signs.size > _LARGEST_SIGNED_TWICE
        if self.signs is None or self.is_kept or (is_second and is_large):
            # One number in the graph; the converter would compute a `tf.fill`.
            return tf.constant(self.number, tf.float32, self.shape)
        result = tf.constant(self.signs * np.float32(self.number))
        if not tf.executing_eagerly():
            self.signed.append(result.op)
        return result

    def values(self) -> np.ndarray:
        """The weight, a view of the variable's memory if it has some."""
        values: np.ndarray = read_value(self.variable)[..., self.columns]
        return values


@dataclass(frozen=True)
class Place:
    """How a constant of a file follows from a weight.

    Attributes:
        stand_in: the weight.
        order: the permutation of the variable's axes, after which the values are in the file's
            order.
        factor: float, by which a layer multiplies its weight.
        is_signed: bool, whether the constant has the signs of the stand-in.
        columns: array (D,), by which the input of a matrix product was multiplied; None: by none.
    """

    stand_in: StandIn
    order: tuple[int, ...]
    factor: float
    is_signed: bool
    columns: np.ndarray | None = field(default=None, compare=False)

    def array(self, shape: tuple[int, ...]) -> np.ndarray:
        """The constant in float32, but for factor and columns; a view of the weight if it can."""
        return self.stand_in.values().transpose(self.order).reshape(shape)

    def scale(self, values: np.ndarray) -> np.ndarray:
        """Rows of `array`, with factor and columns."""
        if self.factor != 1.0:
            values = values * np.float32(self.factor)
        return values if self.columns is None else values * self.columns

    def product(self, vector: np.ndarray) -> np.ndarray:
        """The product of the constant before it is filled, a matrix (F, D), with a vector (D,)."""
        number = self.factor * self.stand_in.number
        if self.stand_in.signs is None or not self.is_signed:
            return np.full(1, number * vector.sum(dtype="float64"))
        rows = self.stand_in.signs.transpose(self.order).reshape(-1, vector.size)
        return number * (rows @ vector.astype("float64"))


class UnplacedError(Exception):
    """The converter changed stand-ins in a way that is not known; `stand_ins` has them."""

    def __init__(self, stand_ins: Iterable[StandIn]):
        self.stand_ins = list(stand_ins)
        super().__init__(", ".join(dict.fromkeys(x.variable.path for x in self.stand_ins)))


class StandIns:
    """The stand-ins of a model's large matrices.

    Args:
        model: the model in float32, or a `ModelGroup`.
        folds_norms: bool, whether a norm's gamma becomes part of the matrix after it. A matrix that
            was trained with rounding would leave its grid.

    Example:

    >>> import keras
    >>> from keras_tfm.export.graph.stand_ins import StandIns
    >>> x = keras.Input((256,))
    >>> model = keras.Model(x, keras.layers.Dense(512, name="wide")(x))
    >>> [x.path for x in StandIns(model).variables]
    ['wide/kernel']
    """

    def __init__(self, model: keras.Layer, folds_norms: bool = True):
        self._folds_norms = folds_norms
        unique = {id(variable): variable for variable in model.variables}
        self.variables = [
            x
            for x in unique.values()
            if len(x.shape) > 1
            and np.prod(x.shape) >= SMALLEST
            and x.dtype == "float32"
            and x.name not in _READ_IN_PARTS
        ]
        self._allocate_others(unique.values())
        vectors = [
            keras.ops.convert_to_numpy(x).astype("float32").ravel()
            for x in unique.values()
            if np.prod(x.shape) < SMALLEST and "float" in x.dtype
        ]
        self._vectors = [*{x.tobytes(): x for x in vectors}.values()]
        self._made: dict[tuple[int, int, int], StandIn] = {}
        self._generator = np.random.default_rng(0)
        # Numbers with random digits are not the constants of a model by chance.
        self._numbers = iter(1 + (self._generator.permutation(_NUMBERS) + 0.37) / _NUMBERS)

    def remove(self, stand_ins: Iterable[StandIn]) -> None:
        """Converts these weights, and the others of their groups, as they are."""
        groups = {_group(x.variable) for x in stand_ins}
        removed = [x for x in self.variables if _group(x) in groups]
        self.variables = [x for x in self.variables if _group(x) not in groups]
        self._allocate_others(removed)

    def _allocate_others(self, variables: Iterable[keras.Variable]) -> None:
        """Reads weights that are in files alone: the graph has their values."""
        known = {id(x) for x in self.variables}
        for variable in variables:
            if id(variable) not in known and not is_initialized(variable):
                initialize(variable)

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """The context in which graphs are traced with the stand-ins."""
        self._made = {}
        known = {id(variable) for variable in self.variables}

        def read(kernel: keras.Variable, columns: slice) -> tf.Tensor:
            return self._get(kernel, columns).tensor() if id(kernel) in known else None

        with _Scope(read), columns_read_by(read):
            yield

    def _get(self, variable: keras.Variable, columns: slice) -> StandIn:
        """The stand-in of columns of a variable, made when they are first read."""
        start, stop, _ = columns.indices(variable.shape[-1])
        key = (id(variable), start, stop)
        if key not in self._made:
            group = (*_group(variable), start, stop)
            made = StandIn(variable, columns, float(np.float32(next(self._numbers))), group, None)
            is_first = all(x.group != group for x in self._made.values())
            size = int(np.prod(made.shape))
            limit = _LARGEST_OF_ANY_SHAPE if _is_oblong(made.shape) else _LARGEST_WITH_SIGNS
            if is_first and size <= limit:
                drawn = self._generator.random(made.shape, "float32")
                made.signs = np.where(drawn < 0.5, -1, 1).astype("float32")
            self._made[key] = made
        return self._made[key]

    def note_kept(self, function: tf.types.experimental.ConcreteFunction) -> None:
        """Marks the stand-ins whose signs are in operations that a traced function needs."""
        needed = {id(graph): _needed_operations(graph) for graph in _graphs(function)}
        for x in self._made.values():
            x.is_kept |= any(op.name in needed.get(id(op.graph), ()) for op in x.signed)
            x.signed.clear()

    def __bool__(self) -> bool:
        return bool(self.variables)

    def fill(
        self, model: ModelT, functions: Iterable[tf.types.experimental.ConcreteFunction]
    ) -> None:
        """Replaces the stand-ins in a converted file by the weights, rounded as the file says.

        The weights are read when the file is written.

        Args:
            model: the file.
            functions: what was converted, traced with the stand-ins.

        Raises:
            UnplacedError: a stand-in is not in the file as it was in the graph.
        """
        made = [*self._made.values()]
        _Filling(model, made, self._vectors, functions).run(self._folds_norms)


def constant_numbers(
    functions: Iterable[tf.types.experimental.ConcreteFunction], stand_ins: Iterable[StandIn]
) -> set[float]:
    """The absolute values of the constants of graphs that are one number everywhere.

    Those that a graph has, and those that it computes from constants alone, as the converter does.
    """
    replaced, found = {x.number for x in stand_ins}, set[float]()
    for function in functions:
        definition = function.graph.as_graph_def()
        nodes = [*definition.node, *(x for y in definition.library.function for x in y.node_def)]
        tensors = [x.attr["value"].tensor for x in nodes if x.op == "Const"]
        captured = [x for x in function.captured_inputs if x.dtype == tf.float32]
        arrays = [*map(_numbers, tensors), *(np.ravel(x) for x in captured if hasattr(x, "numpy"))]
        for graph in _graphs(function):
            results = _constant_results(graph, replaced)
            if results:
                with tf.compat.v1.Session(graph=graph) as session:
                    arrays += map(np.ravel, session.run(results))
        found |= {abs(float(x[0])) for x in arrays if len(x) and np.all(x == x[0])}
    return found - replaced


def _numbers(tensor: TensorProto) -> np.ndarray:
    """The numbers of a constant in float32; one if they are equal; none of other dtypes."""
    if tensor.dtype != tf.float32.as_datatype_enum:
        return np.empty(0, "float32")
    inside = np.frombuffer(tensor.tensor_content, "float32")
    return inside if len(inside) else np.array(tensor.float_val, "float32")


def _constant_results(graph: tf.Graph, replaced: set[float]) -> list[tf.Tensor]:
    """What operations compute from constants, of which none is a stand-in, for others."""
    known, result = set[str](), []
    for operation in graph.get_operations():
        if operation.type == "Const":
            first = _numbers(operation.get_attr("value"))[:1]
            is_known = not len(first) or abs(float(first[0])) not in replaced
        else:
            changes = operation.op_def.is_stateful or operation.control_inputs
            inputs = [] if changes else operation.inputs
            is_known = len(inputs) > 0 and all(x.op.name in known for x in inputs)
        if is_known:
            known.add(operation.name)
    for operation in graph.get_operations():
        if operation.type != "Const" and operation.name in known:
            result += [
                x
                for x in operation.outputs
                if x.dtype == tf.float32 and any(y.name not in known for y in x.consumers())
            ]
    return result


def _graphs(function: tf.types.experimental.ConcreteFunction) -> list[tf.Graph]:
    """The graph of a function, and those of its loops and conditions, at any depth."""
    # Private: TensorFlow has no other list of them.
    inner = (getattr(x, "graph", None) for x in function.graph._functions.values())
    return [function.graph, *(x for x in inner if x is not None)]


def _needed_operations(graph: tf.Graph) -> set[str]:
    """The names of the operations that the outputs of a graph depend on."""
    needed, waiting = set[str](), [*(x.op for x in graph.outputs), *graph.control_outputs]
    while waiting:
        operation = waiting.pop()
        if operation.name not in needed:
            needed.add(operation.name)
            waiting += [*(x.op for x in operation.inputs), *operation.control_inputs]
    return needed


def _is_oblong(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and shape[0] != shape[1]


def _group(variable: keras.Variable) -> tuple[object, ...]:
    return (re.sub(r"\d+", "", variable.path), *variable.shape)


class _Scope(keras.StatelessScope):
    """Reads of the weights give their stand-ins; other variables are read and written as always."""

    def __init__(self, read: Callable[[keras.Variable, slice], tf.Tensor | None]):
        super().__init__(initialize_variables=False)
        self._read = read

    def get_current_value(self, variable: keras.Variable) -> tf.Tensor | None:
        return self._read(variable, slice(None))

    def add_update(self, update: tuple[keras.Variable, tf.Tensor]) -> None:
        variable, value = update
        self.__exit__()
        try:
            variable.assign(value)
        finally:
            self.__enter__()


@dataclass
class _Found:
    """A constant of the file whose values have one absolute value.

    Attributes:
        tensor: the constant.
        number: that value.
        signs: array of the shape of the constant; None: all values are positive.
    """

    tensor: TensorT
    number: float
    signs: np.ndarray | None
    size: int


class _Filling:
    """Finds the constants that stand for weights, and fills in the weights."""

    def __init__(
        self,
        model: ModelT,
        stand_ins: list[StandIn],
        vectors: list[np.ndarray],
        functions: Iterable[tf.types.experimental.ConcreteFunction],
    ):
        self._model, self._stand_ins, self._vectors = model, stand_ins, vectors
        self._functions = functions
        self._schema = import_litert("schema_py_generated")
        # By the identity of the tensor.
        self._places: dict[int, Place] = {}
        self._biases: dict[int, np.ndarray] = {}

    def run(self, folds_norms: bool) -> None:
        move_fills(self._model)
        found = self._without_own_constants(self._constants())
        matched = self._match(found)
        orders = self._orders(matched)
        for x, stand_in, factor in matched:
            order = orders.get((stand_in.group, *_shape(x.tensor)))
            if order is not None:
                self._places[id(x.tensor)] = Place(stand_in, order, factor, x.signs is not None)
        self._remove_fills()
        placed = {id(x.stand_in) for x in self._places.values()}
        lost = [x for x in self._stand_ins if id(x) not in placed] + self._remaining()
        for graph in self._model.subgraphs:
            lost += self._fold_biases(graph)
            if folds_norms:
                self._fold_columns(graph)
        if lost:
            raise UnplacedError(lost)
        self._write()

    def _find_fills(self) -> dict[int, float]:
        """The numbers of FILL, to which the converter turns large constants, by their results."""
        result = {}
        for graph in self._model.subgraphs:
            for operator in graph.operators:
                if flatbuffer.is_operator(self._model, operator, "FILL"):
                    data = self._data(graph.tensors[operator.inputs[1]])
                    tensor = graph.tensors[operator.outputs[0]]
                    if data is not None and tensor.type == self._schema.TensorType.FLOAT32:
                        result[id(tensor)] = float(np.frombuffer(data, "float32")[0])
        return result

    def _remove_fills(self) -> None:
        for graph in self._model.subgraphs:
            graph.operators = [
                x
                for x in graph.operators
                if not flatbuffer.is_operator(self._model, x, "FILL")
                or id(graph.tensors[x.outputs[0]]) not in self._places
            ]

    def _data(self, tensor: TensorT) -> np.ndarray | None:
        data = self._model.buffers[tensor.buffer].data
        return None if data is None or not len(data) else data

    def _constants(self) -> list[_Found]:
        """The constants that have the size of a weight and one absolute value."""
        sizes = {int(np.prod(x.shape)) for x in self._stand_ins}
        types, result, fills = self._schema.TensorType, [], self._find_fills()
        for graph in self._model.subgraphs:
            for tensor in graph.tensors:
                data, size = self._data(tensor), int(np.prod(_shape(tensor)))
                if id(tensor) in fills and size in sizes:
                    result.append(_Found(tensor, fills[id(tensor)], None, size))
                if data is None or size not in sizes:
                    continue
                scale = None if tensor.quantization is None else tensor.quantization.scale
                if tensor.type == types.FLOAT32:
                    values, step = np.frombuffer(data, "float32"), np.ones(1)
                elif tensor.type == types.INT8 and scale is not None and len(scale):
                    values, step = np.frombuffer(data, "int8"), np.asarray(scale, "float64")
                else:
                    continue
                largest = abs(float(values[0]))
                is_one = np.ptp(step) <= _PRECISION * step[0]
                if not is_one or values.min() < -largest or values.max() > largest:
                    continue
                signs = None
                if values.min() < largest:
                    signs = np.sign(values).astype("float32").reshape(_shape(tensor))
                    if not np.all(np.abs(values) == largest):
                        continue
                result.append(_Found(tensor, largest * float(step[0]), signs, size))
        return result

    def _without_own_constants(self, found: list[_Found]) -> list[_Found]:
        """Those that may stand for a weight, not a mask of the model or its matrix of ones."""
        found = [x for x in found if 0 < x.number < np.inf]
        numbers = np.array([x.number for x in self._stand_ins])
        if all(np.min(np.abs(numbers / x.number - 1)) <= _PRECISION for x in found):
            return found
        own = np.array([*constant_numbers(self._functions, self._stand_ins)], "float64")
        return [x for x in found if not np.any(np.abs(own / x.number - 1) <= _PRECISION)]

    def _match(self, found: list[_Found]) -> list[tuple[_Found, StandIn, float]]:
        """The stand-in of each constant, and the factor between them.

        A layer may multiply its weight by a number, such as 1/sqrt(head_dim); all layers of a model
        then do, and the factor of the most constants is right.
        """
        if not found:
            return []
        sizes = np.array([np.prod(x.shape) for x in self._stand_ins])
        numbers = np.array([x.number for x in self._stand_ins])
        with_signs = np.array([x.signs is not None for x in self._stand_ins])
        candidates = [
            np.flatnonzero((sizes == x.size) & (with_signs | (x.signs is None))) for x in found
        ]
        # The factor of each pair votes for a cell on a logarithmic scale.
        cells = [
            np.rint(np.log(x.number / numbers[fitting]) / _PRECISION / 4).astype("int32")
            for x, fitting in zip(found, candidates, strict=True)
        ]
        keys, votes, counts = np.unique(
            np.concatenate(cells), return_inverse=True, return_counts=True
        )
        # Rounding may put the same factor in two cells: each has the votes of its neighbours too.
        beside = np.flatnonzero(keys[1:] == keys[:-1] + 1)
        totals = counts.copy()
        totals[beside] += counts[beside + 1]
        totals[beside + 1] += counts[beside]
        ranks = np.empty(len(keys), "int64")
        ranks[np.lexsort((np.abs(keys), -totals))] = 2 * np.arange(len(keys))
        best = ranks.copy()
        best[beside] = np.minimum(best[beside], ranks[beside + 1] + 1)
        best[beside + 1] = np.minimum(best[beside + 1], ranks[beside] + 1)
        result, ends = [], np.cumsum([len(x) for x in cells])
        for x, fitting, places in zip(found, candidates, np.split(votes, ends[:-1]), strict=True):
            if len(fitting):
                stand_in = self._stand_ins[fitting[np.argmin(best[places])]]
                result.append((x, stand_in, _exact(x.number / stand_in.number)))
        return result

    def _orders(
        self, matched: list[tuple[_Found, StandIn, float]]
    ) -> dict[tuple[object, ...], tuple[int, ...]]:
        """The permutation of axes, by the group of a stand-in and the shape of the constant."""
        orders: dict[tuple[object, ...], set[tuple[int, ...]]] = {}
        # Only the first stand-in of a group has signs, and not in every graph.
        with_signs = {(y.group, *_shape(x.tensor)) for x, y, _ in matched if x.signs is not None}
        for x, stand_in, _ in matched:
            shape = _shape(x.tensor)
            key = (stand_in.group, *shape)
            if x.signs is not None and stand_in.signs is not None:
                possible = [
                    order
                    for order in permutations(range(stand_in.signs.ndim))
                    if np.array_equal(stand_in.signs.transpose(order).reshape(shape), x.signs)
                ]
                orders.setdefault(key, set()).update(possible[:1])
            elif key not in with_signs and _is_oblong(stand_in.shape):
                known: dict[tuple[int, ...], tuple[int, ...]]
                known = {stand_in.shape: (0, 1), stand_in.shape[::-1]: (1, 0)}
                matrix = tuple(size for size in shape if size > 1)
                orders.setdefault(key, set()).update([known[matrix]] if matrix in known else [])
        return {key: next(iter(x)) for key, x in orders.items() if len(x) == 1}

    def _remaining(self) -> list[StandIn]:
        """The stand-ins of which a constant of another form is left, such as a part."""
        numbers = {x.number: x for x in self._stand_ins}
        result = []
        for graph in self._model.subgraphs:
            used = {int(i) for operator in graph.operators for i in operator.inputs}
            for index, tensor in enumerate(graph.tensors):
                data = self._data(tensor)
                if id(tensor) in self._places or data is None or index not in used:
                    continue
                number, scale = 0.0, tensor.quantization and tensor.quantization.scale
                if tensor.type == self._schema.TensorType.FLOAT32:
                    number = abs(float(np.frombuffer(data[:4], "float32")[0]))
                elif tensor.type == self._schema.TensorType.INT8 and scale is not None:
                    number = float(scale[0]) * 127 if len(scale) else 0.0
                result += [x for y, x in numbers.items() if abs(number - y) <= _PRECISION * y]
        return result

    def _fold_biases(self, graph: SubGraphT) -> list[StandIn]:
        """Computes the biases to which the converter added W b, b of an addition before.

        Returns the stand-ins for which that is not certain.
        """
        lost = []
        for operator in graph.operators:
            if not flatbuffer.is_operator(self._model, operator, "FULLY_CONNECTED"):
                continue
            place = self._places.get(id(graph.tensors[operator.inputs[1]]))
            if place is None or len(operator.inputs) < 3 or operator.inputs[2] < 0:
                continue
            tensor = graph.tensors[operator.inputs[2]]
            data = self._data(tensor)
            if data is None or id(tensor) in self._biases:
                continue
            bias = np.frombuffer(data, "float32")
            found = self._bias(bias, place)
            if found is None:
                lost.append(place.stand_in)
            elif found is not bias:
                self._biases[id(tensor)] = found
        return lost

    def _bias(self, bias: np.ndarray, place: Place) -> np.ndarray | None:
        """The bias with the real weight; itself if it does not depend on it; None: not certain."""
        columns, width = place.stand_in.columns, place.stand_in.variable.shape[-1]
        own = [x for x in self._vectors if x.size == bias.size]
        own += [x[columns] for x in self._vectors if bias.size != x.size == width]
        own = [x * np.float32(place.factor) for x in own if x.size == bias.size]
        if not np.any(bias) or any(np.array_equal(bias, x) for x in own):
            return bias
        width = int(np.prod(place.stand_in.shape)) // bias.size
        before = np.stack([np.zeros_like(bias), *own])
        results: list[np.ndarray] = []
        for added in [x for x in self._vectors if x.size == width and np.any(x)]:
            shift = place.product(added)
            left = bias - shift
            limit = _SUM_PRECISION * max(np.abs(shift).max(), np.abs(bias).max())
            # The first values tell nearly all vectors apart.
            similar = np.abs(left[:_FIRST] - before[:, :_FIRST]).max(axis=1) <= limit
            for x in before[similar]:
                if np.all(np.abs(left - x) <= limit):
                    rows = place.scale(place.array((bias.size, width)))
                    results.append(x + rows @ added)
        if not results or any(not np.array_equal(x, results[0]) for x in results[1:]):
            return None
        return results[0].astype("float32")

    def _fold_columns(self, graph: SubGraphT) -> None:
        """Makes a multiplication before a matrix product, such as a norm's gamma, part of it."""
        makers = {int(x): op for op in graph.operators for x in op.outputs}
        for operator in graph.operators:
            if not flatbuffer.is_operator(self._model, operator, "FULLY_CONNECTED"):
                continue
            weight = graph.tensors[operator.inputs[1]]
            place, maker = self._places.get(id(weight)), makers.get(int(operator.inputs[0]))
            if place is None or maker is None or not self._is_plain_product(maker):
                continue
            for source, factors in (maker.inputs, maker.inputs[::-1]):
                tensor = graph.tensors[factors]
                data, shape = self._data(tensor), _shape(tensor)
                width = _shape(weight)[-1]
                if data is None or int(np.prod(shape)) != width or shape[-1:] != (width,):
                    continue
                if _shape(graph.tensors[source])[-1:] != (width,):
                    continue
                columns = np.frombuffer(data, "float32")
                self._fold(graph, operator, int(source), replace(place, columns=columns))
                break
        used = {int(i) for op in graph.operators for i in op.inputs} | {*map(int, graph.outputs)}
        graph.operators = [
            op
            for op in graph.operators
            if not self._is_plain_product(op) or int(op.outputs[0]) in used
        ]

    def _fold(self, graph: SubGraphT, operator: OperatorT, source: int, place: Place) -> None:
        weight = graph.tensors[operator.inputs[1]]
        readers = [op for op in graph.operators if operator.inputs[1] in list(op.inputs)]
        if len(readers) > 1:  # another product reads the weight without these columns
            weight = copy(weight)
            weight.quantization = copy(weight.quantization)
            graph.tensors.append(weight)
            operator.inputs = [operator.inputs[0], len(graph.tensors) - 1, *operator.inputs[2:]]
        self._places[id(weight)] = place
        operator.inputs = [source, *operator.inputs[1:]]

    def _is_plain_product(self, operator: OperatorT) -> bool:
        if not flatbuffer.is_operator(self._model, operator, "MUL"):
            return False
        none = self._schema.ActivationFunctionType.NONE
        return bool(operator.builtinOptions.fusedActivationFunction == none)

    def _write(self) -> None:
        """Stores each weight once for all constants that hold it in the same way."""
        written: dict[object, tuple[int, np.ndarray | None]] = {}
        for graph in self._model.subgraphs:
            for tensor in graph.tensors:
                if id(tensor) in self._biases:
                    tensor.buffer = self._buffer(self._biases[id(tensor)].view("uint8"))
                place = self._places.get(id(tensor))
                if place is None:
                    continue
                is_rounded, axis = tensor.type == self._schema.TensorType.INT8, None
                if is_rounded and len(tensor.quantization.scale) > 1:
                    axis = int(tensor.quantization.quantizedDimension)
                columns = None if place.columns is None else place.columns.tobytes()
                shape = _shape(tensor)
                how = (place.order, place.factor, columns, shape)
                key = (id(place.stand_in), how, is_rounded, axis)
                if key not in written:
                    steps = _scales(place, shape, axis) if is_rounded else None
                    size = int(np.prod(shape)) * (1 if is_rounded else 4)
                    chunks = partial(_chunks, place, shape, steps, axis)
                    written[key] = self._buffer(LazyBytes(size, chunks)), steps
                tensor.buffer, steps = written[key]
                if is_rounded:
                    tensor.quantization.scale = steps
        used = {x.buffer for graph in self._model.subgraphs for x in graph.tensors}
        used |= {x.buffer for x in self._model.metadata or []}
        for number, buffer in enumerate(self._model.buffers):
            if number not in used:
                buffer.data = None

    def _buffer(self, data: np.ndarray | LazyBytes) -> int:
        buffer = self._schema.BufferT()
        buffer.data = data
        self._model.buffers.append(buffer)
        return len(self._model.buffers) - 1


def _scales(place: Place, shape: tuple[int, ...], axis: int | None) -> np.ndarray:
    """The scales of a constant in 8 bits, with few values of it in memory at once."""
    values = place.array(shape)
    if axis != 0:
        return int8_scales(place.scale(values), axis)
    return np.concatenate([int8_scales(place.scale(values[x]), 0) for x in row_parts(values)])


def _chunks(
    place: Place, shape: tuple[int, ...], scales: np.ndarray | None, axis: int | None
) -> Iterator[np.ndarray]:
    """A constant as it is stored, a few million values at a time."""
    values = place.array(shape)
    if axis not in (None, 0) and scales is not None:
        yield round_to_int8(place.scale(values), scales, axis)
        return
    for part in row_parts(values):
        rows = place.scale(values[part])
        if scales is not None:
            rows = round_to_int8(rows, scales if axis is None else scales[part], axis)
        yield rows


def _shape(tensor: TensorT) -> tuple[int, ...]:
    return tuple(int(x) for x in tensor.shape) if tensor.shape is not None else ()


def _exact(factor: float) -> float:
    """A factor without the rounding error of the number that it was found by."""
    for known in (1.0, *(2.0 ** (x / 2) for x in range(-24, 25))):
        if abs(factor / known - 1) <= 4 * _PRECISION:
            return known
    return factor
