"""`keras-tfm` with pictures: predict prints classes and objects, and draws them."""

import codecs
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from small_pictures import FOUND, LABELS, OBJECTS, classifier, detector, export_pictures

from keras_tfm import runtime
from keras_tfm.runtime import ImageProcessor

pytest.importorskip("typer")
Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def stdin(monkeypatch):
    def give(*lines):
        import io

        text = io.TextIOWrapper(io.BytesIO("".join(f"{x}\n" for x in lines).encode()))
        monkeypatch.setattr(sys, "stdin", text)

    return give


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files, and pictures of 96 x 64 pixels: noise, white, black, and a text that is none."""
    folder = tmp_path_factory.mktemp("pictures")
    export_pictures(classifier(), folder / "classes.tflite", resize=40)
    export_pictures(detector(), folder / "objects.tflite", OBJECTS)
    export_pictures(detector(), folder / "unnamed.tflite")
    generator = np.random.default_rng(0)
    for name in ("a", "b"):
        values = generator.integers(0, 256, (64, 96, 3), dtype="uint8")
        Image.fromarray(values).save(folder / f"{name}.png")
    Image.new("RGB", (96, 64), (255, 255, 255)).save(folder / "white.png")
    Image.new("RGB", (96, 64)).save(folder / "black.png")
    (folder / "text.png").write_text("no picture")
    return folder


def probabilities(folder, *names):
    model = runtime.load(folder / "classes.tflite")
    logits = model.predict_images([folder / x for x in names])["output"].astype("float64")
    exponents = np.exp(logits)
    return logits, exponents / exponents.sum(-1, keepdims=True)


def test_a_classifier_prints_the_label_and_its_value(run, folder):
    logits, _ = probabilities(folder, "a.png")
    code, out, err = run("predict", folder / "classes.tflite", folder / "a.png")
    assert code == 0, err
    best = logits[0].argmax()
    assert out == f"{LABELS[best]}\t{logits[0, best]:.6g}\n"


def test_several_pictures_are_told_apart_by_their_paths(run, folder, stdin):
    paths = [folder / "a.png", folder / "b.png"]
    logits, _ = probabilities(folder, "a.png", "b.png")
    expected = [
        f"{path}\t{LABELS[row.argmax()]}\t{row.max():.6g}"
        for path, row in zip(paths, logits, strict=True)
    ]
    assert run("predict", folder / "classes.tflite", *paths)[1].splitlines() == expected
    stdin(*paths)
    assert run("predict", folder / "classes.tflite")[1].splitlines() == expected


def test_top_prints_the_most_probable_classes(run, folder):
    _, ((*row,),) = probabilities(folder, "a.png")
    order = np.argsort(row)[::-1]
    code, out, err = run("predict", folder / "classes.tflite", folder / "a.png", "--top", "3")
    assert code == 0, err
    assert out.splitlines() == [f"{LABELS[i]}\t{row[i]:.4f}" for i in order[:3]]
    arguments = ("predict", folder / "classes.tflite", folder / "a.png", "--top", "9", "--json")
    answer = json.loads(run(*arguments)[1])
    assert answer["input"] == str(folder / "a.png")
    assert [x["label"] for x in answer["output"]] == [LABELS[i] for i in order]
    np.testing.assert_allclose(sum(x["probability"] for x in answer["output"]), 1)


def test_values_that_are_probabilities_stay_so(run, folder, tmp_path):
    import keras

    model = classifier()
    model = keras.Model(model.input, keras.layers.Softmax()(model.output))
    path = export_pictures(model, tmp_path / "softmax.tflite", LABELS)
    (row,) = runtime.load(path).predict_images(folder / "a.png").values()
    out = run("predict", path, folder / "a.png", "--top", "1")[1]
    assert out == f"{LABELS[row.argmax()]}\t{row.max():.4f}\n"


def test_labels_override_those_of_the_file(run, folder, tmp_path):
    arguments = ("predict", folder / "classes.tflite", folder / "a.png", "--labels")
    best = probabilities(folder, "a.png")[0].argmax()
    names = ["eins", "zwei", "drei", "vier", "fünf"]
    (tmp_path / "names.txt").write_text("\n".join(names) + "\n\n", encoding="utf-8")
    windows = codecs.BOM_UTF8 + "\r\n".join(names).encode()
    (tmp_path / "windows.txt").write_bytes(windows)
    for text in (",".join(names), tmp_path / "names.txt", tmp_path / "windows.txt"):
        code, out, err = run(*arguments, text)
        assert code == 0 and out.startswith(f"{names[best]}\t"), err
    code, _, err = run(*arguments, "x,y")
    assert code == 2 and "'--labels'" in err and "{'output': 5}, got 2" in err
    code, _, err = run(*arguments, ",".join(f"label{i}" for i in range(90)))  # longer than a name
    assert code == 2 and "got 90" in err
    code, _, err = run(*arguments, "a,,b,c,d")
    assert code == 2 and "label 1 of 'a,,b,c,d' is empty" in err
    code, _, err = run(*arguments, "a,b,c,b,d")
    assert code == 2 and "different, got 'b' for the classes 1 and 3" in err


def test_a_detector_prints_a_line_per_object(run, folder):
    code, out, err = run("predict", folder / "objects.tflite", folder / "white.png")
    assert code == 0, err
    lines = [line.split("\t") for line in out.splitlines()]
    assert [x[0] for x in lines] == ["car", "ball"]
    np.testing.assert_allclose([float(x[1]) for x in lines], [0.9, 0.7], atol=1e-3)
    boxes = [[float(y) for y in x[2:]] for x in lines]
    # FOUND in a picture of 96 x 64; 32 x 48 pixels were stretched from it.
    np.testing.assert_allclose(boxes, [[36, 16, 60, 48], [4.8, 35.2, 43.2, 60.8]], atol=0.11)


def test_the_threshold(run, folder):
    arguments = ("predict", folder / "objects.tflite", folder / "white.png", "--threshold")
    assert len(run(*arguments, "0.2")[1].splitlines()) == 3
    assert len(run(*arguments, "0.8")[1].splitlines()) == 1
    assert run(*arguments, "0.95") == (0, "", "")  # nothing, and no empty line
    code, _, err = run(*arguments, "1.5")
    assert code == 2 and "'--threshold'" in err
    black = run("predict", folder / "objects.tflite", folder / "black.png", "--threshold", "0.45")
    assert [x.split("\t")[:2] for x in black[1].splitlines()] == [
        ["ball", "0.7000"],
        ["car", "0.5000"],
    ]


def test_objects_in_json_and_with_other_labels(run, folder):
    arguments = ("predict", folder / "objects.tflite", folder / "white.png", "--json")
    (answer,) = map(json.loads, run(*arguments)[1].splitlines())
    expected = runtime.load(folder / "objects.tflite").detect(folder / "white.png")
    assert answer["output"] == [{**x._asdict(), "box": list(x.box)} for x in expected]
    arguments = ("predict", folder / "objects.tflite", folder / "white.png", "--labels")
    assert run(*arguments, "X, Y, Z")[1].split("\t")[0] == "Y"
    code, _, err = run(*arguments, "a,b,c,d")  # with "no object", which has no label
    assert code == 2 and "{'logits': 3}, got 4" in err
    out = run("predict", folder / "unnamed.tflite", folder / "white.png")[1]
    assert [x.split("\t")[0] for x in out.splitlines()] == ["1", "0"]


def test_a_bad_picture_does_not_end_a_batch(run, folder, stdin):
    names = ["a.png", "text.png", "none.png", "classes.tflite", "b.png"]
    paths = [folder / x for x in names]
    messages = [
        r"2: .*text\.png is not a picture of a format that Pillow reads",
        r"3: no such picture: .*none\.png",
        r"4: .*classes\.tflite is not a picture",
    ]
    for arguments, place in ((paths, "argument"), ([], "line")):
        stdin(*paths)
        code, out, err = run("predict", folder / "classes.tflite", *arguments)
        assert code == 1
        assert [line.split("\t")[0] for line in out.splitlines()] == [
            str(folder / x) for x in ("a.png", "b.png")
        ]
        for message in messages:
            assert re.search(f"{place} {message}", err), err
        assert "3 of 5 rows failed" in err
    stdin()
    assert run("predict", folder / "classes.tflite") == (0, "", "")


def test_pixels_and_paths_in_json(run, folder):
    """Of one input as a text, of several by name."""
    path = str(folder / "a.png")
    pixels = runtime.load(folder / "classes.tflite").image_processors["pixels"](path)[0]
    rows = [json.dumps(x) for x in (path, {"pixels": path}, {"pixels": pixels.tolist()})]
    code, out, err = run("predict", folder / "classes.tflite", "--from-json", *rows)
    assert code == 0, err
    assert set(out.splitlines()) == {run("predict", folder / "classes.tflite", path)[1].strip()}


# --- Drawings ----------------------------------------------------------------------------------


def close(image, x, y, color):
    return np.abs(np.asarray(image)[y, x].astype(int) - color).max() <= 2


@pytest.mark.parametrize("kind", ["JPEG", "TIFF", "PNG"])
def test_objects_of_a_turned_picture(run, folder, tmp_path, kind):
    """The boxes are those in the picture as it is shown, whoever turns it."""
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / f"turned.{kind.lower()}"
    Image.new("RGB", (200, 50)).save(path, kind, exif=exif)
    expected = runtime.load(folder / "objects.tflite").detect(np.zeros((200, 50, 3), "uint8"), 0.4)
    code, out, err = run(
        "predict", folder / "objects.tflite", path, "--threshold", "0.4", "--json",
        "--draw", tmp_path / "drawn.png",
    )  # fmt: skip
    assert code == 0, err
    assert [x["box"] for x in json.loads(out)["output"]] == [list(x.box) for x in expected]
    with Image.open(tmp_path / "drawn.png") as drawn:
        assert drawn.size == (150, 600)


@pytest.mark.parametrize("picture", ["white", "black", "a"])
def test_boxes_are_drawn_where_they_are(run, folder, tmp_path, picture):
    from keras_tfm.cli.drawing import color_of

    path, output = folder / f"{picture}.png", tmp_path / "drawn.png"
    before = path.read_bytes()
    options = ("--threshold", "0.4", "--draw", output)
    code, out, err = run("predict", folder / "objects.tflite", path, *options)
    assert code == 0, err
    assert {x.split("\t")[0] for x in out.splitlines()} == {"car", "ball"}
    assert path.read_bytes() == before
    drawn = Image.open(output)
    assert drawn.size == (480, 320)  # enlarged five times
    # The car's box is 36..60, 16..48 of 96 x 64, in pixels of the drawing 180..300, 80..240.
    for x, y in ((180, 160), (299, 160), (240, 80), (240, 239)):
        assert close(drawn, x, y, color_of("car")), (x, y)
        assert not close(drawn, x, y, color_of("ball"))
    inside = np.asarray(Image.open(path).resize((480, 320), Image.Resampling.NEAREST))
    for x, y in ((270, 160), (470, 310), (240, 100)):  # within the box, and outside all of them
        assert close(drawn, x, y, inside[y, x].astype(int))


def test_a_classifier_s_picture_shows_the_label(run, folder, tmp_path):
    output = tmp_path / "drawn.jpg"
    arguments = ("predict", folder / "classes.tflite", folder / "white.png", "--draw", output)
    assert run(*arguments)[0] == 0
    drawn = np.asarray(Image.open(output).convert("L"))
    assert drawn.shape == (320, 480)
    band, rest = drawn[:24, :60], drawn[40:]
    assert band.min() < 60 and band.max() > 200  # light letters on a dark rectangle
    assert rest.min() > 240
    run(*arguments, "--top", "5")
    assert (np.asarray(Image.open(output).convert("L"))[40:] < 60).any()  # more lines below


def test_a_photograph_is_drawn_upright_and_in_its_own_size(run, folder, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    photograph = tmp_path / "photograph.jpg"
    Image.new("RGB", (700, 500), (250, 250, 250)).save(photograph, exif=exif)
    run("predict", folder / "objects.tflite", photograph, "--draw", tmp_path / "drawn.webp")
    with Image.open(tmp_path / "drawn.webp") as drawn:
        assert drawn.size == (500, 700)


def test_labels_in_any_script_and_many_boxes_at_one_place(run, folder, tmp_path):
    """Without a font that has them, letters become ASCII; tags do not cover each other."""
    options = ("--draw", tmp_path / "drawn.png", "--threshold", "0.2")
    for labels in ("größe,猫,αβγ", "a,b,c"):
        arguments = ("predict", folder / "objects.tflite", folder / "white.png", *options)
        assert run(*arguments, "--labels", labels)[0] == 0
    from keras_tfm.cli.drawing import _ascii, color_of, draw_detections

    assert _ascii("größe 猫 0.5") == "gro?e ? 0.5"
    labels = ["one", "two", "three"]
    found = [runtime.Detection(x, 0.5, (10.0, 30.0, 50.0, 50.0)) for x in labels]
    draw_detections(folder / "white.png", found, tmp_path / "drawn.png", 255)
    drawn = np.asarray(Image.open(tmp_path / "drawn.png")).astype(int)
    counts = [(np.abs(drawn - color_of(x)).max(-1) <= 1).sum() for x in labels]
    assert min(counts) > 300, counts  # each tag has a place of its own


def test_drawings_of_several_pictures_go_to_a_folder(run, folder, tmp_path):
    (tmp_path / "drawings").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/a.png").write_bytes((folder / "a.png").read_bytes())
    paths = [folder / "a.png", folder / "text.png", tmp_path / "other/a.png", folder / "b.png"]
    options = ("--draw", tmp_path / "drawings")
    code, _, err = run("predict", folder / "objects.tflite", *paths, *options)
    assert code == 1
    assert sorted(x.name for x in (tmp_path / "drawings").iterdir()) == ["a.png", "b.png"]
    assert re.search(r"argument 3: --draw would replace .*a\.png, drawn from another picture", err)
    assert "2 of 4 rows failed" in err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["objects", "white.png", "--draw", "x.gif"], 2, r"'--draw': must be a folder or end in"),
        (["objects", "white.png", "--draw", "none/x.png"], 2, "'--draw': no such folder: none"),
        (["objects", "white.png", "a.png", "--draw", "x.png"], 2, "it must be an existing folder"),
        (["objects", "white.png", "--draw", "white.png"], 1, "--draw would replace the picture"),
        (["objects", "white.png", "--top", "2"], 2, "'--top': it is for classifiers, and the file"),
        (["classes", "a.png", "--threshold", "0.5"], 2, "'--threshold': it is for detectors"),
        (["classes", "a.png", "--top", "0"], 2, "'--top'"),
        (["classes", "--from-json", "--top", "1", "[]"], 2, "'--top': it is for pictures, without"),
    ],
)
def test_what_is_refused(run, folder, monkeypatch, arguments, code, message):
    monkeypatch.chdir(folder)
    before = sorted(folder.iterdir())
    found, out, err = run("predict", f"{arguments[0]}.tflite", *arguments[1:])
    assert found == code and re.search(message, err), err
    assert out == "" and sorted(folder.iterdir()) == before


# --- export ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "classifier.keras"
    classifier().save(path)
    return path


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        pytest.param("32x32", ImageProcessor((32, 32)), marks=pytest.mark.slow),
        pytest.param("32x32:fit", ImageProcessor((32, 32), "fit"), marks=pytest.mark.slow),
        ("32x32:nearest:36x40", ImageProcessor((32, 32), (36, 40), "nearest")),
        pytest.param(
            "32x32:40:bicubic", ImageProcessor((32, 32), 40, "bicubic"), marks=pytest.mark.slow
        ),
        ("FOLDER", ImageProcessor((32, 32), 36, "bicubic")),
    ],
)
def test_export_stores_the_rule_and_the_labels(run, model_path, tmp_path, rule, expected):
    rules = {"size": {"shortest_edge": 36}, "crop_size": 32, "resample": 3, "do_center_crop": True}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(rules))
    rule = str(tmp_path) if rule == "FOLDER" else rule
    path = tmp_path / "small.tflite"
    arguments = ("export", model_path, path, "--images", rule, "--no-verify")
    labels = () if rule == "32x32" else ("--labels", "v,w,x,y,z")
    if rule == str(tmp_path):
        (tmp_path / "labels.txt").write_text("v\nw\nx\ny\nz\n")
        labels = ("--labels", tmp_path / "labels.txt")
    code, _, err = run(*arguments, *labels)
    assert code == 0, err
    model = runtime.load(path)
    assert model.image_processors == {"pixels": expected}
    assert model.labels == (list("vwxyz") if labels else LABELS)


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--images", "none"], 2, r"'--images': expected a folder .* 'none': 'none' is no size$"),
        (["--images", "32"], 2, "'--images': .* '32' is no size$"),
        (["--images", "0x32"], 2, r"'--images': .* size must be at least 1, got \(0, 32\)"),
        (["--images", "32x32:8"], 2, "'--images': .* resize must be at least size"),
        (["--images", "32x32:cubic"], 2, "'--images': .* resample must be one of .* 'cubic'"),
        (["--images", "32x32:40:50"], 2, "'--images': .*'50' is a second resize"),
        (["--images", "EMPTY"], 1, r"has no preprocessor_config\.json"),
        (["--images", "24x24"], 1, r"--images for 'pixels' must have the shape \(32, 32, 3\)"),
        (
            ["--labels", "a,b"],
            1,
            r"--labels must be as many as an output has classes, \[5\], got 2",
        ),
        (["--labels", "a,,c,d,e"], 2, "'--labels': label 1 of"),
        (["--labels", "LATIN"], 2, "'--labels': .* must be a text file in UTF-8"),
        (["--labels", "a,b", "--format", "litertlm"], 2, "'--labels': is not for --format"),
    ],
)
def test_export_refuses(run, model_path, tmp_path, options, code, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "latin.txt").write_bytes("é\n".encode("latin-1"))
    names = {"EMPTY": tmp_path / "empty", "LATIN": tmp_path / "latin.txt"}
    options = [names.get(x, x) for x in options]
    found, _, err = run("export", model_path, tmp_path / "x.tflite", *options, "--no-verify")
    assert found == code and re.search(message, err, re.M), err
    assert not (tmp_path / "x.tflite").exists()


def test_a_grey_model_gets_grey_pictures(run, tmp_path, folder):
    classifier(channels=1).save(tmp_path / "grey.keras")
    path = tmp_path / "grey.tflite"
    code, _, err = run("export", tmp_path / "grey.keras", path, "--images", "32x32", "--no-verify")
    assert code == 0, err
    assert runtime.load(path).image_processors["pixels"].channels == 1
    assert run("predict", path, folder / "a.png")[0] == 0


def test_a_file_without_rules_says_how_to_export_it(run, model_path, tmp_path, folder):
    path = tmp_path / "plain.tflite"
    assert run("export", model_path, path, "--no-verify")[0] == 0
    code, _, err = run("predict", path, folder / "a.png")
    assert code == 1
    assert "has no image processor: export it with --images, or pass arrays with --from-json" in err


def test_a_device_needs_neither_keras_nor_tensorflow(folder, tmp_path):
    code = (
        "import sys\n"
        "for name in ('keras', 'tensorflow', 'torch', 'jax'): sys.modules[name] = None\n"
        f"sys.argv = ['keras-tfm', 'predict', {str(folder / 'objects.tflite')!r},\n"
        f"    {str(folder / 'white.png')!r}, '--draw', {str(tmp_path / 'x.png')!r}]\n"
        "from keras_tfm import cli\n"
        "cli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(FOUND) - 1
