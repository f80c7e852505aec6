"""Pictures as the pixels that a model was trained on: decoded, resized, cropped."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from keras_tfm.runtime.media.decoded_picture import Picture, import_pillow, upright, upright_size

if TYPE_CHECKING:
    from PIL.Image import Image
Pictures = Picture | Sequence[Picture]
# Pillow's filters by name; `Resampling` has the same names in capitals.
FILTERS = ("nearest", "bilinear", "bicubic", "lanczos")
FIT = "fit"
# The largest number of pixels of a picture that is enlarged: 200 MB in RGB.
LARGEST = 1 << 26


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

    Formats: JPEG, PNG, WebP, GIF, BMP, PPM, TIFF, AVIF, JPEG 2000 and, if a plug-in of Pillow reads
    it, HEIF. A picture with more than `PIL.Image.MAX_IMAGE_PIXELS` pixels is refused before it is
    decoded. The default is 89 million; set the attribute to change the limit, or to None to lift
    it. JPEG files with up to four times as many pixels are decoded at a reduced size.

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

    @classmethod
    def naflex(
        cls, picture: tuple[int, int], patch_size: int = 16, max_patches: int = 256
    ) -> ImageProcessor:
        """The processor of SigLIP 2's NaFlex for pictures of one shape (arXiv:2502.14786).

        Its `size` has the largest scale of the picture, rounded up to whole patches on each side,
        of which at most `max_patches` come out: that of `transformers`. It is the `image_size` to
        give to `load_huggingface`.

        Args:
            picture: tuple of int, (height, width) of the pictures in pixels.
            patch_size: int, edge of a patch in pixels.
            max_patches: int, largest number of patches.

        Raises:
            TypeError, ValueError: a size that is not a positive integer.

        >>> from keras_tfm.runtime import ImageProcessor
        >>> ImageProcessor.naflex((480, 640)).size
        (224, 288)
        """
        sides = _pair("picture", picture)
        for name, x in (("patch_size", patch_size), ("max_patches", max_patches)):
            if type(x) is not int or x < 1:
                raise ValueError(f"{name} must be a positive integer, got {x!r}")

        def patches(scale: float) -> list[int]:
            return [max(1, math.ceil(x * scale / patch_size)) for x in sides]

        low, high = 1e-6, 100.0
        while high - low >= 1e-5:
            scale = (low + high) / 2
            low, high = (scale, high) if math.prod(patches(scale)) <= max_patches else (low, scale)
        rows, columns = patches(low)
        return cls((rows * patch_size, columns * patch_size))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a picture's pixels: (H, W, C)."""
        return (*self.size, self.channels)

    def __call__(self, images: Pictures) -> np.ndarray:
        """The pixels of pictures: (B, H, W, C), uint8.

        Args:
            images: path, bytes of a file, `PIL.Image.Image`, uint8 array (H, W), (H, W, 1),
                (H, W, 3) or (H, W, 4), or a list of B of them; or a uint8 array (B, H, W, C).

        Raises:
            ValueError: a picture is damaged, truncated, of another format, or has too many pixels;
                an array has another shape or dtype; or a narrow picture would be enlarged to more
                than 67 million pixels. The error names the picture.
            FileNotFoundError: there is no such file.
            TypeError: something that is not a picture.
            ModuleNotFoundError: Pillow is missing; the message names the extra to install.
        """
        return self.with_sizes(images)[0]

    def with_sizes(self, images: Pictures) -> tuple[np.ndarray, list[tuple[int, int]]]:
        """The pixels of pictures, and the upright (height, width) of each as `to_picture` needs."""
        pillow = import_pillow()
        pictures = pictures_of(images)
        names = [name_of(image, i, len(pictures)) for i, image in enumerate(pictures, 1)]
        found = [self._pixels(pillow, x, name) for x, name in zip(pictures, names, strict=True)]
        return np.stack([pixels for pixels, _ in found]), [size for _, size in found]

    def to_picture(self, boxes: npt.ArrayLike, size: tuple[int, int]) -> np.ndarray:
        """Boxes in a model's input as boxes in the original picture, clipped to it.

        Args:
            boxes: array of float (..., 4): x of the centre, y of the centre, width and height, as
                fractions of the input's width and height, the output of `detr`.
            size: tuple of int, (height, width) of the original picture, after its EXIF orientation.

        Returns:
            (..., 4), float32: left, top, right and bottom in pixels of the picture.
        """
        height, width = _pair("size", size)
        new_height, new_width = self._new_size(height, width)
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

    def _new_size(self, height: int, width: int) -> tuple[int, int]:
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

    def _pixels(
        self, pillow: ModuleType, image: Picture, name: str
    ) -> tuple[np.ndarray, tuple[int, int]]:
        """One picture as (H, W, C), uint8, and the height and width that it had."""
        mode = "L" if self.channels == 1 else "RGB"
        flat, size = upright(image, name, mode, self.background)
        height, width = self._new_size(flat.height, flat.width)
        if height * width > max(LARGEST, flat.height * flat.width):
            raise ValueError(
                f"{name} is too narrow: its {flat.width} x {flat.height} pixels would be resized "
                f"to {width} x {height}; crop it first"
            )
        if (flat.height, flat.width) != (height, width):
            flat = resize_picture(pillow, flat, width, height, self.resample)
        left, top = self._offset(height, width)
        right, bottom = min(left + self.size[1], width), min(top + self.size[0], height)
        pixels = np.asarray(flat.crop((left, top, right, bottom)), "uint8")
        missing = [a - b for a, b in zip(self.size, pixels.shape, strict=False)]
        if any(missing):
            rest = [(0, n) for n in missing] + [(0, 0)] * (pixels.ndim - 2)
            pixels = np.pad(pixels, rest, constant_values=self.background)
        return pixels.reshape(*self.size, self.channels), size


