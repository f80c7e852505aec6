"""The loss of object detection by sets: matching, classes and boxes."""

from collections.abc import Mapping

import keras
import numpy as np
from keras import ops

from keras_tfm.arguments import check_number
from keras_tfm.layers.types import Config, DType, Tensor
from keras_tfm.training.detection.matching import assign, on_host
from keras_tfm.training.losses.all_outputs import LossOfAllOutputs
from keras_tfm.training.losses.token_losses import Tensors, fits, row_values, zero_uncounted


def corners(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Left top and right bottom, both (..., 2), of boxes (..., 4), see `generalized_iou`."""
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    return centre - half, centre + half


def generalized_iou(a: Tensor, b: Tensor) -> Tensor:
    """IoU - (E - U) / E, with the union's area U and the smallest enclosing box's area E.

    From -1 (far apart) to 1 (equal), arXiv:1902.09630.

    Args:
        a, b: (..., 4), broadcastable: x and y of the centre, width, height. One of two boxes must
            have an area above 0.

    Returns:
        (...).

    >>> import numpy as np
    >>> from keras_tfm.training.detection.detection_loss import generalized_iou
    >>> a = np.array([0.25, 0.5, 0.5, 1.0], "float32")  # the left half of an image
    >>> b = np.array([0.5, 0.5, 1.0, 1.0], "float32")  # all of it
    >>> float(generalized_iou(a, b))
    0.5
    """
    (low_a, high_a), (low_b, high_b) = corners(a), corners(b)
    inner = _area(ops.minimum(high_a, high_b) - ops.maximum(low_a, low_b))
    outer = _area(ops.maximum(high_a, high_b) - ops.minimum(low_a, low_b))
    union = _area(high_a - low_a) + _area(high_b - low_b) - inner
    return inner / union - (outer - union) / outer


def _area(size: Tensor) -> Tensor:
    """Widths and heights (..., 2) -> (...); 0 where one is negative."""
    size = ops.maximum(size, 0.0)
    return size[..., 0] * size[..., 1]


@keras.saving.register_keras_serializable("keras_tfm")
class DetectionLoss(LossOfAllOutputs):
    """The loss of DETR: each object is matched to one query, which should find it, others nothing.

    "End-to-End Object Detection with Transformers" (arXiv:2005.12872), section 3.1. For each image
    and each decoder block, the matching minimises the sum over objects of

        -class_cost p(class) + box_cost |box - target|_1 - giou_cost GIoU(box, target).

    The loss is the cross-entropy of the queries' classes, where unmatched queries should be "no
    object", weighted by `no_object_weight`, divided by the sum of the weights; plus, over matched
    queries, box_weight |box - target|_1 + giou_weight (1 - GIoU), divided by the number of objects
    in the batch. It is the sum over all decoder blocks whose outputs the model has. Computed in
    float32. An image without objects, or a batch without any, is no special case.

    It sees all outputs of a model at once, which Keras's losses do not: compile a `keras_tfm.Model`
    with it, such as one of `models.detr`. Under `tf.distribute`, and with gradient accumulation,
    both divisors are those of the whole batch. The matching runs outside the graph, so
    `jit_compile=True` is refused on TensorFlow.

    Args:
        class_cost, box_cost, giou_cost: float, weights of the matching's cost.
        box_weight, giou_weight: float, weights of the loss.
        no_object_weight: float, weight of unmatched queries in the cross-entropy.
        name, dtype: as in `keras.losses.Loss`.

    Call arguments:
        y_true: dict of "classes" (B, M), integers, negative = padding, and "boxes" (B, M, 4), x of
            the centre, y of the centre, width and height, as fractions of the image's width and
            height. Boxes of padding are not read. M may be any number.
        y_pred: dict of "logits" (B, N, C + 1) and "boxes" (B, N, 4), and for auxiliary losses
            "auxiliary_logits" (B, L, N, C + 1) and "auxiliary_boxes" (B, L, N, 4).
        sample_weight: (B,) or (B, 1), weight of each image. Default: 1 for every image.

    Raises:
        TypeError: an argument that is not a number.
        ValueError: a weight is negative; `y_true` or `y_pred` lacks an entry; they have different
            numbers of rows, or classes and boxes of objects; a class is outside 0 to C - 1; a box
            has a size that is not above 0 and at most 1, or a centre outside the image. Edges may
            be outside. In a graph, TensorFlow raises InvalidArgumentError with
            the same message.
        ModuleNotFoundError: SciPy is not installed; the message names the extra to install.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.training import DetectionLoss
    >>> boxes = np.array([[[0.5, 0.5, 0.2, 0.4], [0.2, 0.3, 0.1, 0.1]]], "float32")
    >>> y_true = {"classes": np.array([[1, -1]]), "boxes": boxes}
    >>> logits = 100.0 * np.eye(4, dtype="float32")[[[3, 1]]]  # no object, class 1
    >>> y_pred = {"logits": logits, "boxes": boxes[:, ::-1]}
    >>> float(DetectionLoss()(y_true, y_pred))
    0.0
    """

    # For `keras_tfm.Model`: XLA cannot compile it on TensorFlow.
    supports_jit = False

    def __init__(
        self,
        class_cost: float = 1.0,
        box_cost: float = 5.0,
        giou_cost: float = 2.0,
        box_weight: float = 5.0,
        giou_weight: float = 2.0,
        no_object_weight: float = 0.1,
        name: str = "detection_loss",
        dtype: DType = None,
    ):
        super().__init__(name, dtype)
        self.weights = {
            "class_cost": class_cost,
            "box_cost": box_cost,
            "giou_cost": giou_cost,
            "box_weight": box_weight,
            "giou_weight": giou_weight,
            "no_object_weight": no_object_weight,
        }
        for argument, value in self.weights.items():
            check_number(argument, value)
            if value < 0:
                raise ValueError(f"{argument} must be at least 0, got {value}")

    def sums_and_counts(
        self,
        y_true: Tensors,
        y_pred: Tensors,
        sample_weight: Tensor | None = None,
    ) -> list[tuple[Tensor, Tensor]]:
        """The weighted sums of which the loss consists, each with its divisor: classes, boxes."""
        classes, targets = _entries("y_true", y_true, {"classes": 2, "boxes": 3})
        logits, boxes, layers = _predictions(y_pred)
        _check_rows(classes, targets, y_pred)
        weight: Tensor = 1.0
        if sample_weight is not None:
            sample_weight = row_values("sample_weight", sample_weight, classes.shape[0], "float32")
            weight = self._image_weights(sample_weight, layers)
            logits, boxes = (zero_uncounted(x, weight) for x in (logits, boxes))
        classes = ops.repeat(ops.cast(classes, "int32"), layers, axis=0)
        targets = ops.repeat(ops.cast(targets, "float32"), layers, axis=0)
        nothing = logits.shape[-1] - 1
        is_object = classes >= 0
        # Padding becomes a box in the middle, of class 0: finite, and masked below.
        targets = ops.where(ops.expand_dims(is_object, -1), targets, 0.5)
        classes = ops.where(is_object, classes, 0)
        queries = self._match(logits, boxes, classes, targets, is_object)
        matched = queries >= 0

        # (B L, M, N), 1 where an object is matched to a query; rows of -1 are 0.
        pairs = ops.one_hot(queries, logits.shape[1], dtype="int32")
        found = ops.sum(pairs, axis=1)
        wanted = ops.sum(pairs * ops.expand_dims(classes, -1), axis=1) + nothing * (1 - found)
        log_likelihood = ops.squeeze(
            ops.take_along_axis(
                ops.log_softmax(logits, axis=-1), ops.expand_dims(wanted, -1), axis=-1
            ),
            -1,
        )
        class_weights = weight * ops.where(found > 0, 1.0, self.weights["no_object_weight"])
        class_sum = -ops.sum(class_weights * log_likelihood)

        places = ops.expand_dims(ops.where(matched, queries, 0), -1)
        boxes = ops.take_along_axis(boxes, places, axis=1)
        distance = ops.sum(ops.abs(boxes - targets), axis=-1)
        each = self.weights["box_weight"] * distance
        each += self.weights["giou_weight"] * (1.0 - generalized_iou(boxes, targets))
        box_sum = ops.sum(weight * ops.where(matched, each, 0.0))
        # Every decoder block has these counts.
        return [
            (class_sum, ops.sum(class_weights) / layers),
            (box_sum, ops.sum(weight * ops.cast(is_object, "float32")) / layers),
        ]

    def _match(
        self, logits: Tensor, boxes: Tensor, classes: Tensor, targets: Tensor, is_object: Tensor
    ) -> Tensor:
        """The query of each object, (B, M); -1 for padding."""
        rows = ops.shape(boxes)[1]
        chosen = ops.repeat(ops.expand_dims(classes, 1), rows, axis=1)
        num_classes = logits.shape[-1] - 1
        # Classes beyond the head are refused on the host; here they must not be read.
        chosen = ops.minimum(chosen, num_classes)
        likelihood = ops.take_along_axis(ops.softmax(logits, axis=-1), chosen, axis=-1)
        each, target = ops.expand_dims(boxes, 2), ops.expand_dims(targets, 1)
        cost = self.weights["box_cost"] * ops.sum(ops.abs(each - target), axis=-1)
        cost -= self.weights["class_cost"] * likelihood
        cost -= self.weights["giou_cost"] * generalized_iou(each, target)

        def check_and_assign(
            cost: Tensor, classes: Tensor, targets: Tensor, is_object: Tensor
        ) -> np.ndarray:
            check_targets(classes, targets, is_object, num_classes)
            return assign(cost, is_object)

        inputs = [ops.stop_gradient(x) for x in (cost, classes, targets, is_object)]
        return on_host(check_and_assign, tuple(inputs), tuple(classes.shape))

    def _image_weights(self, sample_weight: Tensor, layers: int) -> Tensor:
        """(B,) -> (B L, 1)."""
        return ops.repeat(ops.expand_dims(sample_weight, 1), layers, axis=0)

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {**super().get_config(), **self.weights}


def check_targets(
    classes: np.ndarray, boxes: np.ndarray, is_object: np.ndarray, num_classes: int
) -> None:
    """Raises a ValueError unless all objects have a known class and a box of the image.

    Args:
        classes: (B, M), integers.
        boxes: (B, M, 4).
        is_object: (B, M), boolean, False = padding.
        num_classes: int, C.
    """
    wrong = is_object & (classes >= num_classes)
    if wrong.any():
        raise ValueError(
            f"classes must be from 0 to {num_classes - 1}, or -1 for padding, "
            f"got {int(classes[wrong][0])}"
        )
    centre, size = boxes[..., :2], boxes[..., 2:]
    fits = (centre >= 0) & (centre <= 1) & (size > 0) & (size <= 1)  # False for NaN
    wrong = is_object & ~fits.all(axis=-1)
    if wrong.any():
        raise ValueError(
            "boxes must be x and y of the centre, width and height, as fractions of the image, "
            f"sizes above 0, got {[round(float(x), 4) for x in boxes[wrong][0]]}"
        )


def _check_rows(classes: Tensor, targets: Tensor, y_pred: Tensors) -> None:
    """Raises unless there is a box for each class, and logits for each image."""
    shapes = [tuple(x.shape) for x in (classes, targets, y_pred["logits"])]
    if not (fits(shapes[0], shapes[1][:2]) and fits(shapes[0][:1], shapes[2][:1])):
        raise ValueError(
            "DetectionLoss: classes (B, M), boxes (B, M, 4) and logits (B, N, C + 1) must have the "
            f"same B and M, got {shapes[0]}, {shapes[1]} and {shapes[2]}"
        )


def _predictions(y_pred: Tensors) -> tuple[Tensor, Tensor, int]:
    """Logits (B L, N, C + 1), boxes (B L, N, 4) and the number L of decoder blocks."""
    logits, boxes = _entries("y_pred", y_pred, {"logits": 3, "boxes": 3})
    logits, boxes = ops.expand_dims(logits, 1), ops.expand_dims(boxes, 1)
    if "auxiliary_logits" in y_pred:
        more = _entries("y_pred", y_pred, {"auxiliary_logits": 4, "auxiliary_boxes": 4})
        logits = ops.concatenate([logits, more[0]], axis=1)
        boxes = ops.concatenate([boxes, more[1]], axis=1)
    layers, *shape = logits.shape[1:]
    logits = ops.reshape(ops.cast(logits, "float32"), (-1, *shape))
    return logits, ops.reshape(ops.cast(boxes, "float32"), (-1, shape[0], 4)), layers


def _entries(what: str, given: dict[str, Tensor], axes: dict[str, int]) -> list[Tensor]:
    """The tensors of a dict, checked."""
    if not isinstance(given, Mapping):
        shape = getattr(given, "shape", None)
        raise ValueError(
            f"DetectionLoss: {what} must be a dict of {list(axes)} (compile a keras_tfm.Model with "
            f"it: keras.Model gives a loss one output only), got {type(given).__name__} {shape}"
        )
    missing = [name for name in axes if name not in given]
    if missing:
        raise ValueError(f"DetectionLoss: {what} must have {list(axes)}, got {list(given)}")
    tensors = [ops.convert_to_tensor(given[name]) for name in axes]
    for (name, rank), tensor in zip(axes.items(), tensors, strict=True):
        if len(tensor.shape) != rank or ("boxes" in name and tensor.shape[-1] != 4):
            raise ValueError(
                f"DetectionLoss: {what}[{name!r}] must have {rank} axes"
                + (", the last of 4" if "boxes" in name else "")
                + f", got shape {tuple(tensor.shape)}"
            )
    return tensors
