"""Rounds the inputs of layers with rounded weights, as XNNPACK does when the file runs.

No layer knows of it: inside `rounded_inputs`, the method that multiplies with the weight gets the
rounded input.

Example:

>>> import keras, numpy as np
>>> from keras_tfm.models.quantization.rounded_inputs import observe, rounded_inputs
>>> from keras_tfm.models.quantization.rounding import Grid
>>> dense = keras.layers.Dense(1, kernel_initializer="ones")
>>> dense.build((None, 3))
>>> x = np.array([[0.04, 0.14, 25.5]], "float32")
>>> with rounded_inputs(observe([(dense, Grid(8, 0, 1))])):  # to multiples of 0.1
...     round(float(dense(x)[0, 0]), 2)
25.6
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_tfm.layers.base_layer import Projection
from keras_tfm.layers.embeddings.token_embedding import TokenEmbedding
from keras_tfm.layers.types import Tensor
from keras_tfm.models.quantization.rounding import Grid, round_rows


class RoundedInput(NamedTuple):
    """How the input of a layer is rounded.

    Attributes:
        axes: the axes that share a scale; None: all but the first.
        grid: the grid of the weight. Its offsets multiply the input before it is rounded.
    """

    axes: tuple[int, ...] | None
    grid: Grid


# By the id of a layer.
Inputs = Mapping[int, RoundedInput]
# Of the input of a layer, and its axes.
Change = Callable[[Tensor, tuple[int, ...] | None], Tensor]
_current: ContextVar[tuple[Inputs, Change] | None] = ContextVar("rounded_inputs", default=None)


def observe(layers: Iterable[tuple[keras.Layer, Grid]]) -> Inputs:
    """Lets `rounded_inputs` round the inputs of these layers; returns its argument.

    Args:
        layers: layers with the grids of their weights.
    """
    found = {}
    for layer, grid in layers:
        # The method that multiplies an input with the weight, without an adapter.
        name = "affine" if isinstance(layer, Projection) else "call"
        if name not in vars(layer):
            vars(layer)[name] = _with_rounded_input(layer, getattr(layer, name))
        found[id(layer)] = RoundedInput(_input_axes(layer), grid)
    return found


@contextmanager
def rounded_inputs(inputs: Inputs, change: Change = round_rows) -> Iterator[None]:
    """The context in which the layers of `observe` read what `change` makes of their inputs."""
    token = _current.set((inputs, change))
    try:
        yield
    finally:
        _current.reset(token)


def _with_rounded_input(layer: keras.Layer, method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(method)
    def run(inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        found, change = _current.get() or ({}, round_rows)
        is_lookup = isinstance(layer, TokenEmbedding) and not kwargs.get("reverse", any(args))
        if id(layer) not in found or is_lookup:
            return method(inputs, *args, **kwargs)
        axes, grid = found[id(layer)]
        rounded = change(inputs, axes)
        columns = slice(*args[:2]) if isinstance(layer, Projection) else slice(None)
        exact = [] if change is not round_rows else _exact_products(layer, grid, inputs - rounded)
        if not exact:
            return method(rounded, *args, **kwargs)
        if isinstance(layer, Projection):
            return method(rounded, *args, **kwargs) + sum(x[..., columns] for x in exact)
        with _without_activation(layer) as activation:
            y = method(rounded, *args, **kwargs)
        return activation(y + sum(x[..., columns] for x in exact))

    return run


def _exact_products(layer: keras.Layer, grid: Grid, rest: Tensor) -> list[Tensor]:
    """Products of `rest`, what rounding took from the input, with what reads the exact input."""
    products = []
    if not isinstance(layer, Projection) and getattr(layer, "lora_enabled", False):
        low = ops.matmul(rest, ops.cast(layer.lora_kernel_a, rest.dtype))
        product = ops.matmul(low, ops.cast(layer.lora_kernel_b, rest.dtype))
        products.append(layer.lora_alpha / layer.lora_rank * product)
    if grid.offsets is None:
        return products
    if isinstance(layer, keras.layers.EinsumDense):
        shape = next(tuple(x.shape) for x in layer.variables if x.name == "kernel")
        levels = np.zeros(grid.rows(np.empty(shape, "int8")).shape, "int8")
        assert grid.scales is not None
        table = ops.cast(grid.values(levels, grid.scales, shape), rest.dtype)
        products.append(ops.einsum(layer.equation, rest, table))
    else:
        count = grid.offsets.shape[1]
        shape = (*ops.shape(rest)[:-1], count, rest.shape[-1] // count)
        sums = ops.sum(ops.reshape(rest, shape), axis=-1)
        products.append(ops.matmul(sums, ops.cast(grid.offsets.T, rest.dtype)))
    return products


@contextmanager
def _without_activation(layer: keras.Layer) -> Iterator[Callable[[Tensor], Tensor]]:
    """The context in which a layer's activation is the identity; yields the activation."""
    activation = getattr(layer, "activation", None)
    if activation is None:
        yield keras.activations.linear
        return
    vars(layer)["activation"] = keras.activations.linear  # past Keras, which would track it
    try:
        yield activation
    finally:
        vars(layer)["activation"] = activation


def _input_axes(layer: keras.Layer) -> tuple[int, ...] | None:
    """The axes of a layer's input that are summed over: they share a scale."""
    if isinstance(layer, keras.layers.Conv1D | keras.layers.Conv2D):
        return None
    if not isinstance(layer, keras.layers.EinsumDense):
        return (-1,)
    inputs, kernel = layer.equation.replace(" ", "").split("->")[0].split(",")
    result = layer.equation.split("->")[1]
    names = inputs.replace("...", "")
    summed = [i for i, x in enumerate(names) if x in kernel and x not in result]
    return tuple(i if inputs.endswith("...") else i - len(names) for i in summed)
