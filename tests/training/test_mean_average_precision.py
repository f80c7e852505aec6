import numpy as np
import pytest
from parity.make_detection_fixture import EXPECTED, IMAGES, drawn
from small_detectors import boxes_of

from keras_tfm.training import MeanAveragePrecision

BOX = [0.5, 0.5, 0.2, 0.2]
ASIDE = [0.1, 0.1, 0.1, 0.1]


def image(metric, objects, detections):
    """Adds an image of objects (class, box) and detections (class, score, box)."""
    classes, targets = zip(*objects, strict=True) if objects else ((), np.zeros((0, 4)))
    labels, scores, boxes = zip(*detections, strict=True) if detections else ((), (), [])
    metric.add_image(classes, targets, labels, scores, np.reshape(boxes, (-1, 4)))


@pytest.mark.parametrize(
    ("detections", "expected"),
    [
        ([(0, 0.9, BOX)], 1.0),
        ([], 0.0),
        ([(0, 0.9, ASIDE)], 0.0),
        ([(1, 0.9, BOX)], 0.0),
        # The right one comes second: precision 1/2 at every recall.
        ([(0, 0.9, ASIDE), (0, 0.8, BOX)], 0.5),
        # An object is found once.
        ([(0, 0.9, BOX), (0, 0.8, BOX)], 1.0),
        # IoU 0.16 / 0.2^2 / (2 - ...): half a box aside is below 0.5.
        ([(0, 0.9, [0.6, 0.5, 0.2, 0.2])], 0.0),
        ([(0, 0.9, [0.5, 0.5, 0.2, 0.15])], 1.0),
    ],
)
def test_one_object(detections, expected):
    metric = MeanAveragePrecision()
    image(metric, [(0, BOX)], detections)
    assert metric.result() == pytest.approx(expected)


def test_by_hand():
    """Two images, three objects of class 0, and one of class 2, which is missed."""
    metric = MeanAveragePrecision()
    image(metric, [(0, BOX), (0, ASIDE)], [(0, 0.9, BOX), (0, 0.3, [0.9, 0.9, 0.1, 0.1])])
    image(metric, [(0, BOX), (2, BOX)], [(0, 0.6, ASIDE), (0, 0.5, BOX), (1, 0.9, BOX)])
    # By score: right, wrong, right, wrong; recall 1/3, 1/3, 2/3. Precision 1 at the recalls up to
    # 0.33 (34 of 101), 2/3 at those up to 0.66 (33), then 0.
    expected = (34 * 1.0 + 33 * 2 / 3) / 101
    assert metric.of_classes() == pytest.approx({0: expected, 2: 0.0})
    assert metric.result() == pytest.approx(expected / 2)
    metric.reset_state()
    assert np.isnan(metric.result())


def test_outputs_of_a_model():
    """The class is the likeliest, "no object" aside; padding is no object."""
    metric = MeanAveragePrecision()
    y_true = {"classes": np.array([[1, -1]]), "boxes": np.array([[BOX, ASIDE]])}
    logits = np.array([[[0.0, 1.0, 5.0], [3.0, 0.0, 0.0], [-9.0, -9.0, 9.0]]])
    y_pred = {"logits": logits, "boxes": np.array([[BOX, ASIDE, ASIDE]])}
    metric.update_state(y_true, y_pred)
    assert metric.of_classes() == {1: 1.0}


# Made by tests/parity/make_detection_fixture.py, with pycocotools.
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("iou", [0.5, 0.75])
def test_equals_pycocotools(seed, iou):
    metric = MeanAveragePrecision(iou, max_detections=7)
    rng = np.random.default_rng(seed)
    for _ in range(IMAGES):
        metric.add_image(*drawn(rng))
    assert metric.result() == pytest.approx(EXPECTED[iou][seed], abs=1e-12)


def test_bad_arguments():
    with pytest.raises(ValueError, match="iou must be above 0 and at most 1, got 0"):
        MeanAveragePrecision(0)
    with pytest.raises(ValueError, match="max_detections must be at least 1, got 0"):
        MeanAveragePrecision(max_detections=0)


def test_random_boxes_are_rarely_right():
    rng = np.random.default_rng(0)
    metric = MeanAveragePrecision()
    for _ in range(50):
        metric.add_image(
            [0, 1, -1], boxes_of(rng, 3), rng.integers(0, 2, 9), rng.random(9), boxes_of(rng, 9)
        )
    assert 0.0 < metric.result() < 0.2
