"""Pictures in, pixels, boxes or captions out."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np

from keras_tfm.runtime.checked_inputs import Values
from keras_tfm.runtime.loaded_file import LoadedFile
from keras_tfm.runtime.media.decoded_picture import Picture
from keras_tfm.runtime.media.image_processor import ImageProcessor, Pictures
from keras_tfm.runtime.media.tile_processor import IMAGE, TileProcessor
from keras_tfm.runtime.tasks.text import answers, prompt_of, target_of, tokenizer_of

# Pictures for the first input that takes them, or by name, beside arrays for other inputs.
PicturesByInput = Pictures | Mapping[str, Pictures | Values]


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


def as_pixels(file: LoadedFile, images: PicturesByInput) -> dict[str, Values]:
    """The inputs with pictures as the pixels of the file's image processors."""
    processors = _processors(file)
    by_name = images if isinstance(images, Mapping) else {next(iter(processors)): images}
    return {
        name: processors[name](cast("Pictures", x)) if name in processors else cast("Values", x)
        for name, x in by_name.items()
    }


def _processors(file: LoadedFile) -> dict[str, ImageProcessor]:
    """The image processors of a file of one model, by input; at least one."""
    file.check_single()
    if not file.manifest.images:
        raise ValueError(f"{file.path} has no image processor: export it with images=")
    return file.manifest.images


def are_several(images: object) -> bool:
    """Whether a caller gave several pictures, and not one."""
    return isinstance(images, list | tuple) or getattr(images, "ndim", 0) == 4


def detect(
    file: LoadedFile, image: Picture, threshold: float, labels: Sequence[str] | None
) -> list[Detection]:
    """See `Model.detect`. `labels`: the names of the classes."""
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold must be within 0 and 1, got {threshold}")
    if isinstance(image, dict):
        raise TypeError("expected one picture, got a dictionary of inputs")
    name, processor = next(iter(_processors(file).items()))
    pixels, sizes = processor.with_sizes(image)
    if len(sizes) != 1:
        raise ValueError(f"expected one picture, got {len(sizes)}")
    outputs = file.predict({name: pixels})
    if not {"logits", "boxes"} <= outputs.keys():
        raise ValueError(
            f"{file.path} is no detector: expected the outputs 'logits' and 'boxes', "
            f"got {list(outputs)}"
        )
    probabilities = softmax(outputs["logits"][0])[:, :-1]  # the last: no object
    boxes = processor.to_picture(outputs["boxes"][0], sizes[0])
    best = probabilities.argmax(-1)
    found = [
        Detection(str(k) if labels is None else labels[k], float(row[k]), tuple(box.tolist()))
        for k, row, box in zip(best.tolist(), probabilities, boxes, strict=True)
        if row[k] >= threshold
    ]
    return sorted(found, key=lambda x: -x.probability)


def caption(
    file: LoadedFile, images: Pictures, prompt: str | Sequence[int] | None
) -> str | list[str]:
    """See `Model.caption`."""
    if isinstance(images, Mapping):
        raise TypeError("expected a picture or a list of them, got a dictionary")
    inputs = as_pixels(file, images)
    target = target_of(file)
    (pixels,) = inputs.values()
    (processor,) = _processors(file).values()
    if isinstance(processor, TileProcessor) and not isinstance(prompt, list | tuple):
        inputs[target] = _prompts(file, processor, images, cast("str | None", prompt))
    elif prompt is not None:
        one = _about_picture(file, prompt) if isinstance(prompt, str) else list(prompt)
        inputs[target] = cast("Values", [one] * len(np.asarray(pixels)))
    texts = answers(file, inputs)
    return texts if are_several(images) else texts[0]


def _prompts(
    file: LoadedFile, processor: TileProcessor, images: Pictures, prompt: str | None
) -> list[str]:
    """A prompt for each row of pictures, with the tokens of their tiles.

    Without `<image>` in it, a prompt is a message of the user about the picture.
    """
    prompt = _about_picture(file, prompt or "")
    prompt = prompt if IMAGE in prompt else IMAGE + prompt
    known = prompt_of(file)
    features = known.placeholder_group or known.placeholders
    if features is None:
        raise ValueError(f"{file.path} reads no pictures inside the text: give images= of one size")
    return processor.expand(prompt, images, features)


def _about_picture(file: LoadedFile, prompt: str) -> str:
    """A prompt without the place of a picture as a message of the user about the picture."""
    token_id, template = prompt_of(file).placeholder_id, file.manifest.chat_template
    if token_id is None or template is None:
        return prompt
    place = tokenizer_of(file, target_of(file)).token(token_id)
    has_place = place in prompt or place not in template.first
    return prompt if has_place else template.prompt(prompt)


def softmax(logits: np.ndarray) -> np.ndarray:
    """The probabilities of classes, along the last axis, float64.

    >>> import numpy as np
    >>> from keras_tfm.runtime.tasks.pictures import softmax
    >>> softmax(np.array([1000.0, 1000.0])).tolist()
    [0.5, 0.5]
    """
    exponents = np.exp(logits.astype("float64") - logits.max(-1, keepdims=True))
    return exponents / exponents.sum(-1, keepdims=True)
