import json
import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from compare import assert_close, to_numpy
from execution import gradients, saving, tensorflow_only
from small_detectors import CLASSES, QUERIES, SIZE, detector, outputs_of, targets_of

import keras_tfm
from keras_tfm import models
from keras_tfm.training import DetectionLoss, hungarian_matching

# Sums of some hundred float32 terms.
FLOAT32 = 1e-5
B = 4


@pytest.fixture
def rng():
    return np.random.default_rng(11)


def test_matching_is_that_of_scipy(rng):
    optimize = pytest.importorskip("scipy.optimize")
    for _ in range(1000):
        n, m = rng.integers(1, 9, 2)
        cost = rng.normal(size=(1, n, m)).astype("float32")
        mask = rng.random((1, m)) < 0.8
        actual = np.array(hungarian_matching(cost, mask))[0]
        rows, columns = optimize.linear_sum_assignment(cost[0][:, mask[0]])
        expected = np.full(m, -1)
        expected[np.flatnonzero(mask[0])[columns]] = rows
        np.testing.assert_array_equal(actual, expected)


def test_matching_of_costs_that_are_not_finite():
    cost = np.array([[[np.nan, 1.0], [2.0, np.inf], [-np.inf, 5.0]]], "float32")
    np.testing.assert_array_equal(hungarian_matching(cost), [[1, 0]])


@pytest.mark.parametrize("mask", [None, np.zeros((2, 3), bool)])
def test_matching_without_queries_to_spare_or_objects(mask):
    cost = np.array([[[1.0, 0.0, 2.0]], [[3.0, 3.0, -1.0]]], "float32")
    expected = [[-1, 0, -1], [-1, -1, 0]] if mask is None else [[-1] * 3] * 2
    np.testing.assert_array_equal(hungarian_matching(cost, mask), expected)


def of_transformers(y_true, y_pred, layers, weights):
    """`ForObjectDetectionLoss` of transformers."""
    torch = pytest.importorskip("torch")
    detection = pytest.importorskip("transformers.loss.loss_for_object_detection")
    from transformers import DetrConfig

    names = {
        "class_cost": "class_cost", "box_cost": "bbox_cost", "giou_cost": "giou_cost",
        "box_weight": "bbox_loss_coefficient", "giou_weight": "giou_loss_coefficient",
        "no_object_weight": "eos_coefficient",
    }  # fmt: skip
    config = DetrConfig(
        use_timm_backbone=False, backbone_config={"model_type": "resnet"}, num_labels=CLASSES,
        auxiliary_loss=layers > 1, decoder_layers=layers,
    )  # fmt: skip
    for ours, value in weights.items():
        setattr(config, names[ours], value)
    labels = [
        {
            "class_labels": torch.tensor(classes[classes >= 0].astype("int64")),
            "boxes": torch.tensor(boxes[classes >= 0]),
        }
        for classes, boxes in zip(y_true["classes"], y_true["boxes"], strict=True)
    ]
    logits, boxes = torch.tensor(y_pred["logits"]), torch.tensor(y_pred["boxes"])
    more = {}
    if layers > 1:
        for theirs, name, last in (
            ("outputs_class", "logits", logits),
            ("outputs_coord", "boxes", boxes),
        ):
            first = torch.tensor(y_pred[f"auxiliary_{name}"]).transpose(0, 1)
            more[theirs] = torch.cat([first, last[None]])
    loss, *_ = detection.ForObjectDetectionLoss(logits, labels, "cpu", boxes, config, **more)
    return loss.item()


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize(
    "weights",
    [
        {},
        {"class_cost": 2, "box_cost": 1, "giou_cost": 3},
        {"box_weight": 3, "giou_weight": 7, "no_object_weight": 0.3},
    ],
)
def test_the_loss_is_that_of_transformers(rng, weights, layers):
    for _ in range(20):
        y_true, y_pred = targets_of(rng, B), outputs_of(rng, B, layers)
        expected = of_transformers(y_true, y_pred, layers, weights)
        assert_close(DetectionLoss(**weights)(y_true, y_pred), expected, FLOAT32)


