"""Draws boxes and labels into copies of pictures, with Pillow; `keras-tfm predict --draw`."""

from __future__ import annotations

import colorsys
import importlib
import unicodedata
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from keras_tfm.atomic_files import replacement
from keras_tfm.runtime import Detection
from keras_tfm.runtime.media.decoded_picture import import_pillow
from keras_tfm.runtime.media.image_processor import open_size, open_upright

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFont import FreeTypeFont

# Smaller pictures are enlarged, so that labels can be read.
SMALLEST = 480
# Fonts of Linux, macOS and Windows for labels that are not ASCII.
FONTS = ("DejaVuSans.ttf", "Arial Unicode.ttf", "arial.ttf")
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
_DARK, _LIGHT = (16, 18, 22), (255, 255, 255)
Color = tuple[int, int, int]


def draw_detections(
    picture: Path, found: Sequence[Detection], output: Path, background: int
) -> None:
    """Saves a copy of a picture with a box and a label per object, the most probable on top."""
    image, scale = _canvas(picture, background)
    texts = [f"{x.label} {x.probability:.2f}" for x in found]
    pen = _Pen(image, texts)
    boxes = [tuple(round(edge * scale) for edge in x.box) for x in found]
    for detection, box in reversed(list(zip(found, boxes, strict=True))):
        pen.box(box, color_of(detection.label))
    for detection, box, text in zip(found, boxes, texts, strict=True):
        pen.tag(text, color_of(detection.label), box)
    save(image, output)


def draw_labels(picture: Path, lines: Sequence[str], output: Path, background: int) -> None:
    """Saves a copy of a picture with lines of text in its upper left corner."""
    image, _ = _canvas(picture, background)
    pen = _Pen(image, lines)
    for i, text in enumerate(lines):
        pen.tag(text, _DARK, (0, i * pen.height, 1, i * pen.height))
    save(image, output)


def save(image: Image, path: Path) -> None:
    """Saves a picture of Pillow; until it is complete, an earlier file stays as it was."""
    with replacement(path) as new:
        image.save(new)


def color_of(label: str) -> Color:
    """A bright colour that depends on the label alone.

    >>> from keras_tfm.cli.drawing import color_of
    >>> color_of("cat") == color_of("cat") != color_of("dog")
    True
    """
    hue = zlib.crc32(label.encode()) % 360 / 360
    red, green, blue = colorsys.hls_to_rgb(hue, 0.55, 0.9)
    return round(red * 255), round(green * 255), round(blue * 255)


def _canvas(picture: Path, background: int) -> tuple[Image, float]:
    """The picture upright in RGB, and the factor by which it is larger than in its file."""
    image = open_upright(picture, background)
    scale = max(1, -(-SMALLEST // max(image.size)))
    if scale > 1:
        nearest = import_pillow().Image.Resampling.NEAREST
        image = image.resize((image.width * scale, image.height * scale), nearest)
    return image, image.width / open_size(picture)[1]


class _Pen:
    """Draws on one picture, with a font and lines of its size."""

    def __init__(self, image: Image, texts: Sequence[str]):
        self._image = image
        self._draw = importlib.import_module("PIL.ImageDraw").Draw(image)
        size = max(14, round(max(image.size) / 45))
        self._font, self._line = _font(size, texts), max(2, round(size / 6))
        ascent, descent = self._font.getmetrics()
        self._pad = max(2, size // 4)
        self.height = ascent + descent + self._pad
        self._taken: list[tuple[int, int, int, int]] = []

    def box(self, box: Sequence[int], color: Color) -> None:
        """A box with a thin dark edge outside and inside, to be seen on every picture."""
        left, top, right, bottom = box
        right, bottom = max(right, left + 1), max(bottom, top + 1)
        outer = (left - 1, top - 1, right, bottom)
        self._draw.rectangle(outer, outline=_DARK, width=self._line + 2)
        self._draw.rectangle((left, top, right - 1, bottom - 1), outline=color, width=self._line)

    def tag(self, text: str, color: Color, box: Sequence[int]) -> None:
        """A text on a coloured rectangle above a box, within or below it: the first free place."""
        text = text if self._writes(text) else _ascii(text)
        left, _, right, _ = self._draw.textbbox((0, 0), text, font=self._font)
        width, height = round(right - left) + 2 * self._pad, self.height
        x = max(0, min(box[0], self._image.width - width))
        tops = [box[1] - height, box[1], box[3], box[3] - height]
        places = [(x, y, x + width, y + height) for y in tops]
        seen = [p for p in places if p[1] >= 0 and p[3] <= self._image.height]
        free = [p for p in seen if not any(_overlap(p, other) for other in self._taken)]
        place = (free or seen or places)[0]
        self._taken.append(place)
        self._draw.rectangle((*place[:2], place[2] - 1, place[3] - 1), fill=color)
        luma = 0.299 * color[0] + 0.587 * color[1] + 0.114 * color[2]
        corner = (x + self._pad - left, place[1] + self._pad // 2)
        self._draw.text(corner, text, font=self._font, fill=_DARK if luma > 130 else _LIGHT)

    def _writes(self, text: str) -> bool:
        return text.isascii() or getattr(self._font, "path", None) is not None


def _overlap(a: tuple[int, int, int, int], b: tuple[int, int, int, int]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _font(size: int, texts: Sequence[str]) -> FreeTypeFont:
    """Pillow's own font, which has ASCII alone; for other texts one of the system, if it has it."""
    fonts = importlib.import_module("PIL.ImageFont")
    for name in () if all(map(str.isascii, texts)) else FONTS:
        try:
            return fonts.truetype(name, size)
        except OSError:  # there is no such font
            continue
    return fonts.load_default(size)


def _ascii(text: str) -> str:
    """A text with ASCII in place of other characters: "Müller" -> "Muller"."""
    parts = (unicodedata.normalize("NFKD", x).encode("ascii", "ignore").decode() for x in text)
    return "".join(part or "?" for part in parts)
