"""Gemma 3 with pictures and LFM2-VL beside transformers: batches, tokens, bad folders, sizes."""

import json

import numpy as np
import pytest
from compare import assert_close, to_numpy
from live_transformers import made, saved
from saved_folders import to_theirs

from keras_tfm import checkpoints, generation, layers, models

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.slow  # test_every_family.py compares a model of each type in less time
IMAGE, VOCABULARY, FEATURES = 40, 43, 9
VISION = {
    "hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 3, "intermediate_size": 7,
    "patch_size": 5,
}  # fmt: skip
TEXT = {
    "hidden_size": 20, "num_attention_heads": 5, "num_hidden_layers": 4, "num_key_value_heads": 1,
    "intermediate_size": 11, "vocab_size": VOCABULARY, "max_position_embeddings": 64,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
SLIDING, FULL = "sliding_attention", "full_attention"
OPTIONS = {
    "gemma3": {
        "vision_config": {**VISION, "image_size": 30},
        # The window hides parts of a picture from its last tokens, and texts outgrow it.
        "text_config": {
            **TEXT, "head_dim": 8, "query_pre_attn_scalar": 7, "sliding_window": 6,
            "layer_types": [SLIDING, FULL, SLIDING, SLIDING],
            "rope_parameters": {
                FULL: {"rope_type": "linear", "factor": 3.0, "rope_theta": 77.0},
                SLIDING: {"rope_type": "default", "rope_theta": 33.0},
            },
        },
        "image_token_index": IMAGE, "mm_tokens_per_image": FEATURES,
    },
    "lfm2_vl": {
        # Positions of 4 x 4 patches, of which those of 6 x 6 are made.
        "vision_config": {**VISION, "num_patches": 16},
        "text_config": {
            **TEXT, "layer_types": ["conv", FULL, "conv", FULL], "rope_theta": 77.0,
            "block_auto_adjust_ff_dim": False,
        },
        "image_token_id": IMAGE, "downsample_factor": 2, "projector_hidden_size": 14,
    },
}  # fmt: skip
CLASSES = {"gemma3": "Gemma3ForConditionalGeneration", "lfm2_vl": "Lfm2VlForConditionalGeneration"}
# With two pictures, two side by side, one at the start, and none; of several lengths.
PROMPTS = [
    [3, *[IMAGE] * 9, 5, *[IMAGE] * 9, 6],
    [3, 4, *[IMAGE] * 18, 11, 12, 13],
    [*[IMAGE] * 9, 30],
    [7, 8, 9, 10, 11, 12],
]
# float32, relative to the largest logit. Found: up to 2e-6.
CLOSE = 2e-5


@pytest.fixture(scope="module", params=OPTIONS)
def pair(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    theirs, _ = made(CLASSES[request.param], OPTIONS[request.param], folder, shrunk=0.3)
    return theirs, checkpoints.load_huggingface(folder, num_images=2, image_size=30)


def pixels(count=4):
    return np.random.default_rng(1).integers(0, 256, (count, 2, 30, 30, 3)).astype("float32")


def their_inputs(model, prompts):
    """Of transformers, with padding on the left."""
    longest = max(map(len, prompts))
    target = np.array([[0] * (longest - len(x)) + x for x in prompts], "int32")
    found = to_theirs(model, {"pixels": pixels(len(prompts)), "target": target})
    found = {name: torch.from_numpy(x) for name, x in found.items() if len(x)}
    mask = [[0] * (longest - len(x)) + [1] * len(x) for x in prompts]
    return {**found, "attention_mask": torch.tensor(mask)}


def test_logits_of_a_batch_of_texts_with_and_without_pictures(pair):
    """Padded on the right here, on the left there."""
    theirs, ours = pair
    longest = max(map(len, PROMPTS))
    target = np.array([x + [0] * (longest - len(x)) for x in PROMPTS], "int32")
    found = to_numpy(ours({"pixels": pixels(), "target": target}))
    with torch.no_grad():
        wanted = theirs(**their_inputs(ours, PROMPTS)).logits.numpy()
    for row, prompt in enumerate(PROMPTS):
        expected = wanted[row, longest - len(prompt) :]
        assert_close(found[row, : len(prompt)], expected, CLOSE * np.abs(expected).max())


@pytest.mark.parametrize("beams", [1, 3])
def test_generated_tokens(pair, beams):
    theirs, ours = pair
    options = {"length_penalty": 0.0, "early_stopping": False} if beams > 1 else {}
    with torch.no_grad():
        wanted = theirs.generate(
            **their_inputs(ours, PROMPTS), max_new_tokens=9, num_beams=beams, do_sample=False,
            eos_token_id=None, pad_token_id=0, **options,
        ).numpy()[:, -9:]  # fmt: skip
    strategy = generation.Greedy() if beams == 1 else generation.Beam(beams, length_penalty=0.0)
    run = generation.Generator(ours, target="target", strategy=strategy, max_new_tokens=9)
    found = run({"pixels": pixels(), "target": PROMPTS}).tokens
    assert len(np.unique(wanted)) > 5
    for row, prompt in enumerate(PROMPTS):
        assert found[row][len(prompt) :][:9].tolist() == wanted[row].tolist()


def test_a_text_in_steps_of_several_tokens(pair):
    """A picture in the second step sees itself, and the text before it."""
    _, ours = pair
    inputs = {"pixels": pixels(1), "target": np.array([[3, 4, 5, *[IMAGE] * 9, 7, 8]], "int32")}
    whole, stepped, cache, parts = ours(inputs), generation.SteppedModel(ours, "target"), None, []
    encoded = stepped.encode(inputs)
    for start, end in ((0, 2), (2, 13), (13, 14)):
        with layers.DecodingScope(cache, position=start, length=14) as scope:
            parts.append(to_numpy(stepped.step(encoded, inputs["target"][:, start:end])))
        cache = scope.cache
    assert_close(np.concatenate(parts, 1), to_numpy(whole), 1e-5 * np.abs(whole).max())


def test_a_saved_model_is_read_by_transformers(pair, tmp_path):
    theirs, ours = pair
    again = saved(ours, type(theirs), tmp_path)
    inputs = their_inputs(ours, PROMPTS)
    with torch.no_grad():
        wanted, found = (x(**inputs).logits.numpy() for x in (theirs, again))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    processor = json.loads((tmp_path / "processor_config.json").read_text())
    assert FEATURES in processor.values() or "image_seq_length" not in processor


BAD = {
    "gemma3": [
        ("mm_tokens_per_image", 10, "mm_tokens_per_image must be the square of a divisor of .* 6"),
        ("mm_tokens_per_image", 16, "the square of a divisor of image_size // patch_size"),
        ("image_token_index", VOCABULARY, "image_token_index must be an id of the vocabulary"),
        ("text_config.use_bidirectional_attention", True, "use_bidirectional_attention must be F"),
        ("text_config.model_type", "gemma2", "model_type must be 'gemma3_text'"),
        ("vision_config.model_type", "clip_vision_model", "must be 'siglip_vision_model'"),
    ],
    "lfm2_vl": [
        ("vision_config.num_patches", 15, "num_patches must be a square number, got 15"),
        ("downsample_factor", 4, "downsample_factor must divide the rows .*, 6 and 6, got 4"),
        ("image_token_id", VOCABULARY, "image_token_id must be an id of the vocabulary"),
        ("text_config.model_type", "lfm2_moe", "model_type must be 'lfm2'"),
        ("vision_config.model_type", "siglip_vision_model", "must be 'siglip2_vision_model'"),
    ],
}


def test_bad_folders(pair, tmp_path):
    _, ours = pair
    checkpoints.save_huggingface(ours, tmp_path)
    file = tmp_path / "config.json"
    text = file.read_text()
    for path, value, message in BAD[json.loads(text)["model_type"]]:
        fields = json.loads(text)
        *parts, name = path.split(".")
        part = fields
        for x in parts:
            part = part[x]
        part[name] = value
        file.write_text(json.dumps(fields))
        with pytest.raises(ValueError, match=message):
            checkpoints.load_huggingface(tmp_path, image_size=30)


def test_the_language_model_of_a_folder_with_pictures(tmp_path):
    theirs, _ = made(CLASSES["gemma3"], OPTIONS["gemma3"], tmp_path)
    text = checkpoints.load_huggingface(tmp_path, "Gemma3ForCausalLM")
    assert text.family == "gemma"
    with torch.no_grad():
        wanted = theirs(torch.tensor([PROMPTS[3]])).logits.numpy()
    found = to_numpy(text(np.array([PROMPTS[3]])))
    assert_close(found, wanted, CLOSE * np.abs(wanted).max())


def test_patches_that_cannot_be_joined_are_refused():
    shuffle, x = layers.PixelShuffle(2, columns=3), np.zeros((1, 12, 4), "float32")
    with pytest.raises(ValueError, match="rows of 3, and both sides multiples of factor=2, got 12"):
        shuffle(x)
    with pytest.raises(ValueError, match=r"rows of 5, .* of factor=2, got 12 patches"):
        layers.PixelShuffle(2, columns=5)(x)


def test_patches_that_cannot_be_averaged_are_refused():
    tower = {"dim": 6, "num_layers": 1, "num_heads": 2, "intermediate_dim": 7}
    options = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 16, "image": tower}
    with pytest.raises(ValueError, match=r"pool_size must divide .*, 3 and 4, got 2"):
        models.gemma3(11, image_size=(12, 16), patch_size=4, pool_size=2, image_id=9, **options)
    with pytest.raises(ValueError, match=r"image_id must be in the vocabulary, 0\.\.10, got 11"):
        models.gemma3(11, image_size=12, patch_size=4, pool_size=3, image_id=11, **options)