@pytest.mark.parametrize("counts", [[0] * B, [0, 5, 0, 1], [5] * B])
def test_images_without_objects(rng, counts):
    y_true, y_pred = targets_of(rng, B, counts), outputs_of(rng, B, 2)
    expected = of_transformers(y_true, y_pred, 2, {})
    assert np.isfinite(expected)
    assert_close(DetectionLoss()(y_true, y_pred), expected, FLOAT32)


def test_more_objects_than_queries_and_none_at_all(rng):
    y_true, y_pred = targets_of(rng, B, [5] * B), outputs_of(rng, B)
    few = {name: x[:, :3] for name, x in y_pred.items()}
    assert_close(DetectionLoss()(y_true, few), of_transformers(y_true, few, 1, {}), FLOAT32)
    none = {"classes": np.zeros((B, 0), "int32"), "boxes": np.zeros((B, 0, 4), "float32")}
    padded = targets_of(rng, B, [0] * B)
    assert_close(DetectionLoss()(none, y_pred), DetectionLoss()(padded, y_pred), FLOAT32)


def test_equal_objects_get_queries_of_their_own(rng):
    y_true, y_pred = targets_of(rng, B, [2] * B), outputs_of(rng, B)
    y_true = {name: np.repeat(x[:, :1], 3, axis=1) for name, x in y_true.items()}
    y_true["classes"] = np.abs(y_true["classes"])
    assert_close(DetectionLoss()(y_true, y_pred), of_transformers(y_true, y_pred, 1, {}), FLOAT32)


def test_padding_is_not_read(rng):
    y_true, y_pred = targets_of(rng, B, [0, 1, 3, 4]), outputs_of(rng, B)
    expected = DetectionLoss()(y_true, y_pred)
    wild = np.where(y_true["classes"][..., None] < 0, np.nan, y_true["boxes"])
    assert_close(DetectionLoss()({**y_true, "boxes": wild}, y_pred), expected, 1e-7)


def test_sample_weights(rng):
    """An image of weight 0 does not count; of weight 2 it counts as two images."""
    y_true, y_pred = targets_of(rng, 3), outputs_of(rng, 3)

    def at(rows):
        return [{name: x[rows] for name, x in each.items()} for each in (y_true, y_pred)]

    loss = DetectionLoss()
    weights = np.array([0.0, 1.0, 2.0], "float32")
    assert_close(loss(y_true, y_pred, weights), loss(*at([1, 2, 2])), FLOAT32)


@tensorflow_only
def test_nan_in_an_image_of_weight_0_does_not_count(rng):
    y_true, y_pred = targets_of(rng, 3), outputs_of(rng, 3, 2)
    weight = np.array([0.0, 1.0, 2.0], "float32")

    def of(*outputs):
        return DetectionLoss()(y_true, dict(zip(y_pred, outputs, strict=True)), weight)

    spoiled = [np.concatenate([np.full_like(x[:1], np.nan), x[1:]]) for x in y_pred.values()]
    assert_close(of(*spoiled), of(*y_pred.values()), FLOAT32)
    (_, expected), (_, found) = (gradients(of, [], *x) for x in (y_pred.values(), spoiled))
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b, FLOAT32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": np.array([[0, 3]])}, "classes must be from 0 to 2, or -1 for padding, got 3"),
        ({"boxes": [0.5, 0.5, 0.0, 0.1]}, "sizes above 0, got [0.5, 0.5, 0.0, 0.1]"),
        ({"boxes": [0.5, 0.5, 0.1, -0.1]}, "sizes above 0, got [0.5, 0.5, 0.1, -0.1]"),
        ({"boxes": [1.2, 0.5, 0.1, 0.1]}, "as fractions of the image, sizes above 0, got [1.2"),
        ({"boxes": [120.0, 50.0, 20.0, 8.0]}, "as fractions of the image, sizes above 0, got [120"),
        ({"boxes": [0.5, np.nan, 0.1, 0.1]}, "got [0.5, nan, 0.1, 0.1]"),
    ],
)
def test_targets_that_no_image_has(rng, change, message):
    y_true = {"classes": np.array([[-1, 1]]), "boxes": np.full((1, 2, 4), 0.5, "float32")}
    if "boxes" in change:
        y_true["boxes"][0, 1] = change["boxes"]
    else:
        y_true |= change
    with pytest.raises(Exception, match=re.escape(message)):
        DetectionLoss()(y_true, outputs_of(rng, 1))


