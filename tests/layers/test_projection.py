"""The dense layer of the layers here: Keras's, with its gradient in another form."""

import functools
import itertools

import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy
from execution import compiled, gradients, tensorflow_only
from keras_weights import built

from keras_tfm.layers.base_layer import Projection
from keras_tfm.layers.target import export_target

WIDTHS = [(3, 8), (8, 3), (5, 5)]
RANDOM = np.random.default_rng(7)


def pair(dim, units, **options):
    """A projection and Keras's layer with the same weights."""
    layers = [
        built(kind(units, **options), (None, None, dim))
        for kind in (Projection, keras.layers.Dense)
    ]
    layers[1].set_weights(layers[0].get_weights())
    return layers


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("shape", [(2, 4), (2, 3, 4), (2, 3, 5, 4), (2, 0, 4)])
def test_any_rank_on_a_device_and_elsewhere(shape, training):
    layer, reference = pair(4, 6, activation="relu")
    x = RANDOM.normal(size=shape).astype("float32")
    y = layer(x, training=training)
    assert y.shape == (*shape[:-1], 6)
    assert_close(y, reference(x), 1e-6)
    with export_target():
        assert_close(layer(x), reference(x), 1e-6)


@pytest.mark.parametrize("training", [False, True])
def test_integers_are_promoted_as_keras_does(training):
    layer, reference = pair(2, 3)
    ids = np.array([[[1, 2], [3, 4]]], "int32")
    np.testing.assert_array_equal(to_numpy(layer(ids, training=training)), to_numpy(reference(ids)))


@pytest.mark.parametrize(("rank", "alpha"), [(2, None), (3, 4.5)])
@pytest.mark.parametrize("training", [False, True])
def test_adapters_and_their_gradients_are_those_of_keras(rank, alpha, training):
    """x W + (alpha / rank) (x A) B here, x (W + (alpha / rank) A B) there."""
    layers = pair(5, 6, activation="gelu")
    for layer in layers:
        layer.enable_lora(rank, lora_alpha=alpha)
    for weight in layers[0].weights:
        weight.assign(RANDOM.normal(size=weight.shape))
    layers[1].set_weights(layers[0].get_weights())
    x = RANDOM.normal(size=(2, 3, 5)).astype("float32")
    assert_close(layers[0](x, training=training), layers[1](x, training=training), 1e-5)
    if keras.backend.backend() != "tensorflow":
        return
    found, wanted = (
        gradients(
            lambda x, layer=layer: keras.ops.sum(layer(x, training=training) ** 2),
            layer.trainable_variables,
            x,
        )
        for layer in layers
    )
    assert [len(y) for y in found] == [3, 1]  # A, B and the bias; not the kernel
    for ours, reference in zip([*found[0], *found[1]], [*wanted[0], *wanted[1]], strict=True):
        assert_close(ours, reference, 1e-5)


def test_a_small_adapter_in_half_precision():
    """Keras rounds W + A B to eight bits, in which most of a small A B is lost."""
    random = np.random.default_rng(0)
    x, kernel = random.normal(size=(64, 256)), random.normal(0, 1 / 16, (256, 256))
    a, b = random.normal(0, 1 / 16, (256, 8)), random.normal(0, 1e-3, (8, 256))
    errors = []
    for kind in (Projection, keras.layers.Dense):
        layer = built(kind(256, use_bias=False, dtype="mixed_bfloat16"), (None, 256))
        layer.enable_lora(8)
        values = {"kernel": kernel, "lora_kernel_a": a, "lora_kernel_b": b}
        for weight in layer.weights:
            weight.assign(values[weight.name])
        both = to_numpy(keras.ops.cast(layer(x.astype("float32")), "float32"))
        layer.lora_kernel_b.assign(np.zeros_like(b))
        change = both - to_numpy(keras.ops.cast(layer(x.astype("float32")), "float32"))
        errors.append(np.linalg.norm(change - x @ a @ b) / np.linalg.norm(x @ a @ b))
    assert errors[0] < 0.7 * errors[1]  # 0.49 and 0.90


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("training", [False, True])
def test_adapters_of_weights_in_half_precision(dtype, training):
    """Keras makes A and B in float32, and casts them only in mixed precision."""
    x = RANDOM.normal(size=(2, 3, 5)).astype("float32")
    layers = [built(Projection(6, dtype=f"{mode}{dtype}"), x.shape) for mode in ("", "mixed_")]
    for layer in layers:
        layer.enable_lora(2)
        assert layer.lora_kernel_a.dtype == "float32"
    for weight in layers[0].weights:
        weight.assign(RANDOM.normal(size=weight.shape))
    layers[1].set_weights([to_numpy(keras.ops.cast(v, "float32")) for v in layers[0].weights])
    y, mixed = (layer(x, training=training) for layer in layers)
    assert keras.backend.standardize_dtype(y.dtype) == dtype
    assert_close(*(keras.ops.cast(value, "float32") for value in (y, mixed)), 1e-6)
    if training and keras.backend.backend() == "tensorflow":
        found, _ = gradients(
            lambda x: keras.ops.sum(layers[0](x, training=True) ** 2),
            layers[0].trainable_variables,
            x,
        )
        assert all(np.any(to_numpy(keras.ops.cast(g, "float32"))) for g in found)


