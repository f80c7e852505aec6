"""Pictures as the pixels that a model was trained on: decoded, resized, cropped."""

from __future__ import annotations

import importlib
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from keras_tfm.optional_package import optional_package

# Pillow's filters by name; `Resampling` has the same names in capitals.
FILTERS = ("nearest", "bilinear", "bicubic", "lanczos")
FIT = "fit"
# The largest number of pixels of a picture that is enlarged: 200 MB in RGB.
LARGEST = 1 << 26
# Pillow's modes of grey pictures with 16 bits.
_DEEP = ("I;16", "I;16L", "I;16B", "I;16N")
# Of EXIF orientations other than 1, the name of the transposition that turns the picture upright.
_ORIENTATION = 0x0112
_TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}


@dataclass(frozen=True)
class ImageProcessor:
    """Turns pictures of any size and format into uint8 pixels (B, H, W, C).

    The same object prepares pictures in training, is stored in an exported file, and prepares
    pictures on-device; the results are equal bit by bit. It does not scale the values: the model's
    `ImageNormalization` does.

    A picture is decoded and turned as its EXIF orientation says; transparent parts show
    `background`; 16 bits a channel become 8; grey becomes RGB, or RGB grey (Rec. 601 luma), as the
    number of channels demands. Then it is resized with Pillow (as version 13 does, also by older
    ones), whose filters are widened when a picture is reduced, and cropped in the centre. Of an
    animation the first frame is used.

    Args:
        size: tuple of int, (height, width) of the result in pixels.
        resize: int, tuple of int or str, how the picture is resized before it is cropped to `size`.
            Default: to `size`; the aspect ratio is not kept. int: the shorter edge to this length,
            aspect ratio kept. (height, width): to that size. "fit": to the largest size that fits
            into `size`, aspect ratio kept; the rest, at the right and at the bottom, shows
            `background`.
        resample: str, the filter: "nearest", "bilinear", "bicubic" or "lanczos".
        channels: int, 3 (RGB) or 1 (grey).
        background: int, the value of every channel behind transparent parts and beside a picture
            that was fitted.

    Raises:
        TypeError: a size that is not integers.
        ValueError: an argument out of range, or a picture is resized to less than `size`.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.runtime import ImageProcessor
    >>> processor = ImageProcessor((4, 6), resize=8)
    >>> processor(np.zeros((10, 20, 3), "uint8")).shape
    (1, 4, 6, 3)
    """

    size: tuple[int, int]
    resize: int | tuple[int, int] | str | None = None
    resample: str = "bilinear"
    channels: int = 3
    background: int = 255

    def __post_init__(self) -> None:
        # JSON has lists where Python has tuples.
        object.__setattr__(self, "size", _pair("size", self.size))
        if isinstance(self.resize, Sequence) and not isinstance(self.resize, str):
            object.__setattr__(self, "resize", _pair("resize", self.resize))
        elif isinstance(self.resize, str):
            if self.resize != FIT:
                raise ValueError(f"resize must be None, a size or {FIT!r}, got {self.resize!r}")
        elif self.resize is not None:
            if type(self.resize) is not int:
                raise TypeError(
                    f"resize must be None, an integer, a height and a width, or {FIT!r}, "
                    f"got {self.resize!r}"
                )
            if self.resize < 1:
                raise ValueError(f"resize must be at least 1, got {self.resize}")
        if self.resample not in FILTERS:
            raise ValueError(f"resample must be one of {list(FILTERS)}, got {self.resample!r}")
        if type(self.channels) is not int or self.channels not in (1, 3):
            raise ValueError(f"channels must be 1 or 3, got {self.channels!r}")
        if type(self.background) is not int or not 0 <= self.background <= 255:
            raise ValueError(
                f"background must be an integer from 0 to 255, got {self.background!r}"
            )
        resized = (self.resize, self.resize) if isinstance(self.resize, int) else self.resize
        if isinstance(resized, tuple) and any(
            a < b for a, b in zip(resized, self.size, strict=True)
        ):
            raise ValueError(f"resize must be at least size {self.size}, got {self.resize!r}")

    def __call__(self, images: Any) -> np.ndarray:
        """The pixels of pictures: (B, H, W, C), uint8.

        Args:
            images: path, bytes of a file, `PIL.Image.Image`, uint8 array (H, W), (H, W, 1),
                (H, W, 3) or (H, W, 4), or a list of B of them; or a uint8 array (B, H, W, C).

        Raises:
            ValueError: a picture is damaged, truncated, or of an unknown format; an array has
                another shape or dtype; or a narrow picture would be enlarged to more than 67
                million pixels. The error names the picture.
            FileNotFoundError: there is no such file.
            TypeError: something that is not a picture.
            ModuleNotFoundError: Pillow is missing; the message names the extra to install.
        """
        pillow = import_pillow()
        pictures = _pictures(images)
        names = [_name(image, i, len(pictures)) for i, image in enumerate(pictures, 1)]
        return np.stack(
            [self._pixels(pillow, x, name) for x, name in zip(pictures, names, strict=True)]
        )

    def to_picture(self, boxes: Any, size: tuple[int, int]) -> np.ndarray:
        """Boxes in a model's input as boxes in the original picture, clipped to it.

        Args:
            boxes: array of float (..., 4): x of the centre, y of the centre, width and height, as
                fractions of the input's width and height, the output of `detr`.
            size: tuple of int, (height, width) of the original picture, after its EXIF orientation.

        Returns:
            (..., 4), float32: left, top, right and bottom in pixels of the picture.
        """
        height, width = _pair("size", size)
        new_height, new_width = self._resized(height, width)
        boxes = np.asarray(boxes, "float32")
        if boxes.shape[-1:] != (4,):
            raise ValueError(f"boxes must have shape (..., 4), got {boxes.shape}")
        x, y, w, h = np.moveaxis(boxes, -1, 0)
        left, top = self._offset(new_height, new_width)
        across = np.stack([x - w / 2, x + w / 2]) * self.size[1] + left
        down = np.stack([y - h / 2, y + h / 2]) * self.size[0] + top
        across = np.clip(across * width / new_width, 0, width)
        down = np.clip(down * height / new_height, 0, height)
        return np.stack([across[0], down[0], across[1], down[1]], axis=-1)

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        """The size to which a picture is resized."""
        if self.resize is None:
            return self.size
        if isinstance(self.resize, int):
            short, long = min(height, width), max(height, width)
            other = int(self.resize * long / short)
            return (self.resize, other) if height <= width else (other, self.resize)
        if isinstance(self.resize, str):
            ratio = min(self.size[0] / height, self.size[1] / width)
            return max(1, round(height * ratio)), max(1, round(width * ratio))
        return self.resize

    def _offset(self, height: int, width: int) -> tuple[int, int]:
        """Left and top of the crop in the resized picture."""
        if self.resize == FIT:
            return 0, 0
        return (width - self.size[1]) // 2, (height - self.size[0]) // 2

    def _pixels(self, pillow: Any, image: Any, name: str) -> np.ndarray:
        """One picture as (H, W, C), uint8."""
        mode = "L" if self.channels == 1 else "RGB"
        flat = _flat(pillow, _opened(pillow, image, name), name, mode, self.background)
        height, width = self._resized(flat.height, flat.width)
        if height * width > max(LARGEST, flat.height * flat.width):
            raise ValueError(
                f"{name} is too narrow: its {flat.width} x {flat.height} pixels would be resized "
                f"to {width} x {height}; crop it first"
            )
        if (flat.height, flat.width) != (height, width):
            flat = _resize(pillow, flat, width, height, self.resample)
        left, top = self._offset(height, width)
        pixels = np.asarray(flat, "uint8")[top : top + self.size[0], left : left + self.size[1]]
        missing = [a - b for a, b in zip(self.size, pixels.shape, strict=False)]
        if any(missing):
            rest = [(0, n) for n in missing] + [(0, 0)] * (pixels.ndim - 2)
            pixels = np.pad(pixels, rest, constant_values=self.background)
        return pixels.reshape(*self.size, self.channels)


