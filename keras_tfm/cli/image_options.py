"""The options --images and --labels: rules for pictures, and names of classes."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_tfm.arguments import check_labels
from keras_tfm.cli.console import typer
from keras_tfm.runtime import ImageProcessor

if TYPE_CHECKING:
    import keras

RULE = "HEIGHTxWIDTH[:RESIZE][:FILTER]"


def labels_of(text: str | None) -> list[str] | None:
    """Names separated by commas, or the lines of a file."""
    if text is None:
        return None
    try:
        # Path.is_file raises for a list of names that is too long for a path.
        is_file = os.path.isfile(text)  # noqa: PTH113
        # Programs on Windows write a byte order mark.
        lines = Path(text).read_text("utf-8-sig").splitlines() if is_file else text.split(",")
    except UnicodeDecodeError:
        raise typer.BadParameter(
            f"{text} must be a text file in UTF-8, one label a line", param_hint="'--labels'"
        ) from None
    while lines and not lines[-1].strip():
        lines.pop()
    names = [name.strip() for name in lines]
    if not all(names):
        raise typer.BadParameter(
            f"label {names.index('')} of {text!r} is empty", param_hint="'--labels'"
        )
    try:
        check_labels(names)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--labels'") from None
    return names


def processor_of(rule: str, channels: int = 3) -> ImageProcessor:
    """The image processor of --images: a folder's, or that of a short rule.

    >>> from keras_tfm.cli.image_options import processor_of
    >>> processor_of("224x192:256:bicubic")
    ImageProcessor(size=(224, 192), resize=256, resample='bicubic', channels=3, background=255)
    """
    if Path(rule).is_dir():
        from keras_tfm.checkpoints import load_image_processor

        return load_image_processor(rule)
    size, *others = rule.split(":")
    given: dict[str, Any] = {}
    for text in others:
        name = "resize" if text == "fit" or text[:1].isdigit() else "resample"
        if name in given:
            raise _bad(rule, f"{text!r} is a second {name}")
        given[name] = text
    if given.get("resize", "fit") != "fit":
        given["resize"] = _numbers(rule, given["resize"])
        if len(given["resize"]) == 1:
            (given["resize"],) = given["resize"]
    try:
        height, width = _numbers(rule, size, 2)
        return ImageProcessor((height, width), channels=channels, **given)
    except (TypeError, ValueError) as error:
        raise _bad(rule, str(error)) from None


def channels_of(model: keras.Model) -> int:
    """The number of channels of a Keras model's pictures: 1 or 3."""
    from keras_tfm.generation.interface import interface_of

    pictures = [x.spec for x in interface_of(model).inputs.values() if x.is_pixels]
    return 1 if {x.shape[-1] for x in pictures} == {1} else 3


def _numbers(rule: str, text: str, least: int = 1) -> tuple[int, ...]:
    """ "224x192" -> (224, 192)."""
    if not re.fullmatch(r"\d{1,6}(x\d{1,6})?", text) or text.count("x") + 1 < least:
        raise _bad(rule, f"{text!r} is no {'size' if least > 1 else 'size or length'}")
    return tuple(map(int, text.split("x")))


def _bad(rule: str, reason: str) -> typer.BadParameter:
    return typer.BadParameter(
        f"expected a folder with preprocessor_config.json, or {RULE} such as 224x224 or "
        f"224x224:256:bicubic, got {rule!r}: {reason}",
        param_hint="'--images'",
    )
