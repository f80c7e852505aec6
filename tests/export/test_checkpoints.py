"""Exports of folders: the size of pictures is that of the folder's rule."""

import json
import re

import numpy as np
import pytest
from compare import assert_close
from keras_weights import randomize

from keras_tfm import checkpoints, models, runtime
from keras_tfm.checkpoints.image_settings import FILE
from keras_tfm.export import export_tflite, verify
from keras_tfm.export.checkpoints import load_checkpoint, size_of_images
from keras_tfm.runtime import ImageProcessor, TileProcessor

pytest.importorskip("safetensors")

SIZES = {"dim": 12, "num_layers": 1, "num_heads": 3, "intermediate_dim": 48}
DINO = {**SIZES, "layer_scale": 1.0, "layer_norm_epsilon": 1e-6}
PICTURE = np.random.default_rng(3).integers(0, 256, (40, 30, 3), "uint8")
NOTE = r"the model reads images of \({0}, {0}\), the size in preprocessor_config.json, instead of"


def saved(folder, model, processor=None):
    checkpoints.save_huggingface(randomize(model, 3), folder, image_processor=processor)
    return folder


def dinov2(folder):
    """Positions of 35 x 35 pixels, and pictures of 21 x 21, as DINOv2's 518 and 224."""
    return saved(folder, models.vit(35, 7, **DINO), ImageProcessor((21, 21), 24))


def has_note(notes, size):
    return any(re.match(NOTE.format(size), x) for x in notes)


def test_the_rule_sets_the_size_of_a_vision_transformer(tmp_path):
    folder = dinov2(tmp_path / "dino")
    report = export_tflite(folder, tmp_path / "x.tflite")
    assert has_note(report.notes, 21) and "instead of (35, 35)" in report.notes[0]
    file = runtime.load(tmp_path / "x.tflite")
    expected = checkpoints.load_huggingface(folder, image_size=21)
    pixels = file.image_processors["pixels"](PICTURE)
    # float32, one block.
    assert_close(file.predict_images(PICTURE)["output"], expected(pixels), 1e-5)
    assert verify(folder, tmp_path / "x.tflite").checks[0].signature == "predict"


def test_the_command_does_the_same_and_says_it(run, tmp_path):
    folder = dinov2(tmp_path / "dino")
    code, _, err = run("export", folder, tmp_path / "x.tflite", "--no-verify")
    assert code == 0 and "the model reads images of (21, 21), the size in" in err
    other = saved(tmp_path / "other", models.vit(28, 7, **DINO), ImageProcessor((28, 28)))
    options = ["--no-verify", "--images", other]
    code, _, err = run("export", folder, tmp_path / "y.tflite", *options)
    assert code == 0 and "the model reads images" not in err
    assert runtime.load(tmp_path / "y.tflite").image_processors["pixels"].size == (28, 28)
    for name in ("x", "y"):
        code, _, err = run("verify", folder, tmp_path / f"{name}.tflite")
        assert code == 0, err


@pytest.mark.parametrize("by_input", [False, True])
def test_the_caller_s_size_wins(by_input, tmp_path):
    folder, images = dinov2(tmp_path / "dino"), ImageProcessor((14, 28))
    report = export_tflite(
        folder,
        tmp_path / "x.tflite",
        images={"pixels": images} if by_input else images,
        verify=False,
    )
    assert not any("the model reads images" in x for x in report.notes)
    assert runtime.load(tmp_path / "x.tflite").image_processors == {"pixels": images}
    verify(folder, tmp_path / "x.tflite")
    assert load_checkpoint(folder, image_size=(35, 35)).model.input.shape[1:3] == (35, 35)


def test_a_rule_of_the_model_s_size_changes_nothing(tmp_path):
    folder = saved(tmp_path / "vit", models.vit(8, 4, **SIZES), ImageProcessor((8, 8)))
    assert load_checkpoint(folder).notes == []


