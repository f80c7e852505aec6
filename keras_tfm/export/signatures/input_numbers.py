"""The distribution of a model's inputs of numbers, as far as the model tells it.

Random numbers stand for real ones only if they have their scale: a file in int8 may be exact for
normally distributed numbers and useless for a pressure of 101,325 Pa. Two things in a model tell
the scale: a normalisation of the input, whatever layers or operations it is made of, and the
weights of the layer that reads an input whose normalisation became a part of them.

Example:

>>> import keras
>>> from keras_tfm.export.signatures.input_numbers import input_numbers
>>> x = keras.Input((2,), name="x")
>>> scaled = keras.layers.Normalization(mean=[5.0, 1e5], variance=[4.0, 1e6])(x)
>>> found = input_numbers(keras.Model(x, keras.layers.Dense(3, name="dense")(scaled)))["x"]
>>> found.numbers.mean.round().tolist(), found.numbers.deviation.round().tolist()
([5.0, 100000.0], [2.0, 1000.0])
>>> [layer.name for layer in found.raw]
['dense']
"""

from dataclasses import dataclass

import keras
import numpy as np

from keras_tfm.generation.interface import interface_of
from keras_tfm.keras_internals import functional_of, nodes_in_order
from keras_tfm.runtime.inspection.random_inputs import Numbers, is_mask

# Inputs are raw if their largest values are this multiple of the least standard deviation: in 8
# bits, whose 255 steps cover a row, the step is then half of that deviation.
_RAW = 100.0
# The distance of probes, large against an offset that is subtracted first.
_PROBE = 1000.0
# The relative error of float32 in an operation per number.
_CLOSE = 1e-3
# Larger than a position embedding.
_FAR = 3.0
# Adds to the squares of the singular values: directions that a kernel hardly reads tell no mean.
_RIDGE = 1e-3


@dataclass(frozen=True)
class InputNumbers:
    """What is known of an input of numbers.

    Attributes:
        numbers: the distribution of real inputs.
        source: str, what tells it, for a report; None: nothing, so the distribution is a guess.
        raw: the layers that multiply the input by a kernel, if its values are so large or of such
            different scales that 8 bits cannot hold them.
    """

    numbers: Numbers
    source: str | None
    raw: tuple[keras.layers.Layer, ...] = ()


@dataclass(frozen=True)
class _Path:
    """A tensor that is `factor` * x + `offset`, in the order of x's numbers, for an input x.

    Attributes:
        columns: those of the tensor that x has; the others are those of other inputs.
    """

    factor: np.ndarray
    offset: np.ndarray
    columns: slice


@dataclass(frozen=True)
class _Product:
    """A layer with a kernel (..., F, D) that reads a tensor of a path and a shape, without rows."""

    layer: keras.Layer
    kernel: np.ndarray
    path: _Path
    shape: tuple[int | None, ...]


def input_numbers(model: keras.Model) -> dict[str, InputNumbers]:
    """What is known of each input of a functional model that is neither ids, pixels nor audio."""
    inputs = interface_of(model).inputs
    read: dict[str, list[_Product]] = {}
    told: dict[str, InputNumbers] = {}
    for name, known in inputs.items():
        x = known.spec
        is_other = known.vocabulary_size is not None or known.is_pixels or known.audio is not None
        if is_other or x.dtype == "bool" or is_mask(name, None):
            continue
        products = _products(model, x)
        if products:
            read[name], told[name] = products, _distribution(x, products)
        elif "float" in x.dtype:
            told[name] = InputNumbers(Numbers(), None)
    raw = {id(layer) for found in told.values() for layer in found.raw}
    for name, products in read.items():
        scaled = any(map(_is_scaled, products))
        # What a kernel with ordinary rows tells is its initialisation.
        if not scaled and not any(id(p.layer) in raw for p in products):
            is_float = "float" in inputs[name].spec.dtype
            told[name] = InputNumbers(Numbers(0.0, 1.0 if is_float else 2.0), None)
    return told


