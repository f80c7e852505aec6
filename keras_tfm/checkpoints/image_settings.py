"""`preprocessor_config.json` and its heir: how pictures are resized and normalised, both ways."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from keras_tfm import models
from keras_tfm.checkpoints.config import Config, Fields
from keras_tfm.checkpoints.tensors import read_json
from keras_tfm.models.vision.clip_encoders import MEAN as CLIP_MEAN
from keras_tfm.models.vision.clip_encoders import STD as CLIP_STD
from keras_tfm.models.vision.resnet import IMAGENET_MEAN, IMAGENET_STD
from keras_tfm.runtime.media.image_processor import FILTERS, ImageProcessor
from keras_tfm.runtime.media.tile_processor import TileProcessor

FILE = "preprocessor_config.json"
PROCESSOR = "processor_config.json"
# The dictionaries of feature extractors, which read audio, in `PROCESSOR`.
EXTRACTORS = ("feature_extractor", "audio_processor")
# Pillow's numbers of the filters, as in the files.
_NUMBERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
_HALF = [0.5, 0.5, 0.5]
_SQUARE = {"height": 224, "width": 224}


class _Class(NamedTuple):
    """What an image processor of transformers does where a file leaves a field out.

    Attributes:
        resample: int, the filter.
        size: the size in pixels.
        crop_size: the size of a crop in the centre; None: it does not crop.
        mean, std: list of float, of each channel.
        square: bool, whether a size of one integer is a square's, and not the shortest edge.
        tiles: bool, whether it makes tiles.
    """

    resample: int = 3
    size: Fields = _SQUARE
    crop_size: Fields | None = None
    mean: Sequence[float] = _HALF
    std: Sequence[float] = _HALF
    square: bool = True
    tiles: bool = False


_CLIP = _Class(3, {"shortest_edge": 224}, _SQUARE, CLIP_MEAN, CLIP_STD, square=False)
# By the start of the name; the end is "ImageProcessor", "ImageProcessorFast", "FeatureExtractor"...
_CLASSES = {
    "Bit": _CLIP,
    "CLIP": _CLIP,
    "ConvNext": _Class(size={"shortest_edge": 384}, square=False),
    "DPT": _Class(size={"height": 384, "width": 384}),
    "DeiT": _Class(size={"height": 256, "width": 256}, crop_size=_SQUARE),
    "DINOv3ViT": _Class(2, mean=IMAGENET_MEAN, std=IMAGENET_STD),
    "Detr": _Class(2, {"shortest_edge": 800, "longest_edge": 1333}, mean=IMAGENET_MEAN,
                   std=IMAGENET_STD, square=False),
    "Gemma3": _Class(2),
    "Idefics3": _Class(1, {"longest_edge": 1456}, tiles=True),
    "Lfm2Vl": _Class(2, {"height": 512, "width": 512}),
    "Siglip": _Class(square=False),
    "Siglip2": _Class(2),
    "SmolVLM": _Class(1, {"longest_edge": 1456}, tiles=True),
    "ViT": _Class(2),
}  # fmt: skip
_NAME = re.compile("(.*?)(ImageProcessor|FeatureExtractor)(Fast|Pil)?")
# The class of a model whose file does not name one.
_OF_MODELS = {
    "clip": "CLIP",
    "deit": "DeiT",
    "depth_anything": "DPT",
    "detr": "Detr",
    "dinov2": "Bit",
    "dinov2_with_registers": "Bit",
    "dinov3_vit": "DINOv3ViT",
    "gemma3": "Gemma3",
    "idefics3": "Idefics3",
    "lfm2_vl": "Lfm2Vl",
    "resnet": "ConvNext",
    "siglip": "Siglip",
    "siglip2": "Siglip2",
    "smolvlm": "SmolVLM",
    "vit": "ViT",
}
# ResNet's and ConvNeXt's class: below this size, the shortest edge is the size divided by
# `crop_pct`, and the centre is cropped; from it on, the picture is warped into a square.
_WARPED, _CROP_PCT = 384, 0.875
# Steps that an `ImageProcessor` lacks, and the values by which a file leaves them out.
_WITHOUT = {
    "do_pad": (False,),
    "do_flip_channel_order": (False,),
    "do_thumbnail": (False,),
    "do_pan_and_scan": (False,),
    "rescale_offset": (False,),
}


def read_settings(folder: Path, *parts: str) -> tuple[Path, Fields]:
    """The file with the rules for images or audio, and its fields; none if there is no such file.

    Args:
        folder: the folder.
        parts: the names of the dictionary in `processor_config.json`, which version 5 of
            transformers writes, and prefers to `preprocessor_config.json`.
    """
    path = folder / PROCESSOR
    fields = read_json(path) if path.is_file() else {}
    for part in parts:
        if isinstance(fields.get(part), dict):
            return path, fields[part]
    path = folder / FILE
    return path, read_json(path) if path.is_file() else {}


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
    settings = _Settings(config.file.parent)
    if not settings.fields:
        known = len(mean) == channels
        mean, std = (mean, std) if known else ([0.5] * channels, [0.5] * channels)
        return {"image_mean": list(mean), "image_std": list(std)}
    if settings.flag("do_normalize", True):
        mean, std = (settings.statistic(name, channels) for name in ("image_mean", "image_std"))
    else:
        mean, std = [0.0] * channels, [1.0] * channels
    settings.only(do_rescale=True)
    factor = settings.fields.get("rescale_factor", 1 / 255)
    if not isinstance(factor, float) or abs(factor * 255 - 1) > 1e-6:
        settings.refuse("rescale_factor", factor, "1 / 255")
    return {"image_mean": mean, "image_std": std}


def load_image_processor(folder: str | Path) -> ImageProcessor:
    """Loads the rules by which a model's pictures are prepared.

    They are in `preprocessor_config.json`, or, in folders of version 5 of transformers, in
    `processor_config.json`. Supported are resizing to a height and width or of the shortest edge,
    with a crop in the centre or without, as the image processors of ViT, DeiT, DINO, DINOv2, CLIP,
    SigLIP, Gemma 3 and ResNet do; and the tiles of SmolVLM and Idefics3, as a
    `runtime.TileProcessor`. A picture for LFM2-VL is stretched to one tile. For DETR and Depth
    Anything, whose processors make images of any size, give `ImageProcessor((H, W), resize="fit")`
    with the size of the exported file instead; for SigLIP 2's NaFlex, `ImageProcessor.naflex`.

    Args:
        folder: str or Path, a folder saved by `transformers`.

    Raises:
        FileNotFoundError: the folder has no such file.
        ValueError: the file is not JSON, is of another image processor, or has a rule that is not
            supported; the error names it.

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
    settings = _Settings(Path(folder))
    if not settings.path.is_file():
        raise FileNotFoundError(f"{folder} has no {FILE}")
    return settings.processor()


