import re

import keras
import numpy as np
import pytest
import reference
from compare import assert_close, to_numpy
from keras_weights import built, feed_forward

from keras_tfm.layers import FeedForward
from keras_tfm.layers.target import TARGETS, export_target

B, T, D, F = 2, 5, 7, 11
# Float32 rounds at 6e-8 and a sum has 11 terms of size 1.
FLOAT32 = 1e-5
# Bfloat16 rounds at 4e-3: inputs, kernels, the inner layer, the outer one.
BFLOAT16 = 2e-2


@pytest.fixture
def x():
    return np.random.default_rng(7).normal(size=(B, T, D)).astype("float32")


def test_by_hand():
    layer = FeedForward(3)
    layer.build((1, 1, 2))
    layer.inner.kernel.assign([[1.0, -1.0, 2.0], [0.0, 1.0, 1.0]])
    layer.inner.bias.assign([0.0, 0.5, -9.0])
    layer.outer.kernel.assign([[1.0, 0.0], [10.0, 1.0], [100.0, 1.0]])
    layer.outer.bias.assign([0.25, -1.0])
    # (2, 3): inner (2, 1, 7) + bias = (2, 1.5, -2), relu (2, 1.5, 0).
    assert_close(layer(np.array([[[2.0, 3.0]]])), [[[17.25, 0.5]]], FLOAT32)


@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "bfloat16", "mixed_float16"])
def test_equals_the_float64_reference(x, dtype, activation, use_bias):
    # Keras's name "gelu" means the tanh approximation; the reference is exact.
    function = {"relu": "relu", "gelu": lambda x: keras.ops.gelu(x, approximate=False)}[activation]
    layer = built(FeedForward(F, activation=function, use_bias=use_bias, dtype=dtype), (B, T, D))
    expected = reference.feed_forward(x, feed_forward(layer), getattr(reference, activation))
    assert_close(layer(x), expected, FLOAT32 if dtype == "float32" else BFLOAT16)


@pytest.mark.parametrize("use_bias", [False, True, ["outer"]], ids=str)
@pytest.mark.parametrize("how", ["", "LoRA", "int8", "scale"])
@pytest.mark.parametrize("target", TARGETS)
def test_a_gate(x, target, how, use_bias):
    """Gate and values are one product in Keras and two where they are exported."""
    scale = 0.6 if how == "scale" else 1.0
    layer = FeedForward(F, "silu", gated=True, use_bias=use_bias, gate_scale=scale)
    layer = built(layer, (B, T, D))
    if how == "LoRA":
        layer.inner.enable_lora(2)
        layer.inner.lora_kernel_b.assign(np.full((2, 2 * F), 0.3))
    kernel = to_numpy(layer.inner.kernel).astype("float64")
    assert [p.use_bias for p in (layer.inner, layer.outer)] == [use_bias is True, bool(use_bias)]
    biases = [to_numpy(p.bias) if p.use_bias else 0.0 for p in (layer.inner, layer.outer)]
    gate, y = np.split(x @ kernel + biases[0], 2, axis=-1)
    gate = scale * gate
    expected = (gate / (1 + np.exp(-gate)) * y) @ to_numpy(layer.outer.kernel) + biases[1]
    if how == "int8":
        layer.inner.quantize("int8")
    with export_target(target):
        found = layer(x)
    # In int8 inputs and kernels are rounded to 127 steps each: up to 0.008 of outputs up to 1.8.
    assert_close(found, expected, {"int8": 0.02}.get(how, FLOAT32))


@pytest.mark.parametrize("dtype", ["float16", "mixed_float16"])
def test_float16_activations_of_1e3_are_right(x, dtype):
    layer = built(FeedForward(F, dtype=dtype), (B, T, D))
    expected = reference.feed_forward(1e3 * x, feed_forward(layer))
    assert_close(layer(1e3 * x), expected, 5e-3)  # float16 rounds at 5e-4, four times


def test_dropout_is_of_the_inner_layer():
    layer = built(FeedForward(1000, activation="linear", dropout=0.25), (1, 1, 1))
    layer.inner.kernel.assign(np.ones((1, 1000)))
    layer.inner.bias.assign(np.zeros(1000))
    layer.outer.kernel.assign(np.ones((1000, 1)))
    layer.outer.bias.assign([5.0])
    x = np.ones((1, 1, 1), "float32")
    assert_close(layer(x), [[[1005.0]]], FLOAT32)
    # 750 of 1000 kept, give or take 14, each times 4/3: five deviations, and never all of them.
    dropped = float(to_numpy(layer(x, training=True))[0, 0, 0]) - 5.0
    assert 0.0 < abs(dropped - 1000.0) < 5 * 14 * 4 / 3
    assert round(dropped * 3 / 4, 2).is_integer()


@pytest.mark.parametrize("shape", [(0, T, D), (B, 0, D), (1, 1, D)])
def test_short_and_empty_inputs(x, shape):
    layer = built(FeedForward(F), (B, T, D))
    x = x[: shape[0], : shape[1]]
    assert_close(layer(x), reference.feed_forward(x, feed_forward(layer)), FLOAT32)


def test_impossible_widths_are_refused():
    with pytest.raises(ValueError, match="intermediate_dim must be at least 1, got 0"):
        FeedForward(0)


@pytest.mark.parametrize("use_bias", ["outer", ["output"], ["inner", "gate"], None, 1])
def test_biases_of_unknown_layers_are_refused(use_bias):
    expected = r"use_bias must be True, False or a list of \['inner', 'outer'\], got "
    with pytest.raises(ValueError, match=expected + re.escape(repr(use_bias))):
        FeedForward(F, use_bias=use_bias)
