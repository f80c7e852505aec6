"""SmolVLM beside transformers: configurations made there, generated tokens, bad folders, sizes."""

import json

import numpy as np
import pytest
from compare import assert_close, to_numpy
from live_transformers import made, saved

from keras_tfm import checkpoints, generation, models

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

IMAGE, VOCABULARY = 40, 43
VISION = {
    "hidden_size": 10, "num_attention_heads": 5, "num_hidden_layers": 3, "intermediate_size": 7,
    "image_size": 30, "patch_size": 5,
}  # fmt: skip
TEXT = {
    "model_type": "llama", "hidden_size": 14, "num_attention_heads": 7, "num_hidden_layers": 2,
    "num_key_value_heads": 7, "intermediate_size": 11, "vocab_size": VOCABULARY,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 77.0, "bos_token_id": None,
    "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
OPTIONS = {
    "vision_config": VISION, "text_config": TEXT, "image_token_id": IMAGE, "scale_factor": 2,
}  # fmt: skip
FEATURES = 9  # 6 x 6 patches, 2 x 2 of them joined
# With two tiles, a tile and a picture, one picture at the start, and none; of several lengths.
PROMPTS = [
    [3, *[IMAGE] * 18, 5, 6],
    [3, 4, *[IMAGE] * 9, 8, *[IMAGE] * 9, 11, 12, 13],
    [*[IMAGE] * 9, 30],
    [7, 8, 9, 10, 11, 12],
]
COUNTS = [2, 2, 1, 0]
# float32, relative to the largest logit. Found: up to 3e-6.
CLOSE = 3e-5


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("smolvlm")
    theirs, _ = made("SmolVLMForConditionalGeneration", OPTIONS, folder, shrunk=0.3)
    return theirs, checkpoints.load_huggingface(folder, num_images=2)


def pixels():
    """For our model, and for transformers, which leaves out images of zeros."""
    x = np.random.default_rng(1).integers(0, 256, (4, 2, 30, 30, 3))
    normal = np.moveaxis(x / 127.5 - 1, -1, 2).astype("float32")
    for row, count in enumerate(COUNTS):
        normal[row, count:] = 0
    return x.astype("float32"), torch.from_numpy(normal)


def left_padded():
    """The prompts as transformers takes them: ids and mask, with padding on the left."""
    longest = max(map(len, PROMPTS))
    ids = np.array([[0] * (longest - len(x)) + x for x in PROMPTS])
    mask = np.array([[0] * (longest - len(x)) + [1] * len(x) for x in PROMPTS])
    return torch.from_numpy(ids), torch.from_numpy(mask)


def test_logits_of_a_batch_of_texts_with_and_without_images(pair):
    """Rows of several lengths: here padded on the right, there one at a time."""
    theirs, ours = pair
    x, y = pixels()
    longest = max(map(len, PROMPTS))
    target = np.array([x + [0] * (longest - len(x)) for x in PROMPTS], "int32")
    found = to_numpy(ours({"pixels": x, "target": target}))
    for row, prompt in enumerate(PROMPTS):
        images = {"pixel_values": y[row : row + 1, : COUNTS[row]]} if COUNTS[row] else {}
        with torch.no_grad():
            wanted = theirs(torch.tensor([prompt]), **images).logits.numpy()[0]
        assert_close(found[row, : len(prompt)], wanted, CLOSE)


def test_features_of_images(pair):
    theirs, ours = pair
    x, y = pixels()
    features = models.Model(ours.input["pixels"], ours.get_layer("features").output)
    with torch.no_grad():
        wanted = theirs.get_image_features(y[:2]).pooler_output
    wanted = np.stack([rows.numpy() for rows in wanted])
    assert_close(to_numpy(features(x[:2])), wanted, 1e-5)


def test_the_folder_tells_the_number_of_tokens_of_an_image(pair, tmp_path):
    checkpoints.save_huggingface(pair[1], tmp_path)
    processor = json.loads((tmp_path / "processor_config.json").read_text())
    assert processor == {"processor_class": "SmolVLMProcessor", "image_seq_len": FEATURES}


def test_sizes_in_pairs_are_saved(tmp_path):
    tower = {"dim": 6, "num_layers": 1, "num_heads": 2, "intermediate_dim": 7}
    model = models.smolvlm(
        11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, image_id=9, image_size=(8, 8),
        patch_size=(2, 2), scale_factor=2, image=tower,
    )  # fmt: skip
    checkpoints.save_huggingface(model, tmp_path)
    assert json.loads((tmp_path / "processor_config.json").read_text())["image_seq_len"] == 4


@pytest.mark.parametrize("beams", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_generated_tokens(pair, beams):
    """Prompts of several lengths, with two images, one, and none."""
    theirs, ours = pair
    x, y = pixels()
    ids, mask = left_padded()
    options = {"do_sample": False, "length_penalty": 0.0} if beams > 1 else {"do_sample": False}
    with torch.no_grad():
        wanted = theirs.generate(
            input_ids=ids, attention_mask=mask, pixel_values=y, max_new_tokens=9, num_beams=beams,
            eos_token_id=None, pad_token_id=0, early_stopping=False, **options,
        ).numpy()  # fmt: skip
    strategy = generation.Greedy() if beams == 1 else generation.Beam(beams, length_penalty=0.0)
    run = generation.Generator(ours, target="target", strategy=strategy, max_new_tokens=9)
    found = run({"pixels": x, "target": PROMPTS}).tokens
    new = wanted[:, ids.shape[1] :]
    assert len(np.unique(new)) > 5
    for row, prompt in enumerate(PROMPTS):
        assert found[row][len(prompt) :][:9].tolist() == new[row].tolist()


@pytest.mark.parametrize("name", ["SmolVLM", pytest.param("Idefics3", marks=pytest.mark.slow)])
def test_a_saved_model_is_read_by_transformers(name, tmp_path):
    cls = f"{name}ForConditionalGeneration"
    theirs, ours = made(cls, {**OPTIONS, "tie_word_embeddings": True}, tmp_path / "theirs")
    assert ours.arguments["tie_output"] and ours.input["pixels"].shape == (None, 30, 30, 3)
    again = saved(ours, type(theirs), tmp_path / "ours")
    _, y = pixels()
    ids = torch.tensor(PROMPTS[2:3])
    with torch.no_grad():
        wanted, found = (z(ids, pixel_values=y[2:3, :1]).logits for z in (theirs, again))
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("text_config.model_type", "mistral", r'text_config\.model_type must be "llama"'),
        ("text_config.is_causal", False, "is_causal must be True"),
        (
            "image_token_id",
            VOCABULARY,
            "image_token_id must be an id of the vocabulary, 0 to 42, got 43",
        ),
        ("vision_config.image_size", 32, "image_size must be a multiple of patch_size"),
        ("vision_config.image_size", 125, "image_size must be of other than 25 patches a side"),
        ("vision_config.hidden_act", "quick", "hidden_act must be one of"),
        ("vision_config.image_size", [30, 30], "image_size must be an integer"),
    ],
)
def test_bad_folders(pair, tmp_path, field, value, message):
    checkpoints.save_huggingface(pair[1], tmp_path)
    file = tmp_path / "config.json"
    fields = json.loads(file.read_text())
    *parts, name = field.split(".")
    part = fields
    for x in parts:
        part = part[x]
    part[name] = value
    file.write_text(json.dumps(fields))
    with pytest.raises(ValueError, match=message):
        checkpoints.load_huggingface(tmp_path)


