"""Pictures in JavaScript: resized as Pillow does, and pages for classes and objects."""

import base64
import json
import shutil
import subprocess
from dataclasses import asdict

import numpy as np
import pytest
from web_pages import RUNTIME, WEB, need_browser, run_in_browser

from keras_tfm import runtime
from keras_tfm.runtime import ImageProcessor, TileProcessor
from keras_tfm.runtime.media.image_processor import FILTERS, resize_picture

PIL = pytest.importorskip("PIL")
Image = pytest.importorskip("PIL.Image")
NODE = pytest.mark.skipif(not shutil.which("node"), reason="needs node")
# (width, height), old and new: reduced, enlarged, one of both, and to and from one pixel.
SIZES = [
    ((53, 31), (13, 11)),
    ((13, 11), (53, 31)),
    ((97, 5), (7, 41)),
    ((640, 479), (224, 224)),
    ((31, 29), (30, 29)),
    ((31, 29), (31, 28)),
    ((1, 1), (5, 3)),
    ((23, 17), (1, 1)),
    ((3, 1000), (224, 224)),
    ((17, 19), (17, 19)),
    ((333, 251), (332, 250)),
    ((101, 103), (99, 201)),
    ((31, 53), (17, 16)),  # 37 rows and 14 columns less: the columns first
    ((60, 80), (40, 40)),  # 40 and 20: the rows first
    ((60, 80), (40, 39)),
    ((31, 53), (90, 50)),
]


def noise(width, height, channels, seed):
    generator = np.random.default_rng(seed)
    values = generator.integers(0, 256, (height, width, channels), dtype="uint8")
    # Half of them with hard edges, which overshoot.
    return (values > 127).astype("uint8") * 255 if seed % 2 else values


def described(array):
    height, width, channels = array.shape
    data = base64.b64encode(array.tobytes()).decode()
    return {"width": width, "height": height, "channels": channels, "data": data}


def in_node(cases, folder):
    (folder / "cases.json").write_text(json.dumps(cases))
    arguments = ["node", WEB / "test/resampling.js", folder / "cases.json"]
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def array_of(text, shape):
    return np.frombuffer(base64.b64decode(text), "uint8").reshape(shape)


def pillow(array):
    return Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array)


@NODE
def test_a_picture_of_too_many_pixels_is_refused():
    """Before its pixels are copied; the limit is Pillow's default, as in Python."""
    program = """
        globalThis.ImageBitmap = class { width = 10000; height = 8948; };
        const { pixelsOf } = await import("./image_processor.js");
        const processor = { channels: 3, background: 0 };
        console.log(await pixelsOf(processor, new ImageBitmap()).catch(String));
    """
    arguments = ["node", "--input-type=module", "-e", program]
    done = subprocess.run(arguments, cwd=RUNTIME, capture_output=True, text=True)
    expected = (
        "PictureError: The picture is too large: it has 10000 x 8948 pixels, more than 89478485."
    )
    assert done.stdout.strip() == expected, done.stderr


