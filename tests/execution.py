"""A function run eagerly, as a graph and under XLA; its gradients."""

import keras
import pytest

tensorflow_only = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="uses TensorFlow directly"
)

GRAPHS = [pytest.param(mode, marks=tensorflow_only) for mode in ("graph", "xla")]
MODES = ["eager", *GRAPHS]


def execute(mode, function, *arguments):
    """`function(*arguments)`, run as one of MODES."""
    if mode == "eager":
        return function(*arguments)
    import tensorflow as tf

    arguments = tf.nest.map_structure(tf.convert_to_tensor, arguments)
    return tf.function(function, jit_compile=mode == "xla", autograph=False)(*arguments)


def gradients(function, variables, *arguments):
    """The gradients of the scalar `function(*arguments)`: of each variable, of each argument."""
    import tensorflow as tf

    arguments = [tf.convert_to_tensor(x) for x in arguments]
    with tf.GradientTape() as tape:
        tape.watch(arguments)
        result = function(*arguments)
    values = [variable.value for variable in variables]
    zero = tf.UnconnectedGradients.ZERO
    return tape.gradient(result, (values, arguments), unconnected_gradients=zero)
