"""ResNet and DETR beside transformers itself: odd sizes, noise on every weight, both ways."""

import json
import re

import numpy as np
import pytest
from compare import assert_close

from keras_tfm import checkpoints, models

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# float32, relative to the outputs' size; boxes are absolute, from 0 to 1.
LOGITS, BOXES = 3e-5, 1e-5
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
BASIC = {
    "embedding_size": 6,
    "hidden_sizes": [6, 10, 7],
    "depths": [2, 1, 2],
    "layer_type": "basic",
}
BOTTLENECK = {"embedding_size": 5, "hidden_sizes": [8, 12], "depths": [2, 3]}
DETR = {
    "d_model": 12, "encoder_layers": 2, "decoder_layers": 3, "encoder_ffn_dim": 11,
    "decoder_ffn_dim": 17, "encoder_attention_heads": 2, "decoder_attention_heads": 3,
    "num_queries": 7, "num_labels": 5,
}  # fmt: skip
SIZES = [(75, 107), (64, 96), (33, 31)]


def made(name, config, folder, seed=0, noise=0.2):
    """A model of transformers with noise on every weight and on the moving statistics."""
    torch.manual_seed(seed)
    model = getattr(transformers, name)(config).eval()
    with torch.no_grad():
        for key, x in (*model.named_parameters(), *model.named_buffers()):
            if key.endswith("running_var"):
                x.copy_(0.5 + torch.rand(x.shape))
            elif x.is_floating_point():
                x.add_(noise * scale_of(key) * torch.randn(x.shape))
    model.save_pretrained(folder)
    rules = {"image_mean": MEAN.tolist(), "image_std": STD.tolist()}
    (folder / "preprocessor_config.json").write_text(json.dumps(rules))
    return model


def scale_of(key):
    """Little noise would leave all queries at one box, and much in the last layers at the edges."""
    scales = {"query": 10.0, r"coder\.layers": 3.0, "bbox": 2.0}
    return next((x for pattern, x in scales.items() if re.search(pattern, key)), 1.0)


def pixels_of(size, batch=2):
    rng = np.random.default_rng(7)
    return rng.integers(0, 256, (batch, *size, 3)).astype("uint8")


def run(model, pixels):
    """The outputs of a model of transformers for normalised pixels."""
    x = ((pixels / 255 - MEAN) / STD).transpose(0, 3, 1, 2).astype("float32")
    with torch.no_grad():
        return model(torch.from_numpy(x))


def saved(model, cls, folder):
    """Our model, saved and loaded by transformers, which must know every tensor."""
    checkpoints.save_huggingface(model, folder)
    again, report = cls.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    return again.eval()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("options", [BASIC, BOTTLENECK], ids=["basic", "bottleneck"])
def test_resnet_features(options, size, tmp_path):
    theirs = made("ResNetModel", transformers.ResNetConfig(**options), tmp_path / "a")
    ours = checkpoints.load_huggingface(tmp_path / "a", image_size=size)
    pixels = pixels_of(size)
    expected = run(theirs, pixels).last_hidden_state.numpy().transpose(0, 2, 3, 1)
    assert_close(ours(pixels), expected, LOGITS)
    again = saved(ours, type(theirs), tmp_path / "b")
    assert_close(run(again, pixels).last_hidden_state.numpy().transpose(0, 2, 3, 1), expected, 1e-6)


@pytest.mark.parametrize("options", [BASIC, BOTTLENECK], ids=["basic", "bottleneck"])
def test_resnet_classifies(options, tmp_path):
    labels = {"id2label": {0: "a", 1: "b", 2: "c", 3: "d"}}
    config = transformers.ResNetConfig(**options, **labels)
    theirs = made("ResNetForImageClassification", config, tmp_path / "a")
    ours = checkpoints.load_huggingface(tmp_path / "a", image_size=None)
    assert ours.head.arguments["labels"] == ["a", "b", "c", "d"]
    for size in SIZES:
        pixels = pixels_of(size)
        assert_close(ours(pixels), run(theirs, pixels).logits.numpy(), LOGITS)
    again = saved(ours, type(theirs), tmp_path / "b")
    assert_close(run(again, pixels).logits.numpy(), run(theirs, pixels).logits.numpy(), 1e-6)


def detr_config(backbone, **options):
    backbone = transformers.ResNetConfig(
        **backbone, out_features=[f"stage{len(backbone['depths'])}"]
    )
    return transformers.DetrConfig(
        use_timm_backbone=False, backbone_config=backbone, **{**DETR, **options}
    )


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("options", [BASIC, BOTTLENECK], ids=["basic", "bottleneck"])
def test_detr(options, size, tmp_path):
    theirs = made("DetrForObjectDetection", detr_config(options), tmp_path / "a")
    ours = checkpoints.load_huggingface(tmp_path / "a", image_size=size)
    pixels = pixels_of(size)
    outputs, expected = ours(pixels), run(theirs, pixels)
    assert_close(outputs["logits"], expected.logits.numpy(), LOGITS)
    difference = np.abs(np.asarray(outputs["boxes"]) - expected.pred_boxes.numpy()).max()
    assert difference <= BOXES
    # Were all boxes alike, wrong queries would pass.
    assert expected.pred_boxes.numpy().std(axis=(0, 1)).max() > 300 * BOXES
    again = run(saved(ours, type(theirs), tmp_path / "b"), pixels)
    assert_close(again.logits.numpy(), expected.logits.numpy(), 1e-6)
    assert_close(again.pred_boxes.numpy(), expected.pred_boxes.numpy(), 1e-6)


