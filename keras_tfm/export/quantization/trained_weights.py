"""Stores the weights of a model that was trained with rounding: on its grid, as they are.

Example:

>>> import numpy as np
>>> from keras_tfm import models
>>> from keras_tfm.export.quantization.trained_weights import rounded_copy, trained_weights
>>> model = models.gpt(11, dim=32, num_layers=1, num_heads=2, max_length=4)
>>> models.enable_quantization(model, "int4")
5
>>> copy = rounded_copy(model)
>>> len(trained_weights(copy).weights), trained_weights(model)
(5, None)
>>> tokens = np.array([[3, 4]])
>>> bool(np.allclose(copy(tokens), model(tokens), atol=1e-6))
True
"""

import itertools
import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NamedTuple

import keras
import numpy as np

from keras_tfm.export.graph.graph_editor import GraphEditor
from keras_tfm.export.graph.schema import ModelT, OperatorT, SubGraphT
from keras_tfm.export.quantization.four_bits import store_int4_levels, store_int8_levels
from keras_tfm.keras_internals import read_value, sublayers
from keras_tfm.layers.base_layer import has_adapters
from keras_tfm.layers.decoding.cache import rounded_caches
from keras_tfm.layers.types import Tensor
from keras_tfm.models import with_dtype, without_quantization
from keras_tfm.models.quantization.rounded_inputs import rounded_inputs
from keras_tfm.models.quantization.rounding import Grid, row_parts
from keras_tfm.models.quantization.state import (
    TrainedQuantization,
    quantization_of,
    set_quantization,
)
from keras_tfm.models.with_dtype import copy_adapters
from keras_tfm.runtime import flatbuffer
from keras_tfm.runtime.manifest.storage import import_litert

_log = logging.getLogger(__name__)

# The operators that read matrices and convolution kernels with an output in each row.
_READERS = ({"FULLY_CONNECTED", "EMBEDDING_LOOKUP"}, {"CONV_2D"})
# The relative error of a weight that the converter multiplied by a factor, in float32.
_PRECISION = 1e-6
# A weight is first compared in some 16 columns, in which nearly all differ by more than this.
_TRIED, _DIFFERENT = 16, 1e-3
_LOWEST = np.finfo("float32").min
_KEY = "_keras_tfm_trained_weights"


class TrainedWeight(NamedTuple):
    """A variable whose values are on a grid, and the scales of its rows."""

    variable: keras.Variable
    grid: Grid
    scales: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        """(F, D), that of `rows`."""
        shape = self.variable.shape
        width = math.prod(shape[self.grid.first : self.grid.last])
        return math.prod(shape) // width, width

    @property
    def rows(self) -> np.ndarray:
        """The values as the matrix (F, D) of a file: a copy."""
        return self.grid.rows(read_value(self.variable))

    def levels(self, rows: np.ndarray, part: slice) -> np.ndarray:
        """The levels of `rows[part]`, exactly: a value is a product of two floats, rounded once."""
        return self.grid.levels(rows[part], self.scales, part)


class TrainedWeights(NamedTuple):
    """The rounded weights of a copy by `rounded_copy`, and how the model was trained."""

    quantization: TrainedQuantization
    weights: list[TrainedWeight]

    @contextmanager
    def tracing(self, has_int8_caches: bool) -> Iterator[None]:
        """The context in which a file is traced."""
        with ExitStack() as stack:
            if has_int8_caches and self.quantization.cache == "int8":
                stack.enter_context(rounded_caches())
            if self.quantization.activations:
                stack.enter_context(rounded_inputs(self.quantization.inputs, _keep))
            yield


def _keep(x: Tensor, _: object) -> Tensor:
    """`x`, as an operator that the converter keeps, and `store` removes.

    The converter would take what is added to `x`, such as the beta of a norm, into the bias of the
    product. Another row would be rounded then than in training.
    """
    return keras.ops.maximum(x, _LOWEST)


class _Match(NamedTuple):
    """Where the weight of a file comes from: rows of a trained weight times factors (F,)."""

    weight: TrainedWeight
    part: slice
    factors: np.ndarray


def rounded_copy(model: keras.Model, merge_adapters: bool = True) -> keras.Model:
    """A float32 copy whose variables are rounded, of a model of `models.enable_quantization`.

    It computes what the model computes, and `trained_weights` knows its grids.

    Raises:
        ValueError: LoRA adapters would be merged into rounded weights.
    """
    if merge_adapters:
        _refuse_adapters(model)
    known = quantization_of(model)
    assert known is not None
    copy = latent_copy(model)
    state = known.copy(copy)
    vars(copy)[_KEY] = TrainedWeights(state, _assign_rounded(state))
    return copy


