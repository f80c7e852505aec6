"""Finds the unrounded weights of a file in its model, by value."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_tfm.export.graph.conversion import convert
from keras_tfm.export.quantization.presets import Quantization
from keras_tfm.export.signatures.make import full_pass
from keras_tfm.export.signatures.signature import Argument, Signature, for_edge
from keras_tfm.export.verification.float_file import Stored
from keras_tfm.keras_internals import nodes_in_order
from keras_tfm.runtime.flatbuffer import LazyBytes
from keras_tfm.runtime.manifest.manifest import Predict, of_role
from keras_tfm.runtime.manifest.manifest import Signature as FileSignature
from keras_tfm.runtime.manifest.storage import import_litert

# A stored value is at most half a step from the model's; the excess covers float32 rounding.
_HALF = 0.502
_ROUNDING = 1e-6
# Factors that layers apply: in activations, and to scores and embeddings of common widths.
_FACTORS = [1.0, 0.5, 2.0, *(2.0 ** (x / 2) for x in (-1, 1, *range(-12, 13)))]
# A weight is first compared on about this number of rows and columns, and before on fewer of these.
_TRIED = 48
_FEW = 8
# A factor of 0.9995, that of a new batch normalization, is 1/16 of a step of the largest value.
_FEW_VALUES = 32


@dataclass
class Unrounded:
    """A weight of a file before rounding, as far as it is known.

    Attributes:
        stored: the weight in the file.
        known: bool, whether the model has this weight.
        spread: the largest difference between the unrounded values and `values`, broadcastable:
            relative to `values` if `known`, otherwise absolute.
        matrix: function that returns the model's weight as a matrix, in the order of the file;
            None: `values` are the file's.
        factor: of the matrix, broadcastable to it.
    """

    stored: Stored
    known: bool
    spread: np.ndarray
    matrix: Callable[[], np.ndarray] | None = None
    factor: np.ndarray | float = 1.0

    @property
    def values(self) -> np.ndarray:
        """The model's values if `known`; otherwise the file's."""
        return np.concatenate([x.ravel() for x in self.chunks()]).reshape(self.stored.shape)

    @property
    def has_few_values(self) -> bool:
        """Whether a factor near 1, of a normalization that follows, may fit as well as 1 does."""
        return self.stored.size <= _FEW_VALUES

    def sample(self, generator: np.random.Generator) -> np.ndarray:
        """Random values within `spread`, which round to the file's as `values` do."""
        chunks = [x.ravel() for x in self.sample_chunks(generator)]
        return np.concatenate(chunks).reshape(self.stored.shape)

    def chunks(self) -> Iterator[np.ndarray]:
        """`values` in float32, a few rows at a time."""
        return (values for _, values, _ in self._blocks())

    def sample_chunks(self, generator: np.random.Generator) -> Iterator[np.ndarray]:
        """`sample`, a few rows at a time."""
        # A factor of the whole weight may be wrong by all of `spread`: not by less than half of it.
        one = generator.choice([-1.0, 1.0]) * generator.uniform(0.5, 1.0)
        for rows, values, _ in self._blocks():
            spread = _part(self.spread, rows, values)
            # One number for a factor of the whole weight, otherwise one for each value.
            random = one if spread.size == 1 else generator.uniform(-1.0, 1.0, values.shape)
            drawn = spread * random
            yield (values * (1.0 + drawn) if self.known else values + drawn).astype("float32")

    def rounded_chunks(self, generator: np.random.Generator) -> Iterator[np.ndarray]:
        """`values` with rounding errors that are as large as the file's, but random.

        Weights without negative values get none: a logarithm may follow, as after a filter bank.
        """
        for _, values, step in self._blocks():
            rounded = values + step * generator.uniform(-0.5, 0.5, values.shape)
            if self.stored.bounds[0] >= 0:
                rounded = np.abs(rounded)
            yield rounded.astype("float32")

    def _blocks(self) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        matrix = None if self.matrix is None else self.matrix()
        width = self.stored.shape[-1] if matrix is None else matrix.shape[1]
        for rows, values, step in self.stored.blocks(width):
            if matrix is not None:
                values = (matrix[rows] * _part(self.factor, rows, values)).astype("float32")
            yield rows, values, step


class _Arrangement(NamedTuple):
    """A way in which a weight of the model, or a part of it, may be in the file.

    Attributes:
        weight: its number.
        columns: those of its last axis.
        order: the permutation of its axes in the file.
        outer: int, the number of the first axes in this order that are rows; 0: its values are in
            the order of the file, in rows of any width, and have no factors.
        width: int, the last axis in the file.
    """

    weight: int
    columns: slice
    order: tuple[int, ...]
    outer: int
    width: int


