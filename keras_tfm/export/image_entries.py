"""The manifest's entries for pictures: how they become pixels, and the names of the classes.

Example:

>>> from keras_tfm.export.image_entries import image_entries
>>> from keras_tfm.models import vit
>>> from keras_tfm.runtime import ImageProcessor
>>> model = vit(16, 8, dim=12, num_layers=1, num_heads=3, intermediate_dim=16)
>>> image_entries(model, ImageProcessor((16, 16)))["pixels"].resample
'bilinear'
"""

from collections.abc import Mapping, Sequence

import keras

from keras_tfm.arguments import check_labels
from keras_tfm.generation.interface import interface_of
from keras_tfm.models.identity import head_of, identity_of
from keras_tfm.runtime.manifest.checks import check_label_count
from keras_tfm.runtime.media.image_processor import ImageProcessor


def image_entries(
    model: keras.Model, images: ImageProcessor | Mapping[str, ImageProcessor] | None
) -> dict[str, ImageProcessor]:
    """The processor of each input of pixels. Empty without processors.

    Raises:
        TypeError: something that is not an `ImageProcessor`.
        ValueError: an input that takes no pixels, or pixels of another shape.
    """
    if images is None:
        return {}
    inputs = interface_of(model).inputs
    known = sorted(name for name, x in inputs.items() if x.is_pixels)
    if not isinstance(images, Mapping):
        if len(known) != 1:
            raise ValueError(
                f"images must be a dictionary by input: {model.name} has {len(known)} inputs of "
                f"pixels, {known}, which only an ImageNormalization reads"
            )
        images = {known[0]: images}
    for name, processor in images.items():
        if not isinstance(processor, ImageProcessor):
            raise TypeError(f"images must be a runtime.ImageProcessor, got {processor!r}")
        if name not in known:
            raise ValueError(
                f"images must be for inputs of pixels, {known}, which only an ImageNormalization "
                f"reads, got {name!r}"
            )
        expected, found = inputs[name].spec.shape[1:], (*processor.size, processor.channels)
        if any(a not in (None, b) for a, b in zip(expected, found, strict=True)):
            raise ValueError(
                f"images for {name!r} must have the shape {tuple(expected)} of the model's input, "
                f"got {found}"
            )
    return dict(images)


def label_entry(model: keras.Model, labels: Sequence[str] | None) -> list[str] | None:
    """The given names of classes, or those of the head; None without any.

    Raises:
        ValueError: the labels are not texts, two that were given are equal, or no output has as
            many classes. A detector's logits have one class more, "no object".
    """
    if labels is None:
        head = head_of(model)
        given = {} if head is None else head.arguments
        labels = given.get("labels") or identity_of(model).arguments.get("labels")
        if labels is None:
            return None
    else:  # released models have equal ones: ImageNet has two cranes
        check_labels(labels)
    outputs = interface_of(model).name_outputs(model.output)
    check_label_count("labels", len(labels), {name: x.shape for name, x in outputs.items()})
    return list(labels)
