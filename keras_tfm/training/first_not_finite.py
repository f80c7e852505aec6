"""Finds the origin of a loss that is NaN or infinite.

Example:

>>> import keras
>>> from keras_tfm.training.first_not_finite import of_weights
>>> x = keras.Input((1,))
>>> model = keras.Model(x, keras.layers.Dense(1, name="answer")(x))
>>> _ = model.weights[0].assign([[float("nan")]])
>>> of_weights(model)
'the weight answer/kernel has 1 nan of 1 numbers'
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import keras
import numpy as np
from keras import ops

from keras_tfm import keras_internals
from keras_tfm.layers.types import Tensor

# A batch of `fit`: tensors, or tuples and dictionaries of tensors.
Batch: TypeAlias = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
Call: TypeAlias = Callable[..., Tensor]


def first_not_finite(model: keras.Model, data: Batch) -> str:
    """Describes the first value of a training step on `data` that is NaN or infinite.

    It repeats the step eagerly with the current weights and checks in this order: inputs,
    labels, weights, the outputs of layers as they are computed (sublayers before the layer that
    contains them), the loss, and the gradients from the last weight to the first, as
    backpropagation computes them. Non-trainable variables are restored afterwards.

    Args:
        model: compiled model, on Keras's TensorFlow backend.
        data: the argument of `train_step`; under a strategy, a distributed batch.
    """
    values = model.distribute_strategy.experimental_local_results
    parts = len(values(keras.tree.flatten(data)[0]))
    reasons = [
        _of_batch(model, keras.tree.map_structure(lambda x, i=i: values(x)[i], data))
        for i in range(parts)
    ]
    return next((x for x in reasons if x), "all values are finite when the step is repeated")


def of_weights(model: keras.Model) -> str | None:
    """Describes the first weight that is not finite, or returns None."""
    for weight in model.weights:
        found = _describe(weight)
        if found:
            return f"the weight {weight.path} has {found}"
    return None


def _of_batch(model: keras.Model, data: Batch) -> str | None:
    import tensorflow as tf

    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    for kind, given in (("input", x), ("label", y), ("sample weight", sample_weight)):
        for path, value in keras.tree.flatten_with_path(given):
            found = _describe(value, rows=True)
            if found:
                name = "/".join(map(str, path)) or _only_name(model, kind)
                return f"{kind} {name} has {found}".replace("  ", " ")
    found = of_weights(model)
    if found:
        return found
    kept = [(v, ops.convert_to_numpy(v)) for v in model.non_trainable_variables]
    try:
        with _outputs(model) as bad, tf.GradientTape() as tape:
            y_pred = model(x, training=True)
            loss = model.compute_loss(
                x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True
            )
        if bad:
            return bad[0]
        found = _describe(y_pred)
        if found:
            return f"the model's output has {found}, computed by an operation outside any layer"
        found = _describe(loss)
        if found:
            return f"the outputs of all layers are finite, but their loss is {float(loss)}"
        weights = model.trainable_variables
        for weight, gradient in reversed(
            list(zip(weights, tape.gradient(loss, [w.value for w in weights]), strict=True))
        ):
            found = None if gradient is None else _describe(gradient)
            if found:
                return f"all outputs are finite, but the gradient of {weight.path} has {found}"
    finally:
        for variable, value in kept:
            variable.assign(value)
    return None


@contextmanager
def _outputs(model: keras.Model) -> Iterator[list[str]]:
    """Inside this context, a list that describes the first layer output that is not finite."""
    bad: list[str] = []

    def watch_outputs(layer: keras.layers.Layer, call: Call) -> Call:
        def run(*args: Tensor, **kwargs: Tensor) -> Tensor:
            outputs = call(*args, **kwargs)
            if not bad:
                found = _describe(outputs)
                if found:
                    bad.append(f"the output of {layer.path or layer.name} has {found}")
            return outputs

        return run

    layers = keras_internals.sublayers(model)
    for layer in layers:
        # Not setattr: Keras would track the function.
        object.__setattr__(layer, "call", watch_outputs(layer, layer.call))
    try:
        yield bad
    finally:
        for layer in layers:
            object.__delattr__(layer, "call")


def _describe(values: Batch, rows: bool = False) -> str | None:
    """The counts of NaN and infinite values, or None; with `rows`, also the first such row."""
    for value in keras.tree.flatten(values):
        if value is None or not hasattr(value, "dtype"):
            continue
        if "float" not in keras.backend.standardize_dtype(value.dtype):
            continue
        # The product is always a tensor, even if `value` is a variable with several replicas.
        x = ops.convert_to_numpy(ops.cast(ops.multiply(value, 1), "float32"))
        nan, infinite = int(np.isnan(x).sum()), int(np.isinf(x).sum())
        if nan or infinite:
            counts = [f"{n} {name}" for n, name in ((nan, "nan"), (infinite, "inf")) if n]
            row = ""
            if rows and x.ndim:
                first = np.nonzero(~np.isfinite(x).reshape(len(x), -1).all(axis=1))[0][0]
                row = f", row {first} first"
            return f"{' and '.join(counts)} of {x.size} numbers{row}"
    return None


def _only_name(model: keras.Model, kind: str) -> str:
    names = getattr(model, "inputs", None) or []
    return names[0].name if kind == "input" and len(names) == 1 else ""