class _Candidates(NamedTuple):
    """N arrangements of weights that have the same shape.

    Attributes:
        arrangements: the N arrangements.
        few: (N, R, C), the same few rows and columns of each.
        peaks: (N,), the largest magnitude in these.
        has_factors: bool (N,), whether rows or columns may have been multiplied.
    """

    arrangements: list[_Arrangement]
    few: np.ndarray
    peaks: np.ndarray
    has_factors: np.ndarray


class ModelWeights:
    """The weights of a model, to be matched with the weights of a file.

    A converter transposes and reshapes a kernel, splits it, and multiplies its rows or columns by a
    factor from before or after it in the graph, such as the gamma of a normalization or the 1/2 of
    a GELU.

    Matrices are compared by a few of their rows and columns first, and only one is read at a time.

    Args:
        arrays: the model's weights, arrays or variables.
        factors: numbers by which the model multiplies, see `factors_of`.

    >>> import numpy as np
    >>> from keras_tfm.export.verification.float_file import Stored
    >>> from keras_tfm.export.verification.stored_weights import ModelWeights
    >>> kernel = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 7.0]], "float32")
    >>> step = np.full((3, 1), 0.1, "float32")
    >>> rounded = Stored.of(np.round(kernel.T, 1) + 0.04, step)
    >>> ModelWeights([kernel]).find(rounded).values[2].tolist()
    [3.0, 7.0]
    >>> ModelWeights([kernel]).find(Stored.of(kernel.T + 0.2, step)).known
    False
    """

    def __init__(
        self, arrays: Sequence[np.ndarray | keras.Variable], factors: Sequence[float] = ()
    ):
        self._factors = factors
        self._arrays = [x for x in arrays if len(x.shape) > 1]
        self._vectors = [_array(x, "float64") for x in arrays if len(x.shape) == 1]
        # By the size and the last axis of what the weights are compared with.
        self._known: dict[tuple[int, int], dict[tuple[int, int], _Candidates]] = {}

    def find(self, stored: Stored) -> Unrounded:
        """The model's weight that rounds to a weight of a file."""
        ends = (0.0, *stored.bounds)
        if all(np.all(np.isin(values, ends)) for _, values, _ in stored.blocks(1)):
            return Unrounded(stored, True, np.zeros(1))  # a mask or a scale, stored exactly
        if len(stored.shape) == 1:
            values, step = stored.read(slice(None))
            for vector in self._vectors:
                for part in _parts(vector.shape, stored.size):
                    if np.all(np.abs(values - vector[part]) <= _HALF * step):
                        row = vector[part].astype("float32").reshape(1, -1)
                        return Unrounded(stored, True, np.zeros(1), functools.partial(np.copy, row))
        slack = _ROUNDING * max(map(abs, stored.bounds))
        inexact = None
        for arrangement in self._similar(stored, slack):
            matrix = self._load(arrangement)
            found = self._scale(stored, slack, matrix, arrangement.outer > 0)
            del matrix
            if found is None:
                continue
            factor, spread = found
            result = Unrounded(
                stored, True, spread, functools.partial(self._load, arrangement), factor
            )
            if spread.size == 1:
                return result
            inexact = inexact or result
        uneven = self._find_columns(stored, slack)
        return uneven or inexact or Unrounded(stored, False, stored.step / 2)

    def _find_columns(self, stored: Stored, slack: float) -> Unrounded | None:
        """Adjacent columns of a matrix, any of them: the parts of a projection may be unequal.

        They are rows in the file. The first row finds the places to look at.
        """
        height = stored.shape[-1]
        width = stored.size // height
        some = _sample(height)
        values, step = stored.read(np.unravel_index(some, stored.shape))
        for number, array in enumerate(self._arrays):
            if len(array.shape) != 2 or array.shape[0] != height or array.shape[1] <= width:
                continue
            few = _array(array, "float32")[some, : array.shape[1] - width + 1]
            fits = np.all(np.abs(few.T - values) <= _HALF * step + slack, axis=1)
            for start in map(int, np.flatnonzero(fits)):
                columns = slice(start, start + width)
                arrangement = _Arrangement(number, columns, (1, 0), 1, height)
                matrix = self._load(arrangement)
                if self._scale(stored, slack, matrix, has_factors=False) is not None:
                    load = functools.partial(self._load, arrangement)
                    return Unrounded(stored, True, np.zeros(1), load)
        return None

    def _load(self, arrangement: _Arrangement) -> np.ndarray:
        """The weight as a matrix, in the order of the file."""
        array = _array(self._arrays[arrangement.weight], "float32")
        return _arrange(array[..., arrangement.columns], arrangement)

    def _similar(self, stored: Stored, slack: float) -> list[_Arrangement]:
        """The arrangements of weights that agree with a weight of the file in a few places."""
        found = list[_Arrangement]()
        for shape, candidates in self._candidates(stored).items():
            places = np.unravel_index(_grid(shape), stored.shape)
            values, step = stored.read(places)
            half = np.broadcast_to(_HALF * step + slack, values.shape)
            # Nearly all differ in the first corner.
            corner = slice(_FEW), slice(_FEW)
            chosen = candidates.few[:, *corner], candidates.peaks, candidates.has_factors
            for i in np.flatnonzero(_may_fit(values[corner], half[corner], *chosen)):
                one = slice(i, i + 1)
                chosen = candidates.few[one], candidates.peaks[one], candidates.has_factors[one]
                if _may_fit(values, half, *chosen)[0]:
                    found.append(candidates.arrangements[i])
        return sorted(found, key=lambda x: (x.weight, x.columns.start or 0, x.order, x.outer))

    def _candidates(self, stored: Stored) -> dict[tuple[int, int], _Candidates]:
        """By shape, the arrangements of all weights that have the size of a weight of the file."""
        key = stored.size, stored.shape[-1]
        if key not in self._known:
            found: dict[tuple[int, int], list[tuple[_Arrangement, np.ndarray]]] = {}
            for number, array in enumerate(self._arrays):
                shape = tuple(array.shape)
                arrangements = [
                    _Arrangement(number, columns, order, outer, stored.shape[-1])
                    for columns in _parts(shape, stored.size)
                    for order, outer in _orders(shape, stored.shape[-1])
                ]
                values = _array(array, "float32") if arrangements else np.zeros(0)
                for x in arrangements:
                    matrix = _arrange(values[..., x.columns], x)
                    few = matrix[np.ix_(*map(_sample, matrix.shape))]
                    found.setdefault(matrix.shape, []).append((x, few))
            self._known[key] = {
                shape: _Candidates(
                    [x for x, _ in some],
                    np.stack([few for _, few in some]),
                    np.array([np.abs(few).max(initial=0.0) for _, few in some], "float32"),
                    np.array([x.outer > 0 for x, _ in some]),
                )
                for shape, some in found.items()
            }
        return self._known[key]

    def _scale(
        self, stored: Stored, slack: float, matrix: np.ndarray, has_factors: bool
    ) -> tuple[np.ndarray | float, np.ndarray] | None:
        """The factor by which a matrix rounds to a weight of a file, and its uncertainty.

        Both broadcast to the matrix. None: no factor does.
        """
        height, width = matrix.shape
        if all(
            np.all(np.abs(values - matrix[rows]) <= _HALF * step + slack)
            for rows, values, step in stored.blocks(width)
        ):
            return 1.0, np.zeros(1)
        if height == 1 or not has_factors:  # of one value per column, factors would fit anything
            return None
        # Where the model's value is nearly zero, any factor fits, and the file's must be zero, too.
        limit = 1e-7 * max(
            float(np.abs(matrix[rows]).max(initial=0.0)) for rows, _, _ in stored.blocks(width)
        )
        # Factors of columns, then of rows; too few values do not tell one from a coincidence.
        columns = np.full(width, -np.inf), np.full(width, np.inf)
        of_rows = np.full(height, -np.inf), np.full(height, np.inf)
        for rows, values, step in stored.blocks(width):
            low, high = _bounds(values, _HALF * step + slack, matrix[rows], limit)
            np.maximum(columns[0], low.max(axis=0), out=columns[0])
            np.minimum(columns[1], high.min(axis=0), out=columns[1])
            of_rows[0][rows], of_rows[1][rows] = low.max(axis=1), high.min(axis=1)
            if np.any(columns[0] > columns[1]) and np.any(of_rows[0] > of_rows[1]):
                return None
        inexact = None
        for axis, count, (low, high) in ((0, height, columns), (1, width, of_rows)):
            if count < 4 or np.any(low > high):
                continue
            free = ~np.isfinite(low) | ~np.isfinite(high)  # a column of zeros
            low, high = np.where(free, 1.0, low), np.where(free, 1.0, high)
            for vector in (np.ones(1), *(x for x in self._vectors if x.size == low.size)):
                common = _common(low, high, vector, self._factors)
                if common is not None:
                    factor, spread = common
                    return np.expand_dims(factor * vector, axis), np.full(1, spread)
            middle = (low + high) / 2
            relative = (high - low) / 2 / np.maximum(np.abs(middle), 1e-30)
            inexact = inexact or (
                np.expand_dims(middle, axis),
                np.broadcast_to(np.expand_dims(relative, axis), matrix.shape),
            )
        return inexact