def open_upright(image: Picture, background: int = 255) -> Image:
    """A picture as an RGB `PIL.Image.Image`, turned and opaque, as it is before it is resized."""
    return upright(image, name_of(image, 1, 1), "RGB", background)[0]


def open_size(image: Picture) -> tuple[int, int]:
    """Height and width of a picture, after its orientation; arguments as one picture."""
    (picture,) = pictures_of(image)
    return upright_size(picture, name_of(picture, 1, 1))


def _pair(name: str, value: Sequence[int]) -> tuple[int, int]:
    ints = isinstance(value, Sequence) and all(type(x) is int for x in value)
    if not ints or len(value) != 2:
        raise TypeError(f"{name} must be a height and a width in pixels, got {value!r}")
    if min(value) < 1:
        raise ValueError(f"{name} must be at least 1, got {value!r}")
    return value[0], value[1]


def pictures_of(images: Pictures) -> Sequence[Picture]:
    """A list of pictures from one or several."""
    if isinstance(images, np.ndarray):
        images = list(images) if images.ndim == 4 else [images]
    if not isinstance(images, list | tuple):
        return [cast("Picture", images)]
    if not images:
        raise ValueError("expected at least one picture, got none")
    return images


def name_of(image: Picture, place: int, count: int) -> str:
    """A picture in an error message."""
    if isinstance(image, str | os.PathLike):
        return str(image)
    return "the picture" if count == 1 else f"picture {place} of {count}"


def resize_picture(
    pillow: ModuleType, image: Image, width: int, height: int, resample: str
) -> Image:
    """A picture of another size, equal with every version of Pillow.

    Pillow resizes rows and columns in turn and rounds between them. Version 13 begins with the
    columns where their length shrinks most; that is done here for older ones, too.
    """
    resampling = pillow.Image.Resampling[resample.upper()]
    columns_first = 0 < image.height - height > 2 * (image.width - width)
    between = (image.width, height) if columns_first else (width, image.height)
    return image.resize(between, resampling).resize((width, height), resampling)