def _distribution(x: keras.KerasTensor, products: list[_Product]) -> InputNumbers:
    """The distribution of an input that the products tell."""
    scaled = [p for p in products if _is_scaled(p)]
    if scaled:
        numbers, source = _of_normalization(scaled[0].path), "the layers before its first product"
    else:
        numbers, source = _of_weights(x, products), f"the weights of {products[0].layer.name!r}"
    return InputNumbers(numbers, source, tuple(p.layer for p in products if _is_raw(numbers)))


def _is_scaled(product: _Product) -> bool:
    """Whether the tensor is x in another scale or far away, not x with positions added."""
    path = product.path
    return bool(np.any(np.abs(path.factor - 1) > _CLOSE) or np.any(np.abs(path.offset) > _FAR))


def _is_raw(numbers: Numbers) -> bool:
    largest = np.max(np.minimum(np.abs(numbers.mean) + 3 * numbers.deviation, numbers.most))
    return bool(largest > _RAW * np.min(numbers.deviation))


def _of_normalization(path: _Path) -> Numbers:
    """The inputs that become normally distributed, or pixels from 0 to 255."""
    factor, offset = path.factor, path.offset
    if np.all(factor == factor.flat[0]) and 0.9 < 255 * factor.flat[0] < 2.1:
        return Numbers(np.asarray(127.5), np.asarray(74.0), 0.0, 255.0)
    used = np.where(factor == 0, 1.0, factor)
    return Numbers(-offset / used, 1 / np.abs(used))


def _of_weights(x: keras.KerasTensor, products: list[_Product]) -> Numbers:
    """The inputs whose products with the kernels have mean 0 and standard deviation 1.

    A normalisation (x - m) / s before a kernel K and a bias b is the kernel K / s and the bias
    b - (m / s) K. So the rows of the kernel tell s, and the bias tells m, in the directions that
    the kernel reads.
    """
    first = products[0]
    same = [p for p in products if p.kernel.shape[-2] == first.kernel.shape[-2]]
    sums = np.concatenate([p.kernel.reshape(-1, *p.kernel.shape[-2:]).sum(0) for p in same], -1)
    squares = [np.square(p.kernel.reshape(-1, *p.kernel.shape[-2:])).sum(0) for p in same]
    norms = np.sqrt(np.concatenate(squares, -1).mean(axis=-1))
    size = len(norms)
    deviation = 1 / (np.sqrt(size) * np.where(norms > 0, norms, 1 / np.sqrt(size)))
    mean = np.zeros(size)
    biases = [getattr(p.layer, "bias", None) for p in same]
    if all(b is not None and len(b.shape) == 1 for b in biases):
        bias = np.concatenate([keras.ops.convert_to_numpy(b).astype("float64") for b in biases])
        if len(bias) == sums.shape[-1]:
            mean = deviation * _solve((sums * deviation[:, np.newaxis]).T, -bias)
    shape = [d or 1 for d in x.shape[1:]]

    def of_input(values: np.ndarray) -> np.ndarray:
        wide = np.broadcast_to(values, [d or 1 for d in first.shape])
        return wide[..., first.path.columns].reshape(shape)

    return Numbers(of_input(mean), of_input(deviation))