def factors_of(model: keras.Model) -> list[float]:
    """The numbers in the calls of a functional model, and their inverses.

    The steps of int4 weights leave a factor that a converter has folded into them uncertain by up
    to 1e-4, such as the 1/30 of logits with a soft cap in a tied table, c tanh(x W / c).

    >>> import keras
    >>> from keras_tfm.export.verification.stored_weights import factors_of
    >>> x = keras.Input((3,))
    >>> factors_of(keras.Model(x, keras.ops.tanh(x / 4.0)))
    [4.0, 0.25]
    """
    numbers: dict[float, None] = {}
    for node in nodes_in_order(model):
        for x in keras.tree.flatten((node.arguments.args, node.arguments.kwargs)):
            if isinstance(x, float) and x and math.isfinite(x):
                numbers |= dict.fromkeys((x, 1 / x))
    return list(numbers)


def find_constants(
    unrounded: dict[int, Unrounded],
    stored: Mapping[int, Stored],
    models: Mapping[str, keras.Model],
    signatures: Mapping[str, FileSignature],
) -> None:
    """Replaces what no weight of the model tells for certain by constants of the unrounded graphs.

    Their rounding errors are not random: near the start of a slow sinusoid, all have one sign.
    """
    if all(x.known and not x.has_few_values for x in unrounded.values()):
        return
    constants = ModelWeights(float_constants(models, signatures))
    uncertain = [i for i, x in unrounded.items() if np.any(x.spread) or x.has_few_values]
    for buffer in uncertain:
        found = constants.find(stored[buffer])
        if found.known and not np.any(found.spread):
            unrounded[buffer] = found