def open_upright(image: Any, background: int = 255) -> Any:
    """A picture as an RGB `PIL.Image.Image` of its own size, as it is before it is resized."""
    pillow, name = import_pillow(), _name(image, 1, 1)
    return _flat(pillow, _opened(pillow, image, name), name, "RGB", background)


def open_size(image: Any) -> tuple[int, int]:
    """Height and width of a picture, after its EXIF orientation; arguments as one picture."""
    pillow = import_pillow()
    (picture,) = _pictures(image)
    opened = _opened(pillow, picture, _name(picture, 1, 1), decode=False)
    # The orientations above 4 exchange rows and columns.
    width, height = opened.size if _orientation(opened) < 5 else opened.size[::-1]
    return height, width


def import_pillow() -> Any:
    """Imports Pillow with the module used here; the error says how to install it."""
    optional_package("PIL.Image", "pictures need Pillow", "pillow", extra="images")
    return importlib.import_module("PIL")


def _pair(name: str, value: Any) -> tuple[int, int]:
    ints = isinstance(value, Sequence) and all(type(x) is int for x in value)
    if not ints or len(value) != 2:
        raise TypeError(f"{name} must be a height and a width in pixels, got {value!r}")
    if min(value) < 1:
        raise ValueError(f"{name} must be at least 1, got {value!r}")
    return value[0], value[1]