def test_patches_that_cannot_be_joined_are_refused():
    tower = {"dim": 6, "num_layers": 1, "num_heads": 2, "intermediate_dim": 7}
    options = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 16, "image_id": 9}
    with pytest.raises(ValueError, match="multiple of factor=2, got 9 patches"):
        models.smolvlm(11, image_size=12, patch_size=4, scale_factor=2, image=tower, **options)
    with pytest.raises(ValueError, match=r"image_id must be in the vocabulary, 0\.\.10, got 11"):
        models.smolvlm(11, **{**options, "image_id": 11})
    with pytest.raises(ValueError, match=r"image= must have arguments among .* got 'depth'"):
        models.smolvlm(11, **options, image={"depth": 3})
    with pytest.raises(ValueError, match=r"image\['num_layers'\] must be at least 1, got -1"):
        models.smolvlm(11, **options, image={"num_layers": -1})


def test_more_images_than_the_model_has(pair):
    x, _ = pixels()
    with pytest.raises(ValueError, match=r"9 for each picture, at most 18\), or never; row 0"):
        pair[1]({"pixels": x[:1], "target": np.array([[IMAGE] * 27])})
    run = generation.Generator(pair[1], target="target", max_new_tokens=2)
    with pytest.raises(ValueError, match="row 0 has it 5 times"):
        run({"pixels": x[:1], "target": [[IMAGE] * 5]})