def float_constants(
    models: Mapping[str, keras.Model], signatures: Mapping[str, FileSignature]
) -> list[np.ndarray]:
    """The constants of every full pass of a file in float32; empty if it cannot be converted.

    A table of sinusoids is no weight of the model, so its values before rounding are not among the
    weights. They are those of the same graph, converted without rounding.

    Args:
        models: the models in float32 by name; the only one is "".
        signatures: those of the file's manifest by name.

    Example:

    >>> import keras
    >>> from keras_tfm.export.verification.stored_weights import float_constants
    >>> from keras_tfm.layers import PositionalEncoding
    >>> from keras_tfm.runtime.manifest.manifest import Input, Predict
    >>> x = keras.Input((3, 4), name="x")
    >>> model = keras.Model(x, PositionalEncoding()(x))
    >>> spec = Input(shape=[1, 3, 4], dtype="float32", kind="input", padded=False)
    >>> found = float_constants({"": model}, {"predict": Predict(inputs={"x": spec}, outputs={})})
    >>> max(found, key=lambda constant: constant.size).reshape(3, 4)[0].tolist()
    [0.0, 1.0, 0.0, 1.0]
    """
    types = import_litert("schema_py_generated").TensorType
    found = []
    for name, predict in of_role(signatures, Predict).items():
        model = models[predict.model or ""]
        inputs = {
            key: Argument(tf.TensorSpec(x.shape, x.dtype)) for key, x in predict.inputs.items()
        }
        signature = Signature(name, "predict", for_edge(full_pass(model)), inputs)
        try:
            graph = convert(model, [signature], Quantization(model, "float32"))
        except ValueError:  # an operator of a file with custom operators
            continue
        for tensor in (tensor for x in graph.subgraphs for tensor in x.tensors):
            data = graph.buffers[tensor.buffer].data
            if isinstance(data, LazyBytes):  # a weight of the model
                continue
            if tensor.type == types.FLOAT32 and data is not None and len(data) > 4:
                found.append(np.frombuffer(bytes(data), "float32").reshape(tensor.shape))
    return found


def _parts(shape: tuple[int, ...], size: int) -> Iterator[slice]:
    """The columns of the last axis of a weight that have `size` values: all, or equal parts.

    Queries, keys and values of different inputs, as in DETR, have a part of one kernel each.
    """
    width, whole = shape[-1], math.prod(shape)
    outer = whole // width if whole else 0
    if whole == size:
        yield slice(None)
    elif len(shape) <= 2 and outer and size and size % outer == 0:
        part = size // outer
        if part < width and width % part == 0:
            yield from (slice(i, i + part) for i in range(0, width, part))


