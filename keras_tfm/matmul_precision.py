"""The precision of float32 matrix products: on NVIDIA GPUs since Ampere it is TF32 by default."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def full_precision() -> Iterator[None]:
    """Computes float32 matrix products and convolutions in float32, not in TF32 or bfloat16.

    TensorFlow and JAX compute them in TF32 (10 bits of mantissa) on NVIDIA GPUs since Ampere, and
    JAX in bfloat16 on TPUs. A comparison of two computations, such as a step with a full pass or an
    exported file with its model, cannot tell an error from that rounding. On a CPU this changes
    nothing.

    On TensorFlow and PyTorch the setting is the process's: other threads compute in float32, too,
    while it holds.

    >>> from keras_tfm.matmul_precision import full_precision
    >>> with full_precision():
    ...     pass
    """
    import keras

    if keras.backend.backend() == "jax":
        import jax

        with jax.default_matmul_precision("highest"):
            yield
    elif keras.backend.backend() == "torch":
        import torch

        before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before[0])
            torch.backends.cudnn.allow_tf32 = before[1]
    else:
        import tensorflow as tf

        allowed = tf.config.experimental.tensor_float_32_execution_enabled()
        tf.config.experimental.enable_tensor_float_32_execution(False)
        try:
            yield
        finally:
            tf.config.experimental.enable_tensor_float_32_execution(allowed)


def product_rounding() -> float:
    """The largest relative error with which a float32 matrix product reads its inputs.

    Measured on a product of 1 + 2^-k by the identity, which only the rounding of the inputs can
    change: 2^-11 in TF32, 2^-8 in bfloat16, 0 in float32.

    >>> from keras_tfm.matmul_precision import product_rounding
    >>> product_rounding() < 1e-6
    True
    """
    import numpy as np
    from keras import ops

    # Large enough for the kernels that use tensor cores.
    numbers = 1 + 2.0 ** -(np.arange(128) % 23 + 1)
    x = np.tile(numbers, (128, 1)).astype("float32")
    y = ops.convert_to_numpy(ops.matmul(ops.convert_to_tensor(x), ops.eye(128, dtype="float32")))
    return float(np.max(np.abs(y / x - 1)))
