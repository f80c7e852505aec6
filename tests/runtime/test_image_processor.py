"""Pictures of any kind as the pixels that a model was trained on."""

import io
import itertools
import json
import struct
import subprocess
import sys
import warnings
import zlib
from dataclasses import asdict

import numpy as np
import pytest

from keras_tfm import checkpoints, models
from keras_tfm.optional_package import install_command
from keras_tfm.runtime import ImageProcessor
from keras_tfm.runtime.media import decoded_picture
from keras_tfm.runtime.media.image_processor import FILTERS, open_size, open_upright

PIL = pytest.importorskip("PIL")
Image = pytest.importorskip("PIL.Image")
# (width, height) of pictures: wide, high, square, smaller and larger than the sizes below.
SIZES = [(53, 31), (17, 41), (23, 23), (7, 5), (3, 97), (1, 1)]


def noise(width, height, mode="RGB", seed=0):
    """A picture of random pixels, of which no two neighbours are alike."""
    bands = {"L": 1, "RGB": 3, "RGBA": 4, "CMYK": 4}[mode]
    values = np.random.default_rng(seed).integers(0, 256, (height, width, bands), dtype="uint8")
    return Image.fromarray(
        values[..., 0] if bands == 1 else values, mode=None if bands < 4 else mode
    )


def resized(image, width, height, resample="bilinear"):
    """As Pillow 13 does; an older one would not begin with the columns."""
    filter_, size = Image.Resampling[resample.upper()], (width, height)
    if int(PIL.__version__.split(".")[0]) < 13 and image.height - height > max(
        0, 2 * (image.width - width)
    ):
        image = image.resize((image.width, height), filter_)
    return image.resize(size, filter_)