def with_rounded_parts(model: keras.Model, merge_adapters: bool = True) -> keras.Model:
    """A float32 copy of a model with models of `models.enable_quantization` inside.

    It computes what the model computes, without rounding of activations and caches. For a file in
    float32 or float16: `trained_weights` knows grids of the parts alone.

    Raises:
        ValueError: LoRA adapters would be merged into rounded weights.
    """
    copy = with_dtype(model, "float32")
    if not merge_adapters:
        copy_adapters(model, copy)
    for part, new in zip(sublayers(model), sublayers(copy), strict=True):
        state = quantization_of(part)
        if state is not None:
            if merge_adapters:
                _refuse_adapters(part)
            rounding = state.copy(new)
            weights = _assign_rounded(rounding)
            set_quantization(new, None)
            if not state.is_as_published:
                vars(new)[_KEY] = TrainedWeights(rounding, weights)
    return copy


def _refuse_adapters(model: keras.Model) -> None:
    if has_adapters(model):
        raise ValueError(
            f"{model.name} has LoRA adapters beside rounded weights: keep them apart "
            "(separate_adapters=True, verify(adapter=)), or merge them with models.with_dtype("
            "model, 'float32'), call enable_quantization of the result, and train it a little more"
        )


def _assign_rounded(state: TrainedQuantization) -> list[TrainedWeight]:
    """Assigns the rounded values of weights."""
    weights = []
    for variable, grid in state.weights:
        latent = keras.ops.convert_to_numpy(variable)
        levels, scales = grid.round(latent)
        variable.assign(grid.values(levels, scales, latent.shape))
        weights.append(TrainedWeight(variable, grid, scales))
    return weights


def latent_copy(model: keras.Model) -> keras.Model:
    """A float32 copy with the weights behind the rounded ones, and adapters; it rounds nothing."""
    with without_quantization(model):
        copy = with_dtype(model, "float32")
        copy_adapters(model, copy)
    return copy


def trained_weights(model: keras.Layer) -> TrainedWeights | None:
    """The weights of a copy by `rounded_copy`; None for other models."""
    found: TrainedWeights | None = vars(model).get(_KEY)
    return found


def store(model: ModelT, trained: TrainedWeights) -> None:
    """Stores the trained weights of a float32 file in their levels and scales.

    They are found by value. A factor of a row, such as that of a batch normalisation, becomes part
    of its scale in 8 bits. The scales of 4 bits are too coarse for it, so the graph multiplies. All
    other weights, and those that the converter changed in another way, stay float32.

    Args:
        model: the file, from `flatbuffer.read`, converted from a copy by `rounded_copy`.
        trained: the weights of that copy.
    """
    for graph in model.subgraphs:
        _remove_maxima(model, graph)
    floats = flatbuffer.float_weights(model)
    uses: dict[int, list[flatbuffer.WeightUse]] = {}
    for use in flatbuffer.weight_uses(model):
        if use.tensor.buffer in floats:
            uses.setdefault(use.tensor.buffer, []).append(use)
    samples = [_columns(weight.rows) for weight in trained.weights]
    for buffer, readers in uses.items():
        names = {use.name for use in readers}
        if not any(names <= known for known in _READERS):
            continue
        values = floats[buffer]
        found = _find(trained, samples, values.reshape(len(values), -1))
        if found is None:
            continue
        weight, part, factors = found
        if weight.grid.bits == 8:
            scales = weight.scales[part] * np.where(factors == 0, 1, np.abs(factors))
            store_int8_levels(model, buffer, scales, partial(_levels, found))
        elif _divide(model, readers, factors):
            found = _Match(weight, part, np.ones_like(factors))
            store_int4_levels(model, buffer, weight.scales[part], partial(_levels, found))
        else:
            _log.warning("%s stays float32 in the file", weight.variable.path)
            continue
        if weight.grid.offsets is not None:
            offsets = weight.grid.offsets[part] * found.factors[:, np.newaxis]
            _add_offsets(model, readers, offsets)


def _remove_maxima(model: ModelT, graph: SubGraphT) -> None:
    """Removes the operators of `_keep`."""
    same: dict[int, int] = {}
    operators = []
    for operator in graph.operators:
        operator.inputs = [same.get(int(x), int(x)) for x in operator.inputs]
        if flatbuffer.is_operator(model, operator, "MAXIMUM"):
            data = model.buffers[graph.tensors[operator.inputs[1]].buffer].data
            if data is not None and bytes(data) == _LOWEST.tobytes():
                same[int(operator.outputs[0])] = operator.inputs[0]
                continue
        operators.append(operator)
    graph.operators = operators


