"""ViT, DeiT, DINOv2 beside transformers itself: both ways, noise on every weight, other sizes."""

import json

import numpy as np
import pytest
from compare import assert_close, to_numpy
from live_transformers import made, saved

from keras_tfm import checkpoints

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# float32, relative to the outputs' size.
LOGITS, FEATURES = 3e-5, 1e-5
VIT = {
    "hidden_size": 10, "num_attention_heads": 5, "num_hidden_layers": 3, "intermediate_size": 7,
    "image_size": 20, "patch_size": 4, "num_labels": 3,
}  # fmt: skip
DINO = {name: x for name, x in VIT.items() if name != "intermediate_size"}
MODELS = [
    ("ViTModel", VIT),
    ("ViTModel", {**VIT, "qkv_bias": False, "hidden_act": "relu", "layer_norm_eps": 0.1}),
    ("ViTModel", {**VIT, "num_channels": 1, "image_size": [12, 20], "patch_size": [4, 5]}),
    ("ViTForImageClassification", VIT),
    ("DeiTModel", VIT),
    ("DeiTForImageClassification", VIT),
    ("DeiTForImageClassificationWithTeacher", VIT),
    ("Dinov2Model", {**DINO, "mlp_ratio": 3, "layerscale_value": 0.7}),
    ("Dinov2Model", {**DINO, "use_mask_token": False, "qkv_bias": False}),
    ("Dinov2ForImageClassification", {**DINO, "use_swiglu_ffn": True}),
    ("Dinov2WithRegistersModel", {**DINO, "num_register_tokens": 2}),
    ("Dinov2WithRegistersModel", {**DINO, "num_register_tokens": 0}),
    ("Dinov2WithRegistersForImageClassification", {**DINO, "use_swiglu_ffn": True}),
]
NAMES = [f"{name}-{i}" for i, (name, _) in enumerate(MODELS)]


def assert_same(ours, theirs, size):
    """Of pictures of any size: `transformers` gets the normalised pixels, channels first."""
    given = ours.arguments
    shape = (2, *size, len(given["image_mean"]))
    pixels = np.random.default_rng(1).integers(0, 256, shape).astype("float32")
    normal = (pixels / 255 - np.array(given["image_mean"])) / np.array(given["image_std"])
    x = torch.tensor(np.moveaxis(normal, -1, 1).astype("float32"))
    grown = {} if "Dinov2" in type(theirs).__name__ else {"interpolate_pos_encoding": True}
    if size == tuple(np.broadcast_to(given["position_size"], 2)):
        grown = {}
    with torch.no_grad():
        output = theirs(x, **grown)
    actual = ours(pixels)
    if "logits" in output:
        return assert_close(actual, output.logits.numpy(), LOGITS)
    features = actual["features"] if isinstance(actual, dict) else actual
    assert_close(features, output.last_hidden_state.numpy(), FEATURES)
    if isinstance(actual, dict):
        assert_close(actual["pooled"], output.pooler_output.numpy(), FEATURES)
    return None


@pytest.mark.parametrize(("name", "options"), MODELS, ids=NAMES)
def test_pixels_give_the_same_here_there_and_back(name, options, tmp_path):
    theirs, ours = made(name, options, tmp_path / "theirs")
    size = tuple(np.broadcast_to(options["image_size"], 2).tolist())
    assert_same(ours, theirs, size)
    assert_same(ours, saved(ours, type(theirs), tmp_path / "ours"), size)


@pytest.mark.parametrize("size", [(24, 24), (12, 32), (28, 20)])
@pytest.mark.parametrize(
    "name", ["ViTModel", "DeiTModel", "Dinov2Model", "Dinov2WithRegistersModel"]
)
def test_pictures_of_another_size(name, size, tmp_path):
    options = VIT if name in ("ViTModel", "DeiTModel") else DINO
    theirs, _ = made(name, options, tmp_path)
    assert_same(checkpoints.load_huggingface(tmp_path, image_size=size), theirs, size)
    any_size = checkpoints.load_huggingface(tmp_path, image_size=None)
    assert_same(any_size, theirs, size)


def test_a_model_of_another_size_is_saved_with_its_own_table(tmp_path):
    theirs, _ = made("ViTModel", VIT, tmp_path / "theirs")
    ours = checkpoints.load_huggingface(tmp_path / "theirs", image_size=(12, 32))
    again = saved(ours, type(theirs), tmp_path / "ours")
    assert again.config.image_size == 20
    assert_same(ours, again, (12, 32))


