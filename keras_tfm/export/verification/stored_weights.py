"""Finds the unrounded weights of a file in its model, by value."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf

from keras_tfm.export.graph.conversion import convert
from keras_tfm.export.quantization.presets import Quantization
from keras_tfm.export.signatures.make import full_pass
from keras_tfm.export.signatures.signature import Argument, Signature, for_edge
from keras_tfm.export.verification.float_file import Stored
from keras_tfm.runtime import flatbuffer
from keras_tfm.runtime.manifest.manifest import Predict, of_role
from keras_tfm.runtime.manifest.manifest import Signature as FileSignature
from keras_tfm.runtime.manifest.storage import import_litert

# A stored value is at most half a step from the model's; the excess covers float32 rounding.
_HALF = 0.502
_ROUNDING = 1e-6
# Factors that layers apply: in activations, and to scores and embeddings of common widths.
_FACTORS = [1.0, 0.5, 2.0, *(2.0 ** (x / 2) for x in (-1, 1, *range(-12, 13)))]
# A weight is first compared on about this number of rows.
_TRIED = 48


@dataclass
class Unrounded:
    """A weight of a file before rounding, as far as it is known.

    Attributes:
        values: the model's values if `known`; otherwise the file's.
        spread: the largest difference between the unrounded values and `values`, broadcastable:
            relative to `values` if `known`, otherwise absolute.
        known: whether the model has this weight.
    """

    values: np.ndarray
    spread: np.ndarray
    known: bool

    def sample(self, generator: np.random.Generator) -> np.ndarray:
        """Random values within `spread`, which round to the file's as `values` do."""
        drawn = self.spread * generator.uniform(-1.0, 1.0, self.spread.shape)
        return (self.values * (1.0 + drawn) if self.known else self.values + drawn).astype(
            "float32"
        )


