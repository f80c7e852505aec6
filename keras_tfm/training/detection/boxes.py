"""Boxes: corners, areas, intersection over union and its generalised form.

Example:

>>> import numpy as np
>>> from keras_tfm.training.detection.boxes import generalized_iou
>>> a = np.array([0.25, 0.5, 0.5, 1.0], "float32")  # the left half of an image
>>> b = np.array([0.5, 0.5, 1.0, 1.0], "float32")  # all of it
>>> float(generalized_iou(a, b))
0.5
"""

from keras import ops

from keras_tfm.layers.types import Tensor


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
