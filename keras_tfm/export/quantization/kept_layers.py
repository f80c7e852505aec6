"""Layers whose weights keep more bits: found by name in the model, by value in the file."""

from collections.abc import Iterator, Mapping, Sequence

import keras
import numpy as np

from keras_tfm.keras_internals import sublayers
from keras_tfm.models.quantization.named_layers import named_weights

# The rounding error of folding a factor into a float32 weight, relative to the row's largest value.
_ROUNDING = 1e-5


def find_layers(
    model: keras.Model, names: Sequence[str], option: str = "keep_float"
) -> dict[str, list[np.ndarray]]:
    """The weights of rank 2 and higher of the layers of each name.

    Args:
        model: functional `keras.Model`.
        names: layer names, paths, or consecutive parts of paths: "self_attention/key" means the
            layer "key" of every layer "self_attention".
        option: str, the argument that has the names, for errors.

    Raises:
        TypeError: `names` is one string.
        ValueError: no layer has one of the names (the error lists similar names), or its layers
            have only vectors such as biases, which are never quantised.

    >>> import keras
    >>> from keras_tfm.export.quantization.kept_layers import find_layers
    >>> x = keras.Input((4,))
    >>> model = keras.Model(x, keras.layers.Dense(3, name="head")(x))
    >>> {name: [w.shape for w in weights] for name, weights in find_layers(model, ["head"]).items()}
    {'head': [(4, 3)]}
    """
    return {
        name: [keras.ops.convert_to_numpy(x).astype("float32") for x in weights]
        for name, weights in named_weights(model, names, option).items()
    }


def find_constants(model: keras.Model) -> dict[str, list[np.ndarray]]:
    """The constants that no preset may round: those of layers with a method `exact_constants`.

    >>> import keras
    >>> from keras_tfm.export.quantization.kept_layers import find_constants
    >>> from keras_tfm.layers import LogMelSpectrogram
    >>> x = keras.Input((300,))
    >>> model = keras.Model(x, LogMelSpectrogram(name="mel")(x))
    >>> {name: [x.shape for x in found] for name, found in find_constants(model).items()}
    {'mel': [(400, 1, 402), (201, 80)]}
    """
    layers = [layer for layer in sublayers(model) if hasattr(layer, "exact_constants")]
    return {_path(layer): layer.exact_constants() for layer in layers}


def find_buffers(
    stored: Mapping[int, np.ndarray],
    layers: dict[str, list[np.ndarray]],
    option: str = "keep_float",
    required: bool = True,
) -> dict[int, np.ndarray]:
    """The weights of the file that belong to the layers, by the index of their buffer.

    They are compared by value, because a file's tensors are named after the last operator that used
    them. The converter transposes kernels and folds factors into them, from before the layer (the
    gamma of a normalisation) or from after it.

    Args:
        stored: the file's weights in float32, by the index of their buffer.
        layers: the result of `find_layers`.
        option: str, as in `find_layers`.
        required: bool, whether the file must have weights of each layer.

    Raises:
        ValueError: none of the weights of a name would be quantised, and they are required.

    >>> import numpy as np
    >>> from keras_tfm.export.quantization.kept_layers import find_buffers
    >>> kernel = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 7.0]], "float32")
    >>> other = np.array([[1.0, 2.0], [3.0, 5.0], [4.0, 7.0]], "float32")
    >>> list(find_buffers({8: other, 9: 0.5 * kernel.T}, {"head": [kernel]}))
    [9]
    """
    kept = {}
    for name, weights in layers.items():
        found = {
            buffer: values
            for buffer, values in stored.items()
            if any(_holds(values, weight) for weight in weights)
        }
        if required and not found:
            raise ValueError(
                f"{option}: no weight of {name!r} is one that would be quantised "
                "(of a matrix product, a convolution or a lookup); leave it out"
            )
        kept.update(found)
    return kept


