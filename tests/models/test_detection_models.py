"""ResNet and DETR: what is theirs alone."""

import json

import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy
from execution import saving, tensorflow_only
from grids import first_of
from keras_weights import randomize
from small_detectors import CLASSES, QUERIES, SIZE, detector, targets_of

from keras_tfm import models
from keras_tfm.models import describe, with_dtype
from keras_tfm.training import DetectionLoss

# Float32 rounds at 6e-8; sums of up to some hundred terms.
FLOAT32 = 1e-5
# Bfloat16 rounds at 4e-3; some fifty roundings, of which most cancel.
BFLOAT16 = 0.1
PIXELS = np.random.default_rng(0).integers(0, 256, (2, *SIZE, 3)).astype("uint8")
SMALL = {"stem_dim": 4, "dims": (8, 12), "depths": (2, 1)}
CASES = {
    "resnet": lambda **x: models.resnet(SIZE, **SMALL, **x),
    "resnet, basic": lambda **x: models.resnet(None, **SMALL, bottleneck=False, **x),
    "resnet, classifier": lambda **x: models.image_classifier(models.resnet(SIZE, **SMALL, **x), 5),
    "detr": lambda **x: detector(**x),
    "detr, auxiliary": lambda **x: detector(auxiliary_outputs=True, labels=["a", "b", "c"], **x),
    "detr, backbone": lambda **x: models.backbone(detector(**x)),
}
# The others are cases of tests/models/test_contract.py.
HERE_ALONE = ("resnet, basic", "detr, auxiliary")
every_case = pytest.mark.parametrize(
    "case", [pytest.param(x, marks=[pytest.mark.slow] * (x not in HERE_ALONE)) for x in CASES]
)


def outputs_of(model, pixels=PIXELS):
    outputs = model(pixels, training=False)
    outputs = outputs if isinstance(outputs, dict) else {"output": outputs}
    return {name: to_numpy(x) for name, x in outputs.items()}


def assert_same(actual, expected, tolerance):
    assert actual.keys() == expected.keys()
    for name, x in expected.items():
        assert_close(actual[name], x, tolerance)


@saving
@every_case
def test_saved_cloned_and_described(case, tmp_path):
    model = randomize(CASES[case]())
    expected, described = outputs_of(model), describe(model)
    assert json.loads(json.dumps(described)) == described
    assert described["family"] == case.partition(",")[0]
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    for other in (loaded, clone):
        assert_same(outputs_of(other), expected, 1e-6)
        assert describe(other) == described


@every_case
def test_a_copy_in_half_precision_answers_nearly_as_well(case):
    model = randomize(CASES[case]())
    copy = with_dtype(model, "mixed_bfloat16")
    found, expected = outputs_of(copy), outputs_of(model)
    assert_same(found, expected, BFLOAT16)
    assert any(np.any(found[name] != expected[name]) for name in found)
    assert_same(outputs_of(with_dtype(copy, "float32")), expected, 0.0)


def test_boxes_are_float32_under_mixed_precision():
    outputs = detector(dtype="mixed_float16")(PIXELS)
    assert keras.backend.standardize_dtype(outputs["boxes"].dtype) == "float32"
    boxes = to_numpy(outputs["boxes"])
    assert np.all((boxes > 0) & (boxes < 1))


@pytest.mark.default
@tensorflow_only
def test_every_weight_of_detr_learns():
    rng = np.random.default_rng(0)
    model = randomize(detector(auxiliary_outputs=True))
    before = {x.path: to_numpy(x) for x in model.trainable_weights}
    model.compile(keras.optimizers.Adam(0.01), DetectionLoss(), run_eagerly=True)
    model.fit(PIXELS, targets_of(rng, 2, [3, 2]), verbose=0)
    unchanged = [x.path for x in model.trainable_weights if np.all(to_numpy(x) == before[x.path])]
    assert not unchanged


