"""Picture files decoded, upright and opaque: what `ImageProcessor` resizes.

Example:

>>> import numpy as np
>>> from keras_tfm.runtime.media.decoded_picture import upright
>>> picture, size = upright(np.zeros((2, 3, 4), "uint8"), "the picture", "L", background=255)
>>> np.asarray(picture).tolist(), size
([[255, 255, 255], [255, 255, 255]], (2, 3))
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Union, cast

import numpy as np

from keras_tfm.optional_package import optional_package

if TYPE_CHECKING:
    from PIL.Image import Image
# What a caller gives as a picture: a path, the bytes of a file, a `PIL.Image.Image`, an array.
Picture = Union[str, os.PathLike[str], bytes, bytearray, memoryview, np.ndarray, "Image"]
# Pillow's names of the formats that are opened; HEIF where a plug-in has registered it. The others
# are not tried: for EPS, Pillow starts Ghostscript.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "PPM", "TIFF", "AVIF", "JPEG2000", "HEIF")
# JPEG files of at most this many times Pillow's `MAX_IMAGE_PIXELS` are decoded at a reduced size.
_REDUCIBLE = 4
# Pictures are laid on their background in tiles: whole, they would take three times the memory.
_TILE = 2048
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


def import_pillow() -> ModuleType:
    """Imports Pillow with the module used here; the error says how to install it."""
    optional_package("PIL.Image", "pictures need Pillow", "pillow", extra="images")
    return importlib.import_module("PIL")


def upright(image: Picture, name: str, mode: str, background: int) -> tuple[Image, tuple[int, int]]:
    """A picture as a `PIL.Image.Image`, turned, opaque, with 8 bits a channel.

    Args:
        image: path, bytes of a file, `PIL.Image.Image`, or uint8 array.
        name: str, the picture in an error message.
        mode: str, "L" or "RGB".
        background: int, the value of every channel behind transparent parts.

    Returns:
        The picture, and its height and width in the file, turned: those of the picture, unless a
        large JPEG file was decoded at a reduced size.
    """
    pillow = import_pillow()
    decoded, size, turn = _decode(pillow, image, name)
    flat = _flat(pillow, decoded, name, mode, background)
    del decoded  # before a second copy is made
    return (flat if turn is None else flat.transpose(pillow.Image.Transpose[turn])), size


def upright_size(image: Picture, name: str) -> tuple[int, int]:
    """Height and width of a picture, turned."""
    return _decode(import_pillow(), image, name)[1]


def _decode(
    pillow: ModuleType, image: Picture, name: str
) -> tuple[Image, tuple[int, int], str | None]:
    """A picture as Pillow decodes it, its height and width when turned, and the turn it needs."""
    if isinstance(image, np.ndarray):
        known = image.ndim == 2 or (image.ndim == 3 and image.shape[-1] in (1, 3, 4))
        if image.dtype != np.uint8 or not known or 0 in image.shape:
            raise ValueError(
                f"{name} must be a uint8 array (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), "
                f"got {image.dtype} {image.shape}"
            )
        array = image[..., 0] if image.shape[2:] == (1,) else image
        return pillow.Image.fromarray(array), (image.shape[0], image.shape[1]), None
    source: IO[bytes] | None
    if isinstance(image, pillow.Image.Image):
        source = None
    elif isinstance(image, str | os.PathLike):
        if not Path(image).is_file():
            raise FileNotFoundError(f"no such picture: {name}")
        source = Path(image).open("rb")  # noqa: SIM115 (closed below)
    elif isinstance(image, bytes | bytearray | memoryview):
        source = io.BytesIO(image)
    else:
        raise TypeError(
            f"{name} must be a path, bytes, a PIL.Image.Image or a uint8 array, "
            f"got {type(image).__name__}"
        )
    with contextlib.nullcontext() if source is None else source:
        try:
            opened = cast("Image", image) if source is None else _open(pillow, source)
            width, height = opened.size
            reduced = source is not None and _is_reduced(pillow, opened)
            opened.load()
        except pillow.UnidentifiedImageError:
            formats = ", ".join(FORMATS)
            raise ValueError(
                f"{name} is not a picture of a format that Pillow reads here ({formats})"
            ) from None
        except (
            pillow.Image.DecompressionBombError,
            pillow.Image.DecompressionBombWarning,
        ) as error:
            raise ValueError(
                f"{name} is too large: {error}; PIL.Image.MAX_IMAGE_PIXELS = None lifts the limit"
            ) from None
        except MemoryError:
            raise
        except Exception as error:  # Pillow's decoders raise many types for damaged files
            raise ValueError(f"{name} is damaged or truncated: {error}") from None
    if 0 in opened.size:
        raise ValueError(f"{name} has no pixels: its size is {opened.width} x {opened.height}")
    # Only now: a PNG file may have its EXIF data at the end, and Pillow turns a TIFF itself.
    orientation = _orientation(opened)
    if not reduced:
        width, height = opened.size
    size = (width, height) if orientation > 4 else (height, width)
    return opened, size, _TURNS.get(orientation)


def _open(pillow: ModuleType, source: IO[bytes]) -> Image:
    """A file with its header read."""
    start = source.read(3)
    source.seek(0)
    if start == b"\xff\xd8\xff":
        # `Image.open` refuses JPEG files that `_is_reduced` can read.
        with contextlib.suppress(SyntaxError):
            return importlib.import_module("PIL.JpegImagePlugin").JpegImageFile(source)
    pillow.Image.init()
    return pillow.Image.open(source, formats=[x for x in FORMATS if x in pillow.Image.OPEN])


def _is_reduced(pillow: ModuleType, opened: Image) -> bool:
    """Whether the decoder makes a smaller picture; raises for a picture with too many pixels."""
    limit, (width, height) = pillow.Image.MAX_IMAGE_PIXELS, opened.size
    pixels = width * height
    if limit is None or pixels <= limit:
        return False
    # Of a progressive JPEG file the decoder stores all coefficients, whatever the size it makes.
    if (
        opened.format == "JPEG"
        and pixels <= _REDUCIBLE * limit
        and "progressive" not in opened.info
    ):
        for part in (2, 4):
            if -(-width // part) * -(-height // part) <= limit:
                return opened.draft(None, (width // part, height // part)) is not None
    raise pillow.Image.DecompressionBombError(
        f"it has {width} x {height} pixels, more than {limit}"
    )


def _flat(pillow: ModuleType, image: Image, name: str, mode: str, background: int) -> Image:
    """A picture in 8 bits, without transparency, grey ("L") or RGB."""
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
    if not image.has_transparency_data:
        return image.convert(mode)
    flat = pillow.Image.new(mode, image.size)
    for top in range(0, image.height, _TILE):
        for left in range(0, image.width, _TILE):
            right, bottom = min(left + _TILE, image.width), min(top + _TILE, image.height)
            part = image.crop((left, top, right, bottom)).convert("RGBA")
            behind = pillow.Image.new("RGBA", part.size, (*[background] * 3, 255))
            part = pillow.Image.alpha_composite(behind, part)
            flat.paste(part.convert(mode), (left, top))
    return flat


def _orientation(image: Image) -> int:
    """The EXIF orientation, 1 to 8; 1 without EXIF data, or with damaged ones."""
    try:
        found = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # several types; the picture itself can be read
        return 1
    return found if found in range(1, 9) else 1