def exact_buffers(
    stored: Mapping[int, np.ndarray], kernels: Mapping[str, np.ndarray]
) -> dict[str, list[int]]:
    """The indices of the buffers that hold each kernel (D, F), transposed and bit for bit.

    Args:
        stored: the file's weights in float32, by the index of their buffer.
        kernels: float32 arrays by name.

    Raises:
        ValueError: no buffer holds a kernel.

    >>> import numpy as np
    >>> from keras_tfm.export.quantization.kept_layers import exact_buffers
    >>> kernel = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 7.0]], "float32")
    >>> exact_buffers({8: kernel, 9: kernel.T}, {"head": kernel})
    {'head': [9]}
    """
    buffers: dict[bytes, list[int]] = {}
    for buffer, values in stored.items() if kernels else ():
        buffers.setdefault(values.tobytes(), []).append(buffer)
    found = {}
    for name, kernel in kernels.items():
        found[name] = buffers.get(kernel.T.tobytes(), [])
        if not found[name]:
            raise ValueError(f"the file has no weight {name} of its own: report this model")
    return found


def _path(layer: keras.Layer) -> str:
    return getattr(layer, "path", None) or layer.name


def _holds(values: np.ndarray, weight: np.ndarray) -> bool:
    """Whether `values` are `weight` rearranged and scaled by factors per output and per input.

    Or adjacent outputs of it, if it is a matrix (inputs, outputs).
    """
    if values.size == weight.size:
        return any(_proportional(values.reshape(x.shape), x) for x in _arrangements(weight))
    if values.ndim != 2 or weight.ndim != 2 or values.shape[1] != len(weight):
        return False
    count = len(values)
    starts = _starts(values, weight.T) if count < weight.shape[1] else ()
    return any(_proportional(values, weight.T[start : start + count]) for start in starts)


def _starts(values: np.ndarray, rows: np.ndarray) -> list[int]:
    """The rows that the first one of `values` may be, times factors per row and per column.

    With such factors, a b' = a' b for two rows (a, a') and (b, b') of two columns. A single row has
    factors of its own alone, as if it were followed by ones.
    """
    count = len(rows) - len(values) + 1
    few = np.argsort(np.abs(values[0]))[-8:]  # in ascending order
    first = values[0, few].astype("float64")
    second = values[1, few].astype("float64") if len(values) > 1 else np.ones(len(few))
    known = rows[:, few].astype("float64")
    following = known[1 : count + 1] if len(values) > 1 else np.ones((count, len(few)))
    ours = known[:count, -1:] * following * first * second[-1]
    theirs = known[:count] * following[:, -1:] * first[-1] * second
    allowed = 4 * _ROUNDING * np.maximum(np.abs(ours), np.abs(theirs)).max(axis=1, keepdims=True)
    return np.flatnonzero(np.all(np.abs(ours - theirs) <= allowed, axis=1)).tolist()


def _arrangements(weight: np.ndarray) -> Iterator[np.ndarray]:
    """The weight as a matrix (outputs, inputs), for each way to group its axes."""
    yield weight.reshape(1, -1)
    for axis in range(1, weight.ndim):
        matrix = weight.reshape(int(np.prod(weight.shape[:axis])), -1)
        for rows in (matrix, matrix.T):
            if rows.shape[1] > 1:  # rows of one value are proportional to any other
                yield rows


def _proportional(values: np.ndarray, rows: np.ndarray) -> bool:
    """Whether `values` are `rows` times a factor per row and, with several rows, per column."""
    largest = np.max(np.abs(values), axis=1, keepdims=True)
    columns, before = np.ones((1, rows.shape[1])), np.inf
    while True:
        scaled = rows * columns
        factors = _factors(values, scaled, axis=1)
        errors = np.abs(values - factors * scaled)
        if np.all(errors <= _ROUNDING * largest):
            return True
        # Each pass reduces the error a lot only if the weights are the same.
        if len(rows) == 1 or np.sum(errors) > 0.8 * before:
            return False
        before = np.sum(errors)
        columns = _factors(values, rows * factors, axis=0)


def _factors(values: np.ndarray, rows: np.ndarray, axis: int) -> np.ndarray:
    """The factors of `rows` with the least squared error, one per index of the other axis."""
    norms = np.sum(np.square(rows, dtype="float64"), axis=axis, keepdims=True)
    products = np.sum(np.multiply(values, rows, dtype="float64"), axis=axis, keepdims=True)
    return products / np.where(norms == 0.0, 1.0, norms)