def _pictures(images: Any) -> Sequence[Any]:
    """A list of pictures from one or several."""
    if isinstance(images, np.ndarray):
        images = list(images) if images.ndim == 4 else [images]
    if not isinstance(images, list | tuple):
        return [images]
    if not images:
        raise ValueError("expected at least one picture, got none")
    return images


def _name(image: Any, place: int, count: int) -> str:
    """A picture in an error message."""
    if isinstance(image, str | os.PathLike):
        return str(image)
    return "the picture" if count == 1 else f"picture {place} of {count}"


def _opened(pillow: Any, image: Any, name: str, decode: bool = True) -> Any:
    """A picture as a `PIL.Image.Image`, decoded or with only its header read."""
    if isinstance(image, np.ndarray):
        known = image.ndim == 2 or (image.ndim == 3 and image.shape[-1] in (1, 3, 4))
        if image.dtype != np.uint8 or not known or 0 in image.shape:
            raise ValueError(
                f"{name} must be a uint8 array (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), "
                f"got {image.dtype} {image.shape}"
            )
        return pillow.Image.fromarray(image[..., 0] if image.shape[2:] == (1,) else image)
    content: Any
    if isinstance(image, pillow.Image.Image):
        content = None
    elif isinstance(image, str | os.PathLike):
        file = Path(image)
        if not file.is_file():
            raise FileNotFoundError(f"no such picture: {name}")
        content = file.read_bytes()
    elif isinstance(image, bytes | bytearray):
        content = bytes(image)
    else:
        raise TypeError(
            f"{name} must be a path, bytes, a PIL.Image.Image or a uint8 array, "
            f"got {type(image).__name__}"
        )
    try:
        opened = image if content is None else pillow.Image.open(io.BytesIO(content))
        if decode:
            opened.load()
    except pillow.UnidentifiedImageError:
        raise ValueError(f"{name} is not a picture of a format that Pillow reads") from None
    except pillow.Image.DecompressionBombError as error:
        raise ValueError(f"{name} is too large: {error}") from None
    except Exception as error:  # Pillow's decoders raise many types for damaged files
        raise ValueError(f"{name} is damaged or truncated: {error}") from None
    if 0 in opened.size:
        raise ValueError(f"{name} has no pixels: its size is {opened.width} x {opened.height}")
    return opened


def _flat(pillow: Any, image: Any, name: str, mode: str, background: int) -> Any:
    """A picture, turned, in 8 bits, without transparency, grey ("L") or RGB."""
    turn = _TURNS.get(_orientation(image))
    # Pillow scales the 16 bits of a .pgm file and stores them in 32.
    deep = image.mode in _DEEP or (image.mode == "I" and image.format == "PPM")
    if not deep and image.mode in ("I", "F"):
        raise ValueError(
            f"{name} must have 8 or 16 bits a channel, got Pillow's mode {image.mode!r}"
        )
    if deep:
        values, clear = np.asarray(image), image.info.get("transparency")
        grey = pillow.Image.fromarray((values.astype("uint16") >> 8).astype("uint8"))
        if isinstance(clear, int):  # the value of transparent pixels
            grey.putalpha(pillow.Image.fromarray((values != clear).astype("uint8") * 255))
        image = grey
    if image.has_transparency_data:
        image = image.convert("RGBA")
        behind = pillow.Image.new("RGBA", image.size, (*[background] * 3, 255))
        image = pillow.Image.alpha_composite(behind, image)
    image = image.convert(mode)
    return image if turn is None else image.transpose(pillow.Image.Transpose[turn])


def _resize(pillow: Any, image: Any, width: int, height: int, resample: str) -> Any:
    """A picture of another size, equal with every version of Pillow.

    Pillow resizes rows and columns in turn and rounds between them. Version 13 begins with the
    columns where their length shrinks most; that is done here for older ones, too.
    """
    resampling = pillow.Image.Resampling[resample.upper()]
    columns_first = 0 < image.height - height > 2 * (image.width - width)
    between = (image.width, height) if columns_first else (width, image.height)
    return image.resize(between, resampling).resize((width, height), resampling)


def _orientation(image: Any) -> int:
    """The EXIF orientation, 1 to 8; 1 without EXIF data, or with damaged ones."""
    try:
        found = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # several types; the picture itself can be read
        return 1
    return found if found in range(1, 9) else 1
