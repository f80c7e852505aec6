"""CLIP and its encoders beside transformers: both ways, odd sizes, noise on every weight."""

import json

import numpy as np
import pytest
from compare import assert_close, to_numpy
from live_transformers import made, saved

from keras_tfm import checkpoints, models

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# float32, relative to the outputs' size. Found: up to 1e-6.
CLOSE = 5e-6
IMAGE = {
    "hidden_size": 10, "num_attention_heads": 5, "num_hidden_layers": 3, "intermediate_size": 7,
    "image_size": 20, "patch_size": 4, "projection_dim": 9,
}  # fmt: skip
TEXT = {
    "hidden_size": 14, "num_attention_heads": 7, "num_hidden_layers": 2, "intermediate_size": 11,
    "vocab_size": 31, "max_position_embeddings": 13, "projection_dim": 9,
    "bos_token_id": 28, "eos_token_id": 29, "pad_token_id": 1,
}  # fmt: skip
LARGEST = {**TEXT, "eos_token_id": 2}  # as OpenAI's: the end token is the one with the largest id
ODD = {**IMAGE, "num_channels": 1, "image_size": 23, "patch_size": 5}  # of which 3 are left out
OTHER = {"hidden_act": "gelu", "layer_norm_eps": 0.1, "attention_dropout": 0.3}
TOKENS = np.random.default_rng(3).integers(3, 28, (4, 11)).astype("int32")
TOKENS[0, 5], TOKENS[1, 10], TOKENS[2, 0] = 29, 29, 29
TOKENS[0, 6:], TOKENS[2, 7] = 1, 29  # padding, a second end token; none in the last row


def pixels_of(given, rows=4):
    size = tuple(np.broadcast_to(given["image_size"], 2).tolist())
    pixels = np.random.default_rng(1).integers(0, 256, (rows, *size, len(given["image_mean"])))
    normal = (pixels / 255 - np.array(given["image_mean"])) / np.array(given["image_std"])
    return pixels.astype("float32"), torch.tensor(np.moveaxis(normal, -1, 1).astype("float32"))


def unit(x):
    return (x / x.norm(dim=-1, keepdim=True)).numpy()


def assert_same_text(ours, theirs):
    with torch.no_grad():
        expected = theirs(torch.tensor(TOKENS.astype("int64")))
    found = ours(TOKENS)
    if "WithProjection" in type(theirs).__name__:
        return assert_close(found, unit(expected.text_embeds), CLOSE)
    assert_close(found["features"], expected.last_hidden_state.numpy(), CLOSE)
    return assert_close(found["pooled"], expected.pooler_output.numpy(), CLOSE)


def assert_same_image(ours, theirs):
    pixels, x = pixels_of(ours.arguments)
    with torch.no_grad():
        expected = theirs(x)
    found = ours(pixels)
    if "WithProjection" in type(theirs).__name__:
        return assert_close(found, unit(expected.image_embeds), CLOSE)
    assert_close(found["features"], expected.last_hidden_state.numpy(), CLOSE)
    return assert_close(found["pooled"], expected.pooler_output.numpy(), CLOSE)


def assert_same_pair(ours, theirs):
    """Embeddings, and the logits of each picture with each text."""
    pixels, x = pixels_of(ours.arguments)
    with torch.no_grad():
        expected = theirs(torch.tensor(TOKENS.astype("int64")), x)
    found = {key: to_numpy(y) for key, y in ours({"pixels": pixels, "tokens": TOKENS}).items()}
    assert_close(found["image_embedding"], expected.image_embeds.numpy(), CLOSE)
    assert_close(found["text_embedding"], expected.text_embeds.numpy(), CLOSE)
    logits = found["scale"] * (found["image_embedding"] @ found["text_embedding"].T)
    assert_close(logits, expected.logits_per_image.numpy(), CLOSE)


@pytest.mark.parametrize("options", [TEXT, LARGEST, {**TEXT, **OTHER}], ids=["end", "largest", "x"])
@pytest.mark.parametrize("name", ["CLIPTextModel", "CLIPTextModelWithProjection"])
def test_texts(name, options, tmp_path):
    theirs, ours = made(name, options, tmp_path / "theirs")
    assert ours.family == "clip_text"
    assert ours.arguments["end_id"] == (None if options is LARGEST else 29)
    assert_same_text(ours, theirs)
    assert_same_text(ours, saved(ours, type(theirs), tmp_path / "ours"))


@pytest.mark.parametrize("options", [IMAGE, {**ODD, **OTHER}], ids=["square", "odd"])
@pytest.mark.parametrize("name", ["CLIPVisionModel", "CLIPVisionModelWithProjection"])
def test_images(name, options, tmp_path):
    theirs, ours = made(name, options, tmp_path / "theirs")
    assert ours.family == "clip_image"
    assert_same_image(ours, theirs)
    assert_same_image(ours, saved(ours, type(theirs), tmp_path / "ours"))


PAIRS = [(IMAGE, TEXT), (ODD, LARGEST), ({**IMAGE, **OTHER}, TEXT)]


@pytest.mark.parametrize(("image", "text"), PAIRS, ids=["plain", "odd", "other"])
def test_pairs_and_their_towers(image, text, tmp_path):
    options = {"vision_config": image, "text_config": text, "projection_dim": 9}
    theirs, ours = made("CLIPModel", options, tmp_path / "theirs")
    assert_same_pair(ours, theirs)
    assert_same_pair(ours, saved(ours, type(theirs), tmp_path / "ours"))
    towers = models.clip_towers(ours)
    cls = transformers.CLIPTextModelWithProjection
    assert_same_text(towers["text"], saved(towers["text"], cls, tmp_path / "text"))
    cls = transformers.CLIPVisionModelWithProjection
    assert_same_image(towers["image"], saved(towers["image"], cls, tmp_path / "image"))