def _solve(matrix: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The least u with `matrix` u = `values`, but for directions that the matrix hardly reads."""
    rows, columns = matrix.shape
    gram = matrix @ matrix.T if rows < columns else matrix.T @ matrix
    ridge = _RIDGE * np.trace(gram) / len(gram)
    gram += (ridge or 1.0) * np.eye(len(gram))
    if rows < columns:
        return np.asarray(matrix.T @ np.linalg.solve(gram, values))
    return np.asarray(np.linalg.solve(gram, matrix.T @ values))


def _products(model: keras.Model, x: keras.KerasTensor) -> list[_Product]:
    """The layers with a kernel that read a symbolic input, changed at most number by number."""
    ones = np.ones([1] * (len(x.shape) - 1))
    reached = {id(x): _Path(ones, 0 * ones, slice(0, x.shape[-1]))}
    found: list[_Product] = []
    for node in nodes_in_order(model):
        operation, inputs = functional_of(node.operation), node.input_tensors
        taken = [i for i, tensor in enumerate(inputs) if id(tensor) in reached]
        if not taken:
            continue
        path, read = reached[id(inputs[taken[0]])], inputs[taken[0]]
        kernel = _kernel(operation, read.shape[-1])
        if kernel is not None:
            found.append(_Product(operation, kernel, path, tuple(read.shape[1:])))
            continue
        if isinstance(operation, keras.Model) and hasattr(operation, "operations"):
            for p in _products(operation, keras.tree.flatten(operation.input)[taken[0]]):
                own = p.path
                new = _Path(
                    own.factor * path.factor, own.factor * path.offset + own.offset, own.columns
                )
                found.append(_Product(p.layer, p.kernel, new, p.shape))
        columns = path.columns
        if type(operation).__name__ == "Concatenate":
            before = sum(tensor.shape[-1] or 0 for tensor in inputs[: taken[0]])
            columns = slice(before + columns.start, before + columns.stop)
        if not any(len(w.shape) > 1 for w in getattr(operation, "weights", ())):
            for y in node.output_tensors:
                line = _line(model, x, y, columns)
                if line is not None:
                    reached[id(y)] = line
    return found


def _kernel(operation: keras.Operation, width: int | None) -> np.ndarray | None:
    """The kernel (..., F, D) of a layer that multiplies its input's last axis (F) by it."""
    known = keras.layers.Dense | keras.layers.EinsumDense | keras.layers.Conv1D
    known = known | keras.layers.Conv2D | keras.layers.Conv3D
    if not isinstance(operation, known):
        return None
    kernel = keras.ops.convert_to_numpy(operation.kernel).astype("float64")
    if isinstance(operation, keras.layers.EinsumDense):
        kernel = kernel.reshape(kernel.shape[0], -1)
    fits = kernel.ndim > 1 and kernel.shape[-2] == width and np.all(np.isfinite(kernel))
    return kernel if fits else None


def _line(
    model: keras.Model, x: keras.KerasTensor, y: keras.KerasTensor, columns: slice
) -> _Path | None:
    """The path to a tensor y whose numbers are lines of those of x; None if they are not."""
    shape = [d or 2 for d in x.shape[1:]]
    places = np.random.default_rng(0).uniform(-1, 1, shape)
    if "uint" in x.dtype:
        places = np.abs(places)
    probe = _PROBE if "int8" not in x.dtype else 100.0
    rows = [np.zeros(shape), np.full(shape, probe), np.rint(probe * places)]
    if not isinstance(y, keras.KerasTensor) or (
        None in x.shape[1:] and len(y.shape) != len(x.shape)
    ):
        return None
    try:
        function = keras.Model(model.inputs, y)
        values = [_value(function, x, row) for row in rows]
        if values[0].size != places.size:
            values = [value[..., columns] for value in values]
        else:
            columns = slice(0, y.shape[-1])
        values = [value.reshape(shape) for value in values]
    except Exception:  # an operation may refuse lengths or values that were made up
        return None
    offset, factor = values[0], (values[1] - values[0]) / probe
    allowed = _CLOSE * (np.abs(factor) * probe + np.abs(offset))
    if not np.all(np.abs(values[2] - factor * rows[2] - offset) <= allowed) or not np.any(factor):
        return None
    # Lengths that are open have one value for all positions: that of the first.
    first = tuple(slice(1) if d is None else slice(None) for d in x.shape[1:])
    return _Path(factor[first], offset[first], columns)


def _value(function: keras.Model, x: keras.KerasTensor, row: np.ndarray) -> np.ndarray:
    """The result for one row of x, with zeros for the other inputs."""
    arrays = []
    for tensor in function.inputs:
        shape = [d or (2 if i else 1) for i, d in enumerate(tensor.shape)]
        values = row if tensor is x else np.zeros(shape[1:])
        arrays.append(
            keras.ops.convert_to_tensor(np.broadcast_to(values, shape).astype(tensor.dtype))
        )
    result = function(arrays, training=False)
    return np.asarray(keras.ops.convert_to_numpy(result)[0].astype("float64"))
