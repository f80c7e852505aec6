"""What a verification takes for numbers: the scale that a model tells, real rows, or a warning."""

import keras
import numpy as np
import pytest
from small_exports import new_path

from keras_tfm import layers, runtime
from keras_tfm.export import export_tflite, verify
from keras_tfm.export.signatures.input_numbers import input_numbers
from keras_tfm.runtime.inspection.random_inputs import random_inputs
from keras_tfm.runtime.manifest.manifest import Input

# Sensors: a fraction, degrees, a pressure in Pa, a voltage.
MEAN = np.array([0.0, 20.0, 101325.0, 0.002, 400.0])
DEVIATION = np.array([1e-3, 1.0, 800.0, 1e-4, 30.0])
LENGTH, WIDTH = 7, len(MEAN)


def fold(layer):
    """Makes the normalisation of the sensors a part of the layer's weights, as for deployment."""
    kernel, bias = layer.get_weights()
    kernel = kernel / np.resize(DEVIATION, kernel.shape[-2])[:, np.newaxis]
    means = np.resize(MEAN, kernel.shape[-2])
    layer.set_weights([kernel, bias - means @ kernel.reshape(-1, *kernel.shape[-2:]).sum(0)])


def normalization():
    return keras.layers.Normalization(mean=MEAN, variance=DEVIATION**2)


def batch_normalization():
    layer = keras.layers.BatchNormalization()
    layer.build((None, LENGTH, WIDTH))
    layer.moving_mean.assign(MEAN)
    layer.moving_variance.assign(DEVIATION**2)
    layer.epsilon = 0.0  # against a variance of 1e-8
    return layer


def nested():
    x = keras.Input((LENGTH, WIDTH))
    return keras.Model(x, normalization()(x))


def of_operations(x):
    return (x - MEAN.astype("float32")) / DEVIATION.astype("float32")


def sensors(first, product, folded, shape=(LENGTH, WIDTH)):
    keras.utils.set_random_seed(3)
    values = keras.Input(shape, name="values")
    x = product(first(values))
    model = keras.Model(values, keras.layers.Dense(3)(keras.activations.gelu(x)))
    if folded:
        fold(product)
    return model


@pytest.mark.parametrize(
    ("first", "product"),
    [
        (normalization(), keras.layers.Dense(16)),
        (batch_normalization(), keras.layers.Dense(16)),
        (of_operations, keras.layers.Conv1D(16, 3)),
        (nested(), keras.layers.EinsumDense("btf,fd->btd", (None, 16), bias_axes="d")),
        (None, keras.layers.Dense(16)),
        (keras.layers.Masking(-1.0), keras.layers.Dense(16)),
        (None, keras.layers.Conv1D(16, 3, padding="same")),
        (None, keras.Sequential([keras.Input((LENGTH, WIDTH)), keras.layers.Dense(16)])),
    ],
    ids=[
        "normalization",
        "batch",
        "operations",
        "nested",
        "dense",
        "masking",
        "conv",
        "sequential",
    ],
)
def test_a_model_tells_the_scale_of_its_inputs(first, product):
    folded = first is None or isinstance(first, keras.layers.Masking)
    model = sensors(first or (lambda x: x), product, False)
    if folded:
        fold(getattr(product, "layers", [product])[-1])
    known = input_numbers(model)["values"]
    mean, deviation = (
        np.broadcast_to(x, (LENGTH, WIDTH))[0]
        for x in (known.numbers.mean, known.numbers.deviation)
    )
    # A folded kernel tells the scale as well as its random rows are of one size.
    assert np.all(np.abs(np.log(deviation / DEVIATION)) < np.log(3.0 if folded else 1.01))
    assert np.all(np.abs(mean - MEAN) < (2.0 if folded else 0.1) * DEVIATION)
    assert known.source is not None and len(known.raw) == 1


def test_the_scales_of_inputs_that_are_concatenated():
    inputs = [keras.Input((1,), name=f"sensor_{i}") for i in range(WIDTH)]
    x = normalization()(keras.layers.Concatenate()(inputs))
    known = input_numbers(keras.Model(inputs, keras.layers.Dense(8)(x)))
    found = [float(np.squeeze(known[f"sensor_{i}"].numbers.deviation)) for i in range(WIDTH)]
    np.testing.assert_allclose(found, DEVIATION, rtol=1e-2)


