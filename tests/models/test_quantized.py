"""Models that Keras's `quantize` rounded are saved, copied, tuned and exported."""

import keras
import numpy as np
import pytest
from compare import assert_close

import keras_tfm
from keras_tfm import checkpoints, export, layers, models
from keras_tfm.models.quantization.state import is_quantized
from keras_tfm.models.with_dtype import dequantize

# Keras warns of every layer that has nothing to quantize.
pytestmark = pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`:UserWarning")
MODES = ["int8", "int4", "float8"]
SMALL = {"dim": 6, "num_layers": 1, "num_heads": 2, "intermediate_dim": 11, "max_length": 8}
IDS = np.array([[3, 4, 5, 7], [7, 2, 9, 1]])
X = np.random.default_rng(0).normal(size=(2, 5, 6)).astype("float32")
PARTS = {
    "feed-forward": lambda: layers.FeedForward(11),
    "gated": lambda: layers.FeedForward(11, gated=True),
    "attention": lambda: layers.MultiHeadSelfAttention(2),
    "block": lambda: layers.TransformerEncoderBlock(11, num_heads=2),
    "block of parts": lambda: layers.TransformerEncoderBlock(
        self_attention=layers.MultiHeadSelfAttention(2), feed_forward=layers.FeedForward(11)
    ),
}


def around(part):
    x = keras.Input((None, 6))
    return keras.Model(x, PARTS[part]()(x))


def gpt(mode, adapters=False):
    keras.utils.set_random_seed(0)
    model = models.gpt(13, **SMALL, dropout=0.0)
    model.quantize(mode)
    if adapters:
        models.enable_lora(model, rank=2)
        for x in model.variables:
            if x.name == "lora_kernel_b":
                x.assign(0.3 * np.ones(x.shape))
    return model


@pytest.mark.parametrize(
    ("mode", "part"),  # by default each part once, and each mode
    [
        pytest.param(mode, part, marks=[pytest.mark.slow] * (i % 3 != j))
        for i, part in enumerate(PARTS)
        for j, mode in enumerate(MODES)
    ],
)
def test_saved_and_cloned(mode, part, tmp_path):
    model = around(part)
    model.quantize(mode)
    y = model(X)
    model.save(tmp_path / "model.keras")
    assert_close(keras_tfm.load_model(tmp_path / "model.keras")(X), y, 1e-6)
    clone = keras.models.clone_model(model)
    assert is_quantized(clone)
    clone.set_weights(model.get_weights())
    assert_close(clone(X), y, 1e-6)
    model.save_weights(tmp_path / "x.weights.h5")
    again = keras.models.clone_model(model)
    again.load_weights(tmp_path / "x.weights.h5")
    assert_close(again(X), y, 1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_a_builders_model_is_copied_and_given_a_head(mode):
    model = gpt(mode)
    copy = models.with_dtype(model, "float32")
    assert copy.family == "gpt" and is_quantized(copy)
    assert_close(copy(IDS), model(IDS), 1e-6)
    assert models.sequence_classifier(model, 3)(IDS).shape == (2, 3)


# Rounded kernels in float; int8 and float8 also round the activations of a call.
@pytest.mark.parametrize(("mode", "error"), [("int8", 5e-3), ("int4", 1e-5), ("float8", 3e-2)])
@pytest.mark.parametrize("adapters", [False, True], ids=["", "adapters"])
def test_dequantized(mode, error, adapters):
    if adapters and mode == "float8":
        pytest.skip("Keras has no adapters in float8")
    model = gpt(mode, adapters)
    copy = dequantize(model)
    assert not is_quantized(copy) and len(copy.weights) == len(gpt_weights())
    assert_close(copy(IDS), model(IDS), error)


def gpt_weights():
    return models.gpt(13, **SMALL).weights


def test_another_quantized_layer_is_refused_with_its_name():
    x = keras.Input((5, 6))
    model = keras.Model(x, keras.layers.EinsumDense("btd,de->bte", (5, 7), name="odd")(x))
    model.quantize("int8")
    with pytest.raises(ValueError, match=r"odd \(EinsumDense\) is quantized by Keras"):
        dequantize(model)


def test_exported_as_floats(tmp_path, caplog):
    model = gpt("int8", adapters=True)
    report = export.export_tflite(model, tmp_path / "x.tflite", source_length=4, verify=False)
    assert "gpt is quantized by Keras" in caplog.text
    assert report.dequantized == ["gpt"] and report.asdict()["dequantized"] == ["gpt"]
    assert "gpt was quantized by Keras: its rounded weights are stored in float32" in str(report)
    file = keras_tfm.runtime.load(tmp_path / "x.tflite")
    found = file.predict(IDS[:1])
    assert_close(next(iter(found.values())), dequantize(model)(IDS[:1]), 1e-5)


def test_adapters_of_their_own_need_float_kernels(tmp_path):
    with pytest.raises(ValueError, match="gpt is quantized by Keras: export it with separate_ad"):
        export.export_tflite(gpt("int8", adapters=True), tmp_path / "x", separate_adapters=True)


def test_of_several_models_the_report_names_the_quantized_ones(tmp_path):
    given = {"one": gpt("int8"), "two": models.gpt(13, **SMALL)}
    report = export.export_tflite(given, tmp_path / "x.tflite", source_length=4, verify=False)
    assert report.dequantized == ["one"]


def test_saved_for_transformers(tmp_path):
    model = gpt("int4", adapters=True)
    checkpoints.save_huggingface(model, tmp_path / "folder")
    again = checkpoints.load_huggingface(tmp_path / "folder")
    assert_close(again(IDS), model(IDS), 1e-5)