@NODE
def test_resizing_is_pillow_s_bit_by_bit(tmp_path):
    cases, expected = [], []
    for seed, ((old, new), filter_) in enumerate((sizes, x) for sizes in SIZES for x in FILTERS):
        for channels in (1, 3):
            array = noise(*old, channels, seed // 4)
            cases.append(
                {
                    "picture": described(array),
                    "filter": filter_,
                    "width": new[0],
                    "height": new[1],
                }
            )
            smaller = resize_picture(PIL, pillow(array), *new, filter_)
            expected.append(np.asarray(smaller))
            if int(PIL.__version__.split(".")[0]) >= 13:
                resampling = Image.Resampling[filter_.upper()]
                at_once = pillow(array).resize(new, resampling)
                np.testing.assert_array_equal(np.asarray(smaller), np.asarray(at_once))
    for case, found, wanted in zip(cases, in_node(cases, tmp_path), expected, strict=True):
        shape = (case["height"], case["width"], case["picture"]["channels"])
        name = f"{case['picture']['width']} x {case['picture']['height']} {case['filter']} {shape}"
        np.testing.assert_array_equal(array_of(found, shape), wanted.reshape(shape), name)


RULES = [
    {},
    {"resize": 20},
    {"resize": (19, 30)},
    {"resize": "fit", "background": 90},
    {"resize": 17, "resample": "bicubic"},
    {"resize": "fit", "resample": "lanczos", "channels": 1},
    {"resize": (40, 17), "resample": "nearest", "channels": 1},
]


@NODE
def test_rules_and_boxes_are_those_of_python(tmp_path):
    generator = np.random.default_rng(0)
    cases, expected = [], []
    for rule in RULES:
        processor = ImageProcessor((16, 17), **rule)
        for i, size in enumerate([(53, 31), (31, 53), (9, 7), (17, 16), (300, 3), (34, 32)]):
            array = noise(*size, processor.channels, i)
            boxes = generator.uniform(-0.2, 1.2, (5, 4))
            picture = described(array)
            cases.append(
                {"picture": picture, "processor": asdict(processor), "boxes": boxes.tolist()}
            )
            expected.append((processor(array)[0], processor.to_picture(boxes, size[::-1])))
    for case, found, (pixels, boxes) in zip(cases, in_node(cases, tmp_path), expected, strict=True):
        name = f"{case['processor']} {case['picture']['width']}"
        np.testing.assert_array_equal(array_of(found["pixels"], pixels.shape), pixels, name)
        # float32 in Python, of numbers up to 300; float64 in JavaScript
        np.testing.assert_allclose(found["boxes"], boxes, atol=1e-3, err_msg=name)


# --- In Chromium -------------------------------------------------------------------------------


def photograph(width=900, height=600):
    """A landscape: sky, sun, hills and a tree, with some noise; drawn here."""
    y, x = np.mgrid[:height, :width] / np.array([height, width])[:, None, None]
    sky = np.stack([0.45 + 0.4 * y, 0.65 + 0.25 * y, 0.95 - 0.05 * y], -1)
    hills = 0.6 + 0.08 * np.sin(6 * x + 1) + 0.03 * np.sin(17 * x)
    green = np.stack([0.25 + 0 * y, 0.55 - 0.35 * (y - 0.6), 0.2 + 0 * y], -1)
    picture = np.where((y > hills)[..., None], green, sky)
    picture = np.where(
        ((x - 0.25) ** 2 * 2.25 + (y - 0.22) ** 2 < 0.008)[..., None], [1, 0.9, 0.4], picture
    )
    trunk = (abs(x - 0.7) < 0.012) & (y > 0.45) & (y < 0.75)
    picture = np.where(trunk[..., None], [0.35, 0.22, 0.12], picture)
    crown = (x - 0.7) ** 2 * 2.25 + (y - 0.4) ** 2 < 0.02
    picture = np.where(crown[..., None], [0.12, 0.4, 0.15], picture)
    noise = np.random.default_rng(0).normal(0, 0.02, picture.shape)
    return (255 * (picture + noise).clip(0, 1)).astype("uint8")


def save_pictures(folder):
    """Pictures of many kinds; which of them a browser decodes to the same pixels."""
    exif = Image.Exif()
    exif[0x0112] = 6
    color = Image.fromarray(photograph(97, 61))
    alpha = np.dstack([photograph(97, 61), noise(97, 61, 1, 0)])
    kept = alpha.copy()
    kept[..., 3] = np.where(kept[..., 3] > 127, 255, 0)
    kinds = {
        "a.png": (color, {}, True),
        "turned.png": (color, {"exif": exif}, True),
        "grey.png": (color.convert("L"), {}, True),
        "palette.png": (color.convert("P"), {}, True),
        "cut out.png": (Image.fromarray(kept), {}, True),
        "a.bmp": (color, {}, True),
        "a.gif": (color.convert("P"), {}, True),
        "lossless.webp": (color, {"lossless": True}, True),
        "transparent.png": (Image.fromarray(alpha), {}, False),
        "turned.jpg": (color, {"exif": exif, "quality": 90}, False),
        "photograph.png": (Image.fromarray(photograph()), {}, True),
        "white.png": (Image.new("RGB", (96, 64), (255, 255, 255)), {}, True),
    }
    for name, (image, options, _) in kinds.items():
        image.save(folder / name, **options)
    return {name: exact for name, (_, _, exact) in kinds.items()}


@pytest.mark.browser
def test_the_page_sees_what_python_sees(tmp_path):
    """Also screenshots, in the test's folder."""
    from small_pictures import OBJECTS, classifier, detector, export_pictures

    from keras_tfm.export import export_tflite
    from keras_tfm.web import write_page

    need_browser()
    export_pictures(classifier(), tmp_path / "classes.tflite", resize=40, resample="bicubic")
    export_pictures(detector(), tmp_path / "objects.tflite", OBJECTS, resize="fit")
    export_tflite(classifier(), tmp_path / "plain.tflite", verify=False)
    for name, source in (("classes", "classes"), ("objects", "objects"), ("none", "classes")):
        page = (tmp_path / f"{source}.tflite", tmp_path / f"{name}_page")
        write_page(*page, packages=WEB / "node_modules")
    (tmp_path / "none_page/model.tflite").unlink()
    kinds = save_pictures(tmp_path)
    classes = runtime.load(tmp_path / "classes.tflite")
    objects = runtime.load(tmp_path / "objects.tflite")
    expected = {"labels": classes.labels, "pixels": {}, "logits": {}, "classes": {}, "objects": []}
    (processor,) = classes.image_processors.values()
    for name, exact in kinds.items():
        pixels = base64.b64encode(processor(tmp_path / name).tobytes()).decode()
        expected["pixels"][name] = {"exact": exact, "pixels": pixels}
        if not exact:
            continue
        (row,) = classes.predict_images(tmp_path / name)["output"].astype("float64")
        expected["logits"][name] = row.tolist()
        shares = np.exp(row) / np.exp(row).sum()
        order = np.argsort(-shares)
        assert name != "photograph.png" or np.diff(np.sort(row)).min() > 1e-3  # no ties
        expected["classes"][name] = [(classes.labels[i], shares[i]) for i in order]
    for name in ("white.png", "turned.png", "photograph.png"):
        for threshold in (0.5, 0.05):
            found = objects.detect(tmp_path / name, threshold)
            expected["objects"].append(
                {"picture": name, "threshold": threshold, "found": [list(x) for x in found]}
            )
    found = [list(x) for x in objects.detect(tmp_path / "photograph.png")]
    assert len(found) == 2
    expected["photograph"] = {"width": 900, "height": 600, "found": found}
    run_in_browser("test:pictures", tmp_path, expected, SCREENSHOTS=tmp_path)
    for name in ("classes", "objects", "phone"):
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000


@NODE
def test_tiles_and_their_text_are_those_of_python(tmp_path):
    cases, expected = [], []
    for count in (17, None):
        processor = TileProcessor((8, 8), longest_edge=31, num_images=count)
        for i, (width, height) in enumerate([(53, 31), (31, 53), (9, 7), (16, 16), (100, 3)]):
            array = noise(width, height, 3, i)
            cases.append({"processor": asdict(processor), "picture": described(array)})
            text = processor.place(processor.grid(array), 2)
            expected.append((processor(array)[0], text))
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    program = """
        import { readFileSync } from "node:fs";
        const { placeOf, prepared } = await import("./image_processor.js");
        const bytes = (data) => new Uint8Array(Buffer.from(data, "base64"));
        const answers = JSON.parse(readFileSync(process.argv[1])).map(({ processor, picture }) => {
            const pixels = prepared(processor, { ...picture, data: bytes(picture.data) });
            return [Buffer.from(pixels).toString("base64"), placeOf(processor, picture, 2)];
        });
        console.log(JSON.stringify(answers));
    """
    arguments = ["node", "--input-type=module", "-e", program, tmp_path / "cases.json"]
    done = subprocess.run(arguments, cwd=RUNTIME, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for (data, text), (pixels, place) in zip(json.loads(done.stdout), expected, strict=True):
        np.testing.assert_array_equal(array_of(data, pixels.shape), pixels)
        assert text == place
