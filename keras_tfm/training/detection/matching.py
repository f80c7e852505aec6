"""The cheapest assignment of queries to objects, found by SciPy outside the graph."""

import importlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tfm.layers.types import Shape, Tensor
from keras_tfm.optional_package import optional_package

# In place of a cost that is infinite or not a number: such a pair is matched only without choice.
_FORBIDDEN = float(np.finfo("float32").max)


def hungarian_matching(cost: Tensor, mask: Tensor | None = None) -> Tensor:
    """Assigns one query to each object so that the sum of the costs is least.

    Kuhn's Hungarian method (1955), by `scipy.optimize.linear_sum_assignment`. It runs on the host:
    a TensorFlow graph calls it by `tf.numpy_function`, so XLA cannot compile it; JAX calls it by
    `jax.pure_callback`. There is no gradient.

    Args:
        cost: (B, N, M), float, the cost of each query (N) for each object (M). NaN and infinite
            costs count as the highest one.
        mask: (B, M), boolean, True = object, False = padding. Default: there is no padding.

    Returns:
        (B, M), int32, the query of each object; -1 for padding, and for objects left over if there
        are more objects than queries.

    Raises:
        ModuleNotFoundError: SciPy is not installed; the message names the extra to install.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.training import hungarian_matching
    >>> cost = np.array([[[1.0, 2.0], [0.0, 9.0], [5.0, 5.0]]], "float32")
    >>> np.array(hungarian_matching(cost)).tolist()
    [[1, 0]]
    """
    cost = ops.convert_to_tensor(cost)
    if mask is None:
        mask = ops.ones((ops.shape(cost)[0], ops.shape(cost)[2]), "bool")
    mask = ops.convert_to_tensor(mask)
    shape = (cost.shape[0], cost.shape[2])
    return on_host(assign, (ops.stop_gradient(cost), mask), shape)


def assign(cost: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """`hungarian_matching` of arrays."""
    scipy = import_scipy()
    cost = np.where(np.isfinite(cost), cost, _FORBIDDEN).astype("float64")
    result = np.full(mask.shape, -1, "int32")
    for row, costs, objects in zip(result, cost, mask, strict=True):
        places = np.flatnonzero(objects)
        queries, columns = scipy.linear_sum_assignment(costs[:, places])
        row[places[columns]] = queries
    return result


def on_host(
    function: Callable[..., np.ndarray], inputs: tuple[Tensor, ...], shape: Shape
) -> Tensor:
    """The int32 result of a NumPy function of tensors, also in a graph.

    Args:
        function: function of arrays that returns an int32 array.
        inputs: the tensors.
        shape: the result's shape; on TensorFlow sizes may be None.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        tf = importlib.import_module("tensorflow")
        result = tf.numpy_function(function, inputs, tf.int32)
        return tf.ensure_shape(result, shape)
    if backend == "jax":
        jax = importlib.import_module("jax")
        spec = jax.ShapeDtypeStruct(shape, "int32")
        return jax.pure_callback(
            lambda *arrays: function(*map(np.asarray, arrays)),
            spec,
            *inputs,
            vmap_method="sequential",
        )
    return ops.convert_to_tensor(function(*map(ops.convert_to_numpy, inputs)))


def import_scipy() -> Any:
    """Imports `scipy.optimize`; the error names the extra to install."""
    return optional_package(
        "scipy.optimize", "training a detector needs SciPy", "scipy", extra="detection"
    )