def _orders(shape: tuple[int, ...], width: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Permutations of a weight's axes, each with the number of the first axes that are rows.

    Of matrices that a product takes from one weight, such as (experts, D, F), each is transposed in
    the file, whose last axis has `width` values.
    """
    axes = tuple(range(len(shape)))
    yield axes, 0
    for outer in axes[1:]:
        yield axes, outer
        yield axes[outer:] + axes[:outer], len(axes) - outer
    if len(axes) == 3:
        for order in ((0, 2, 1), (1, 0, 2), (2, 1, 0)):
            if shape[order[-1]] == width:
                yield order, 2


def _array(weight: np.ndarray | keras.Variable, dtype: str) -> np.ndarray:
    if not isinstance(weight, np.ndarray):
        weight = keras.ops.convert_to_numpy(weight)
    return weight.astype(dtype, copy=False)


def _arrange(array: np.ndarray, arrangement: _Arrangement) -> np.ndarray:
    if not arrangement.outer:
        return array.reshape(-1, arrangement.width)
    array = array.transpose(arrangement.order)
    return array.reshape(math.prod(array.shape[: arrangement.outer]), -1)


def _sample(count: int) -> np.ndarray:
    return np.arange(0, count, max(1, count // _TRIED))


def _grid(shape: tuple[int, int]) -> np.ndarray:
    """The positions of a few rows and columns of a matrix, as in its values in one row."""
    rows, columns = map(_sample, shape)
    return rows[:, np.newaxis] * shape[1] + columns


def _part(array: np.ndarray | float, rows: slice, values: np.ndarray) -> np.ndarray:
    """These rows of what broadcasts to a matrix, of which `values` are the rows."""
    array = np.asarray(array)
    if array.ndim > 2:
        array = array.reshape(-1, values.shape[1])
    return array[rows] if array.ndim == 2 and len(array) > 1 else array


def _may_fit(
    values: np.ndarray,
    half: np.ndarray,
    few: np.ndarray,
    peaks: np.ndarray,
    has_factors: np.ndarray,
) -> np.ndarray:
    """Which of N candidates (N, R, C) are equal to a few rows and columns up to factors: bool (N,).

    `few`: these rows and columns, or some of them; `peaks` and `has_factors`: of `_Candidates`.
    """
    with np.errstate(over="ignore"):  # of float32's lowest in a mask, and other candidates
        result: np.ndarray = np.all(np.abs(values - few) <= half, axis=(1, 2))
    rest = np.flatnonzero(has_factors & ~result)
    if few.shape[1] == 1 or not len(rest):
        return result
    low, high = _bounds(values, half, few[rest], 1e-7 * peaks[rest, np.newaxis, np.newaxis])
    for axis in (1, 2):
        if few.shape[axis] >= 4:
            result[rest] |= np.all(low.max(axis=axis) <= high.min(axis=axis), axis=1)
    return result


def _bounds(
    values: np.ndarray, half: np.ndarray, rows: np.ndarray, limit: np.ndarray | float
) -> tuple[np.ndarray, np.ndarray]:
    """The smallest and the largest factor of each of the model's values.

    Of a value up to `limit`, any factor, if the file's may be zero; otherwise inf and -inf.
    """
    tiny = np.abs(rows) <= limit
    divisor = np.where(tiny, 1.0, rows).astype("float64")
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # of what is not finite
        a, b = (values - half) / divisor, (values + half) / divisor
    none = tiny & (np.abs(values) > half)
    low = np.where(tiny, np.where(none, np.inf, -np.inf), np.minimum(a, b))
    return low, np.where(tiny, np.where(none, -np.inf, np.inf), np.maximum(a, b))


def _common(
    low: np.ndarray, high: np.ndarray, vector: np.ndarray, factors: Sequence[float]
) -> tuple[float, float] | None:
    """A factor that puts `vector` between `low` and `high`, and its relative uncertainty.

    `factors`: of those that fit, the first is it, if none that layers apply is.
    """
    safe = np.where(vector == 0.0, 1.0, vector)
    a, b = low / safe, high / safe
    zero = np.broadcast_to(vector == 0.0, low.shape)
    if np.any(zero & ((low > 0.0) | (high < 0.0))):
        return None
    least = np.where(zero, -np.inf, np.minimum(a, b)).max()
    most = np.where(zero, np.inf, np.maximum(a, b)).min()
    if not np.isfinite(least) or least > most:
        return None
    exact = [x for y in _FACTORS for x in (y, -y) if least <= x <= most]
    if exact:
        return exact[0], 0.0
    middle = next((x for x in factors if least <= x <= most), float((least + most) / 2))
    return middle, abs(float(most - least) / 2 / middle)