def test_older_files_of_one_encoder_have_a_prefix(tmp_path):
    """Those of transformers 4, with the ids of the positions among the tensors."""
    from safetensors.numpy import load_file, save_file

    theirs, _ = made("CLIPTextModel", TEXT, tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    assert not any(name.startswith("text_model.") for name in tensors)
    tensors = {f"text_model.{name}": x for name, x in tensors.items()}
    tensors["text_model.embeddings.position_ids"] = np.arange(13)[None]
    save_file(tensors, file, metadata={"format": "pt"})
    assert_same_text(checkpoints.load_huggingface(tmp_path), theirs)


def test_the_learned_scale_is_kept(tmp_path):
    options = {"vision_config": IMAGE, "text_config": TEXT, "projection_dim": 9}
    theirs, ours = made("CLIPModel", options, tmp_path / "theirs")
    scale = float(theirs.logit_scale.detach().exp())
    assert models.clip_towers(ours)["text"].head.arguments["scale"] == pytest.approx(scale)
    again = saved(ours, type(theirs), tmp_path / "ours")
    assert float(again.logit_scale.detach().exp()) == pytest.approx(scale, rel=1e-6)


def test_statistics_of_pixels(tmp_path):
    """Those of the preprocessor, or OpenAI's."""
    options = {"vision_config": IMAGE, "text_config": TEXT, "projection_dim": 9}
    _, ours = made("CLIPModel", options, tmp_path)
    assert ours.arguments["image_mean"] == pytest.approx([0.48145466, 0.4578275, 0.40821073])
    rules = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(rules))
    ours = checkpoints.load_huggingface(tmp_path)
    assert ours.arguments["image_mean"] == [0.1, 0.2, 0.3]
    checkpoints.save_huggingface(ours, tmp_path / "saved")
    fields = json.loads((tmp_path / "saved" / "preprocessor_config.json").read_text())
    assert fields["image_std"] == [0.4, 0.5, 0.6]
    nested = {"image_processor": {"image_processor_type": "SiglipImageProcessor"}}
    (tmp_path / "processor_config.json").write_text(json.dumps(nested))  # which wins
    ours = checkpoints.load_huggingface(tmp_path)
    assert ours.arguments["image_mean"] == ours.arguments["image_std"] == [0.5] * 3
    nested["image_processor"]["image_processor_type"] = "LevitImageProcessor"
    (tmp_path / "processor_config.json").write_text(json.dumps(nested))
    with pytest.raises(ValueError, match=r"processor_config\.json: image_processor_type must be"):
        checkpoints.load_huggingface(tmp_path)


@pytest.mark.parametrize("encoder", ["vision", "text"])
def test_older_names_of_the_encoders_win(encoder, tmp_path):
    options = {"vision_config": IMAGE, "text_config": TEXT, "projection_dim": 9}
    made("CLIPModel", options, tmp_path)
    path = tmp_path / "config.json"
    fields = json.loads(path.read_text())
    other = {**fields[f"{encoder}_config"], "hidden_act": "relu", "layer_norm_eps": 0.1}
    path.write_text(json.dumps({**fields, f"{encoder}_config_dict": other}))
    theirs = transformers.CLIPModel.from_pretrained(tmp_path).eval()
    assert_same_pair(checkpoints.load_huggingface(tmp_path), theirs)


def test_pictures_of_another_size(tmp_path):
    """The position table is interpolated, as in transformers."""
    options = {"vision_config": IMAGE, "text_config": TEXT, "projection_dim": 9}
    theirs, _ = made("CLIPModel", options, tmp_path)
    ours = checkpoints.load_huggingface(tmp_path, image_size=(24, 12))
    pixels, x = pixels_of(ours.arguments)
    with torch.no_grad():
        expected = theirs.get_image_features(x, interpolate_pos_encoding=True).pooler_output
    assert_close(models.clip_towers(ours)["image"](pixels), unit(expected), CLOSE)


def test_what_transformers_cannot_read_is_refused(tmp_path):
    sizes = {"dim": 12, "num_layers": 1, "num_heads": 3, "intermediate_dim": 16}
    with pytest.raises(ValueError, match="end_id must not be 2 to be saved"):
        checkpoints.save_huggingface(models.clip_text(11, end_id=2, **sizes), tmp_path / "x")
    with pytest.raises(ValueError, match=r"image_size must be square to be saved.*got \(16, 24\)"):
        checkpoints.save_huggingface(models.clip_image((16, 24), 8, **sizes), tmp_path / "x")


def test_an_end_outside_the_vocabulary_is_refused(tmp_path):
    """transformers pools the first token then."""
    with pytest.raises(ValueError, match="eos_token_id must be an integer from 0 to 30, got 31"):
        made("CLIPTextModel", {**TEXT, "eos_token_id": 31}, tmp_path)


def test_several_ends_are_refused(tmp_path):
    """transformers compares a tensor of ids with one id."""
    checkpoints.save_huggingface(
        models.clip_text(31, dim=14, num_layers=1, num_heads=7, intermediate_dim=11, end_id=29),
        tmp_path,
    )
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "eos_token_id": [29, 30]}))
    with pytest.raises(ValueError, match=r"eos_token_id must be one id, as .* got \[29, 30\]"):
        checkpoints.load_huggingface(tmp_path)
