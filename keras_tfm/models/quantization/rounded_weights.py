"""Which weights of a model are rounded, and to which grid.

>>> import keras
>>> from keras_tfm.models.quantization.rounded_weights import rounded_weights
>>> x = keras.Input((64,))
>>> model = keras.Model(x, keras.layers.Dense(16, name="head")(x))
>>> [(x.variable.path, x.grid.bits) for x in rounded_weights(model, "int4")]
[('head/kernel', 4)]
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import keras

from keras_tfm.keras_internals import sublayers
from keras_tfm.layers.embeddings.token_embedding import TokenEmbedding
from keras_tfm.models.quantization.named_layers import named_weights
from keras_tfm.models.quantization.rounding import BLOCK, Grid

# In "int8", smaller weights stay float32: the converter's rule.
SMALLEST_INT8 = 1024


class RoundedWeight(NamedTuple):
    """A weight, and the grid of its values."""

    variable: keras.Variable
    grid: Grid


def layers_of(
    model: keras.Layer, weights: Iterable[RoundedWeight]
) -> list[tuple[keras.Layer, int]]:
    """The layers that multiply with these weights, each with the number of its weight.

    Several layers may share one.
    """
    numbers = {id(x.variable): number for number, x in enumerate(weights)}
    return [
        (layer, numbers[id(variable)])
        for layer in sublayers(model)
        for variable, _ in _weights_of(layer)
        if id(variable) in numbers
    ]


def rounded_weights(
    model: keras.Layer,
    quantization: str,
    keep_float: Sequence[str] = (),
    keep_int8: Sequence[str] = (),
) -> list[RoundedWeight]:
    """The weights that a file stores rounded, each once, with their grids.

    These are the matrices of `Dense`, `EinsumDense` and `TokenEmbedding` layers, and the kernels of
    `Conv1D` and `Conv2D`. "int4": 4 bits where the number of inputs is a multiple of 32; 8 bits for
    other matrices and convolutions. "int8": 8 bits, from 1024 values on.

    Args:
        model: `keras.Model`.
        quantization: str, "int8" or "int4".
        keep_float, keep_int8: names of layers, see `named_weights`.

    Raises:
        TypeError, ValueError: see `named_weights`.
    """
    kept, eight = (
        {id(x) for found in named_weights(model, names, option).values() for x in found}
        for names, option in ((keep_float, "keep_float"), (keep_int8, "keep_int8"))
    )
    found: dict[int, RoundedWeight] = {}
    for layer in sublayers(model):
        for variable, (first, last) in _weights_of(layer):
            width = math.prod(variable.shape[first:last])
            bits = 8
            if quantization == "int4" and not _is_convolution(layer) and width % BLOCK == 0:
                bits = 8 if id(variable) in eight else 4
            is_small = quantization == "int8" and math.prod(variable.shape) < SMALLEST_INT8
            if id(variable) not in kept and not is_small:
                found[id(variable)] = RoundedWeight(variable, Grid(bits, first, last))
    return list(found.values())


def _is_convolution(layer: keras.Layer) -> bool:
    return isinstance(layer, keras.layers.Conv1D | keras.layers.Conv2D)


def _weights_of(layer: keras.Layer) -> Iterator[tuple[keras.Variable, tuple[int, int]]]:
    """The matrices of a layer, and the range of the axes that are inputs."""
    if not layer.built:
        return
    if isinstance(layer, TokenEmbedding):
        yield layer.embeddings, (1, 2)
    elif isinstance(layer, keras.layers.Dense):
        yield kernel_of(layer), (0, 1)
    elif _is_convolution(layer):
        if layer.groups == 1:
            yield kernel_of(layer), (0, len(layer.kernel.shape) - 1)
    elif isinstance(layer, keras.layers.EinsumDense):
        inputs = _input_axes(layer.equation)
        if inputs is not None:
            yield kernel_of(layer), inputs


def kernel_of(layer: keras.Layer) -> keras.Variable:
    """The variable of a layer's kernel: `layer.kernel` has the adapter of LoRA in it."""
    return next(x for x in layer.variables if x.name == "kernel")


def _input_axes(equation: str) -> tuple[int, int] | None:
    """The axes of an einsum's kernel that are summed over, if it is a matrix product.

    >>> _input_axes("abc,cde->abde"), _input_axes("...de,def->...f"), _input_axes("ab,ab->ab")
    ((0, 1), (0, 2), None)
    """
    operands, result = equation.replace(" ", "").split("->")
    inputs, kernel = operands.split(",")
    summed = [i for i, x in enumerate(kernel) if x in inputs and x not in result]
    rest = {x for i, x in enumerate(kernel) if i not in summed}
    is_product = summed and rest and rest.isdisjoint(inputs) and rest <= set(result)
    if not is_product or summed != list(range(summed[0], summed[-1] + 1)):
        return None
    return summed[0], summed[-1] + 1