def file_of(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def rgb(image):
    return np.asarray(image.convert("RGB"))


# --- How a picture is resized: Pillow's own resize, crop and paste -----------------------------


@pytest.mark.parametrize("resample", FILTERS)
@pytest.mark.parametrize("width,height", SIZES)
def test_a_picture_is_stretched_to_the_size(resample, width, height):
    image = noise(width, height)
    (found,) = ImageProcessor((11, 13), resample=resample)(image)
    np.testing.assert_array_equal(found, rgb(resized(image, 13, 11, resample)))


@pytest.mark.parametrize("width,height", SIZES)
def test_the_shortest_edge_keeps_the_ratio_and_the_centre_is_cropped(width, height):
    image = noise(width, height)
    (found,) = ImageProcessor((11, 13), resize=16, resample="bicubic")(image)
    short = min(width, height)
    across, down = 16 * width // short, 16 * height // short
    whole = resized(image, across, down, "bicubic")
    left, top = (across - 13) // 2, (down - 11) // 2
    np.testing.assert_array_equal(found, rgb(whole.crop((left, top, left + 13, top + 11))))


@pytest.mark.parametrize("width,height", SIZES)
def test_a_height_and_width_are_cropped_in_the_centre(width, height):
    image = noise(width, height)
    (found,) = ImageProcessor((11, 13), resize=(14, 20), resample="lanczos")(image)
    whole = resized(image, 20, 14, "lanczos")
    np.testing.assert_array_equal(found, rgb(whole.crop((3, 1, 16, 12))))


@pytest.mark.parametrize(
    "width,height,inside",
    [
        (53, 31, (13, 8)),  # 31 * 13 / 53 = 7.6
        (17, 41, (5, 11)),  # 17 * 11 / 41 = 4.56
        (7, 5, (13, 9)),  # enlarged; 5 * 13 / 7 = 9.29
        (26, 22, (13, 11)),
        (3, 970, (1, 11)),  # never less than one pixel
        (1, 1, (11, 11)),
    ],
)
def test_a_fitted_picture_keeps_the_ratio_above_the_background(width, height, inside):
    image = noise(width, height)
    (found,) = ImageProcessor((11, 13), resize="fit", background=77)(image)
    expected = Image.new("RGB", (13, 11), (77, 77, 77))
    expected.paste(resized(image, *inside), (0, 0))
    np.testing.assert_array_equal(found, rgb(expected))


def triangles(size, new_size):
    """Weights (new_size, size) of a linear filter that is as wide as two new pixels, float64."""
    scale = max(1.0, size / new_size)
    centres = (np.arange(new_size)[:, None] + 0.5) * size / new_size
    weights = np.maximum(0, 1 - np.abs(np.arange(size) + 0.5 - centres) / scale)
    return weights / weights.sum(-1, keepdims=True)


@pytest.mark.parametrize("width,height", [(64, 40), (53, 31), (7, 5)])
def test_reducing_averages_all_pixels(width, height):
    """Without Pillow: the formula of a bilinear filter that is widened."""
    image = noise(width, height, "L")
    found = ImageProcessor((11, 13), channels=1)(image)[0, ..., 0]
    expected = triangles(height, 11) @ np.asarray(image, "float64") @ triangles(width, 13).T
    # Pillow rounds after each of two passes.
    assert np.abs(found - expected).max() <= 1.001


def test_a_picture_of_the_size_is_not_changed():
    image = noise(13, 11)
    for resize, resample in itertools.product((None, (11, 13), "fit"), FILTERS):
        processor = ImageProcessor((11, 13), resize=resize, resample=resample)
        np.testing.assert_array_equal(processor(image)[0], rgb(image))


def test_pictures_of_different_sizes_are_one_batch():
    images = [noise(*size, seed=i) for i, size in enumerate(SIZES)]
    processor = ImageProcessor((11, 13), resize=13)
    found = processor(images)
    assert found.shape == (6, 11, 13, 3) and found.dtype == np.uint8
    for row, image in zip(found, images, strict=True):
        np.testing.assert_array_equal(row, processor(image)[0])
    np.testing.assert_array_equal(processor(tuple(images)), found)


# --- Kinds of pictures -------------------------------------------------------------------------


def test_paths_bytes_pictures_and_arrays_are_the_same(tmp_path):
    image = noise(19, 13)
    (tmp_path / "ä 1.png").write_bytes(file_of(image))
    path, content = tmp_path / "ä 1.png", file_of(image)
    processor = ImageProcessor((5, 7))
    expected = processor(image)
    for same in (path, str(path), content, bytearray(content), rgb(image), [path], (content,)):
        np.testing.assert_array_equal(processor(same), expected)
    batch = np.stack([rgb(image), rgb(image)[::-1]])
    np.testing.assert_array_equal(processor(batch)[0], expected[0])
    np.testing.assert_array_equal(processor(batch)[1], processor(batch[1])[0])


def test_a_picture_that_the_caller_opened_is_not_changed(tmp_path):
    (tmp_path / "turned.jpg").write_bytes(file_of(noise(9, 5), "JPEG", exif=turned(6)))
    with Image.open(tmp_path / "turned.jpg") as image:
        ImageProcessor((4, 4))(image)
        assert image.size == (9, 5) and image.getexif()[0x0112] == 6
        assert image.load() is not None  # it is still open


def test_grey_becomes_rgb_and_rgb_grey():
    grey = noise(13, 11, "L")
    (found,) = ImageProcessor((11, 13))(grey)
    np.testing.assert_array_equal(found, np.repeat(np.asarray(grey)[..., None], 3, axis=-1))
    for array in (np.asarray(grey), np.asarray(grey)[..., None]):
        np.testing.assert_array_equal(ImageProcessor((11, 13))(array)[0], found)

    image = noise(13, 11)
    found = ImageProcessor((11, 13), channels=1)(image)
    assert found.shape == (1, 11, 13, 1)
    luma = rgb(image) @ np.array([0.299, 0.587, 0.114])
    assert np.abs(found[0, ..., 0] - luma).max() <= 0.51  # rounded, with weights of 16 bits


def test_transparent_parts_show_the_background():
    values = np.asarray(noise(13, 11, "RGBA")).copy()
    values[:3, :, 3], values[3:6, :, 3] = 0, 255
    (found,) = ImageProcessor((11, 13), background=40)(values)
    assert (found[:3] == 40).all()
    np.testing.assert_array_equal(found[3:6], values[3:6, :, :3])
    share = values[..., 3:] / 255
    assert np.abs(found - (values[..., :3] * share + 40 * (1 - share))).max() <= 1
    (grey,) = ImageProcessor((11, 13), background=40, channels=1)(values)
    assert (grey[:3] == 40).all()


def test_a_palette_with_transparency():
    image = Image.new("P", (4, 1))
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    image.putdata([0, 1, 2, 1])
    expected = [[255, 0, 0], [9, 9, 9], [0, 0, 255], [9, 9, 9]]
    for kind in ("PNG", "GIF"):
        content = file_of(image, kind, transparency=1)
        (found,) = ImageProcessor((1, 4), background=9)(content)
        assert found[0].tolist() == expected, kind


def test_an_rgb_picture_with_a_transparent_colour():
    image = Image.fromarray(np.array([[[1, 2, 3], [9, 8, 7]]], "uint8"))
    (found,) = ImageProcessor((1, 2))(file_of(image, transparency=(9, 8, 7)))
    assert found[0].tolist() == [[1, 2, 3], [255, 255, 255]]


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_become_eight(kind):
    values = np.array([[0, 255, 256, 0x1234, 0xFFFF]], "uint16")
    content = file_of(Image.fromarray(values), kind)
    (found,) = ImageProcessor((1, 5), channels=1)(content)
    assert found[0, :, 0].tolist() == [0, 0, 1, 0x12, 0xFF]
    found = ImageProcessor((1, 5), channels=1)(Image.open(io.BytesIO(content)))
    assert found[0, 0, :, 0].tolist() == [0, 0, 1, 0x12, 0xFF]


def test_sixteen_bits_with_a_transparent_value():
    values = np.array([[0x1200, 0x1201, 0xFFFF]], "uint16")
    content = file_of(Image.fromarray(values), transparency=0x1201)
    (found,) = ImageProcessor((1, 3), channels=1, background=99)(content)
    assert found[0, :, 0].tolist() == [0x12, 99, 0xFF]


def test_cmyk_and_other_modes():
    image = noise(16, 16, "CMYK")
    processor = ImageProcessor((16, 16))
    np.testing.assert_array_equal(processor(file_of(image, "TIFF"))[0], rgb(image))
    content = file_of(image, "JPEG")
    np.testing.assert_array_equal(processor(content)[0], rgb(Image.open(io.BytesIO(content))))
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV"):
        converted = noise(16, 16).convert(mode)
        found = processor(converted)[0]
        np.testing.assert_array_equal(found, rgb(converted.convert("RGBA")), mode)


def turned(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


@pytest.mark.parametrize(
    "orientation,expected",
    # As EXIF defines them: what the first row and the first column of the stored picture show.
    [
        (1, [[1, 2, 3], [4, 5, 6]]),
        (2, [[3, 2, 1], [6, 5, 4]]),
        (3, [[6, 5, 4], [3, 2, 1]]),
        (4, [[4, 5, 6], [1, 2, 3]]),
        (5, [[1, 4], [2, 5], [3, 6]]),
        (6, [[4, 1], [5, 2], [6, 3]]),
        (7, [[6, 3], [5, 2], [4, 1]]),
        (8, [[3, 6], [2, 5], [1, 4]]),
        (0, [[1, 2, 3], [4, 5, 6]]),  # there is no such orientation
        (9, [[1, 2, 3], [4, 5, 6]]),
    ],
)
def test_a_picture_is_turned_as_its_orientation_says(orientation, expected):
    image = Image.fromarray(np.array([[1, 2, 3], [4, 5, 6]], "uint8"))
    content = file_of(image, "PNG", exif=turned(orientation))
    size = np.shape(expected)
    found = ImageProcessor(size, channels=1)(content)
    assert found[0, ..., 0].tolist() == expected
    assert open_size(content) == size
    deep = Image.fromarray(np.array([[1, 2, 3], [4, 5, 6]], "uint16") << 8)
    content = file_of(deep, "PNG", exif=turned(orientation))
    assert ImageProcessor(size, channels=1)(content)[0, ..., 0].tolist() == expected


# Lossless where the format allows it, so that every corner keeps its grey.
TURNED = {
    "JPEG": {"quality": 100},
    "MPO": {"quality": 100, "save_all": True},
    "PNG": {},
    "WEBP": {"lossless": True},
    "TIFF": {},
    "AVIF": {"quality": 100},
}


@pytest.mark.parametrize("kind", TURNED)
def test_every_format_that_turns_a_picture(kind):
    """The size is that of the picture as it is decoded: Pillow turns some formats, others not."""
    if kind not in Image.registered_extensions().values():
        pytest.skip(f"this Pillow has no {kind}")
    corners = np.kron([[10, 90], [170, 250]], np.ones((16, 24))).astype("uint8")
    upright = {1: corners, 5: corners.T, 6: np.rot90(corners, -1), 8: np.rot90(corners)}
    for orientation, expected in upright.items():
        options = TURNED[kind] | {"exif": turned(orientation)}
        content = file_of(Image.fromarray(corners).convert("RGB"), kind, **options)
        assert open_size(content) == expected.shape, orientation
        picture = open_upright(content)
        assert (picture.height, picture.width) == expected.shape, orientation
        processor = ImageProcessor(expected.shape, channels=1)
        pixels, sizes = processor.with_sizes([content])
        assert sizes == [expected.shape]
        assert np.abs(pixels[0, ..., 0].astype(int) - expected).max() <= 3, orientation


def test_an_orientation_behind_the_pixels_or_in_xmp():
    """PNG allows EXIF data after the pixels; editors also write the orientation as XMP."""
    values = np.array([[1, 2, 3], [4, 5, 6]], "uint8")
    content = file_of(Image.fromarray(values), exif=turned(6))
    start = content.index(b"eXIf") - 4
    length = 12 + int.from_bytes(content[start : start + 4], "big")
    end = content.index(b"IEND") - 4
    chunk = content[start : start + length]
    late = content[:start] + content[start + length : end] + chunk + content[end:]
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><r tiff:Orientation="6"/></x:xmpmeta>'
    text = b"XML:com.adobe.xmp" + bytes(5) + xmp
    named = b"iTXt" + text
    chunk = len(text).to_bytes(4, "big") + named + zlib.crc32(named).to_bytes(4, "big")
    plain = file_of(Image.fromarray(values))
    end = plain.index(b"IEND") - 4
    for turned_file in (late, plain[:end] + chunk + plain[end:]):
        found = ImageProcessor((3, 2), channels=1)(turned_file)
        assert found[0, ..., 0].tolist() == [[4, 1], [5, 2], [6, 3]]
        assert open_size(turned_file) == (3, 2)


def test_a_photograph_with_damaged_exif_data_is_read():
    image = noise(16, 8)
    content = file_of(image, "JPEG", exif=turned(6))
    start = content.index(b"Exif\0\0") + 6
    damaged = content[:start] + b"xx" + content[start + 2 :]
    pixels = ImageProcessor((8, 16))(damaged)[0]
    np.testing.assert_array_equal(pixels, rgb(Image.open(io.BytesIO(content))))
    assert open_size(damaged) == (8, 16)


def test_of_an_animation_the_first_frame_is_used():
    frames = [noise(13, 11, "L", seed=i) for i in range(3)]
    for kind in ("GIF", "PNG", "WEBP", "TIFF"):
        options = {"lossless": True} if kind == "WEBP" else {}
        content = file_of(frames[0], kind, save_all=True, append_images=frames[1:], **options)
        (found,) = ImageProcessor((11, 13), channels=1)(content)
        np.testing.assert_array_equal(found[..., 0], np.asarray(frames[0]), kind)


def test_one_pixel_and_very_wide_pictures():
    (found,) = ImageProcessor((4, 6), resize=8)(np.array([[[3, 5, 7]]], "uint8"))
    assert (found == [3, 5, 7]).all()
    wide = noise(5_000, 2)
    (found,) = ImageProcessor((4, 6), resize=8)(wide)
    whole = resized(wide, 20_000, 8)
    np.testing.assert_array_equal(found, rgb(whole.crop((9_997, 2, 10_003, 6))))
    assert ImageProcessor((4, 6))(wide).shape == (1, 4, 6, 3)
    assert ImageProcessor((4, 6), resize="fit")(wide).shape == (1, 4, 6, 3)


def test_a_line_is_not_enlarged_without_limit(tmp_path):
    """224 x 22 million pixels would take 15 GB."""
    (tmp_path / "line.png").write_bytes(file_of(Image.new("L", (100_000, 1))))
    message = "its 100000 x 1 pixels would be resized to 25600000 x 256; crop it first"
    with pytest.raises(ValueError, match=rf"line\.png is too narrow: {message}"):
        ImageProcessor((224, 224), resize=256)(tmp_path / "line.png")
    assert ImageProcessor((224, 224))(tmp_path / "line.png").shape == (1, 224, 224, 3)


# --- What is no picture ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF"])
def test_a_truncated_file_is_named(kind, tmp_path):
    content, path = file_of(noise(67, 41), kind), tmp_path / "cut.bin"
    for length in range(20, len(content) - 40, max(1, len(content) // 40)):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"cut\.bin is (damaged or truncated:|not a picture)"):
            ImageProcessor((5, 7))(path)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "TGA"])
@pytest.mark.filterwarnings("ignore")  # Pillow's, of metadata that it cannot read
def test_damaged_files_give_pixels_or_a_named_error(kind):
    generator = np.random.default_rng(0)
    content = file_of(noise(31, 23), kind, **({"exif": turned(6)} if kind == "JPEG" else {}))
    refused = 0
    for _ in range(150):
        damaged = bytearray(content)
        for place in generator.integers(0, min(len(content), 300), 3):
            damaged[place] = generator.integers(0, 256)
        try:
            assert ImageProcessor((5, 7))(bytes(damaged)).shape == (1, 5, 7, 3)
        except ValueError as error:
            assert str(error).startswith("the picture is "), error
            refused += 1
    assert refused or kind == "TGA"  # whose header has nothing to check


def test_an_empty_file_a_text_and_a_missing_file(tmp_path):
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "text.png").write_text("no picture")
    processor = ImageProcessor((5, 7))
    for name in ("empty.png", "text.png"):
        with pytest.raises(ValueError, match=rf"{name} is not a picture of a format that Pillow"):
            processor(tmp_path / name)
    for content in (b"", b"no picture"):
        with pytest.raises(ValueError, match="the picture is not a picture of a format"):
            processor(content)
    for path in (tmp_path / "none.png", tmp_path, ""):
        with pytest.raises(FileNotFoundError, match="no such picture"):
            processor(path)
    with pytest.raises(FileNotFoundError, match=r"no such picture: .*none\.png"):
        processor([noise(3, 3), tmp_path / "none.png"])


def test_a_file_that_unpacks_to_gigabytes_is_refused():
    """A header of 40,000 x 40,000 pixels, without their data."""
    header = b"IHDR" + struct.pack(">IIBBBBB", 40_000, 40_000, 8, 2, 0, 0, 0)
    content = file_of(noise(3, 3))
    bomb = content[:12] + header + struct.pack(">I", zlib.crc32(header)) + content[33:]
    with pytest.raises(ValueError, match=r"the picture is too large: Image size .* exceeds"):
        ImageProcessor((5, 7))(bomb)


@pytest.mark.parametrize(
    "array,got",
    [
        (np.zeros((4, 4, 3)), r"float64 \(4, 4, 3\)"),
        (np.zeros((4, 4, 3), "float32"), r"float32 \(4, 4, 3\)"),
        (np.zeros((4, 4), "int32"), r"int32 \(4, 4\)"),
        (np.zeros((4, 4), bool), r"bool \(4, 4\)"),
        (np.zeros((3, 4, 5), "uint8"), r"uint8 \(3, 4, 5\)"),
        (np.zeros((4, 4, 2), "uint8"), r"uint8 \(4, 4, 2\)"),
        (np.zeros((4,), "uint8"), r"uint8 \(4,\)"),
        (np.zeros((0, 4, 3), "uint8"), r"uint8 \(0, 4, 3\)"),
        (np.zeros((1, 1, 4, 4, 3), "uint8"), r"uint8 \(1, 1, 4, 4, 3\)"),
    ],
)
def test_an_array_of_another_kind(array, got):
    with pytest.raises(ValueError, match=rf"the picture must be a uint8 array \(H, W\).*{got}"):
        ImageProcessor((5, 7))(array)


def test_the_bad_picture_of_a_batch_is_named():
    with pytest.raises(ValueError, match=r"picture 2 of 3 must be a uint8 array .* float64"):
        ImageProcessor((5, 7))([noise(3, 3), np.zeros((4, 4)), noise(3, 3)])
    for nothing in ([], (), np.zeros((0, 4, 4, 3), "uint8")):
        with pytest.raises(ValueError, match="expected at least one picture, got none"):
            ImageProcessor((5, 7))(nothing)
    for wrong in (None, 3, [[0, 1], [2, 3]], {"pixels": b""}):
        with pytest.raises(
            TypeError, match=r"must be a path, bytes, a PIL\.Image\.Image or a uint8"
        ):
            ImageProcessor((5, 7))(wrong)


def test_a_float_picture_of_pillow_is_refused():
    for mode in ("F", "I"):
        with pytest.raises(ValueError, match=f"must have 8 or 16 bits a channel, .* mode '{mode}'"):
            ImageProcessor((5, 7))(Image.new(mode, (4, 4)))
    with pytest.raises(ValueError, match="the picture has no pixels: its size is 0 x 4"):
        ImageProcessor((5, 7))(Image.new("RGB", (0, 4)))


def test_a_picture_that_pillow_opened_and_cannot_decode():
    content = file_of(noise(67, 41))
    image = Image.open(io.BytesIO(content[: len(content) // 2]))
    with pytest.raises(ValueError, match="the picture is damaged or truncated"):
        ImageProcessor((5, 7))(image)


# --- Files that are small and decode to much, or that other programs would read -----------------


def test_a_picture_of_too_many_pixels_is_refused_before_it_is_decoded(monkeypatch):
    """Also by a program that turns Pillow's warning off; the file has no pixels to decode."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)
    small, large = noise(20, 25), noise(25, 21)
    assert ImageProcessor((5, 7))(file_of(small)).shape == (1, 5, 7, 3)
    for kind in ("PNG", "GIF", "TIFF", "WEBP", "BMP"):
        content = file_of(large, kind)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for call in (ImageProcessor((5, 7)), open_size, open_upright):
                with pytest.raises(ValueError, match="the picture is too large: it has 25 x 21 "):
                    call(content)
        with pytest.raises(ValueError, match=r"too large: .* PIL\.Image\.MAX_IMAGE_PIXELS = None"):
            ImageProcessor((5, 7))(content)
    with pytest.raises(ValueError, match="the picture is too large"):
        ImageProcessor((5, 7))(file_of(noise(50, 50)))  # Pillow's own error
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert ImageProcessor((5, 7))(file_of(noise(50, 50))).shape == (1, 5, 7, 3)


def test_a_large_photograph_is_decoded_at_a_reduced_size(monkeypatch):
    """108 megapixels, say: the size for boxes stays that of the file."""
    photograph = Image.linear_gradient("L").resize((64, 48))
    content = file_of(photograph, "JPEG", quality=95, exif=turned(6))
    expected = ImageProcessor((8, 6), channels=1)(content)
    for limit, size in ((3072, (64, 48)), (3071, (32, 24)), (768, (32, 24))):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        found, sizes = ImageProcessor((8, 6), channels=1).with_sizes(content)
        assert sizes == [(64, 48)] and open_size(content) == (64, 48)
        picture = open_upright(content)
        assert (picture.height, picture.width) == size
        assert np.abs(found.astype(int) - expected).max() <= 2
    for options, limit in (({"progressive": True}, 3071), ({}, 767)):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(ValueError, match="too large: it has 64 x 48 pixels, more than"):
            ImageProcessor((8, 6))(file_of(photograph, "JPEG", **options))


def test_a_transparent_picture_in_tiles_is_as_whole(monkeypatch):
    image = noise(13, 11, "RGBA")
    expected = rgb(Image.alpha_composite(Image.new("RGBA", image.size, (40, 40, 40, 255)), image))
    monkeypatch.setattr(decoded_picture, "_TILE", 5)
    (found,) = ImageProcessor((11, 13), background=40)(file_of(image))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", ["EPS", "PCX", "ICO", "PSD"])
def test_formats_that_are_not_named_are_not_opened(kind, monkeypatch, tmp_path):
    """Pillow would start Ghostscript for EPS."""

    def refuse(*_, **__):
        raise AssertionError("a program was started")

    monkeypatch.setattr(subprocess, "check_call", refuse)
    content = b"8BPS\0\1" + bytes(20) if kind == "PSD" else file_of(noise(16, 16), kind)
    (tmp_path / "picture.png").write_bytes(content)
    for source in (content, tmp_path / "picture.png"):
        for call in (ImageProcessor((5, 7)), open_size, open_upright):
            with pytest.raises(
                ValueError, match="not a picture of a format that Pillow reads here"
            ):
                call(source)


def test_texts_that_unpack_to_much_in_a_picture():
    """Pillow's own limit, of 1 MB a text."""
    text = b"zTXt" + b"Comment\0\0" + zlib.compress(bytes(1 << 22))
    chunk = (len(text) - 4).to_bytes(4, "big") + text + zlib.crc32(text).to_bytes(4, "big")
    content = file_of(noise(5, 7))
    content = content[:33] + chunk + content[33:]
    with pytest.raises(ValueError, match="damaged or truncated: Decompressed data too large"):
        ImageProcessor((5, 7))(content)


@pytest.mark.parametrize(
    "arguments,error,message",
    [
        ({"size": 5}, TypeError, "size must be a height and a width in pixels, got 5"),
        ({"size": (5.0, 7.0)}, TypeError, "size must be a height and a width"),
        ({"size": (5, 7, 3)}, TypeError, "size must be a height and a width"),
        ({"size": (True, 7)}, TypeError, "size must be a height and a width"),
        ({"size": (0, 7)}, ValueError, r"size must be at least 1, got \(0, 7\)"),
        ({"resize": "crop"}, ValueError, "resize must be None, a size or 'fit', got 'crop'"),
        ({"resize": 8.5}, TypeError, r"resize must be None, an integer, .*, got 8\.5"),
        ({"resize": True}, TypeError, "resize must be None, an integer, .*, got True"),
        ({"resize": 0}, ValueError, "resize must be at least 1, got 0"),
        ({"resize": (8,)}, TypeError, "resize must be a height and a width"),
        ({"resize": 6}, ValueError, r"resize must be at least size \(5, 7\), got 6"),
        ({"resize": (5, 6)}, ValueError, r"resize must be at least size \(5, 7\), got \(5, 6\)"),
        ({"resample": "cubic"}, ValueError, "resample must be one of .*'bicubic'.* got 'cubic'"),
        ({"resample": 2}, ValueError, "resample must be one of"),
        ({"channels": 4}, ValueError, "channels must be 1 or 3, got 4"),
        ({"channels": True}, ValueError, "channels must be 1 or 3, got True"),
        ({"background": 256}, ValueError, "background must be an integer from 0 to 255, got 256"),
        ({"background": 0.5}, ValueError, r"background must be an integer .* got 0\.5"),
        ({"background": True}, ValueError, "background must be an integer .* got True"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        ImageProcessor(**{"size": (5, 7), **arguments})


def test_it_is_equal_after_json():
    for processor in (ImageProcessor((5, 7)), ImageProcessor((5, 7), (8, 9), "lanczos", 1, 0)):
        again = ImageProcessor(**json.loads(json.dumps(asdict(processor))))
        assert again == processor and hash(again) == hash(processor)
    assert ImageProcessor([5, 7], [8, 9]) == ImageProcessor((5, 7), (8, 9))


def test_a_missing_pillow_is_named():
    program = (
        "import sys, numpy\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'PIL':\n"
        "            raise ModuleNotFoundError('no PIL', name='PIL')\n"
        "sys.meta_path.insert(0, Missing())\n"
        "from keras_tfm.runtime import ImageProcessor\n"
        "ImageProcessor((5, 7))(numpy.zeros((4, 4, 3), 'uint8'))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert f"pictures need Pillow: {install_command('pillow')} (the extra" in result.stderr


# --- Boxes -------------------------------------------------------------------------------------

RULES = {
    "stretched": {},
    "shortest edge": {"resize": 31},
    "height and width": {"resize": (29, 37)},
    "fitted": {"resize": "fit"},
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("width,height", [(301, 217), (97, 251), (40, 40)])
def test_boxes_are_those_of_the_picture(rule, width, height):
    """A bright rectangle is found where it is in the picture, within one pixel of the input."""
    processor = ImageProcessor((23, 31), **RULES[rule])
    picture = np.zeros((height, width), "uint8")
    left, top, right, bottom = width * 0.45, height * 0.4, width * 0.6, height * 0.65
    left, top, right, bottom = map(round, (left, top, right, bottom))
    picture[top:bottom, left:right] = 255
    pixels = processor(picture)[0, ..., 0]
    if rule == "fitted":
        inside = processor._new_size(height, width)
        pixels = pixels[: inside[0], : inside[1]]  # without the background
    rows, columns = (np.flatnonzero((pixels > 127).any(axis)) for axis in (1, 0))
    edges = np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]) / [31, 23, 31, 23]
    box = [*(edges[:2] + edges[2:]) / 2, *edges[2:] - edges[:2]]
    found = processor.to_picture([box], (height, width))
    new_height, new_width = processor._new_size(height, width)
    pixel = np.array([width / new_width, height / new_height] * 2)
    assert (np.abs(found[0] - [left, top, right, bottom]) <= pixel).all(), found


@pytest.mark.parametrize("rule", RULES)
def test_to_picture_inverts_the_rule(rule):
    """The forward formula, by hand, for boxes anywhere in the visible part."""
    processor, (height, width) = ImageProcessor((23, 31), **RULES[rule]), (217, 301)
    new_height, new_width, left, top = {
        "stretched": (23, 31, 0, 0),
        "shortest edge": (31, 43, 6, 4),
        "height and width": (29, 37, 3, 3),
        "fitted": (22, 31, 0, 0),  # 217 * 31 / 301 = 22.3
    }[rule]
    generator = np.random.default_rng(0)
    across = np.sort(generator.uniform(left, min(left + 31, new_width), (50, 2)))
    down = np.sort(generator.uniform(top, min(top + 23, new_height), (50, 2)))
    picture = np.stack([across, down], -1) * [width / new_width, height / new_height]
    x, y = (across - left) / 31, (down - top) / 23
    boxes = np.stack([x.mean(-1), y.mean(-1), np.ptp(x, -1), np.ptp(y, -1)], axis=-1)
    found = processor.to_picture(boxes.reshape(5, 10, 4), (height, width))
    assert found.shape == (5, 10, 4) and found.dtype == np.float32
    # float32, of numbers up to 301
    np.testing.assert_allclose(found.reshape(50, 2, 2), picture, atol=1e-3)


def test_boxes_are_clipped_to_the_picture():
    boxes = [[0.5, 0.5, 2.0, 2.0], [0.0, 0.0, 0.5, 0.5]]
    found = ImageProcessor((10, 10)).to_picture(boxes, (40, 80))
    assert found.tolist() == [[0, 0, 80, 40], [0, 0, 20, 10]]
    # At the right and bottom of a fitted picture there is background.
    found = ImageProcessor((10, 10), "fit").to_picture([[0.5, 0.5, 1.0, 1.0]], (40, 80))
    assert found.tolist() == [[0, 0, 80, 40]]
    with pytest.raises(ValueError, match=r"boxes must have shape \(\.\.\., 4\), got \(2, 3\)"):
        ImageProcessor((10, 10)).to_picture(np.zeros((2, 3)), (40, 80))
    with pytest.raises(TypeError, match="size must be a height and a width"):
        ImageProcessor((10, 10)).to_picture(boxes, 40)


# --- preprocessor_config.json ------------------------------------------------------------------


def processors_of_transformers():
    transformers = pytest.importorskip("transformers")
    return {kind: getattr(transformers, f"{kind}ImageProcessorPil") for kind in SAVED}


def unscaled(processor, images):
    """What a processor of `transformers` makes of pictures, before it scales and normalises."""
    found = processor(images, do_rescale=False, do_normalize=False, return_tensors="np")
    return found["pixel_values"].transpose(0, 2, 3, 1)


def check_equal(found, expected):
    """Equal; an older Pillow rounds tall pictures in another order, where ours is as version 13."""
    if int(PIL.__version__.split(".")[0]) >= 13:
        np.testing.assert_array_equal(found, expected)
    assert np.abs(found.astype(int) - expected.astype(int)).max() <= 1


SAVED = {
    "ViT": [{}, {"size": {"height": 29, "width": 41}}, {"resample": 0}, {"resample": 1}],
    "Bit": [
        {},
        {"size": {"shortest_edge": 37}, "crop_size": {"height": 31, "width": 23}},
        {"size": {"height": 37, "width": 45}, "crop_size": {"height": 31, "width": 23}},
        {"size": {"height": 37, "width": 45}, "do_center_crop": False, "resample": 2},
    ],
    "DeiT": [{}, {"size": {"shortest_edge": 40}, "crop_size": 32}, {"do_center_crop": False}],
    "CLIP": [{"size": {"shortest_edge": 37}, "crop_size": {"height": 31, "width": 23}}],
    "Siglip": [{}, {"size": {"height": 29, "width": 41}, "do_center_crop": False}],
    "DPT": [{}, {"size": {"height": 64, "width": 50}, "ensure_multiple_of": 14}],
    "ConvNext": [
        {},
        {"size": {"shortest_edge": 40}},
        {"size": {"shortest_edge": 40}, "crop_pct": 0.6},
    ],
}
DPT, CONVNEXT = ({"image_processor_type": f"{x}ImageProcessor"} for x in ("DPT", "ConvNext"))


@pytest.mark.parametrize("kind,options", [(k, x) for k, many in SAVED.items() for x in many])
def test_pixels_are_those_of_transformers(kind, options, tmp_path):
    theirs = processors_of_transformers()[kind](**options)
    theirs.save_pretrained(tmp_path)
    ours = checkpoints.load_image_processor(tmp_path)
    for size in [(53, 31), (17, 41), (300, 260), (7, 5)]:
        image = noise(*size)
        check_equal(ours(image), unscaled(theirs, image))
    assert (
        ours.resample == {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}[theirs.resample]
    )


OLD = {"size": 37, "crop_size": 29, "do_center_crop": True, "resample": 3}


@pytest.mark.parametrize(
    "fields",
    [
        {"feature_extractor_type": "DeiTFeatureExtractor", **OLD},
        {"feature_extractor_type": "BitFeatureExtractor", **OLD},
        {"feature_extractor_type": "ViTFeatureExtractor", "size": 37, "do_resize": True},
        {"image_processor_type": "ViTImageProcessor", "size": 37, "crop_size": 29},
        {"image_processor_type": "BitImageProcessor", "size": 37, "crop_size": 29},
        {"image_processor_type": "DeiTImageProcessor", "size": 37, "crop_size": 29},
        {"image_processor_type": "BitImageProcessor", "size": {"height": 37, "width": 30},
         "do_center_crop": None},
        {"image_processor_type": "DeiTImageProcessorFast", "size": 37, "do_center_crop": None},
        {"image_processor_type": "SiglipImageProcessor", "size": 37, "default_to_square": True,
         "crop_size": 29},
        {"image_processor_type": "SiglipImageProcessorFast", "size": {"height": 37, "width": 30},
         "crop_size": None, "do_center_crop": None, "do_pad": None, "do_convert_rgb": None},
        {"image_processor_type": "DPTImageProcessor", "size": 37, "crop_size": 29},
        {"feature_extractor_type": "ConvNextFeatureExtractor", "size": 37, "resample": 3},
    ],
    ids=str,
)  # fmt: skip
def test_older_files_are_read_as_their_class_does(fields, tmp_path):
    """An integer is the shortest edge for some classes, a square for others."""
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(fields))
    kind = next(x for x in SAVED if any(str(y).startswith(x) for y in fields.values()))
    theirs = processors_of_transformers()[kind].from_pretrained(tmp_path)
    ours = checkpoints.load_image_processor(tmp_path)
    image = noise(61, 43)
    np.testing.assert_array_equal(ours(image), unscaled(theirs, image))


@pytest.mark.parametrize(
    "fields,message",
    [
        ({"do_resize": False}, "do_resize must be True, got False"),
        ({"size": {"shortest_edge": 37}}, "do_center_crop must be true, .* got False"),
        ({"size": {"longest_edge": 37}}, "size must be a height and width, or a shortest_edge"),
        ({"size": {"shortest_edge": 37, "longest_edge": 90}}, "size must be a height and width"),
        ({"size": None}, "size must be a height and width, or a shortest_edge, got None"),
        ({"resample": 5}, "resample must be one of .*, got 5"),
        ({"crop_size": {"shortest_edge": 3}}, "crop_size must be a height and width"),
        ({"crop_size": 90}, r"json: resize must be at least size \(90, 90\), got \(37, 37\)"),
        ({"crop_pct": 0.875}, r"crop_pct must be left out without a class, got 0\.875"),
        ({**DPT, "keep_aspect_ratio": True}, "keep_aspect_ratio must be false, as each picture"),
        ({**DPT, "size": {"shortest_edge": 37}}, "size must be a height and width, got"),
        ({**DPT, "ensure_multiple_of": 0}, "ensure_multiple_of must be a positive integer, got 0"),
        ({**CONVNEXT, "size": {"height": 9, "width": 9}}, "size must be a shortest_edge, got"),
        ({**CONVNEXT, "size": 9, "crop_pct": 2.0}, r"crop_pct must be a number from 0 to 1, got 2"),
        (
            {"image_processor_type": "LevitImageProcessor"},
            "must be an image processor of .*'Levit'",
        ),
        (
            {"image_processor_type": "SiglipImageProcessor", "do_center_crop": True},
            "crop_size must",
        ),
        ({"do_resize": None}, "do_resize must be True, got None"),
        ({"do_pad": True}, "do_pad must be left out, as the runtime lacks it, got True"),
    ],
)
def test_a_rule_that_is_not_supported_is_named(fields, message, tmp_path):
    fields = {"size": {"height": 37, "width": 37}, **fields}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(fields))
    with pytest.raises(ValueError, match=message) as raised:
        checkpoints.load_image_processor(tmp_path)
    assert "preprocessor_config.json: " in str(raised.value)


def test_the_rules_of_version_5_are_in_the_file_of_the_processor(tmp_path):
    fields = {"image_processor_type": "ViTImageProcessor", "size": {"height": 9, "width": 7}}
    nested = {"image_processor": fields, "processor_class": "X"}
    (tmp_path / "processor_config.json").write_text(json.dumps(nested))
    assert checkpoints.load_image_processor(tmp_path) == ImageProcessor((9, 7))
    (tmp_path / "preprocessor_config.json").write_text('{"size": {"height": 5, "width": 5}}')
    assert checkpoints.load_image_processor(tmp_path) == ImageProcessor((9, 7))
    (tmp_path / "processor_config.json").write_text('{"image_seq_len": 4}')  # of version 4
    assert checkpoints.load_image_processor(tmp_path) == ImageProcessor((5, 5))


def test_a_class_that_is_not_named_is_that_of_the_model(tmp_path):
    (tmp_path / "preprocessor_config.json").write_text('{"size": 40}')
    for model_type, expected in (
        ("resnet", ImageProcessor((40, 40), 45, "bicubic")),
        ("vit", ImageProcessor((40, 40))),
        ("unknown", ImageProcessor((40, 40))),
    ):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
        assert checkpoints.load_image_processor(tmp_path) == expected


def test_a_folder_without_rules(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no preprocessor_config\.json"):
        checkpoints.load_image_processor(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"preprocessor_config\.json"):
        checkpoints.load_image_processor(tmp_path)


@pytest.fixture(scope="module")
def small():
    body = models.vit(32, 8, dim=24, num_layers=2, num_heads=3, intermediate_dim=32)
    return models.image_classifier(body, 5)


@pytest.mark.parametrize(
    "rule", [{}, {"resize": 37, "resample": "bicubic"}, {"resize": (35, 40), "resample": "nearest"}]
)
def test_transformers_reads_the_saved_rules(rule, small, tmp_path):
    pytest.importorskip("safetensors")
    ours = ImageProcessor((32, 32), **rule)
    checkpoints.save_huggingface(small, tmp_path, image_processor=ours)
    assert checkpoints.load_image_processor(tmp_path) == ours
    pictures = [noise(61, 43), noise(43, 61, "L"), noise(50, 40).convert("P")]
    for kind in ("ViT", "Bit", "DeiT"):
        loaded = processors_of_transformers()[kind].from_pretrained(tmp_path)
        assert list(loaded.image_mean) == list(small.arguments["image_mean"])
        assert list(loaded.image_std) == list(small.arguments["image_std"])
        for picture in pictures:
            check_equal(ours(picture), unscaled(loaded, picture))


def test_normalised_pixels_are_those_of_transformers(small, tmp_path):
    """The processor's and the model's halves together."""
    pytest.importorskip("safetensors")
    ours, image = ImageProcessor((32, 32), resize=40, resample="bicubic"), noise(61, 43)
    checkpoints.save_huggingface(small, tmp_path, image_processor=ours)
    theirs = processors_of_transformers()["ViT"].from_pretrained(tmp_path)
    expected = theirs(image, return_tensors="np")["pixel_values"].transpose(0, 2, 3, 1)
    layers = [x for x in small.layers if type(x).__name__ == "ImageNormalization"]
    found = np.asarray(layers[0](ours(image)))
    # float32 of order 1: one more rounding than theirs
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_what_a_checkpoint_cannot_say(small, tmp_path):
    pytest.importorskip("safetensors")
    for processor, message in {
        ImageProcessor((32, 32), resize="fit"): "has no rule for pictures that are fitted",
        ImageProcessor((32, 32), channels=1): "must have the 3 channels of the model, got 1",
    }.items():
        with pytest.raises(ValueError, match=message):
            checkpoints.save_huggingface(small, tmp_path / "x", image_processor=processor)
    with pytest.raises(ValueError, match="image_processor is for models of images"):
        bert = models.bert(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16)
        checkpoints.save_huggingface(bert, tmp_path / "x", image_processor=ImageProcessor((32, 32)))