def _levels(match: _Match) -> Iterator[np.ndarray]:
    weight, part, factors = match
    signs = np.sign(factors).astype("int8")[:, np.newaxis]
    matrix = weight.rows  # a copy of the weight
    for rows in row_parts(matrix[part]):
        start, stop, _ = rows.indices(len(factors))
        levels = weight.levels(matrix, slice(part.start + start, part.start + stop))
        yield levels * signs[rows]


def _find(
    trained: TrainedWeights, samples: Sequence[np.ndarray], matrix: np.ndarray
) -> _Match | None:
    """The trained weight, or adjacent rows of it, to which a matrix is proportional.

    `samples`: some columns of each weight, of which the whole is read only where they agree.
    """
    count, width = matrix.shape
    first = _columns(matrix[:1])[0]
    for weight, sample in zip(trained.weights, samples, strict=True):
        if weight.shape[1] != width or not 0 < count <= weight.shape[0]:
            continue
        if not np.any(_resemble(sample[: len(sample) - count + 1], first)):
            continue
        rows = weight.rows
        equal = range(0, len(rows) - count + 1, count)
        # Parts of a projection may be unequal, as those of Mamba-2.
        for start in itertools.chain(equal, _proportional(rows[: len(rows) - count + 1], matrix)):
            part = slice(start, start + count)
            if _factors(matrix[:1], rows[part][:1]) is None:
                continue
            factors = _factors(matrix, rows[part])
            if factors is not None:
                return _Match(weight, part, factors)
    return None


