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


def _with_gradients(rounded):
    """Functions that round a product's inputs, and the gradient of its result."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        def of(forward, backward):
            @tf.custom_gradient
            def function(x):
                return forward(x), backward

            return lambda x: function(tf.convert_to_tensor(x))

        return of(rounded, tf.identity), of(tf.identity, rounded)
    import jax

    def of(forward, backward):
        function = jax.custom_vjp(forward)
        function.defvjp(lambda x: (forward(x), None), lambda _, dy: (backward(dy),))
        return lambda x: function(x) if x.dtype == "float32" else x

    return of(rounded, lambda x: x), of(lambda x: x, rounded)


@contextmanager
def rounded_products(bits):
    """Inputs of float32 products and convolutions are rounded to `bits` bits of mantissa.

    So are those of the products of their gradients.

    10 bits are TF32, 7 are bfloat16. No setting of the backend's precision turns it off.
    """
    rounded = _rounded(bits)

    forward, backward = _with_gradients(rounded)

    def of_two(function):
        return lambda a, b, *rest, **named: backward(
            function(forward(a), forward(b), *rest, **named)
        )

    def of_equation(function):
        return lambda equation, *parts, **named: backward(
            function(equation, *map(forward, parts), **named)
        )

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
