"""Matrix products of few bits, as GPUs and TPUs compute them by default, on a CPU."""

from contextlib import contextmanager

import keras
import pytest


def _rounded(bits):
    drop, half = 23 - bits, 1 << (22 - bits)
    keep = ~((1 << drop) - 1)

    def tensorflow(x):
        import tensorflow as tf

        x = tf.convert_to_tensor(x)
        if x.dtype != tf.float32:
            return x
        words = tf.bitwise.bitwise_and(tf.bitcast(x, tf.int32) + half, keep)
        return tf.bitcast(words, tf.float32)

    def jax(x):
        import jax

        if x.dtype != "float32":
            return x
        words = (jax.lax.bitcast_convert_type(x, "int32") + half) & keep
        return jax.lax.bitcast_convert_type(words, "float32")

    return {"tensorflow": tensorflow, "jax": jax}[keras.backend.backend()]


@contextmanager
def rounded_products(bits):
    """Inputs of float32 products and convolutions are rounded to `bits` bits of mantissa.

    10 bits are TF32, 7 are bfloat16. No setting of the backend's precision turns it off.
    """
    rounded = _rounded(bits)

    def of_two(function):
        return lambda a, b, *rest, **named: function(rounded(a), rounded(b), *rest, **named)

    def of_equation(function):
        return lambda equation, *parts, **named: function(equation, *map(rounded, parts), **named)

    with pytest.MonkeyPatch.context() as patch:
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            patch.setattr(tf, "matmul", of_two(tf.matmul))
            patch.setattr(tf, "tensordot", of_two(tf.tensordot))
            patch.setattr(tf, "einsum", of_equation(tf.einsum))
            patch.setattr(tf.nn, "convolution", of_two(tf.nn.convolution))
        else:
            import jax
            from jax._src.lax import lax

            product = of_two(jax.lax.dot_general)
            patch.setattr(jax.lax, "dot_general", product)
            patch.setattr(lax, "dot_general", product)
            patch.setattr(jax.lax, "conv_general_dilated", of_two(jax.lax.conv_general_dilated))
            jax.clear_caches()  # functions that were traced with other products
        yield
    if keras.backend.backend() == "jax":
        jax.clear_caches()
