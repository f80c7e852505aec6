"""Pictures in, boxes out: the outputs of a detector such as DETR as labelled boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from keras_tfm.runtime.media.image_processor import ImageProcessor
from keras_tfm.runtime.signature_runner import check_one

if TYPE_CHECKING:
    from keras_tfm.runtime.model import Model


class Detection(NamedTuple):
    """An object that was found in a picture.

    Attributes:
        label: str, name of the class, or its number if the file has no labels.
        probability: float, between 0 and 1.
        box: tuple of float, left, top, right and bottom in pixels of the picture.

    Example:

    >>> from keras_tfm.runtime import Detection
    >>> Detection("cat", 0.98, (10.0, 20.0, 110.0, 95.0)).label
    'cat'
    """

    label: str
    probability: float
    box: tuple[float, float, float, float]


def as_pixels(model: Model, images: Any) -> dict[str, Any]:
    """The inputs with pictures as the pixels of the file's image processors."""
    processors = _processors(model)
    if not isinstance(images, dict):
        images = {next(iter(processors)): images}
    return {
        name: processors[name](value) if name in processors else value
        for name, value in images.items()
    }


def _processors(model: Model) -> dict[str, ImageProcessor]:
    """The image processors of a file of one model, by input; at least one."""
    check_one(model.path, model.signatures)
    if not model.image_processors:
        raise ValueError(f"{model.path} has no image processor: export it with images=")
    return model.image_processors


def detect(model: Model, image: Any, threshold: float) -> list[Detection]:
    """See `Model.detect`."""
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold must be within 0 and 1, got {threshold}")
    if isinstance(image, dict):
        raise TypeError("expected one picture, got a dictionary of inputs")
    name, processor = next(iter(_processors(model).items()))
    pixels, sizes = processor.with_sizes(image)
    if len(sizes) != 1:
        raise ValueError(f"expected one picture, got {len(sizes)}")
    outputs = model.predict({name: pixels})
    if not {"logits", "boxes"} <= outputs.keys():
        raise ValueError(
            f"{model.path} is no detector: expected the outputs 'logits' and 'boxes', "
            f"got {list(outputs)}"
        )
    probabilities = softmax(outputs["logits"][0])[:, :-1]  # the last: no object
    boxes = processor.to_picture(outputs["boxes"][0], sizes[0])
    best, labels = probabilities.argmax(-1), model.labels
    found = [
        Detection(str(k) if labels is None else labels[k], float(row[k]), tuple(box.tolist()))
        for k, row, box in zip(best.tolist(), probabilities, boxes, strict=True)
        if row[k] >= threshold
    ]
    return sorted(found, key=lambda x: -x.probability)


def softmax(logits: np.ndarray) -> np.ndarray:
    """The probabilities of classes, along the last axis, float64.

    >>> import numpy as np
    >>> from keras_tfm.runtime.tasks.detection import softmax
    >>> softmax(np.array([1000.0, 1000.0])).tolist()
    [0.5, 0.5]
    """
    exponents = np.exp(logits.astype("float64") - logits.max(-1, keepdims=True))
    return exponents / exponents.sum(-1, keepdims=True)
