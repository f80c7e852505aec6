"""`preprocessor_config.json`: how pictures are resized and normalised, both ways."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from keras_tfm import models
from keras_tfm.checkpoints.config import Config, Fields
from keras_tfm.checkpoints.tensors import read_json
from keras_tfm.layers.images.patch_embedding import as_pair
from keras_tfm.runtime.media.image_processor import FILTERS, ImageProcessor
from keras_tfm.runtime.media.tile_processor import TileProcessor

FILE = "preprocessor_config.json"
PROCESSOR = "processor_config.json"
# Pillow's numbers of the filters, as in the files.
_NUMBERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
# The classes, by the start of their names, whose filter is bicubic and that crop, unless the file
# says otherwise; and those among them that read a "size" of one integer as the shortest edge.
_CROPPING = ("Bit", "CLIP", "DeiT")
_OF_EDGES = ("Bit", "CLIP")
# Those that make tiles.
_OF_TILES = ("Idefics3", "SmolVLM")
# And one whose filter is bicubic, and that does not crop.
_BICUBIC = (*_CROPPING, "Siglip")
# Steps that an `ImageProcessor` lacks, and the values by which a file leaves them out.
_WITHOUT = {
    "crop_pct": (),
    "do_pad": (False,),
    "do_flip_channel_order": (False,),
    "do_thumbnail": (False,),
    "rescale_offset": (False,),
}


def image_statistics(
    config: Config, mean: Sequence[float] = (), std: Sequence[float] = ()
) -> Fields:
    """The builder's `image_mean` and `image_std`: the folder's, or 0.5 for every channel.

    Args:
        config: the folder's configuration.
        mean, std: those of a folder without the file, if they have a value for each channel.

    Raises:
        ValueError: the file has values that the model's `ImageNormalization` cannot have.
    """
    channels = config.integer("num_channels", 3)
    settings = _Settings(config.file.with_name(FILE))
    if not settings.fields and len(mean) == channels:
        return {"image_mean": list(mean), "image_std": list(std)}
    mean, std = (settings.statistic(name, channels) for name in ("image_mean", "image_std"))
    if not settings.fields.get("do_normalize", True):
        mean, std = [0.0] * channels, [1.0] * channels
    settings.only(do_rescale=True)
    factor = settings.fields.get("rescale_factor", 1 / 255)
    if not isinstance(factor, float) or abs(factor * 255 - 1) > 1e-6:
        settings.refuse("rescale_factor", factor, "1 / 255")
    return {"image_mean": mean, "image_std": std}


def load_image_processor(folder: str | Path) -> ImageProcessor:
    """Loads the rules of `preprocessor_config.json`, by which a model's pictures are prepared.

    Supported are resizing to a height and width or of the shortest edge, with a crop in the centre
    or without, as the image processors of ViT, DeiT, DINO, DINOv2 and CLIP do; and the tiles of
    SmolVLM and Idefics3, as a `runtime.TileProcessor`. For DETR, whose
    processor makes images of any size, give `ImageProcessor((H, W), resize="fit")` with the size of
    the exported file instead; for SigLIP 2's NaFlex, `ImageProcessor.naflex`.

    Args:
        folder: str or Path, a folder saved by `transformers`.

    Raises:
        FileNotFoundError: the folder has no such file.
        ValueError: the file is not JSON, or has a rule that is not supported; the error names it.

    Example:

    >>> import json, tempfile
    >>> from pathlib import Path
    >>> from keras_tfm.checkpoints import load_image_processor
    >>> rules = {"size": {"shortest_edge": 8}, "crop_size": {"height": 6, "width": 6}}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "preprocessor_config.json").write_text(json.dumps(rules))
    ...     load_image_processor(folder)
    ImageProcessor(size=(6, 6), resize=8, resample='bilinear', channels=3, background=255)
    """
    path = Path(folder) / FILE
    if not path.is_file():
        raise FileNotFoundError(f"{folder} has no {FILE}")
    return _Settings(path).processor()


def image_fields(model: models.Model, processor: ImageProcessor | None) -> Fields:
    """The fields of `preprocessor_config.json` for a model with `ImageNormalization`."""
    given = model.arguments
    fields: Fields = {
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(given["image_mean"]),
        "image_std": list(given["image_std"]),
    }
    if processor is None:
        return fields
    if processor.channels != len(fields["image_mean"]):
        raise ValueError(
            f"image_processor must have the {len(fields['image_mean'])} channels of the model, "
            f"got {processor.channels}"
        )
    if isinstance(processor, TileProcessor):
        return {**fields, **_tile_fields(model, processor)}
    numbers = {name: number for number, name in _NUMBERS.items()}
    height, width = processor.size
    resize = processor.resize
    if isinstance(resize, str):
        raise ValueError(
            f"{FILE} has no rule for pictures that are fitted into a size, got {processor}"
        )
    edge = {"shortest_edge": resize} if isinstance(resize, int) else None
    to = (height, width) if resize is None else resize
    return {
        **fields,
        **({"do_convert_rgb": True} if processor.channels == 3 else {}),
        "do_resize": True,
        "resample": numbers[processor.resample],
        "size": {"height": to[0], "width": to[1]} if edge is None else edge,  # type: ignore[index]
        "do_center_crop": resize is not None,
        "crop_size": {"height": height, "width": width},
    }


def tile_text_fields(model: models.Model) -> Fields | None:
    """The fields of `processor_config.json`, by which images become text; None: it has no tiles."""
    given = model.arguments
    if "scale_factor" not in given:
        return None
    height, width = as_pair("image_size", given["image_size"])
    cell = [given["scale_factor"] * x for x in as_pair("patch_size", given["patch_size"])]
    length = (height // cell[0]) * (width // cell[1])
    return {"processor_class": f"{_tile_class(model)}Processor", "image_seq_len": length}


def _tile_class(model: models.Model) -> str:
    return "Idefics3" if model.arguments.get("idefics3") else "SmolVLM"


def _tile_fields(model: models.Model, processor: TileProcessor) -> Fields:
    """The fields of the image processors of SmolVLM and Idefics3."""
    return {
        "image_processor_type": f"{_tile_class(model)}ImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "do_pad": True,
        "do_image_splitting": processor.num_images is not None,
        "resample": next(x for x, y in _NUMBERS.items() if y == processor.resample),
        "size": {"longest_edge": processor.longest_edge},
        "max_image_size": {"longest_edge": processor.size[0]},
    }


class _Settings:
    """The fields of a `preprocessor_config.json`; none if there is no such file."""

    def __init__(self, path: Path):
        self.path = path
        self.fields: Fields = read_json(path) if path.is_file() else {}

    def only(self, **allowed: object) -> None:
        for name, value in allowed.items():
            found = self.fields.get(name, value)
            if found != value:
                self.refuse(name, found, repr(value))

    def refuse(self, name: str, value: object, expected: str) -> NoReturn:
        raise ValueError(f"{self.path}: {name} must be {expected}, got {value!r}")

    def statistic(self, name: str, channels: int) -> list[float]:
        """The mean or standard deviation of each channel."""
        found = self.fields.get(name)
        if found is None and not self._kind(_OF_EDGES):  # these have others
            return [0.5] * channels
        values = found if isinstance(found, list) else [found] * channels
        if len(values) != channels or not all(isinstance(x, int | float) for x in values):
            self.refuse(name, found, f"{channels} numbers, one a channel")
        return list(map(float, values))

    def processor(self) -> ImageProcessor:
        """The rules for resizing and cropping."""
        if self._kind(_OF_TILES):
            return self._tiles()
        cropping = self._kind(_CROPPING)
        number = self._value("resample", 3 if self._kind(_BICUBIC) else 2)
        resample = _NUMBERS.get(number) if isinstance(number, int) else number
        if resample not in FILTERS:
            self.refuse("resample", number, f"one of {list(_NUMBERS)}")
        self.only(do_resize=True)
        for name, values in _WITHOUT.items():
            found = self.fields.get(name)
            if found is not None and found not in values:
                self.refuse(name, found, "left out, as the runtime lacks it")
        if self._kind(("Siglip2",)):
            expected = "that of SigLIP, whose images have one size: for NaFlex, give the "
            kind = self.fields["image_processor_type"]
            self.refuse("image_processor_type", kind, f"{expected}ImageProcessor.naflex(...)")
        size = self._size("size")
        said = "crop_size" in self.fields and not self._kind(("ViT",))  # whose class never crops
        crops = bool(self._value("do_center_crop", cropping or said))
        crop = self._size("crop_size") if crops else None
        mean = self.fields.get("image_mean")
        channels = len(mean) if isinstance(mean, list) else 3
        if isinstance(size, int) and crop is None:
            self.refuse("do_center_crop", False, "true, as the shortest edge gives no shape")
        to, resize = (size, None) if crop is None else (crop, None if crop == size else size)
        try:
            return ImageProcessor(to, resize, resample, channels)  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.path}: {error}") from None

    def _tiles(self) -> TileProcessor:
        """The rules for tiles, whose defaults are those of Idefics3."""
        self.only(do_resize=True)
        number = self._value("resample", 1)
        if number not in _NUMBERS:
            self.refuse("resample", number, f"one of {list(_NUMBERS)}")
        longest, side = (
            self._longest_edge(name, default)
            for name, default in (("size", 1456), ("max_image_size", 364))
        )
        most = (-(-longest // side)) ** 2 + 1
        splits = self._value("do_image_splitting", True)
        try:
            return TileProcessor(
                (side, side),
                resample=_NUMBERS[number],
                longest_edge=longest,
                num_images=most if splits else None,
            )
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.path}: {error}") from None

    def _longest_edge(self, name: str, default: int) -> int:
        found = self._value(name, {"longest_edge": default})
        if not isinstance(found, dict) or set(found) != {"longest_edge"}:
            self.refuse(name, found, "a longest_edge")
        return found["longest_edge"]

    def _value(self, name: str, default: object) -> Any:
        """A field, or the default if it is missing or null."""
        found = self.fields.get(name)
        return default if found is None else found

    def _kind(self, names: tuple[str, ...]) -> bool:
        """Whether the file is of one of these classes; older files have another field."""
        kind = self._value("image_processor_type", self.fields.get("feature_extractor_type"))
        return isinstance(kind, str) and kind.startswith(names)

    def _size(self, name: str) -> int | tuple[int, int]:
        """A shortest edge, or a height and width."""
        found = self.fields.get(name)
        if type(found) is int:  # in older files
            edge = name == "size" and self._kind(_OF_EDGES)
            return found if edge else (found, found)
        known = isinstance(found, dict) and all(type(x) is int for x in found.values())
        if known and set(found) == {"height", "width"}:  # type: ignore[arg-type]
            return found["height"], found["width"]  # type: ignore[index]
        if known and set(found) == {"shortest_edge"} and name == "size":  # type: ignore[arg-type]
            return int(found["shortest_edge"])  # type: ignore[index]
        self.refuse(name, found, "a height and width, or a shortest_edge")
        raise AssertionError