@pytest.mark.parametrize("frozen", [False, True])
def test_frozen_batch_norms_are_constants(frozen):
    model = randomize(models.resnet(SIZE, **SMALL, frozen_batch_norm=frozen))
    norms = [x for x in model.weights if "norm" in x.path]
    before = {x.path: to_numpy(x) for x in model.weights}
    evaluated = outputs_of(model)
    trained = {"output": to_numpy(model(PIXELS, training=True))}
    if frozen:
        assert_same(trained, evaluated, 0.0)
    else:
        assert np.abs(trained["output"] - evaluated["output"]).max() > 0.1
    model.compile("sgd", "mse")
    model.fit(PIXELS, evaluated["output"] + 1.0, verbose=0)
    changed = {x.path for x in model.weights if np.any(to_numpy(x) != before[x.path])}
    for weight in norms:
        assert (weight.path in changed) != frozen
    assert any("convolution" in x for x in changed)
    # A copy is frozen, too.
    clone = keras.models.clone_model(model)
    assert len(clone.trainable_weights) == len(model.trainable_weights)


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (33, 31), (64, 65)])
def test_sizes_of_feature_maps_are_rounded_up(size):
    model = models.resnet(None, **SMALL)
    shape = tuple(-(-x // 8) for x in size)
    assert model(np.zeros((1, *size, 3))).shape == (1, *shape, 12)
    assert models.resnet(size, **SMALL).output.shape == (None, *shape, 12)


@pytest.mark.parametrize(
    ("size", "count"),
    # Of torchvision.models.resnet18() and so on, without `fc`, with the moving statistics.
    first_of(
        [("18", 11_176_512 + 9_600), ("50", 23_508_032 + 53_120), ("101", 42_500_160 + 105_344)],
        count=2,
    ),
)
def test_parameters_of_the_papers_sizes(size, count):
    from keras_tfm.models.vision.resnet import SIZES

    assert models.resnet(None, **SIZES[size]).count_params() == count


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"dims": (8,), "depths": (1, 1)}, ValueError, "one value per stage, got 1 and 2 values"),
        ({"dims": (), "depths": ()}, ValueError, "one value per stage, got 0 and 0 values"),
        ({"dims": (6,), "depths": (1,)}, ValueError, "multiples of 4, got 6"),
        ({"dims": (8,), "depths": (0,)}, ValueError, "depths must be at least 1, got 0"),
        ({"stem_dim": 2.5}, TypeError, "stem_dim must be an integer, got 2.5"),
        ({"image_size": 0}, ValueError, "image_size must be at least 1, got 0"),
    ],
)
def test_bad_arguments_of_resnet(arguments, error, message):
    with pytest.raises(error, match=message):
        models.resnet(**arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_queries": 0}, ValueError, "num_queries must be at least 1, got 0"),
        ({"dim": 10, "num_heads": 5}, ValueError, "dim must be a multiple of 4, got 10"),
        ({"num_heads": 5}, ValueError, "num_heads"),
        ({"labels": ["a"]}, ValueError, f"labels must be {CLASSES} names, one a class"),
        ({"num_decoder_layers": 0}, ValueError, "num_decoder_layers must be at least 1, got 0"),
        ({"backbone": {"width": 3}}, TypeError, "width"),
    ],
)
def test_bad_arguments_of_detr(arguments, error, message):
    with pytest.raises(error, match=message):
        detector(**arguments)


def test_images_of_another_size_or_depth():
    model = detector()
    with pytest.raises(ValueError, match=r"expected shape=\(None, 48, 40, 3\)"):
        model(PIXELS[:, :32])
    with pytest.raises(ValueError, match=r"pixels must have shape \(B, H, W, 3\), channels last"):
        model(PIXELS[..., :1])


def test_pooling_of_feature_maps():
    model = models.resnet(SIZE, **SMALL)
    assert models.image_classifier(model, 3).head.arguments["pooling"] == "mean"
    with pytest.raises(ValueError, match=r"pooling must be one of \['mean'\] for features of 4"):
        models.image_classifier(model, 3, pooling="first")


def test_queries_and_the_image_matter():
    """Queries find different boxes, and other images have other boxes."""
    boxes = outputs_of(randomize(detector()))["boxes"]
    assert boxes.shape == (2, QUERIES, 4)
    assert boxes.std(axis=1).max() > 1e-4
    assert np.abs(boxes[0] - boxes[1]).max() > 1e-4