@pytest.mark.parametrize(
    ("y_true", "y_pred", "message"),
    [
        (None, None, "y_true must be a dict of ['classes', 'boxes'] (compile a keras_tfm.Model"),
        ({"classes": 0}, None, "y_true must have ['classes', 'boxes'], got ['classes']"),
        (
            {"classes": np.zeros((1, 2)), "boxes": np.zeros((1, 2, 5))},
            None,
            "y_true['boxes'] must have 3 axes, the last of 4, got shape (1, 2, 5)",
        ),
        (True, {"boxes": 0}, "y_pred must have ['logits', 'boxes'], got ['boxes']"),
    ],
)
def test_bad_structure(rng, y_true, y_pred, message):
    y_true = targets_of(rng, 1) if y_true is True else y_true
    y_pred = outputs_of(rng, 1) if y_pred is None else y_pred
    with pytest.raises(ValueError, match=re.escape(message)):
        DetectionLoss()(y_true, y_pred)


def test_bad_weights():
    with pytest.raises(ValueError, match="box_weight must be at least 0, got -1"):
        DetectionLoss(box_weight=-1.0)
    with pytest.raises(TypeError, match="giou_cost must be a number, got '2'"):
        DetectionLoss(giou_cost="2")


def test_a_model_of_keras_says_what_to_use(rng):
    model = detector()
    plain = keras.Model(model.input, model.output)
    plain.compile("sgd", DetectionLoss(), run_eagerly=True)
    targets = targets_of(rng, B)
    targets = {"logits": targets["classes"], "boxes": targets["boxes"]}
    with pytest.raises(ValueError, match=r"compile a keras_tfm\.Model"):
        plain.fit(pixels(rng), targets, verbose=0)


def pixels(rng, batch=B):
    return rng.integers(0, 256, (batch, *SIZE, 3)).astype("uint8")


def predict(model, x):
    """As `model.predict`, without a graph, which takes ten times as long to trace as to run."""
    return keras.tree.map_structure(to_numpy, model(x, training=False))


@saving
@pytest.mark.parametrize("auxiliary", [pytest.param(False, marks=pytest.mark.slow), True])
def test_fit_evaluate_and_predict(rng, auxiliary):
    keras.utils.set_random_seed(0)
    model = detector(auxiliary_outputs=auxiliary, num_layers=1, num_decoder_layers=2)
    x, y = pixels(rng), targets_of(rng, B, [0, 1, 3, 2])
    model.compile(keras.optimizers.Adam(3e-3), DetectionLoss())
    before = DetectionLoss()(y, predict(model, x))
    assert_close(model.evaluate(x, y, verbose=0), before, FLOAT32)
    history = model.fit(x, y, epochs=60, verbose=0).history["loss"]
    assert history[-1] < 0.5 * history[0]  # 0.2 to 0.3 with four seeds
    again = type(model).from_config(model.get_config())
    again.set_weights(model.get_weights())
    assert_close(predict(again, x)["boxes"], model.predict(x, verbose=0)["boxes"], 1e-6)


