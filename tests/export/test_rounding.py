"""What the exporter stores in 8 and 4 bits, bit for bit what Google's quantizers store."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_tfm.export import export_tflite
from keras_tfm.export.quantization.four_bits import quantize, unpack
from keras_tfm.models.quantization.rounding import (
    BLOCK,
    int4_scales,
    int8_scales,
    round_to_int4,
    round_to_int8,
)
from keras_tfm.runtime import flatbuffer

WIDTH = 2 * BLOCK


def matrix(seed):
    """(67, 64): rows of every size, of zeros, of one value, of ties, with numbers near zero."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(67, WIDTH)) * 10.0 ** rng.uniform(-4, 3, (67, 1))
    rows[0] = 0.0
    rows[1] = 0.25
    rows[2] = np.linspace(-127, 127, WIDTH).round() / 2  # halves of the step 1/2 and of 1
    rows[2, 0] = 127
    rows[3, 1:] = 1e-42  # subnormal numbers beside an ordinary one
    rows[4, ::3] = 0.0
    rows[5] *= 3e-7 / np.abs(rows[5]).max()
    rows[6] *= 7e-7 / np.abs(rows[6]).max()
    return rows.astype("float32")


def model_of(rows):
    dense = keras.layers.Dense(len(rows), use_bias=False)
    x = keras.Input((WIDTH,))
    model = keras.Model(x, dense(x))
    dense.kernel.assign(rows.T)
    return model


def weight_of(model):
    (use,) = flatbuffer.weight_uses(model)
    return use.tensor


@pytest.mark.parametrize("seed", range(5))
def test_eight_bits_are_those_of_the_converter(seed):
    rows = matrix(seed)
    converter = tf.lite.TFLiteConverter.from_keras_model(model_of(rows))
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    file = flatbuffer.read(converter.convert())
    stored = weight_of(file)
    scale = int8_scales(rows, 0)
    np.testing.assert_array_equal(scale, stored.quantization.scale)
    levels = np.asarray(file.buffers[stored.buffer].data).view("int8").reshape(rows.shape)
    np.testing.assert_array_equal(round_to_int8(rows, scale, 0), levels)


@pytest.mark.parametrize("seed", range(5))
def test_four_bits_are_those_of_the_quantizer(seed, tmp_path):
    quantizer = pytest.importorskip("ai_edge_quantizer.quantizer")
    from ai_edge_quantizer import qtyping, recipe_manager

    rows = matrix(seed)
    # Where the scale would be subnormal, theirs is, and XNNPACK refuses 0.
    rows = rows[np.abs(rows.reshape(-1, 2, BLOCK)).max(-1).min(-1) > 1e-3]
    path = tmp_path / "model.tflite"
    export_tflite(model_of(rows), path, verify=False)
    recipe = recipe_manager.RecipeManager()
    recipe.add_dynamic_config(
        regex=".*",
        operation_name=qtyping.TFLOperationName.FULLY_CONNECTED,
        num_bits=4,
        granularity=qtyping.QuantGranularity[f"BLOCKWISE_{BLOCK}"],
    )
    rules = recipe.get_quantization_recipe()
    content = quantizer.Quantizer(bytearray(path.read_bytes()), rules).quantize().quantized_model
    theirs = flatbuffer.read(bytes(content))
    stored = weight_of(theirs)
    scales = theirs.subgraphs[0].tensors[stored.quantization.details.scales]
    wanted = np.asarray(theirs.buffers[scales.buffer].data).view("float16").reshape(-1, 2)
    np.testing.assert_array_equal(int4_scales(rows), wanted)
    np.testing.assert_array_equal(round_to_int4(rows, wanted), unpack(theirs, stored))

    ours = flatbuffer.read(path.read_bytes())
    quantize(ours, kept=())
    assert weight_of(ours).type == stored.type
    np.testing.assert_array_equal(unpack(ours, weight_of(ours)), unpack(theirs, stored))
    options = [x.subgraphs[0].operators[0].builtinOptions for x in (ours, theirs)]
    assert vars(options[0]) == vars(options[1])


def test_one_scale_for_a_whole_array():
    values = matrix(0)
    scale = int8_scales(values, None)
    assert scale.shape == (1,)
    assert np.abs(round_to_int8(values, scale, None) * scale - values).max() <= 0.501 * scale
