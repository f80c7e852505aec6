"""Rounds the inputs of layers with rounded weights, as XNNPACK does when the file runs.

No layer knows of it: inside `rounded_inputs`, the method that multiplies with the weight gets the
rounded input.

Example:

>>> import keras, numpy as np
>>> from keras_tfm.models.quantization.rounded_inputs import observe, rounded_inputs
>>> dense = keras.layers.Dense(1, kernel_initializer="ones")
>>> dense.build((None, 3))
>>> x = np.array([[0.04, 0.14, 25.5]], "float32")
>>> with rounded_inputs(observe([dense])):  # to multiples of 0.1
...     round(float(dense(x)[0, 0]), 2)
25.6
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras
from keras import ops

from keras_tfm.layers.embeddings.token_embedding import TokenEmbedding
from keras_tfm.layers.types import Tensor
from keras_tfm.models.quantization.rounding import round_rows

# By the id of a layer, the axes of its input that share a scale; None: all but the first.
Axes = Mapping[int, tuple[int, ...] | None]
# Of the input of a layer, and its axes.
Change = Callable[[Tensor, tuple[int, ...] | None], Tensor]
_current: ContextVar[tuple[Axes, Change] | None] = ContextVar("rounded_inputs", default=None)
# The methods that multiply an input with the weight.
_METHODS = ("call", "columns")


def observe(layers: Iterable[keras.Layer]) -> Axes:
    """Lets `rounded_inputs` round the inputs of these layers; returns its argument."""
    found = {}
    for layer in layers:
        for name in _METHODS:
            if hasattr(layer, name) and name not in vars(layer):
                vars(layer)[name] = _with_rounded_input(layer, getattr(layer, name))
        found[id(layer)] = _input_axes(layer)
    return found


@contextmanager
def rounded_inputs(axes: Axes, change: Change = round_rows) -> Iterator[None]:
    """The context in which the layers of `observe` read what `change` makes of their inputs."""
    token = _current.set((axes, change))
    try:
        yield
    finally:
        _current.reset(token)


def _with_rounded_input(layer: keras.Layer, method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(method)
    def run(inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        axes, change = _current.get() or ({}, round_rows)
        is_lookup = isinstance(layer, TokenEmbedding) and not kwargs.get("reverse", any(args))
        if id(layer) not in axes or is_lookup:
            return method(inputs, *args, **kwargs)
        rounded = change(inputs, axes[id(layer)])
        result = method(rounded, *args, **kwargs)
        if change is not round_rows or not getattr(layer, "lora_enabled", False):
            return result
        # An adapter's matrices are float32, and its input is not rounded.
        low = ops.matmul(inputs - rounded, ops.cast(layer.lora_kernel_a, inputs.dtype))
        rest = ops.matmul(low, ops.cast(layer.lora_kernel_b, inputs.dtype))
        columns = slice(*args) if len(args) == 2 else slice(None)
        return result + layer.lora_alpha / layer.lora_rank * rest[..., columns]

    return run


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
