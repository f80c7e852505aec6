"""Mean average precision of object detection."""

import numpy as np
from keras import ops

from keras_tfm.arguments import check_integer, check_number
from keras_tfm.layers.types import Tensor
from keras_tfm.training.losses.token_losses import Tensors

# COCO's recalls, at which precision is read.
_RECALLS = np.linspace(0.0, 1.0, 101)


class MeanAveragePrecision:
    """The mean over classes of the average precision at one intersection over union (IoU).

    COCO's definition, equal to `pycocotools`: in each image and class, detections in the order of
    their scores take the free object with the highest IoU, if that is at least `iou`; over all
    images, precision at each recall is the highest at that recall or above, and is averaged over
    the recalls 0, 0.01, ..., 1. Classes without objects are left out. Computed in NumPy, in
    float64.

    A query of DETR is one detection: its most likely class, "no object" aside, with that
    probability as its score.

    Args:
        iou: float, the least IoU of a match, above 0 and at most 1.
        max_detections: int, number of detections of each image and class that count, the best
            first.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.training import MeanAveragePrecision
    >>> boxes = np.array([[[0.5, 0.5, 0.2, 0.4], [0.2, 0.3, 0.1, 0.1]]])
    >>> metric = MeanAveragePrecision()
    >>> logits = np.array([[[0.0, 5.0, 0.0], [0.0, 0.0, 5.0]]])  # class 1, no object
    >>> metric.update_state(
    ...     {"classes": np.array([[1, -1]]), "boxes": boxes}, {"logits": logits, "boxes": boxes}
    ... )
    >>> metric.result()
    1.0
    """

    def __init__(self, iou: float = 0.5, max_detections: int = 100):
        check_number("iou", iou)
        if not 0 < iou <= 1:
            raise ValueError(f"iou must be above 0 and at most 1, got {iou}")
        check_integer("max_detections", max_detections)
        self.iou = iou
        self.max_detections = max_detections
        self.reset_state()

    def reset_state(self) -> None:
        """Forgets all images."""
        self._objects: dict[int, int] = {}
        # By class: the scores of detections, and whether each one is right.
        self._scores: dict[int, list[np.ndarray]] = {}
        self._right: dict[int, list[np.ndarray]] = {}

    def update_state(self, y_true: Tensors, y_pred: Tensors) -> None:
        """Adds a batch.

        Args:
            y_true: dict of "classes" (B, M), -1 = padding, and "boxes" (B, M, 4): x and y of the
                centre, width and height.
            y_pred: dict of "logits" (B, N, C + 1), the last class is "no object", and "boxes"
                (B, N, 4).
        """
        classes, targets, logits, boxes = (
            np.asarray(ops.convert_to_numpy(x), "float64")
            for x in (y_true["classes"], y_true["boxes"], y_pred["logits"], y_pred["boxes"])
        )
        likelihood = np.exp(logits - logits.max(axis=-1, keepdims=True))
        likelihood /= likelihood.sum(axis=-1, keepdims=True)
        labels, scores = likelihood[..., :-1].argmax(-1), likelihood[..., :-1].max(-1)
        for image in zip(classes, targets, labels, scores, boxes, strict=True):
            self.add_image(*image)

    def add_image(
        self, classes: Tensor, targets: Tensor, labels: Tensor, scores: Tensor, boxes: Tensor
    ) -> None:
        """Adds one image.

        Args:
            classes: (M,), integers, -1 = padding.
            targets: (M, 4), boxes of the objects.
            labels: (N,), integers, classes of the detections.
            scores: (N,), float, their scores.
            boxes: (N, 4), their boxes.
        """
        classes, labels = np.asarray(classes).astype("int64"), np.asarray(labels).astype("int64")
        targets, scores, boxes = (np.asarray(x, "float64") for x in (targets, scores, boxes))
        for label in np.union1d(classes[classes >= 0], labels).tolist():
            wanted = targets[classes == label]
            mine = np.flatnonzero(labels == label)
            mine = mine[np.argsort(-scores[mine], kind="stable")][: self.max_detections]
            self._objects[label] = self._objects.get(label, 0) + len(wanted)
            self._scores.setdefault(label, []).append(scores[mine])
            self._right.setdefault(label, []).append(self._match(boxes[mine], wanted))

    def _match(self, boxes: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Whether each detection, best first, finds an object that none before it found."""
        overlaps = pairwise_iou(boxes, targets)
        free = np.ones(len(targets), bool)
        right = np.zeros(len(boxes), bool)
        for i, row in enumerate(overlaps):
            row = np.where(free, row, -1.0)
            # Of equal overlaps the last one, as in pycocotools.
            best = len(row) - 1 - int(row[::-1].argmax()) if len(row) else -1
            if best >= 0 and row[best] >= min(self.iou, 1 - 1e-10):
                right[i], free[best] = True, False
        return right

    def of_classes(self) -> dict[int, float]:
        """The average precision of each class that has objects."""
        return {
            label: average_precision(
                np.concatenate(self._scores[label]), np.concatenate(self._right[label]), count
            )
            for label, count in sorted(self._objects.items())
            if count
        }

    def result(self) -> float:
        """The mean over classes; NaN without any objects."""
        values = list(self.of_classes().values())
        return float(np.mean(values)) if values else float("nan")


def average_precision(scores: np.ndarray, right: np.ndarray, count: int) -> float:
    """The average precision of one class.

    Args:
        scores: (N,), the detections' scores.
        right: (N,), boolean, whether each one found an object.
        count: int, number of objects.
    """
    order = np.argsort(-scores, kind="stable")
    found = np.cumsum(right[order])
    precision = found / np.arange(1, len(found) + 1)
    precision = np.maximum.accumulate(precision[::-1])[::-1]
    places = np.searchsorted(found / count, _RECALLS, side="left")
    return float(np.append(precision, 0.0)[places].mean())


def pairwise_iou(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Intersection over union of boxes (N, 4) and (M, 4), centre and size: (N, M)."""
    a, b = a[:, np.newaxis], b[np.newaxis]
    low = np.maximum(a[..., :2] - a[..., 2:] / 2, b[..., :2] - b[..., 2:] / 2)
    high = np.minimum(a[..., :2] + a[..., 2:] / 2, b[..., :2] + b[..., 2:] / 2)
    inner = np.maximum(high - low, 0.0).prod(axis=-1)
    union = a[..., 2:].prod(axis=-1) + b[..., 2:].prod(axis=-1) - inner
    return inner / np.where(union > 0, union, 1.0)