class ModelWeights:
    """The weights of a model, to be matched with the weights of a file.

    A converter transposes and reshapes a kernel, splits it, and multiplies its rows or columns by a
    factor from before or after it in the graph, such as the gamma of a normalization or the 1/2 of
    a GELU.

    Args:
        arrays: the model's weights.

    >>> import numpy as np
    >>> from keras_tfm.export.verification.stored_weights import ModelWeights
    >>> kernel = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 7.0]], "float32")
    >>> step = np.full((3, 1), 0.1, "float32")
    >>> ModelWeights([kernel]).find(np.round(kernel.T, 1) + 0.04, step).values[2].tolist()
    [3.0, 7.0]
    >>> ModelWeights([kernel]).find(kernel.T + 0.2, step).known
    False
    """

    def __init__(self, arrays: Sequence[np.ndarray]):
        self._matrices = [x.astype("float32") for x in arrays if x.ndim > 1]
        self._vectors = [x.astype("float64") for x in arrays if x.ndim == 1]

    def find(self, values: np.ndarray, step: np.ndarray) -> Unrounded:
        """The model's weight that rounds to `values`.

        Args:
            values: the file's weight, dequantised to float32.
            step: the quantisation step, broadcastable to `values`.
        """
        half = np.broadcast_to(_HALF * step, values.shape)
        ends = (0.0, values.min(initial=0.0), values.max(initial=0.0))
        if np.all(np.isin(values, ends)):  # a mask or a scale, stored exactly
            return Unrounded(values, np.zeros(1), True)
        for vector in _parts(self._vectors, values.size):
            if vector.shape == values.shape and np.all(np.abs(values - vector) <= half):
                return Unrounded(vector.astype("float32"), np.zeros(1), True)
        inexact = None
        for matrix in _parts(self._matrices, values.size):
            for rows in _arrangements(matrix):
                found = self._scale(values.reshape(rows.shape), half.reshape(rows.shape), rows)
                if found is None:
                    continue
                known, spread = found
                result = Unrounded(
                    known.reshape(values.shape).astype("float32"),
                    np.broadcast_to(spread, rows.shape).reshape(values.shape)
                    if spread.size > 1
                    else spread,
                    True,
                )
                if spread.size == 1:
                    return result
                inexact = inexact or result
        return inexact or Unrounded(values, np.asarray(step) / 2, False)

    def _scale(
        self, values: np.ndarray, half: np.ndarray, rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """`rows`, scaled so that they round to `values`, and the uncertainty of the factors."""
        slack = half + _ROUNDING * np.abs(values).max(initial=0.0)
        if np.all(np.abs(values - rows) <= slack):
            return rows, np.zeros(1)
        if len(rows) == 1:  # one value per column: factors would fit anything
            return None
        inexact = None
        for turn in (False, True):
            v, h, w = (x.T if turn else x for x in (values, slack, rows))
            if len(v) < 4:  # too few values to tell a factor from a coincidence
                continue
            # Factors of columns, first tried on a few rows.
            few = slice(None, None, max(1, len(v) // _TRIED))
            if _interval(v[few], h[few], w[few]) is None:
                continue
            between = _interval(v, h, w)
            if between is None:
                continue
            low, high = between
            for vector in (np.ones(1), *(x for x in self._vectors if x.size == low.size)):
                common = _common(low, high, vector)
                if common is not None:
                    factor, spread = common
                    scaled = w * (factor * vector)
                    return (scaled.T if turn else scaled), np.full(1, spread)
            middle = (low + high) / 2
            relative = (high - low) / 2 / np.maximum(np.abs(middle), 1e-30)
            scaled, spreads = w * middle, np.broadcast_to(relative, w.shape)
            inexact = inexact or ((scaled.T, spreads.T) if turn else (scaled, spreads))
        return inexact


def find_constants(
    unrounded: dict[int, Unrounded],
    stored: Mapping[int, Stored],
    models: Mapping[str, keras.Model],
    signatures: Mapping[str, FileSignature],
) -> None:
    """Replaces what no weight of the model tells by constants of the unrounded graphs.

    Their rounding errors are not random: near the start of a slow sinusoid, all have one sign.
    """
    if all(x.known for x in unrounded.values()):
        return
    constants = ModelWeights(float_constants(models, signatures))
    for buffer in [buffer for buffer, x in unrounded.items() if np.any(x.spread)]:
        found = constants.find(*stored[buffer])
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
            content = convert(model, [signature], Quantization(model, "float32"))
        except ValueError:  # an operator of a file with custom operators
            continue
        graph = flatbuffer.read(content)
        for tensor in (tensor for x in graph.subgraphs for tensor in x.tensors):
            data = graph.buffers[tensor.buffer].data
            if tensor.type == types.FLOAT32 and data is not None and len(data) > 4:
                found.append(np.frombuffer(bytes(data), "float32").reshape(tensor.shape))
    return found


def _parts(arrays: Sequence[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """The arrays with `size` values, and parts of the last axis of others that have as many.

    Queries, keys and values of different inputs, as in DETR, have a part of one kernel each.
    """
    for array in arrays:
        outer, width = array.size // array.shape[-1] if array.size else 0, array.shape[-1]
        if array.size == size:
            yield array
        elif array.ndim <= 2 and outer and size and size % outer == 0:
            part = size // outer
            if part < width and width % part == 0:
                yield from (array[..., i : i + part] for i in range(0, width, part))


def _arrangements(weight: np.ndarray) -> Iterator[np.ndarray]:
    """The weight as a matrix, for each way to group its axes, and transposed."""
    yield weight.reshape(1, -1)
    for axis in range(1, weight.ndim):
        matrix = weight.reshape(int(np.prod(weight.shape[:axis])), -1)
        yield matrix
        yield matrix.T


def _interval(
    values: np.ndarray, half: np.ndarray, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """The smallest and largest factor of each column that fit all rows; None if none fits."""
    # Where the model's value is nearly zero, any factor fits, and the file's must be zero, too.
    tiny = np.abs(rows) <= 1e-7 * np.abs(rows).max(initial=0.0)
    if np.any(tiny & (np.abs(values) > half)):
        return None
    divisor = np.where(tiny, 1.0, rows).astype("float64")
    a, b = (values - half) / divisor, (values + half) / divisor
    low = np.where(tiny, -np.inf, np.minimum(a, b)).max(axis=0)
    high = np.where(tiny, np.inf, np.maximum(a, b)).min(axis=0)
    if np.any(low > high):
        return None
    free = ~np.isfinite(low) | ~np.isfinite(high)  # a column of zeros
    return np.where(free, 1.0, low), np.where(free, 1.0, high)


def _common(low: np.ndarray, high: np.ndarray, vector: np.ndarray) -> tuple[float, float] | None:
    """A factor that puts `vector` between `low` and `high`, and its relative uncertainty."""
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
    middle = float((least + most) / 2)
    return middle, abs(float(most - least) / 2 / middle)