@tensorflow_only
@pytest.mark.parametrize(
    ("mode", "dim", "units", "use_bias"),
    [
        pytest.param(mode, *widths, use_bias, marks=[pytest.mark.slow] * (mode == "xla" and i > 0))
        for mode in ("eager", "graph", "xla", "unknown lengths")
        for i, (widths, use_bias) in enumerate(itertools.product(WIDTHS, (True, False)))
    ],
)
def test_gradients_are_those_of_keras(mode, dim, units, use_bias):
    """And those of the gradients, too."""
    import tensorflow as tf

    layer, reference = pair(dim, units, use_bias=use_bias)
    x = tf.constant(RANDOM.normal(size=(2, 7, dim)), "float32")
    upstream = tf.constant(RANDOM.normal(size=(2, 7, units)), "float32")

    def slopes_of(layer, x):
        weights = [variable.value for variable in layer.trainable_variables]
        with tf.GradientTape(persistent=True) as outer:
            outer.watch(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x, training=True)
                loss = tf.reduce_sum(upstream * y * y)
            slopes = tape.gradient(loss, [x, *weights])
            norm = sum(tf.reduce_sum(slope**2) for slope in slopes)
        return y, *slopes, *outer.gradient(norm, [x, *weights])

    def run(layer):
        function = functools.partial(slopes_of, layer)
        if mode == "unknown lengths":
            return tf.function(function, [tf.TensorSpec((None, None, dim), "float32")])(x)
        return compiled(mode, function)(x)

    found, wanted = run(layer), run(reference)
    assert len(found) == 1 + 2 * (2 + use_bias)
    for a, b in zip(found, wanted, strict=True):
        assert a.shape == b.shape
        assert_close(a, b, 2e-6)


@tensorflow_only
@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16", "float64"])
def test_gradients_in_other_precisions(dtype):
    import tensorflow as tf

    layer, reference = pair(6, 9, dtype=dtype)
    x = tf.cast(RANDOM.normal(size=(4, 50, 6)), layer.compute_dtype)

    def slopes_of(layer):
        def loss(x):
            return tf.reduce_sum(tf.cast(layer(x, training=True), "float64") ** 2)

        return keras.tree.flatten(gradients(loss, layer.trainable_variables, x))

    # A product rounds at 5e-4, 4e-3 and 1e-16, and is not of the same form here.
    tolerance = {"mixed_float16": 1e-3, "mixed_bfloat16": 8e-3, "float64": 1e-14}[dtype]
    for a, b in zip(slopes_of(layer), slopes_of(reference), strict=True):
        assert a.dtype == b.dtype
        assert_close(a, b, tolerance)


@tensorflow_only
def test_nan_is_not_hidden_by_relu():
    """As oneDNN's product with a bias and ReLU in one would."""
    import tensorflow as tf

    layer = built(Projection(4, activation="relu"), (None, None, 3))
    kernel = layer.get_weights()[0]
    kernel[1, 2] = np.nan
    layer.set_weights([kernel, *layer.get_weights()[1:]])
    x = tf.constant(RANDOM.normal(size=(2, 5, 3)), "float32")
    for training in (False, True):
        y = to_numpy(compiled("graph", functools.partial(layer, training=training))(x))
        assert np.isnan(y[..., 2]).all()
        assert np.isfinite(np.delete(y, 2, axis=-1)).all()


def test_keras_quantizes_it():
    layer = built(Projection(4), (None, None, 3))
    x = RANDOM.normal(size=(2, 5, 3)).astype("float32")
    before = to_numpy(layer(x))
    layer.quantize("int8")
    assert layer.quantization_mode == "int8"
    assert_close(layer(x), before, 0.05)