def test_ordinary_weights_tell_nothing_and_pixels_are_pixels():
    known = input_numbers(sensors(lambda x: x, keras.layers.Dense(16), False))["values"]
    assert (known.source, known.raw, known.numbers.deviation) == (None, (), 1.0)
    pixels = sensors(keras.layers.Rescaling(1 / 255), keras.layers.Dense(4), False, (4, 4, 3))
    known = input_numbers(pixels)["values"]
    assert (known.numbers.least, known.numbers.most, known.raw) == (0.0, 255.0, ())


@pytest.mark.parametrize("first", [lambda x: x, normalization()], ids=["folded", "normalization"])
def test_int8_is_right_on_raw_numbers(first):
    """The layer that reads them stays float32: 8 bits of a row hold the pressure alone."""
    product = keras.layers.Dense(16)
    model = sensors(first, product, not isinstance(first, keras.layers.Layer))
    report = export_tflite(model, new_path(), quantization="int8")
    assert report.verification.inputs["values"].startswith("random numbers of the scale")
    assert "random numbers of the scale" in str(report)
    rows = np.random.default_rng(1).normal(size=(50, LENGTH, WIDTH)) * DEVIATION + MEAN
    rows = rows.astype("float32")
    expected = np.asarray(model(rows))
    error = runtime.load(report.path).predict(rows)["output"] - expected
    # One product in int8; without the layer in float32, the error is several deviations.
    assert np.sqrt(np.mean(error**2)) < 0.03 * expected.std()
    given = verify(model, report.path, {"values": rows})
    assert given.inputs == {"values": "50 rows given"}


def test_rounding_on_a_guess_is_said():
    model = sensors(lambda x: x, keras.layers.Dense(16), False)
    with pytest.warns(UserWarning, match="give real rows of 'values' as verify_inputs"):
        report = export_tflite(model, new_path(), quantization="int8")
    assert "nothing in the model tells" in report.verification.inputs["values"]
    with pytest.warns(UserWarning, match="give real rows of 'values'") as found:
        verify(model, report.path)
    (warning,) = [x for x in found if "give real rows" in str(x.message)]
    assert warning.filename == __file__
    rows = np.ones((3, LENGTH, WIDTH), "float32")
    export_tflite(model, new_path(), quantization="int8", verify_inputs={"values": rows})
    export_tflite(model, new_path())  # float32 is exact for numbers of any scale


@pytest.mark.filterwarnings("ignore:int8_full. XNNPACK runs")
def test_int8_full_is_verified_on_the_rows_of_its_calibration():
    # Without a normalization: all sensors have one scale in such a file.
    model = sensors(keras.layers.Identity(), keras.layers.Dense(16), False)
    rows = np.random.default_rng(1).normal(20.0, 1.0, (70, 1, LENGTH, WIDTH)).astype("float32")
    report = export_tflite(
        model, new_path(), quantization="int8_full", representative_data=list(rows)
    )
    assert report.verification.inputs == {"values": "64 rows given"}


def test_random_masks_hide_something_but_no_row():
    shapes = {"visible": ([20, 6], "bool"), "attention_mask": ([20, 6], "int32")}
    shapes["pairs"] = ([2, 5, 5], "bool")
    made = random_inputs(
        {
            name: Input(shape=shape, dtype=dtype, kind="input", padded=False)
            for name, (shape, dtype) in shapes.items()
        }
    )
    for mask in made.values():
        assert set(np.unique(mask)) == {False, True}
        assert mask.any(axis=-1).all() and mask.reshape(len(mask), -1)[:, 0].all()
    assert made["attention_mask"].dtype == "int32"


def test_a_masked_model_is_compared_with_masked_positions():
    x, visible = keras.Input((6, 4), name="x"), keras.Input((6,), dtype="bool", name="visible")
    model = keras.Model([x, visible], layers.MultiHeadSelfAttention(2)(x, mask=visible))
    report = export_tflite(model, new_path())
    assert report.verification.inputs["visible"] == "random masks"