def rule_file(folder: Path) -> Path:
    """The file with a folder's rule for pictures."""
    return read_settings(folder, "image_processor")[0]


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
        "image_processor_type": "BitImageProcessor",  # for any of these rules
        **({"do_convert_rgb": True} if processor.channels == 3 else {}),
        "do_resize": True,
        "resample": numbers[processor.resample],
        "size": {"height": to[0], "width": to[1]} if edge is None else edge,  # type: ignore[index]
        "do_center_crop": resize is not None,
        "crop_size": {"height": height, "width": width},
    }


def picture_text_fields(model: models.Model) -> Fields | None:
    """The fields of `processor_config.json`, by which images become text; None: they do not."""
    if "image_id" not in model.arguments:
        return None
    length = model.get_layer("connector").output.shape[1]
    if model.family == "lfm2_vl":
        return {"processor_class": "Lfm2VlProcessor"}
    if model.family == "gemma3":
        return {"processor_class": "Gemma3Processor", "image_seq_length": length}
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
    """The rules for images in a folder; no fields if it has none.

    A field that a file leaves out is that of the class; null is false, as in transformers.
    """

    def __init__(self, folder: Path):
        self.path, self.fields = read_settings(folder, "image_processor")
        names = [self.fields.get(f"{x}_type") for x in ("image_processor", "feature_extractor")]
        name = next((x for x in names if isinstance(x, str)), None)
        match = None if name is None else _NAME.fullmatch(name)
        self.class_name = match[1] if match else name
        if name is None and (folder / "config.json").is_file():
            config = read_json(folder / "config.json")
            encoder = config.get("encoder")  # of a `VisionEncoderDecoderModel`
            config = encoder if isinstance(encoder, dict) else config
            self.class_name = _OF_MODELS.get(str(config.get("model_type")))
        # Without a class, what ViT's does, whose file has all fields.
        self.defaults = _CLASSES.get(self.class_name or "ViT")

    def only(self, **allowed: object) -> None:
        for name, value in allowed.items():
            found = self.fields.get(name, value)
            if found != value:
                self.refuse(name, found, repr(value))

    def refuse(self, name: str, value: object, expected: str) -> NoReturn:
        raise ValueError(f"{self.path}: {name} must be {expected}, got {value!r}")

    def flag(self, name: str, default: bool) -> bool:
        found = self.fields.get(name, default)
        if found is not None and not isinstance(found, bool):
            self.refuse(name, found, "true or false")
        return bool(found)

    def statistic(self, name: str, channels: int) -> list[float]:
        """The mean or standard deviation of each channel."""
        defaults = self._class_defaults() if name not in self.fields else None
        found = self.fields.get(name)
        if defaults is not None:
            found = list(defaults.mean if name == "image_mean" else defaults.std)
            found = found[0] if len(set(found)) == 1 else found
        values = found if isinstance(found, list) else [found] * channels
        if len(values) != channels or not all(isinstance(x, int | float) for x in values):
            self.refuse(name, found, f"{channels} numbers, one a channel")
        return list(map(float, values))

    def processor(self) -> ImageProcessor:
        """The rules for resizing and cropping."""
        defaults = self._class_defaults()
        if defaults.tiles:
            return self._tiles()
        number = self.fields.get("resample", defaults.resample)
        resample = _NUMBERS.get(number) if isinstance(number, int) else number
        if resample not in FILTERS:
            self.refuse("resample", number, f"one of {list(_NUMBERS)}")
        self.only(do_resize=True)
        is_tile = self.class_name == "Lfm2Vl"  # which pads rows of patches, not pictures
        for name, values in _WITHOUT.items():
            found = None if is_tile and name == "do_pad" else self.fields.get(name)
            if found is not None and found not in values:
                self.refuse(name, found, "left out, as the runtime lacks it")
        if self.class_name == "Siglip2":
            expected = "that of SigLIP, whose images have one size: for NaFlex, give the "
            kind = self.fields.get("image_processor_type")
            self.refuse("image_processor_type", kind, f"{expected}ImageProcessor.naflex(...)")
        is_tile = is_tile and self.fields.get("tile_size") is not None
        size = self._size("tile_size" if is_tile else "size", defaults)
        if self.class_name is None and self.fields.get("crop_pct") is not None:
            self.refuse("crop_pct", self.fields["crop_pct"], "left out without a class")
        # A file without a class crops if it says how.
        said = self.class_name is None and self.fields.get("crop_size") is not None
        crops = self.flag("do_center_crop", defaults.crop_size is not None or said)
        crop = self._size("crop_size", defaults) if crops else None
        if self.class_name == "ConvNext":
            size, crop = self._square(size)
        elif self.class_name == "DPT":
            size, crop = self._multiples(size), None  # it never crops
        mean = self.fields.get("image_mean")
        channels = len(mean) if isinstance(mean, list) else 3
        if isinstance(size, int) and crop is None:
            self.refuse("do_center_crop", False, "true, as the shortest edge gives no shape")
        to, resize = (size, None) if crop is None else (crop, None if crop == size else size)
        try:
            return ImageProcessor(to, resize, resample, channels)  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.path}: {error}") from None

    def _square(self, size: int | tuple[int, int]) -> tuple[Any, tuple[int, int] | None]:
        """ConvNeXT's size, and the crop: of the centre of a small picture."""
        self.only(do_center_crop=None)
        if not isinstance(size, int):
            self.refuse("size", size, "a shortest_edge")
        part = self.fields.get("crop_pct", _CROP_PCT)
        if size >= _WARPED:
            return (size, size), None
        if not isinstance(part, float) or not 0 < part <= 1:
            self.refuse("crop_pct", part, "a number from 0 to 1")
        return int(size / part), (size, size)

    def _tiles(self) -> TileProcessor:
        """The rules for tiles, whose defaults are those of Idefics3."""
        self.only(do_resize=True)
        number = self.fields.get("resample", 1)
        if number not in _NUMBERS:
            self.refuse("resample", number, f"one of {list(_NUMBERS)}")
        longest, side = (
            self._longest_edge(name, default)
            for name, default in (("size", 1456), ("max_image_size", 364))
        )
        most = (-(-longest // side)) ** 2 + 1
        try:
            return TileProcessor(
                (side, side),
                resample=_NUMBERS[number],
                longest_edge=longest,
                num_images=most if self.flag("do_image_splitting", True) else None,
            )
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.path}: {error}") from None

    def _longest_edge(self, name: str, default: int) -> int:
        found = self.fields.get(name, {"longest_edge": default})
        if not isinstance(found, dict) or set(found) != {"longest_edge"}:
            self.refuse(name, found, "a longest_edge")
        return int(found["longest_edge"])

    def _class_defaults(self) -> _Class:
        """What the file's class does."""
        if self.defaults is None:
            self.refuse(
                "image_processor_type", self.class_name, f"an image processor of {[*_CLASSES]}"
            )
        return self.defaults

    def _size(self, name: str, defaults: _Class) -> int | tuple[int, int]:
        """A shortest edge, or a height and width."""
        default = defaults.size if name == "size" else defaults.crop_size
        found = self.fields.get(name, default)
        if type(found) is int:  # in older files
            square = name != "size" or self.flag("default_to_square", defaults.square)
            return (found, found) if square else found
        edges = found if isinstance(found, dict) else {}
        if all(type(x) is int for x in edges.values()):
            if set(edges) == {"height", "width"}:
                return edges["height"], edges["width"]
            if set(edges) == {"shortest_edge"} and name == "size":
                return int(edges["shortest_edge"])
        return self.refuse(name, found, "a height and width, or a shortest_edge")

    def _multiples(self, size: int | tuple[int, int]) -> tuple[int, int]:
        """DPT's height and width: the nearest multiples."""
        if self.flag("keep_aspect_ratio", False):
            expected = (
                'false, as each picture would have its shape: ImageProcessor(..., resize="fit")'
            )
            self.refuse("keep_aspect_ratio", True, f"{expected} is a rule for one shape")
        if isinstance(size, int):
            self.refuse("size", self.fields["size"], "a height and width")
        step = self.fields.get("ensure_multiple_of", 1)
        if type(step) is not int or step < 1:
            self.refuse("ensure_multiple_of", step, "a positive integer")
        height, width = (round(x / step) * step for x in size)
        return height, width
