"""TrOCR, and ViT with GPT-2, BERT or RoBERTa, beside transformers: logits and tokens."""

import json

import numpy as np
import pytest
from compare import assert_close, to_numpy
from live_transformers import made

from keras_tfm.checkpoints import (
    load_generation_config,
    save_huggingface,
)
from keras_tfm.generation import generate

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

MODEL = "VisionEncoderDecoderModel"
VIT = {
    "model_type": "vit", "hidden_size": 10, "num_attention_heads": 5, "num_hidden_layers": 2,
    "intermediate_size": 7, "image_size": [10, 15], "patch_size": 5, "qkv_bias": False,
}  # fmt: skip
DEIT = {**VIT, "model_type": "deit", "hidden_size": 6, "num_attention_heads": 2, "qkv_bias": True}
SIZES = {"vocab_size": 31, "is_decoder": True, "add_cross_attention": True}
TROCR = {
    **SIZES, "model_type": "trocr", "d_model": 14, "decoder_attention_heads": 7,
    "decoder_layers": 2, "decoder_ffn_dim": 11, "max_position_embeddings": 13,
    "cross_attention_hidden_size": 6, "activation_function": "gelu_new",
}  # fmt: skip
BERT = {
    **SIZES, "model_type": "bert", "hidden_size": 14, "num_attention_heads": 7,
    "num_hidden_layers": 2, "intermediate_size": 11, "max_position_embeddings": 13,
    "type_vocab_size": 3, "hidden_act": "gelu_new",
}  # fmt: skip
OPTIONS = {
    "trocr": {"encoder": DEIT, "decoder": TROCR},
    "trocr, sinusoids": {
        "encoder": VIT,
        "decoder": {
            **TROCR, "use_learned_position_embeddings": False, "layernorm_embedding": False,
            "scale_embedding": True, "tie_word_embeddings": False, "activation_function": "relu",
            "cross_attention_hidden_size": None,
        },
    },
    # All special tokens are one, as in nlpconnect/vit-gpt2-image-captioning.
    "gpt2": {
        "encoder": VIT,
        "decoder": {
            **SIZES, "model_type": "gpt2", "n_embd": 14, "n_head": 7, "n_layer": 2, "n_inner": 11,
            "n_positions": 13, "bos_token_id": 30, "eos_token_id": 30, "pad_token_id": 30,
            "layer_norm_epsilon": 1e-3,
        },
        "decoder_start_token_id": 30, "pad_token_id": 30,
    },
    "bert": {
        "encoder": {**VIT, "hidden_size": 14, "num_attention_heads": 2}, "decoder": BERT,
        "decoder_start_token_id": 5, "eos_token_id": 6, "pad_token_id": 1,
    },
    "roberta": {
        "encoder": VIT,
        "decoder": {**BERT, "model_type": "roberta", "max_position_embeddings": 15},
        "decoder_start_token_id": 0,
    },
}  # fmt: skip
# With which texts differ by picture, and have several tokens.
SEEDS = {"trocr": 8, "trocr, sinusoids": 8, "gpt2": 9, "bert": 10, "roberta": 1}
# float32, relative to the largest logit. Found: up to 7e-7.
CLOSE = 1e-5


@pytest.fixture(scope="module", params=OPTIONS)
def pair(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    theirs, ours = made(MODEL, OPTIONS[request.param], folder, SEEDS[request.param], shrunk=0.3)
    return theirs, ours, folder


def pixels():
    """Of three pictures, for our model and for transformers."""
    x = np.random.default_rng(1).integers(0, 256, (3, 10, 15, 3))
    return x.astype("float32"), torch.tensor(np.moveaxis(x / 127.5 - 1, -1, 1), dtype=torch.float)


def test_logits(pair):
    """In a full pass, also behind a token that is the padding id."""
    theirs, ours, _ = pair
    x, y = pixels()
    target = np.random.default_rng(2).integers(7, 30, (3, 9)).astype("int32")
    found = to_numpy(ours({"pixels": x, "target": target}))
    with torch.no_grad():
        wanted = theirs(y, decoder_input_ids=torch.from_numpy(target).long()).logits.numpy()
    assert_close(found, wanted, CLOSE)


@pytest.mark.parametrize("beams", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_generated_tokens(pair, beams):
    """With the ids of the folder, in `config.json` or in its decoder's part."""
    theirs, ours, folder = pair
    x, y = pixels()
    with torch.no_grad():
        wanted = theirs.generate(y, max_length=13, num_beams=beams, do_sample=False).numpy()
    (folder / "generation_config.json").unlink(missing_ok=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_beams": beams}))
    options = load_generation_config(folder)
    assert options["start_id"] == ours.arguments["start_id"]
    found = generate(ours, {"pixels": x}, **{**options, "max_length": 13}).tokens
    length = wanted.shape[1]
    np.testing.assert_array_equal(np.asarray(found)[:, :length], wanted)
    assert len(np.unique(wanted)) > 4 and len(np.unique(wanted, axis=0)) > 1


def test_saved_here_and_loaded_there(pair, tmp_path):
    """With all tensors that transformers knows, and the ids of `generate`."""
    from read_by_transformers import read

    theirs, ours, _ = pair
    save_huggingface(ours, tmp_path)
    again, (_, y) = read(tmp_path), pixels()
    with torch.no_grad():
        wanted, found = (m.generate(y, max_length=9).numpy() for m in (theirs, again))
    np.testing.assert_array_equal(found, wanted)
