"""Inputs of pixels in files: uint8, processors and labels in the manifest, one partition."""

import warnings

import keras
import numpy as np
import pytest
import small_pictures
from compare import assert_close
from execution import tensorflow_only
from keras_weights import randomize

from keras_tfm import layers, models, runtime

pytestmark = tensorflow_only
SIZES = {"dim": 36, "num_layers": 2, "num_heads": 3, "intermediate_dim": 40}
PIXELS = np.random.default_rng(3).integers(0, 256, (5, 24, 16, 3)).astype("uint8")


@pytest.fixture(scope="module")
def classifier():
    """Of pictures larger than its position table."""
    model = models.vit((24, 16), 4, **SIZES, position_size=16, num_registers=2, layer_scale=0.5)
    return randomize(models.image_classifier(model, 4, labels=["a", "b", "c", "d"]))


@pytest.fixture(scope="module")
def classifier_file(classifier, tmp_path_factory):
    from keras_tfm.export import export_tflite

    path = tmp_path_factory.mktemp("pictures") / "x.tflite"
    export_tflite(classifier, path, verify=False)
    return path


@pytest.mark.parametrize(
    ("quantization", "tolerance"),
    # Float32 rounds at 6e-8, float16 at 5e-4, 8-bit weights at 4e-3, through two blocks; int8_full
    # rounds activations too, with one scale for all inputs. Found: 5e-7, 5e-4, 9e-3 and 5e-2.
    [
        ("float32", 1e-5),
        pytest.param("float16", 2e-3, marks=pytest.mark.slow),
        pytest.param("int8", 3e-2, marks=pytest.mark.slow),
        ("int8_full", 0.1),
    ],
)
def test_pixels_go_in_as_they_are(classifier, quantization, tolerance, tmp_path):
    from keras_tfm.export import export_tflite

    options = {}
    if quantization == "int8_full":
        options = {"representative_data": [{"pixels": x[None]} for x in PIXELS]}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "int8_full: XNNPACK runs")
        report = export_tflite(
            classifier, tmp_path / "x.tflite", quantization=quantization, **options
        )
    file = runtime.load(report.path)
    assert file.signatures["predict"]["inputs"]["pixels"]["dtype"] == "uint8"
    expected = classifier.predict(PIXELS, verbose=0)
    assert_close(file.predict(PIXELS)["output"], expected, tolerance)
    assert_close(file.predict(PIXELS[0])["output"], expected[:1], tolerance)
    assert file.labels == ["a", "b", "c", "d"]
    if quantization in ("float32", "int8"):
        # All but the cast of the pixels; the interpolated positions are a constant.
        (graph,) = report.subgraphs
        assert graph.partitions == 1 and graph.delegated >= graph.nodes - 1


def test_processors_and_labels_are_in_the_file(classifier, tmp_path):
    from keras_tfm.export import export_tflite

    processor = runtime.ImageProcessor((24, 16), resize=30, resample="bicubic")
    report = export_tflite(
        classifier, tmp_path / "x.tflite", verify=False, images=processor, labels=list("wxyz")
    )
    file = runtime.load(report.path)
    assert file.image_processors == {"pixels": processor}
    assert file.labels == list("wxyz")
    picture = np.random.default_rng(0).integers(0, 256, (50, 70, 3)).astype("uint8")
    expected = classifier.predict(processor(picture), verbose=0)
    assert_close(file.predict_images(picture)["output"], expected, 1e-5)
    assert_close(file.predict_images([picture] * 2)["output"], expected.repeat(2, 0), 1e-5)


def test_a_saved_model_takes_uint8(classifier, tmp_path):
    import tensorflow as tf

    from keras_tfm.export import export_saved_model

    export_saved_model(classifier, tmp_path / "saved")
    signature = tf.saved_model.load(str(tmp_path / "saved")).signatures["predict"]
    (found,) = signature(pixels=tf.constant(PIXELS)).values()
    assert_close(found, classifier.predict(PIXELS, verbose=0), 1e-5)


