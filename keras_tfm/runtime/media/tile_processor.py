"""Pictures as the tiles that a vision-language model reads, and their places in its text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import cast

import numpy as np

from keras_tfm.runtime.media.decoded_picture import Picture, import_pillow, upright
from keras_tfm.runtime.media.image_processor import (
    ImageProcessor,
    Pictures,
    name_of,
    pictures_of,
    resize_picture,
)

# Tokens of SmolVLM and Idefics3 around the images of a picture.
IMAGE, AROUND, WHOLE = "<image>", "<fake_token_around_image>", "<global-img>"
# Pictures have no longer edge in transformers.
LONGEST = 4096
# Rows and columns of tiles, or (0, 0) for a picture that is one image.
Grid = tuple[int, int]


@dataclass(frozen=True)
class TileProcessor(ImageProcessor):
    """Turns pictures into the images that SmolVLM and Idefics3 read: tiles, and the whole picture.

    As the image processors of `transformers` with Pillow: the longer edge of a picture becomes
    `longest_edge`, also if it was shorter. With `num_images`, the edges are then stretched to
    multiples of `size`, the picture is cut into tiles row by row, and the whole picture, resized to
    `size`, is the last image; a picture that is not larger than one tile is one image. Without
    `num_images` the picture, resized to `size`, is the only image. `place` gives the text of a
    picture. Formats, orientation and errors are those of `ImageProcessor`.

    Args:
        size: tuple of int, (height, width) of each image, which must be equal.
        resize: object, always None: `longest_edge` replaces it.
        resample: str, the filter, as of `ImageProcessor`.
        channels: int, 3 (RGB) or 1 (grey).
        background: int, the value of every channel behind transparent parts.
        longest_edge: int, the length of the longer edge before the picture is cut.
        num_images: int, number of images of a row (N), as of `models.smolvlm`; those after the last
            tile are 0. None: one image, without an axis for it.

    Raises:
        TypeError: a size that is not integers.
        ValueError: an argument out of range; or pictures with more images than `num_images`.

    Example:

    >>> import numpy as np
    >>> from keras_tfm.runtime import TileProcessor
    >>> processor = TileProcessor((4, 4), longest_edge=8, num_images=5)
    >>> processor(np.zeros((10, 30, 3), "uint8")).shape
    (1, 5, 4, 4, 3)
    >>> processor.grid(np.zeros((10, 30, 3), "uint8"))
    (1, 2)
    >>> processor.place((1, 2), features=1).split("\\n")[0]
    '<fake_token_around_image><row_1_col_1><image><fake_token_around_image><row_1_col_2><image>'
    """

    resample: str = "lanczos"
    longest_edge: int = 2048
    num_images: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resize is not None or self.size[0] != self.size[1]:
            raise ValueError(
                "tiles are square and resized by longest_edge, got "
                f"size={self.size!r} and resize={self.resize!r}"
            )
        for name, most in (("longest_edge", LONGEST), ("num_images", LONGEST)):
            value = getattr(self, name)
            if name == "num_images" and value is None:
                continue
            if type(value) is not int:
                raise TypeError(f"{name} must be an integer, got {value!r}")
            if not 1 <= value <= most:
                raise ValueError(f"{name} must be from 1 to {most}, got {value}")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a row of pixels: (N, H, W, C), or (H, W, C)."""
        own = super().shape
        return own if self.num_images is None else (self.num_images, *own)

    def with_sizes(self, images: Pictures) -> tuple[np.ndarray, list[tuple[int, int]]]:
        """As of `ImageProcessor`; a row of several pictures is a list of them."""
        pillow, rows = import_pillow(), rows_of(images)
        arrays, sizes = [], []
        for i, row in enumerate(rows, 1):
            made = [self._images(pillow, x, name_of(x, i, len(rows))) for x in row]
            sizes += [size for _, size in made]
            tiles = np.concatenate([x for x, _ in made])
            most = self.num_images or 1
            if len(tiles) > most:
                raise ValueError(
                    f"{name_of(row[0], i, len(rows))}: the model reads at most {most} images of a "
                    f"row, got {len(tiles)}: a smaller longest_edge makes fewer tiles"
                )
            padding = np.zeros((most - len(tiles), *tiles.shape[1:]), "uint8")
            arrays.append(np.concatenate([tiles, padding]))
        result = np.stack(arrays)
        return (result[:, 0] if self.num_images is None else result), sizes

    def grid(self, image: Picture) -> Grid:
        """The rows and columns of a picture's tiles; (0, 0) if it is one image."""
        flat, _ = upright(image, name_of(image, 1, 1), "RGB", self.background)
        return self._sizes(flat.height, flat.width)[1]

    def place(self, grid: Grid, features: int) -> str:
        """The text of a picture, which stands in a prompt for `<image>`.

        Args:
            grid: tuple of int, the rows and columns of its tiles.
            features: int, number of features of an image, each of which has a placeholder.
        """
        image, whole = IMAGE * features, f"{AROUND}{WHOLE}{IMAGE * features}{AROUND}"
        if grid == (0, 0):
            return whole
        rows = (
            "".join(f"{AROUND}<row_{i}_col_{j}>{image}" for j in range(1, grid[1] + 1))
            for i in range(1, grid[0] + 1)
        )
        return "".join(f"{row}\n" for row in rows) + f"\n{whole}"

    def expand(self, prompt: str, images: Pictures, features: int) -> list[str]:
        """A prompt for each row of pictures, with the text of a picture for each `<image>`.

        Args:
            prompt: str, a text with `<image>` for each picture of a row.
            images: path, bytes of a file, `PIL.Image.Image` or uint8 array, or a list of them, as
                for the call.
            features: int, as for `place`.

        Raises:
            ValueError: the prompt has another number of `<image>` than a row has pictures.
        """
        result = []
        for row in rows_of(images):
            first, *rest = prompt.split(IMAGE)
            if len(rest) != len(row):
                raise ValueError(
                    f"the prompt must have {IMAGE} once for each of {len(row)} pictures, got "
                    f"{len(rest)}"
                )
            places = (self.place(self.grid(x), features) for x in row)
            result.append(first + "".join(x + y for x, y in zip(places, rest, strict=True)))
        return result

    def _sizes(self, height: int, width: int) -> tuple[list[tuple[int, int]], Grid]:
        """The sizes to which a picture is resized in turn before it is cut, and its grid.

        The arithmetic of `transformers`, which rounds down and makes the shorter edge even.
        """
        longest, side = self.longest_edge, self.size[0]
        ratio = width / height
        if width >= height:
            height, width = int(longest / ratio), longest
            height += height % 2
        else:
            height, width = longest, int(longest * ratio)
            width += width % 2
        height, width = max(height, 1), max(width, 1)
        first, ratio = (height, width), width / height
        if self.num_images is None:
            return [first, self.size], (0, 0)
        if width >= height:
            width = math.ceil(width / side) * side
            height = math.ceil(int(width / ratio) / side) * side
        else:
            height = math.ceil(height / side) * side
            width = math.ceil(int(height * ratio) / side) * side
        grid = (height // side, width // side)
        return [first, (height, width)], (0, 0) if grid == (1, 1) else grid

    def _images(
        self, pillow: ModuleType, image: Picture, name: str
    ) -> tuple[np.ndarray, tuple[int, int]]:
        """The images of one picture, (n, H, W, C), and the height and width that it had."""
        mode = "L" if self.channels == 1 else "RGB"
        flat, size = upright(image, name, mode, self.background)
        sizes, (rows, columns) = self._sizes(flat.height, flat.width)
        for height, width in sizes:
            if (flat.height, flat.width) != (height, width):
                flat = resize_picture(pillow, flat, width, height, self.resample)
        (height, width), images = self.size, []
        for i in range(rows):
            for j in range(columns):
                box = (j * width, i * height, (j + 1) * width, (i + 1) * height)
                images.append(np.asarray(flat.crop(box), "uint8"))
        if (flat.height, flat.width) != self.size:
            flat = resize_picture(pillow, flat, width, height, self.resample)
        images.append(np.asarray(flat, "uint8"))
        return np.stack(images).reshape(-1, *self.size, self.channels), size


def rows_of(images: Pictures) -> list[Sequence[Picture]]:
    """The pictures of each row: one, or those of a list inside the list.

    >>> from keras_tfm.runtime.media.tile_processor import rows_of
    >>> rows_of(["a.png", ["b.png", "c.png"]])
    [['a.png'], ['b.png', 'c.png']]
    """
    rows = pictures_of(images)
    return [cast("Sequence[Picture]", x) if isinstance(x, list | tuple) else [x] for x in rows]