def test_mean_and_deviation_of_the_folder(tmp_path):
    made("ViTModel", VIT, tmp_path)
    rules = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6], "do_normalize": True}
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps(rules))
    ours = checkpoints.load_huggingface(tmp_path)
    assert ours.arguments["image_mean"] == [0.1, 0.2, 0.3]
    checkpoints.save_huggingface(ours, tmp_path / "ours")
    found = json.loads((tmp_path / "ours" / "preprocessor_config.json").read_text())
    assert {name: found[name] for name in rules} == rules
    pixels = np.full((1, 20, 20, 3), 255.0)
    layer = ours.get_layer("normalization")
    assert_close(to_numpy(layer(pixels))[0, 0, 0], [0.9 / 0.4, 0.8 / 0.5, 0.7 / 0.6], 1e-6)
    file.write_text(json.dumps({**rules, "do_normalize": False}))
    ours = checkpoints.load_huggingface(tmp_path)
    assert_close(to_numpy(ours.get_layer("normalization")(pixels)), np.ones((1, 20, 20, 3)), 1e-6)
    for wrong, message in (
        ({"rescale_factor": 0.5}, "rescale_factor must be 1 / 255, got 0.5"),
        ({"do_rescale": False}, "do_rescale must be True, got False"),
        ({"image_mean": [0.5]}, r"image_mean must be 3 numbers, one a channel, got \[0.5\]"),
    ):
        file.write_text(json.dumps({**rules, **wrong}))
        with pytest.raises(ValueError, match=message):
            checkpoints.load_huggingface(tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("image_size", "20", "image_size must be a positive integer, or a list of two, got '20'"),
        ("hidden_act", "mish", "hidden_act must be one of"),
        ("pooler_act", "relu", "pooler_act must be 'tanh', got 'relu'"),
        ("model_type", "dinov2", r"architecture must be one of \['Dinov2Model'"),
    ],
)
def test_what_is_not_built_is_named(field, value, message, tmp_path):
    made("ViTModel", VIT, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, field: value}))
    with pytest.raises(ValueError, match=message):
        checkpoints.load_huggingface(tmp_path)


def test_another_family_is_refused_by_its_tensors(tmp_path):
    made("ViTModel", VIT, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"model_type": "dinov2", "architectures": ["Dinov2Model"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"missing.*layer_scale1\.lambda1"):
        checkpoints.load_huggingface(tmp_path)


def test_dinov2_has_positions_of_a_square(tmp_path):
    """transformers takes a table of 4 x 9 positions for one of 6 x 6."""
    from keras_tfm import models

    sizes = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 16}
    model = models.vit((16, 36), 4, **sizes, layer_scale=1.0)
    with pytest.raises(ValueError, match=r"has positions of a square, got image_size \[?\(?16, 36"):
        checkpoints.save_huggingface(model, tmp_path / "x")
    assert not (tmp_path / "x").exists()
    with pytest.raises(ValueError, match=r"image_size must be a square, got \(16, 36\)"):
        made("Dinov2Model", {**DINO, "image_size": [16, 36], "patch_size": 4}, tmp_path)


def test_widths_that_dinov2_cannot_have(tmp_path):
    from keras_tfm import models

    model = models.vit(
        8, 4, dim=10, num_layers=1, num_heads=2, intermediate_dim=13, layer_scale=1.0
    )
    with pytest.raises(ValueError, match=r"a multiple of dim \(10\), got 13"):
        checkpoints.save_huggingface(model, tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": None, "position_size": 8}, "max_wavelength needs an image_size, got None"),
        ({"antialias": True}, "takes the place of a position table: expected no antialias"),
        ({"position_size": 12}, "no position_size other than 8, got False and 12"),
        ({"max_wavelength": 0}, "max_wavelength must be positive, got 0"),
        ({"attention_bias": ["query", "output"]}, "must be True, False or a list of query, key"),
    ],
)
def test_rotary_positions_of_vit_need_their_arguments(options, message):
    from keras_tfm import models

    sizes = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 8}
    given = {"image_size": 8, "patch_size": 4, "max_wavelength": 100.0, **options}
    with pytest.raises(ValueError, match=message):
        models.vit(**sizes, **given)


def test_qwen2_vl_rotates_as_the_layer_does():
    from transformers.models.qwen2_vl import modeling_qwen2_vl as qwen

    from keras_tfm.layers import RotaryEmbedding2D
    from keras_tfm.layers.positions.attention_position import Span

    heads, head_dim, rows, columns = 2, 8, 3, 5
    x = np.random.default_rng(0).normal(size=(rows * columns, heads, head_dim)).astype("float32")
    inverse = 10000.0 ** -(torch.arange(0, head_dim // 2, 2) / (head_dim // 2))
    cells = torch.tensor([(i, j) for i in range(rows) for j in range(columns)])
    angles = (cells[..., None] * inverse).flatten(1)
    angles = torch.cat([angles, angles], -1)
    expected, _ = qwen.apply_rotary_pos_emb_vision(
        torch.tensor(x), torch.tensor(x), angles.cos(), angles.sin()
    )
    part = RotaryEmbedding2D(columns)
    part.build_for(heads, head_dim, head_dim)
    found = to_numpy(part.rotate(np.moveaxis(x, 0, 1)[None], Span(0, rows * columns)))
    assert_close(np.moveaxis(found[0], 0, 1), expected.numpy(), 1e-6)
