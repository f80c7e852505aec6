"""A function run eagerly, as a graph and under XLA; its gradients."""

import keras
import pytest

tensorflow_only = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="uses TensorFlow directly"
)

# NumPy 2 warns about how Keras reads TensorFlow's variables when it saves them.
saving = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

GRAPHS = [pytest.param(mode, marks=tensorflow_only) for mode in ("graph", "xla")]
EVERY_MODE = ["eager", *GRAPHS]
# XLA on request: that every layer is under it what it is outside, test_contract.py tests.
MODES = [*EVERY_MODE[:2], pytest.param("xla", marks=[tensorflow_only, pytest.mark.slow])]


def compiled(mode, function):
    """`function`, to be run as one of EVERY_MODE."""
    if mode == "eager":
        return function
    import tensorflow as tf

    return tf.function(function, jit_compile=mode == "xla", autograph=False)


def execute(mode, function, *arguments):
    """`function(*arguments)` with the arguments as tensors, run as one of EVERY_MODE."""
    arguments = keras.tree.map_structure(keras.ops.convert_to_tensor, arguments)
    return compiled(mode, function)(*arguments)


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


def epoch_iterator(x, **kwargs):
    """That of `fit`, of the TensorFlow backend."""
    import tensorflow as tf
    from keras.src.backend.tensorflow.trainer import TFEpochIterator

    return TFEpochIterator(tf.distribute.get_strategy(), x=x, **kwargs)
