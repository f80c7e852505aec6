"""Decoders without causality, such as EmbeddingGemma: padded rows, windows, what is refused."""

import json

import numpy as np
import pytest
from families import small_model
from keras_weights import randomize

from keras_tfm import generation, models
from keras_tfm.checkpoints import load_huggingface, save_huggingface

FULL, SLIDING = "full_attention", "sliding_attention"
GEMMA = {"use_bidirectional_attention": True}
QWEN = {"is_causal": False, "use_sliding_window": True}
# float32, relative to the largest feature; three blocks.
FEATURES = 1e-5
# Longer than the windows, and than the positions of the configuration.
LENGTHS = [37, 11, 1]


@pytest.mark.parametrize(
    ("name", "fields", "windows"),
    [
        pytest.param("Gemma3Text", {**GEMMA, "sliding_window": 8}, [5, None, 5], id="gemma"),
        pytest.param("Gemma3Text", {**GEMMA, "sliding_window": 3}, [2, None, 2], id="odd window",
                     marks=pytest.mark.slow),
        pytest.param("Gemma3Text", {**GEMMA, "sliding_window": 8, "pad_token_id": None},
                     [5, None, 5], id="no padding id", marks=pytest.mark.slow),
        pytest.param("Qwen2", {**QWEN, "sliding_window": 4}, [5, None, 5], id="qwen2"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*transformers before version 5 does not read is_causal")
def test_rows_of_several_lengths(name, fields, windows, tmp_path):
    """As in transformers with an attention mask, both ways; with noise on every weight."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = getattr(transformers, f"{name}Config")(**{
        "vocab_size": 31, "hidden_size": 24, "intermediate_size": 13, "num_hidden_layers": 3,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "pad_token_id": 0,
        "max_position_embeddings": 16, "layer_types": [SLIDING, FULL, SLIDING], **fields,
    })  # fmt: skip
    torch.manual_seed(1)
    kind = getattr(transformers, f"{name}Model")
    theirs = kind(config).eval()
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    theirs.save_pretrained(tmp_path / "theirs")
    model = load_huggingface(tmp_path / "theirs")
    assert model.arguments["windows"] == windows
    save_huggingface(model, tmp_path / "again")

    ids = np.random.default_rng(0).integers(1, 31, (len(LENGTHS), max(LENGTHS)))
    mask = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    features = np.asarray(model(np.where(mask, ids, model.arguments["pad_id"])))
    for one in (theirs, kind.from_pretrained(tmp_path / "again").eval()):
        with torch.no_grad():
            given = torch.from_numpy(ids), torch.from_numpy(mask.astype("int64"))
            expected = one(given[0], attention_mask=given[1]).last_hidden_state.numpy()
        error = np.abs(features - expected)[mask].max()
        assert error <= FEATURES * np.abs(expected[mask]).max()


@pytest.fixture(scope="module")
def bidirectional():
    return randomize(small_model("gemma3_text", causal=False, pad_id=0))


def test_every_token_sees_later_ones(bidirectional):
    ids = np.array([[3, 4, 5, 6, 7]])
    first = np.asarray(bidirectional(ids))[0, 0]
    ids[0, -1] = 8
    assert np.abs(np.asarray(bidirectional(ids))[0, 0] - first).max() > 1e-3


def test_it_does_not_generate(bidirectional):
    with pytest.raises(ValueError, match=r"decoder_0") as caught:
        generation.generate(bidirectional, np.array([[3, 4]]), max_length=5)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("build", [models.gemma, models.llama])
def test_it_needs_a_padding_id(build):
    with pytest.raises(ValueError, match=r"pad_id is required with causal=False, .* got None"):
        build(11, dim=8, num_layers=1, num_heads=2, intermediate_dim=16, causal=False)


@pytest.mark.parametrize(
    ("builder", "options", "message"),
    [
        ("gemma", {"post_norm": True}, "causal must be True to be saved as Gemma 2, got False"),
        ("llama", {"windows": 1}, "windows must be larger than 1 to be saved without causality"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*transformers before version 5 does not read is_causal")
def test_what_transformers_cannot_express(builder, options, message, tmp_path):
    sizes = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 16, "head_dim": 4}
    model = getattr(models, builder)(11, causal=False, pad_id=0, **sizes, **options)
    with pytest.raises(ValueError, match=message) as caught:
        save_huggingface(model, tmp_path)
    assert "\n" not in str(caught.value)


def test_older_versions_of_transformers_read_a_causal_llama(tmp_path):
    sizes = {"dim": 8, "num_layers": 1, "num_heads": 2, "intermediate_dim": 16}
    with pytest.warns(UserWarning, match="before version 5 does not read is_causal"):
        save_huggingface(models.llama(11, causal=False, pad_id=-1, **sizes), tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["is_causal"] is False


def test_the_sizes_of_embedding_gemma():
    """308 million with the two dense layers of its head, as the model card says."""
    from keras_tfm.models.decoders.gemma import SIZES
    from keras_tfm.models.without_storage import without_storage

    with without_storage():
        model = models.gemma(262144, **SIZES["embeddinggemma-300m"])
    assert round((model.count_params() + 2 * 768 * 3072) / 1e6) == 308
