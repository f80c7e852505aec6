"""A model of a file, with all that the file holds for it.

Example:

>>> from keras_tfm.export.member import image_processors
>>> from keras_tfm.models import vit
>>> from keras_tfm.runtime import ImageProcessor
>>> model = vit(16, 8, dim=12, num_layers=1, num_heads=3, intermediate_dim=16)
>>> image_processors(model, ImageProcessor((16, 16)))["pixels"].resample
'bilinear'
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import keras

from keras_tfm.arguments import check_labels
from keras_tfm.export.signatures.make import make_signatures
from keras_tfm.export.signatures.request import ExportArguments, Request
from keras_tfm.export.signatures.signature import Signature
from keras_tfm.export.signatures.text import TEXT, add_text_signatures, check_tokenizers
from keras_tfm.generation.interface import interface_of
from keras_tfm.generation.tokenizers.tokenizer_forms import Form, by_input, check_tokenizer, form_of
from keras_tfm.models.identity import head_of, identity_of
from keras_tfm.runtime.manifest.checks import check_label_count
from keras_tfm.runtime.manifest.records import Json
from keras_tfm.runtime.media.image_processor import ImageProcessor

Images = ImageProcessor | Mapping[str, ImageProcessor] | None


@dataclass(frozen=True)
class Tokenizers:
    """The tokenizers of a model, as a file stores them.

    Attributes:
        entries: the bytes of each tokenizer, by the name of its metadata entry.
        names: the entry's name, by input.
        options: the options of its tokenizer, by entry.
    """

    entries: dict[str, bytes] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    options: dict[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class Member:
    """A model of a file.

    Attributes:
        model: the functional model, in float32.
        request: the checked arguments.
        signatures: its signatures, not traced yet.
        tokenizers: its tokenizers.
        images: the processor of each input of pixels.
        labels: the names of its classes.
    """

    model: keras.Model
    request: Request
    signatures: list[Signature]
    tokenizers: Tokenizers = field(default_factory=Tokenizers)
    images: dict[str, ImageProcessor] = field(default_factory=dict)
    labels: list[str] | None = None


def make_member(
    model: keras.Model,
    signatures: Sequence[str] | None,
    arguments: ExportArguments,
    check: Callable[[Request], None],
    *,
    tokenizer: object = None,
    detokenizer: object = None,
    images: Images = None,
    labels: Sequence[str] | None = None,
) -> Member:
    """A model with its arguments, all of them checked.

    Args:
        model: functional model in float32.
        signatures, arguments, tokenizer, detokenizer, images, labels: as given to `export_tflite`.
        check: raises if the format of the weights does not allow the signatures.
    """
    pictures, classes = image_processors(model, images), class_names(model, labels)
    shapes = {name: x.shape for name, x in pictures.items()}
    of_text = [name for name in signatures or () if name.endswith(TEXT)]
    if not of_text or signatures is None:
        request = Request(model, signatures, pictures=shapes, **arguments)
        check(request)
        stored = store_tokenizers(request, tokenizer, detokenizer)
        return Member(model, request, make_signatures(request), stored, pictures, classes)
    roles = [*dict.fromkeys(name.removesuffix(TEXT) for name in signatures)]
    request = Request(model, roles, pictures=shapes, **arguments)
    check(request)
    if request.accelerator == "gpu":
        raise ValueError(
            "signatures of texts are for accelerator='cpu', as a GPU delegate has no operator of "
            f"texts: let the runtime tokenize, got {of_text}"
        )
    tokenizers = check_tokenizers(model, signatures, tokenizer, detokenizer)
    made = make_signatures(request)
    made += add_text_signatures(
        model, made, of_text, tokenizers, detokenizer, arguments.get("target")
    )
    return Member(model, request, made, images=pictures, labels=classes)


def store_tokenizers(request: Request, tokenizer: object, detokenizer: object) -> Tokenizers:
    """The tokenizers of an export, checked against the model.

    Args:
        request: the export.
        tokenizer: one for all inputs of ids, or a dictionary by input; optional.
        detokenizer: tokenizer, or path of its file: that of the stepped input; by default
            `tokenizer`.

    Raises:
        TypeError: a tokenizer's kind cannot be stored in a file.
        ValueError: a tokenizer is damaged, cannot be stored exactly, has more ids than the model,
            or lacks the start or end token; or an argument does not apply.
        FileNotFoundError: there is no such tokenizer file.
    """
    if tokenizer is None and detokenizer is None:
        return Tokenizers()
    known: dict[int, Form] = {}
    forms: dict[str, Form] = {}
    for name, one in _by_input(request, tokenizer, detokenizer).items():
        if id(one) not in known:
            known[id(one)] = form_of(name, one)
        forms[name] = known[id(one)]
    entries: dict[Form, str] = {}
    for name, form in forms.items():
        shared = len(set(forms.values())) == 1
        entries.setdefault(form, ("" if shared else f"{name}_") + f"tokenizer{form.ending}")
    for name, form in forms.items():
        steps = request.is_stepped and name == request.target
        start_id, end_ids = (request.start_id, request.end_ids) if steps else (None, ())
        check_tokenizer(request.model, name, form.read(entries[form]), start_id, end_ids)
    return Tokenizers(
        {entry: form.content for form, entry in entries.items()},
        {name: entries[form] for name, form in forms.items()},
        {entry: dict(form.options) for form, entry in entries.items() if form.options},
    )


def _by_input(request: Request, tokenizer: object, detokenizer: object) -> dict[str, object]:
    result = by_input(request.model, tokenizer)
    if not request.is_stepped:
        if detokenizer is not None:
            raise ValueError(
                "a detokenizer is for generated text, got one without a signature that generates"
            )
        return result
    target = request.target
    if detokenizer is None and result and target not in result:
        detokenizer = next(iter(result.values()))
    if detokenizer is not None:
        alone = isinstance(tokenizer, dict) or list(result) == [target]
        own = result.get(target) if alone else None
        if own is not None and own is not detokenizer:
            raise ValueError(
                f"the tokenizer of the stepped input {target!r} is also the detokenizer: give "
                "one of them, got two different ones"
            )
        result[target] = detokenizer
    return result


def image_processors(model: keras.Model, images: Images) -> dict[str, ImageProcessor]:
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
        if not known:
            raise ValueError(
                f"images must be None: {model.name} has no input of pixels, which only an "
                "ImageNormalization reads"
            )
        if len(known) > 1:
            raise ValueError(
                f"images must be a dictionary by input: {model.name} has {len(known)} inputs of "
                f"pixels, {known}"
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
        expected, found = inputs[name].spec.shape[1:], processor.shape
        fits = len(expected) == len(found)
        if not fits or any(a not in (None, b) for a, b in zip(expected, found, strict=True)):
            raise ValueError(
                f"images for {name!r} must have the shape {tuple(expected)} of the model's input, "
                f"got {found}"
            )
    return dict(images)


def class_names(model: keras.Model, labels: Sequence[str] | None) -> list[str] | None:
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
