"""FLAVA's codebook and ImageGPT beside transformers: both ways, odd sizes, noise on weights."""

import numpy as np
import pytest
from compare import assert_close
from live_transformers import made, saved

from keras_tfm import checkpoints, models
from keras_tfm.generation import generate

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# float32, relative to the outputs' size, through 4 to 8 blocks of convolutions, or 3 of attention.
CLOSE = 3e-5
CODEBOOK = {"vocab_size": 13, "hidden_size": 5, "num_blocks_per_group": 1, "freeze": False}
IMAGE_GPT = {
    "vocab_size": 18, "n_positions": 11, "n_embd": 14, "n_layer": 3, "n_head": 7, "n_inner": 9,
}  # fmt: skip
TOKENS = np.random.default_rng(3).integers(0, 18, (2, 11)).astype("int32")


@pytest.mark.parametrize("more", [{}, {"num_blocks_per_group": 2}], ids=["one", "two"])
def test_the_codebook_both_ways(more, tmp_path):
    theirs, ours = made("FlavaImageCodebook", {**CODEBOOK, **more}, tmp_path / "theirs")
    assert ours.family == "dvae_encoder"
    # 27 and 41 are halved three times, rounded down.
    pixels = np.random.default_rng(7).integers(0, 256, (2, 27, 41, 3))
    mapped = (0.8 * pixels / 255 + 0.1).transpose(0, 3, 1, 2).astype("float32")
    for one in (theirs, saved(ours, type(theirs), tmp_path / "ours")):
        with torch.no_grad():
            expected = one(torch.tensor(mapped)).numpy().transpose(0, 2, 3, 1)
            codes = one.get_codebook_indices(torch.tensor(mapped)).numpy()
        assert expected.shape == (2, 3, 5, 13)
        found = np.asarray(ours(pixels))
        assert_close(found, expected, CLOSE)
        np.testing.assert_array_equal(found.argmax(-1), codes)
    assert len(np.unique(codes)) > 2


def test_a_codebook_of_other_groups_is_not_saved(tmp_path):
    model = models.dvae_encoder(16, 11, dim=4, num_groups=3, num_blocks=1)
    with pytest.raises(ValueError, match="has 4 groups and 3 channels, got num_groups=3"):
        checkpoints.save_huggingface(model, tmp_path / "x")


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("ImageGPTForCausalImageModeling", {}),
        (
            "ImageGPTForCausalImageModeling",
            {
                "n_inner": None, "activation_function": "gelu", "layer_norm_epsilon": 0.1,
                "scale_attn_by_inverse_layer_idx": True,
            },
        ),
        ("ImageGPTModel", {"scale_attn_weights": False}),
        ("ImageGPTForImageClassification", {"num_labels": 5}),
    ],
    ids=["odd", "other", "features", "classes"],
)  # fmt: skip
def test_image_gpt_both_ways(name, more, tmp_path):
    theirs, ours = made(name, {**IMAGE_GPT, **more}, tmp_path / "theirs")
    assert ours.family == "image_gpt"
    for one in (theirs, saved(ours, type(theirs), tmp_path / "ours")):
        with torch.no_grad():
            expected = one(torch.tensor(TOKENS.astype("int64")))[0].numpy()
        shapes = {"ImageGPTModel": (2, 11, 14), "ImageGPTForImageClassification": (2, 5)}
        assert expected.shape == shapes.get(name, (2, 11, 17))
        assert_close(ours(TOKENS), expected, CLOSE)


def test_the_labels_of_a_classifier_both_ways(tmp_path):
    labels = ["cat", "dog", "red car"]
    config = {**IMAGE_GPT, "id2label": dict(enumerate(labels))}
    theirs, ours = made("ImageGPTForImageClassification", config, tmp_path / "theirs")
    assert ours.head.arguments["labels"] == labels
    again = saved(ours, type(theirs), tmp_path / "ours")
    assert again.config.id2label == dict(enumerate(labels))
    last = models.sequence_classifier(models.backbone(ours), 3)
    with pytest.raises(
        ValueError, match="a imagegpt checkpoint with the head 'sequence_classifier' must be one of"
    ):
        checkpoints.save_huggingface(last, tmp_path / "last")


def test_it_generates_the_pixels_that_theirs_does(tmp_path):
    """From the start token 17, which is no output, with a position for each pixel."""
    theirs, ours = made("ImageGPTForCausalImageModeling", IMAGE_GPT, tmp_path)
    expected = theirs.generate(torch.tensor([[17]]), max_length=12, do_sample=False)
    tokens = generate(ours, [[17]], max_length=12).tokens
    np.testing.assert_array_equal(tokens, expected.numpy())
    assert len(set(tokens[0, 1:])) > 2