def _columns(rows: np.ndarray) -> np.ndarray:
    """Some columns of a matrix."""
    return rows[:, :: max(1, rows.shape[1] // _TRIED)].copy()


def _resemble(rows: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Whether each row may be a multiple of another one; what is zero may be anything's."""
    rows, other = rows.astype("float64"), other.astype("float64")  # squares may exceed float32
    peak = np.argmax(np.abs(other))
    with np.errstate(invalid="ignore"):  # of what is not finite
        errors = np.abs(rows * other[peak] - rows[:, peak, np.newaxis] * other)
    allowed = _DIFFERENT * np.abs(other[peak]) * np.abs(rows).max(axis=1)
    return np.all(errors <= allowed[:, np.newaxis], axis=1)


def _proportional(rows: np.ndarray, matrix: np.ndarray) -> Iterator[int]:
    """The rows that the first one of `matrix` may be a multiple of, by a few columns."""
    first = np.abs(matrix[0]).astype("float64")
    few = np.argsort(first)[-8:]  # in ascending order
    values, peak = rows[:, few].astype("float64"), matrix[0, few[-1]]
    errors = np.abs(matrix[0, few] * values[:, -1:] - values * peak)
    allowed = 2 * _PRECISION * abs(peak) * np.abs(values).max(axis=1)
    yield from map(int, np.flatnonzero(np.all(errors <= allowed[:, np.newaxis], axis=1)))


def _factors(matrix: np.ndarray, rows: np.ndarray) -> np.ndarray | None:
    """The factor of each row, float32 (F,), with which `rows` are `matrix`; None: there is none."""
    result = np.ones(len(rows), "float32")
    for part in row_parts(rows):
        ours, theirs = rows[part], matrix[part]
        peaks = np.argmax(np.abs(ours), axis=1)[:, np.newaxis]
        largest = np.take_along_axis(ours, peaks, 1)
        given = np.take_along_axis(theirs, peaks, 1)
        is_zero = largest == 0
        factor = np.where(is_zero, 1, given / np.where(is_zero, 1, largest))
        if not np.all(np.abs(theirs - ours * factor) <= _PRECISION * np.abs(given)):
            return None
        result[part] = factor[:, 0]
    # One that is 1 but for rounding.
    return np.where(np.abs(result - 1) <= _PRECISION, np.float32(1), result)


def _divide(model: ModelT, readers: list[flatbuffer.WeightUse], factors: np.ndarray) -> bool:
    """Lets the operators that read a weight multiply by its factors afterwards.

    Returns:
        Whether they can.
    """
    if np.all(factors == 1):
        return True
    if np.any(factors == 0):  # the bias is divided by them
        return False
    schema = import_litert("schema_py_generated")
    none = schema.ActivationFunctionType.NONE
    for use in readers:
        if use.name != "FULLY_CONNECTED":
            return False
        if use.operator.builtinOptions.fusedActivationFunction != none:
            return False
    for use in readers:
        _Multiplication(model, use.graph).insert(use.operator, factors)
    return True


def _add_offsets(model: ModelT, readers: list[flatbuffer.WeightUse], offsets: np.ndarray) -> None:
    """Lets the operators that read a weight add offsets (F, N) to N equal parts of its rows."""
    if not np.any(offsets):
        return
    buffer = None
    for use in readers:
        buffer = _Offsets(model, use.graph).add(use, offsets, buffer)
    if buffer is not None and np.array_equal(offsets.astype("float16"), offsets):
        flatbuffer.store_half(model, [buffer])


class _Offsets(GraphEditor):
    """Adds what offsets of a weight's blocks add to the result of an operator."""

    def add(self, use: flatbuffer.WeightUse, offsets: np.ndarray, buffer: int | None) -> int:
        """x (Q + C)^T becomes x Q^T + sums(x) C^T, with the sum of each block of x.

        The row i of Q + C becomes the row of Q plus the row of C, each of its values repeated.

        Args:
            use: the operator.
            offsets: C, (F, N).
            buffer: the buffer of C, if there is one.

        Returns:
            The buffer of C.
        """
        table = self._tensor(offsets.shape, self._schema.TensorType.FLOAT32, buffer or 0)
        if buffer is None:
            table = self._constant(offsets, "float32")
        result = int(use.operator.outputs[0])
        plain = self._tensor(self._shape(result), self._dtype(result))
        use.operator.outputs = [plain]
        add = self._product if use.name == "FULLY_CONNECTED" else self._rows
        self._operators = []
        added = add(use, table, plain, offsets.shape[1])
        total = self._operator("ADD", [plain, added], result, "AddOptions")
        none = self._schema.ActivationFunctionType.NONE
        total.builtinOptions.fusedActivationFunction = none
        if use.name == "FULLY_CONNECTED":
            options = use.operator.builtinOptions
            total.builtinOptions.fusedActivationFunction = options.fusedActivationFunction
            options.fusedActivationFunction = none
        place = next(i for i, x in enumerate(self._graph.operators) if x is use.operator)
        self._graph.operators[place + 1 : place + 1] = [*self._operators, total]
        return int(self._graph.tensors[table].buffer)

    def _product(self, use: flatbuffer.WeightUse, table: int, plain: int, count: int) -> int:
        """The product of the sums of the blocks of x with C."""
        x = int(use.operator.inputs[0])
        *outer, width = self._shape(x)
        blocks = self._append_reshape(x, [*outer, count, width // count])
        sums = self._tensor([*outer, count], self._dtype(x))
        axis = self._constant([len(outer) + 1])
        self._operators.append(self._operator("SUM", [blocks, axis], sums, "ReducerOptions"))
        result = self._tensor(self._shape(plain), self._dtype(plain))
        product = self._operator(
            "FULLY_CONNECTED", [sums, table, -1], result, "FullyConnectedOptions"
        )
        options = use.operator.builtinOptions
        product.builtinOptions.keepNumDims = options.keepNumDims
        self._operators.append(product)
        return result

    def _rows(self, use: flatbuffer.WeightUse, table: int, plain: int, count: int) -> int:
        """The rows of C, each value repeated for its block."""
        shape = self._shape(plain)
        *outer, width = shape
        rows = self._tensor([*outer, count], self._dtype(plain))
        inputs = [int(use.operator.inputs[0]), table]
        self._operators.append(self._operator("EMBEDDING_LOOKUP", inputs, rows))
        blocks = self._append_reshape(rows, [*outer, count, 1])
        spread = self._tensor([*outer, count, width // count], self._dtype(plain))
        zeros = self._constant(np.zeros((count, width // count)), "float32")
        self._operators.append(self._operator("ADD", [blocks, zeros], spread, "AddOptions"))
        return self._append_reshape(spread, shape)


class _Multiplication(GraphEditor):
    """Multiplies the result of a matrix product."""

    def insert(self, product: OperatorT, factors: np.ndarray) -> None:
        """x W + b becomes (x W / factors + b / factors) factors, of which W is stored later."""
        result = int(product.outputs[0])
        plain = self._tensor(self._shape(result), self._dtype(result))
        product.outputs = [plain]
        if len(product.inputs) > 2 and product.inputs[2] >= 0:
            bias = self._model.buffers[self._graph.tensors[product.inputs[2]].buffer].data
            values = np.asarray(bias, "uint8").view("float32") / factors
            product.inputs = [*product.inputs[:2], self._constant(values, "float32")]
        inputs = [plain, self._constant(factors, "float32")]
        multiply = self._operator("MUL", inputs, result, "MulOptions")
        place = next(i for i, x in enumerate(self._graph.operators) if x is product)
        self._graph.operators.insert(place + 1, multiply)
