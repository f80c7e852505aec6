"""Folders of images to text that are refused, older ones, and models that cannot be saved."""

import copy
import json

import numpy as np
import pytest
from families import small_model
from keras_weights import randomize
from safetensors.numpy import load_file, save_file
from saved_folders import OPTIONS, inputs_of

from keras_tfm.checkpoints import load_huggingface, save_huggingface, save_peft
from keras_tfm.models import enable_lora

NAME = "vision-encoder-decoder"
ROBERTA = {
    "encoder": {"model_type": "vit", "hidden_size": 10, "num_attention_heads": 5},
    "decoder": {
        "model_type": "roberta", "hidden_size": 14, "num_attention_heads": 7, "vocab_size": 31,
        "is_decoder": True, "add_cross_attention": True, "max_position_embeddings": 15,
    },
    "decoder_start_token_id": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("part", "fields", "error"),
    [
        (
            "encoder",
            {"model_type": "swin"},
            r"model_type of encoder must be one of \['vit',",
        ),
        ("decoder", {"model_type": "llama"}, r"model_type of decoder must be one of \['gpt2',"),
        ("decoder", {"add_cross_attention": False}, "add_cross_attention must be True, got False"),
        ("decoder", {"is_decoder": False}, "is_decoder must be True, got False"),
        ("decoder", {"cross_attention_hidden_size": 7}, "cross_attention_hidden_size must be None"),
        (None, {"decoder": "bert"}, "decoder must be a dictionary, got 'bert'"),
        (None, {"decoder_start_token_id": 1}, "decoder_start_token_id must be another id than 1"),
        (None, {"decoder_start_token_id": [3]}, "decoder_start_token_id must be one id"),
        (None, {"decoder_start_token_id": 31}, "decoder_start_token_id must be an id from 0 to 30"),
    ],
)
def test_a_folder_that_is_refused(part, fields, error, tmp_path):
    """In one line, without reading a tensor."""
    config = {"model_type": "vision-encoder-decoder", **copy.deepcopy(ROBERTA)}
    (config[part] if part else config).update(fields)
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=f"^.*{error}.*$"):
        load_huggingface(tmp_path)


def test_a_folder_of_version_4(tmp_path):
    """With causal masks and the output, but without the encoder's pooler."""
    model = randomize(small_model(NAME, **OPTIONS[f"{NAME}, GPT-2"]), seed=3)
    save_huggingface(model, tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = {x: y for x, y in load_file(file).items() if "pooler" not in x}
    for part in ("attn", "crossattention"):
        tensors[f"decoder.transformer.h.0.{part}.bias"] = np.ones((1, 1, 12, 12), "uint8")
        tensors[f"decoder.transformer.h.0.{part}.masked_bias"] = np.array(-1e4, "float32")
    tensors["decoder.lm_head.weight"] = tensors["decoder.transformer.wte.weight"]
    save_file(tensors, file)
    inputs = inputs_of(model)
    np.testing.assert_array_equal(load_huggingface(tmp_path)(inputs), model(inputs))


@pytest.mark.parametrize(
    ("case", "options", "error"),
    [
        ("GPT-2", {"embedding_norm": True}, "embedding_norm must be False to be saved as GPT-2"),
        (
            "GPT-2",
            {"image_projection": False},
            "image_projection must be True to be saved as a decoder",
        ),
        ("BERT", {"num_segments": 0}, "num_segments must be at least 1 to be saved as BERT"),
        ("BERT", {"head_activation": "gelu"}, "head_activation must be relu to be saved as BERT"),
        ("RoBERTa", {"position_offset": 2}, "position_offset must be 0 or 1 to be saved as BERT"),
        ("TrOCR of one width", {"position_offset": 0}, "position_offset must be 2 to be saved"),
        ("TrOCR of one width", {"image_projection": True}, "image_projection must be False to be"),
    ],
)
def test_a_model_that_transformers_lacks(case, options, error, tmp_path):
    model = small_model(NAME, **{**OPTIONS[f"{NAME}, {case}"], **options})
    with pytest.raises(ValueError, match=error):
        save_huggingface(model, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize(
    ("case", "module"), [("BERT", "decoder.cls.predictions"), ("RoBERTa", "decoder.lm_head")]
)
def test_adapters_of_a_decoder_with_a_head(case, module, tmp_path):
    """The head is trained, and saved as one module of the decoder."""
    model = small_model(NAME, **OPTIONS[f"{NAME}, {case}"])
    save_huggingface(model, tmp_path / "base")
    enable_lora(model, rank=2)
    for i, weight in enumerate(model.trainable_weights):
        weight.assign(weight + np.random.default_rng(i).normal(size=weight.shape) / 4)
    save_peft(model, tmp_path / "adapters", tmp_path / "base")
    fields = json.loads((tmp_path / "adapters/adapter_config.json").read_text())
    assert fields["modules_to_save"] == [module]
    again = load_huggingface(tmp_path / "base", peft=tmp_path / "adapters")
    inputs = inputs_of(model)
    np.testing.assert_allclose(again(inputs), model(inputs), atol=1e-5)  # float32


def test_an_argument_of_the_encoder_that_it_lacks():
    with pytest.raises(ValueError, match=r"image= must have arguments among .*, got 'pooler'"):
        small_model(NAME, image={"pooler": True})