def test_a_resnet_without_a_size_has_that_of_its_processor(tmp_path):
    """`config.json` of transformers has none; the processor is ConvNeXT's."""
    backbone = models.resnet(32, stem_dim=4, dims=(4, 8), depths=(1, 1), bottleneck=False)
    folder = saved(tmp_path / "resnet", models.image_classifier(backbone, 3, "mean"))
    config = json.loads((folder / "config.json").read_text())
    del config["image_size"]
    (folder / "config.json").write_text(json.dumps(config))
    rule = {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 384}}
    (folder / FILE).write_text(json.dumps(rule))
    made = load_checkpoint(folder)
    assert made.model.input.shape == (None, 384, 384, 3)
    assert has_note(made.notes, 384) and "(224, 224)" in made.notes[0]


def test_depth_anything_of_one_size_and_of_any_shape(tmp_path):
    folder = tmp_path / "depth"
    model = models.depth_anything(
        28, 7, **{**SIZES, "num_layers": 4}, position_size=28, features_of=(0, 1, 2, 3),
        reassemble_dims=(4, 4, 4, 4), fusion_dim=4, head_dim=4,
    )  # fmt: skip
    saved(folder, model)
    rule = {"image_processor_type": "DPTImageProcessor", "size": {"height": 40, "width": 20}}
    rule["ensure_multiple_of"] = 7
    settings = json.loads((folder / FILE).read_text())
    (folder / FILE).write_text(json.dumps(settings | rule))
    assert load_checkpoint(folder).model.input.shape[1:3] == (42, 21)
    (folder / FILE).write_text(json.dumps(settings | rule | {"keep_aspect_ratio": True}))
    assert load_checkpoint(folder).model.input.shape[1:3] == (28, 28)
    with pytest.raises(ValueError, match=r"keep_aspect_ratio must be false.*images= gives another"):
        export_tflite(folder, tmp_path / "x.tflite", verify=False)


def test_a_size_that_the_model_cannot_have(tmp_path):
    """Smaller than a patch."""
    folder = saved(tmp_path / "vit", models.vit(8, 4, **SIZES), ImageProcessor((3, 3)))
    with pytest.raises(ValueError, match=f"the rule for pictures is that of .*{FILE}: images="):
        export_tflite(folder, tmp_path / "x.tflite", verify=False)


def test_a_rule_of_other_channels(tmp_path):
    model = models.vit(8, 4, **SIZES, image_mean=[0.5], image_std=[0.5])
    folder = saved(tmp_path / "grey", model, ImageProcessor((8, 8), channels=1))
    settings = json.loads((folder / FILE).read_text())
    (folder / FILE).write_text(json.dumps(settings | {"image_mean": 0.5, "image_std": 0.5}))
    message = rf"must have the shape \(8, 8, 1\).*got \(8, 8, 3\); the rule .*{FILE}: images= gives"
    with pytest.raises(ValueError, match=message):
        export_tflite(folder, tmp_path / "x.tflite", verify=False)
    images = ImageProcessor((8, 8), channels=1)
    export_tflite(folder, tmp_path / "x.tflite", images=images, verify=False)


def test_tiles_of_another_size_are_refused(tmp_path):
    from small_smolvlm import PROCESSOR, SIDE, model

    checkpoints.save_huggingface(model(), tmp_path, image_processor=PROCESSOR)
    assert load_checkpoint(tmp_path).notes == []
    settings = json.loads((tmp_path / FILE).read_text())
    rule = {"size": {"longest_edge": 80}, "max_image_size": {"longest_edge": SIDE + 10}}
    (tmp_path / FILE).write_text(json.dumps(settings | rule))
    message = rf"must have the shape \({SIDE}, {SIDE}, 3\).*; the rule for pictures is that of"
    with pytest.raises(ValueError, match=message):
        export_tflite(tmp_path, tmp_path / "x.tflite", signatures=["generate"], verify=False)


def test_the_size_of_images():
    one, other = ImageProcessor((8, 6)), TileProcessor((9, 9), longest_edge=18)
    assert size_of_images(None) is None and size_of_images("8x6") is None
    assert size_of_images(one) == size_of_images({"pixels": one}) == (8, 6)
    assert size_of_images(other) == (9, 9)
    assert size_of_images({"a": one, "b": other}) is None