def test_an_input_that_another_layer_reads_too_stays_float(tmp_path):
    from keras_tfm.export import export_tflite

    x = keras.Input((4, 4, 3), name="pixels")
    y = layers.ImageNormalization()(x) + x
    report = export_tflite(keras.Model(x, y), tmp_path / "x.tflite")
    assert runtime.load(report.path).signatures["predict"]["inputs"]["pixels"]["dtype"] == "float32"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"images": runtime.ImageProcessor((8, 8))}, ValueError, r"shape \(24, 16, 3\).*\(8, 8, 3"),
        (
            {"images": runtime.ImageProcessor((24, 16), channels=1)},
            ValueError,
            r"shape \(24, 16, 3\) of the model's input, got \(24, 16, 1\)",
        ),
        ({"images": "224"}, TypeError, "must be a runtime.ImageProcessor, got '224'"),
        (
            {"images": {"x": runtime.ImageProcessor((24, 16))}},
            ValueError,
            r"inputs of pixels, \['pixels'\].*got 'x'",
        ),
        ({"labels": ["a", "b"]}, ValueError, r"as many as an output has classes, \[4\], got 2"),
        ({"labels": [*"abc"]}, ValueError, r"as many as an output has classes, \[4\], got 3"),
        ({"labels": [*"abcde"]}, ValueError, r"as many as an output has classes, \[4\], got 5"),
        ({"labels": [*"abca"]}, ValueError, "different, got 'a' for the classes 0 and 3: name"),
        ({"labels": "abcd"}, ValueError, "labels must be a list of texts, got 'abcd'"),
    ],
)
def test_what_does_not_fit_is_refused(classifier, options, error, message, tmp_path):
    from keras_tfm.export import export_tflite

    with pytest.raises(error, match=message):
        export_tflite(classifier, tmp_path / "x.tflite", **options)
    assert not (tmp_path / "x.tflite").exists()


@pytest.mark.parametrize("labels", [["a", "b"], [*"abcd"], [*"abcde"]])
def test_a_detector_has_one_label_fewer_than_its_logits(labels, tmp_path):
    """Three and "no object"; its boxes, of four numbers, have no classes."""
    from keras_tfm.export import export_tflite

    message = rf"as many as an output has classes, \[3\], got {len(labels)}"
    with pytest.raises(ValueError, match=message):
        export_tflite(small_pictures.detector(), tmp_path / "x.tflite", labels=labels)


def test_equal_names_in_a_released_model_are_kept(tmp_path):
    """ImageNet has two cranes, and COCO's lists "N/A" for classes that are not used."""
    from keras_tfm.export.member import class_names

    body = models.vit(16, 8, dim=12, num_layers=1, num_heads=3, intermediate_dim=16)
    loaded = models.image_classifier(body, 3, labels=["crane", "ant", "crane"])
    assert class_names(loaded, None) == ["crane", "ant", "crane"]
    assert class_names(loaded, ["N/A", "ant", "N/A"]) == ["N/A", "ant", "N/A"]


@pytest.mark.parametrize(
    ("pixels", "error", "message"),
    [
        (PIXELS / 255, TypeError, "must be the pixels of pictures, uint8.*got float64"),
        (PIXELS[:, :8], ValueError, r"must have shape \(B, 24, 16, 3\), got \(5, 8, 16, 3\)"),
        (PIXELS.astype("int32") + 200, ValueError, r"pixels must be in 0..255, got 20\d..4\d\d"),
        ([PIXELS[0], PIXELS[0, :8]], ValueError, "got rows of different shapes"),
        (PIXELS[:0], ValueError, r"got \(0, 24, 16, 3\)"),
    ],
)
def test_wrong_pixels_are_one_line(classifier_file, pixels, error, message):
    file = runtime.load(classifier_file)
    with pytest.raises(error, match=message):
        file.predict(pixels)
    with pytest.raises(ValueError, match="has no image processor: export it with images="):
        file.predict_images(PIXELS)


@pytest.mark.parametrize("lengths", [{}, {"source_length": 7}, {"source_length": {"row": [5, 7]}}])
def test_open_axes_get_the_size_of_the_pictures(lengths, tmp_path):
    """Also one that is not square; `source_length` is of the other inputs."""
    from keras_tfm.export import export_tflite

    pixels = keras.Input((None, None, 3), name="pixels")
    y = layers.ImageNormalization([0.5] * 3, [0.25] * 3)(pixels)
    y = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(2, 3)(y))
    inputs = [pixels]
    if lengths:
        ids = keras.Input((None,), dtype="int32", name="row")
        y += keras.ops.mean(layers.TokenEmbedding(11, dim=2, mask_zero=True)(ids), axis=1)
        inputs.append(ids)
    model = keras.Model(inputs, y)
    if isinstance(lengths.get("source_length"), dict):
        with pytest.raises(
            ValueError, match=r"several source_lengths need .* that of 'row' changes"
        ):
            export_tflite(
                model, tmp_path / "x.tflite", images=runtime.ImageProcessor((9, 12)), **lengths
            )
        return
    with pytest.raises(ValueError, match=r"or give images, whose size it gets, or source_length"):
        export_tflite(model, tmp_path / "x.tflite")
    processor = runtime.ImageProcessor((9, 12))
    report = export_tflite(model, tmp_path / "x.tflite", images=processor, **lengths)
    file = runtime.load(report.path).file
    shapes = {name: x.shape for name, x in file.signatures["predict"].inputs.items()}
    assert shapes == {"pixels": [1, 9, 12, 3], **({"row": [1, 7]} if lengths else {})}
