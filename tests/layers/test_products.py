"""Products under XLA on a CPU are written differently: the same numbers, and the same gradients."""

import keras
import numpy as np
import pytest
from compare import assert_close

from keras_tfm.layers import Dropout, LayerNormalization, attention
from keras_tfm.layers.dropout import DrawnDropout
from keras_tfm.layers.products import is_compiled_for_cpu, query_key_product

if keras.backend.backend() != "tensorflow":
    pytest.skip("XLA by TensorFlow", allow_module_level=True)

import tensorflow as tf

RANDOM = np.random.default_rng(5)


def tensor(*shape):
    return tf.constant(RANDOM.normal(size=shape), "float32")


def test_who_compiles_is_known():
    """It is asked of TensorFlow by a function that is not public."""
    seen = []

    def look(x):
        seen.append(is_compiled_for_cpu())
        return x

    look(0)
    tf.function(look)(tf.zeros(2))
    assert seen == [False, False]
    tf.function(look, jit_compile=True)(tf.zeros(2))
    tf.function(lambda x: tf.function(look)(x), jit_compile=True)(tf.zeros(3))
    on_cpu = not tf.config.list_physical_devices("GPU")
    assert seen[2:] == [on_cpu, on_cpu]


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("key_heads", [4, 2])
def test_gradients_of_attention_compiled(key_heads, dropped):
    query, key, value = tensor(2, 4, 6, 3), tensor(2, key_heads, 9, 3), tensor(2, key_heads, 9, 5)
    upstream = tensor(2, 4, 6, 5)
    dropout = DrawnDropout(Dropout(0.3), tf.constant([3, 4])) if dropped else None

    def gradients(query, key, value):
        with tf.GradientTape() as tape:
            tape.watch([query, key, value])
            y = attention(query, key, value, dropout=dropout)
        return y, *tape.gradient(y, [query, key, value], upstream)

    wanted = tf.function(gradients)(query, key, value)
    found = tf.function(gradients, jit_compile=True)(query, key, value)
    for a, b in zip(found, wanted, strict=True):
        assert a.shape == b.shape
        assert_close(a, b, 1e-5)


def test_a_gradient_of_a_gradient_compiled():
    query, key = tensor(1, 2, 3, 4), tensor(1, 2, 5, 4)

    def penalty(query, key):
        with tf.GradientTape() as outer:
            outer.watch(key)
            with tf.GradientTape() as inner:
                inner.watch([query, key])
                y = tf.reduce_sum(query_key_product(query, key) ** 3)
            slopes = inner.gradient(y, [query, key])
            norm = sum(tf.reduce_sum(slope**2) for slope in slopes)
        return outer.gradient(norm, key)

    wanted = tf.function(penalty)(query, key)
    assert_close(
        tf.function(penalty, jit_compile=True)(query, key), wanted, 1e-4 * np.abs(wanted).max()
    )


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function])
def test_gradient_of_layer_normalization(wrap):
    """In training it is written out, and otherwise TensorFlow's; and so are those of it."""
    layer = LayerNormalization(epsilon=1e-3)
    layer.build((None, 7))
    layer.gamma.assign(tensor(7))
    x, upstream = tensor(2, 5, 7), tensor(2, 5, 7)

    def gradients(x, training):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x, training=training)
            slopes = tape.gradient(y, [x, *(v.value for v in layer.trainable_variables)], upstream)
            norm = sum(tf.reduce_sum(slope**2) for slope in slopes)
        return y, *slopes, outer.gradient(norm, x)

    run = wrap(gradients)
    for a, b in zip(run(x, True), run(x, False), strict=True):
        assert_close(a, b, 2e-5 * max(1.0, float(tf.reduce_max(tf.abs(b)))))