@pytest.mark.parametrize("options", [{"activation_function": "gelu"}, {"decoder_layers": 1}])
def test_detr_without_head(options, tmp_path):
    theirs = made("DetrModel", detr_config(BOTTLENECK, **options), tmp_path / "a")
    ours = checkpoints.load_huggingface(tmp_path / "a", image_size=(75, 107))
    pixels = pixels_of((75, 107))
    expected = run(theirs, pixels).last_hidden_state.numpy()
    assert_close(ours(pixels), expected, LOGITS)
    again = saved(ours, type(theirs), tmp_path / "b")
    assert_close(run(again, pixels).last_hidden_state.numpy(), expected, 1e-6)


def test_detr_of_timm(tmp_path):
    """Files whose backbone has the names of timm, such as facebook/detr-resnet-50."""
    from safetensors.numpy import load_file, save_file

    small = {"depths": [3, 4, 6, 3], "hidden_sizes": [256, 512, 1024, 2048]}
    config = detr_config(small, encoder_layers=1, decoder_layers=1)
    theirs = made("DetrForObjectDetection", config, tmp_path / "a", noise=0.02)
    folder = tmp_path / "a"
    tensors = load_file(folder / "model.safetensors")
    save_file({timm_name(name): x for name, x in tensors.items()}, folder / "model.safetensors")
    fields = json.loads((folder / "config.json").read_text())
    fields |= {"backbone_config": None, "use_timm_backbone": True, "backbone": "resnet50"}
    (folder / "config.json").write_text(json.dumps(fields))
    ours = checkpoints.load_huggingface(folder, image_size=(64, 96))
    pixels = pixels_of((64, 96), batch=1)
    outputs, expected = ours(pixels), run(theirs, pixels)
    assert_close(outputs["logits"], expected.logits.numpy(), LOGITS)
    assert_close(outputs["boxes"], expected.pred_boxes.numpy(), BOXES)


def test_channels_are_those_of_the_backbone(tmp_path):
    """As in transformers, which reads `num_channels` beside it for a backbone of timm alone."""
    save_small(tmp_path, num_channels=4)
    assert len(checkpoints.load_huggingface(tmp_path).arguments["image_mean"]) == 3


def save_small(folder, **changes):
    """A folder of a small model with other fields in its configuration."""
    backbone = {"stem_dim": 4, "dims": (8,), "depths": (1,), "bottleneck": False}
    model = models.detr(
        32, num_classes=3, num_queries=5, dim=8, num_layers=1, num_heads=2, intermediate_dim=16,
        backbone=backbone,
    )  # fmt: skip
    checkpoints.save_huggingface(model, folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_statistics_of_the_class(tmp_path):
    """Those of ImageNet, where the file leaves them out."""
    save_small(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"do_resize": true}')
    arguments = checkpoints.load_huggingface(tmp_path, image_size=32).arguments
    assert_close(np.array([arguments["image_mean"], arguments["image_std"]]), [MEAN, STD], 1e-12)


def timm_name(name):
    begin, _, rest = name.partition("conv_encoder.model.")
    if not rest:
        return name
    rest = rest.replace("embedder.embedder.convolution", "conv1")
    rest = rest.replace("embedder.embedder.normalization", "bn1")
    rest = re.sub(r"encoder\.stages\.(\d)\.layers", lambda x: f"layer{int(x[1]) + 1}", rest)
    for old, new in (("convolution", "conv"), ("normalization", "bn")):
        rest = re.sub(rf"\.layer\.(\d)\.{old}", lambda x, new=new: f".{new}{int(x[1]) + 1}", rest)
    rest = rest.replace("shortcut.convolution", "downsample.0")
    return f"{begin}conv_encoder.model.{rest.replace('shortcut.normalization', 'downsample.1')}"


@pytest.mark.parametrize(
    "change, message",
    [
        ({"auxiliary_loss": True}, "auxiliary_loss must be False, got True"),
        ({"position_embedding_type": "learned"}, "position_embedding_type must be 'sine'"),
        ({"dilation": True, "backbone_config": None}, "dilation must be False, got True"),
        ({"backbone_config": {"model_type": "swin"}}, "backbone_config must be a ResNet without"),
        ({"backbone": "vit", "backbone_config": None}, "backbone_config must be a ResNet without"),
        ({"backbone_config": {"model_type": "resnet", "out_indices": [2]}}, "out_indices must be"),
        ({"encoder_attention_heads": 3}, "encoder_attention_heads must be a divisor of d_model, 8"),
        ({"decoder_attention_heads": 5}, "decoder_attention_heads must be a divisor of d_model, 8"),
    ],
)
def test_unsupported_fields(change, message, tmp_path):
    save_small(tmp_path, **change)
    with pytest.raises(ValueError, match=message):
        checkpoints.load_huggingface(tmp_path, image_size=32)
