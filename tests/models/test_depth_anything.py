"""Depth Anything: resizing, images of other sizes, a file, what is refused."""

import json

import numpy as np
import pytest
from compare import assert_close, to_numpy
from execution import tensorflow_only
from families import small_model
from keras_weights import randomize

from keras_tfm import checkpoints
from keras_tfm.models.vision.depth_anything import AlignedResize, resize_by_products

# Sums of a thousand products, relative to the largest depth.
TOLERANCE = 1e-5


def theirs_of(folder):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.DepthAnythingForDepthEstimation.from_pretrained(folder).eval()

    def depths(pixels, mean, std):
        x = ((pixels / 255 - np.array(mean)) / np.array(std)).transpose(0, 3, 1, 2)
        with torch.no_grad():
            return model(torch.from_numpy(x.astype("float32"))).predicted_depth.numpy()

    return depths


@pytest.mark.parametrize(("size", "new"), [((3, 4), (7, 9)), ((5, 2), (2, 3)), ((1, 3), (4, 1))])
def test_resizing_keeps_the_corners(size, new):
    """As PyTorch, on every backend; TensorFlow has an operator of its own."""
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).normal(size=(2, *size, 3)).astype("float32")
    expected = torch.nn.functional.interpolate(
        torch.from_numpy(x.transpose(0, 3, 1, 2)), new, mode="bilinear", align_corners=True
    )
    expected = expected.numpy().transpose(0, 2, 3, 1)
    other = np.zeros((2, *new, 1), "float32")
    assert_close(to_numpy(AlignedResize()(x, other)), expected, 1e-6)
    assert_close(to_numpy(resize_by_products(x, *new)), expected, 1e-6)


@pytest.mark.parametrize(
    ("height", "width"),
    # A patch that is cut, which no other test of the resized positions has.
    [(12, 8), (20, 36), pytest.param(15, 13, marks=pytest.mark.default)],
)
def test_images_of_any_size(height, width, tmp_path):
    """Positions are resized; pixels beyond the last whole patch are left out."""
    model = randomize(small_model("depth_anything", image_size=None), seed=2)
    checkpoints.save_huggingface(model, tmp_path)
    pixels = np.random.default_rng(1).integers(0, 256, (2, height, width, 3)).astype("float32")
    given = model.arguments
    expected = theirs_of(tmp_path)(pixels, given["image_mean"], given["image_std"])
    actual = to_numpy(model(pixels))
    assert actual.shape == (2, height // 4 * 4, width // 4 * 4)
    assert np.abs(expected).max() > 0.1
    assert_close(actual, expected, TOLERANCE)


def test_blocks_are_counted_from_either_end(tmp_path):
    model = randomize(small_model("depth_anything"), seed=2)
    checkpoints.save_huggingface(model, tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    count = model.arguments["num_layers"]
    part = config["backbone_config"]
    part["out_indices"] = [i - count - 1 for i in part["out_indices"]]
    file.write_text(json.dumps(config))
    again = checkpoints.load_huggingface(tmp_path)
    pixels = np.random.default_rng(1).integers(0, 256, (1, 12, 12, 3)).astype("float32")
    np.testing.assert_array_equal(to_numpy(again(pixels)), to_numpy(model(pixels)))


@tensorflow_only
@pytest.mark.slow
@pytest.mark.parametrize("quantization", ["float32", "int4"])
def test_pixels_in_and_depths_out(quantization, tmp_path):
    from keras_tfm import runtime
    from keras_tfm.export import export_tflite

    model = randomize(small_model("depth_anything", dim=36, intermediate_dim=72), seed=2)
    report = export_tflite(model, tmp_path / "x.tflite", ["predict"], quantization=quantization)
    assert not report.verification.failures
    pixels = np.random.default_rng(1).integers(0, 256, (1, 12, 12, 3)).astype("uint8")
    found = runtime.load(report.path).predict({"pixels": pixels})["output"]
    expected = to_numpy(model(pixels.astype("float32")))
    tolerance = {"float32": 1e-5, "int8": 0.1, "int4": 0.5}[quantization]
    assert_close(found, expected, tolerance)


@pytest.mark.parametrize(
    ("fields", "part", "message"),
    [
        ({"reassemble_factors": [2, 2, 1, 0.5]}, {}, "reassemble_factors must be"),
        ({"head_in_index": 0}, {}, "head_in_index must be -1"),
        ({"reassemble_hidden_size": 8}, {}, "reassemble_hidden_size must be that of"),
        ({"patch_size": 8}, {}, "patch_size must be that of backbone_config, 4"),
        # Without a backbone it is that of the class, of 384.
        ({"backbone_config": None}, {}, "that of backbone_config, 384, got 12"),
        ({"backbone_config": [1]}, {}, "backbone_config must be a dictionary"),
        ({}, {"model_type": "swin"}, "model_type must be"),
        ({}, {"out_indices": [0, 1, 2, 3]}, "out_indices must be four numbers of blocks from 1"),
        ({}, {"image_size": [12, 16]}, r"image_size must be a square, got \(12, 16\)"),
        ({}, {"reshape_hidden_states": True}, "reshape_hidden_states must be False"),
        ({}, {"apply_layernorm": False}, "apply_layernorm must be True"),
    ],
)
def test_what_is_not_supported_is_named(fields, part, message, tmp_path):
    checkpoints.save_huggingface(small_model("depth_anything"), tmp_path)
    file = tmp_path / "config.json"
    config = {**json.loads(file.read_text()), **fields}
    if part:
        config["backbone_config"] |= part
    file.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message) as caught:
        checkpoints.load_huggingface(tmp_path)
    assert "\n" not in str(caught.value)