@tensorflow_only
@pytest.mark.parametrize("auxiliary", [pytest.param(False, marks=pytest.mark.slow), True])
def test_accumulation_is_the_whole_batch(rng, auxiliary):
    """Parts have other numbers of objects; divisors are those of the whole batch."""
    x, y = pixels(rng), targets_of(rng, B, [5, 0, 1, 0])
    weights = []
    for parts in (1, 2):
        keras.utils.set_random_seed(3)
        # Batch normalisation sees parts, not batches, so it is frozen.
        model = detector(auxiliary_outputs=auxiliary, frozen_batch_norm=True)
        # Eager: tests/training/test_accumulation.py traces it, the test above the loss.
        model.compile(
            keras.optimizers.SGD(0.1), DetectionLoss(), gradient_accumulation_steps=parts,
            run_eagerly=True,
        )  # fmt: skip
        loss = model.fit(x, y, epochs=2, verbose=0).history["loss"]
        weights.append([loss, *(np.array(w) for w in model.trainable_weights)])
    for a, b in zip(*weights, strict=True):
        assert_close(a, b, FLOAT32)


@pytest.mark.slow
@tensorflow_only
def test_two_replicas_are_one_device():
    """Of 18 objects, 17 are on the first replica; divisors are those of both."""
    script = Path(__file__).with_name("detection_on_two_replicas.py")
    paths = [str(Path(__file__).parents[2]), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    one, two = json.loads(done.stdout)
    for a, b in zip(one, two, strict=True):
        assert_close(np.array(b), np.array(a), FLOAT32)


@tensorflow_only
def test_the_file_keeps_the_loss(rng, tmp_path):
    model = detector()
    model.compile("adam", DetectionLoss(giou_weight=3.0), run_eagerly=True)
    x, y = pixels(rng), targets_of(rng, B)
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "x.keras")
    again = keras.saving.load_model(tmp_path / "x.keras")
    assert isinstance(again, keras_tfm.Model) and again.loss.weights["giou_weight"] == 3.0
    assert_close(again.evaluate(x, y, verbose=0), model.evaluate(x, y, verbose=0), FLOAT32)


@tensorflow_only
def test_xla_is_refused():
    with pytest.raises(ValueError, match="jit_compile must be False or 'auto' with detection_loss"):
        detector().compile("adam", loss=DetectionLoss(), jit_compile=True)


def test_without_auxiliary_outputs(rng):
    model = detector(auxiliary_outputs=True)
    x = pixels(rng)
    less = models.without_auxiliary_outputs(model)
    assert set(less.output) == {"logits", "boxes"}
    assert less.family == "detr" and less.head.kind == "object_detector"
    assert_close(predict(less, x)["boxes"], predict(model, x)["boxes"], 1e-6)
    with pytest.raises(ValueError, match='expected a model with the outputs "logits" and "boxes"'):
        models.without_auxiliary_outputs(models.backbone(model))


def test_auxiliary_outputs_are_those_of_shorter_decoders(rng):
    model = detector(auxiliary_outputs=True, num_decoder_layers=3)
    outputs = predict(model, pixels(rng))
    assert outputs["auxiliary_boxes"].shape == (B, 2, QUERIES, 4)
    for i in range(2):
        short = detector(num_decoder_layers=i + 1)
        values = {w.path: w for w in model.weights}
        for weight in short.weights:
            weight.assign(values[weight.path])
        expected = predict(short, pixels(np.random.default_rng(11)))
        for name in ("logits", "boxes"):
            assert_close(outputs[f"auxiliary_{name}"][:, i], expected[name], FLOAT32)


@pytest.mark.parametrize(("classes", "boxes"), [((2, 1), (2, 3, 4)), ((1, 3), (1, 3, 4))])
def test_classes_boxes_and_logits_have_the_same_rows(classes, boxes):
    y_true = {"classes": np.zeros(classes, "int32"), "boxes": np.full(boxes, 0.5, "float32")}
    y_pred = {"logits": np.zeros((2, 5, 4), "float32"), "boxes": np.full((2, 5, 4), 0.5, "float32")}
    with pytest.raises(ValueError, match="must have the same B and M, got"):
        DetectionLoss()(y_true, y_pred)
