"""Defaults and other names of fields, as the configuration classes of transformers have them."""

import json

import pytest

from keras_tfm.checkpoints.config import Config
from keras_tfm.checkpoints.huggingface import FAMILIES
from keras_tfm.checkpoints.names import Named

transformers = pytest.importorskip("transformers")
# Ids for `generate`, labels without names, and None for what another argument gives.
NOT_COMPARED = {
    "whisper": {"start_id", "pad_id", "end_id", "suppressed_first_ids"},
    "detr": {"labels"},
    **{key: {"num_decoder_layers"} for key in ("t5", "mt5", "umt5")},
    "llama": {"head_dim"},
    "mistral": {"head_dim"},
    "nemotron": {"head_dim"},
    "arcee": {"head_dim"},
    "nomic_bert": {"head_dim"},
    "eurobert": {"head_dim"},
    "gte": {"head_dim"},
    "idefics3": {"head_dim"},
    "smolvlm": {"head_dim"},
}


def arguments_of(tmp_path, model_type, fields):
    (tmp_path / "config.json").write_text(json.dumps(fields))
    family, config = FAMILIES[model_type], Config(tmp_path)
    config.rename(family.aliases)
    found = family.arguments(config, Named({}, family.names))
    left_out = NOT_COMPARED.get(model_type, ())
    return {name: str(x) for name, x in found.items() if name not in left_out}


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_missing_field_has_the_default_of_its_class(model_type, tmp_path):
    cls = transformers.CONFIG_MAPPING[model_type]
    fields = json.loads(cls().to_json_string(use_diff=False))
    expected = arguments_of(tmp_path, model_type, fields)
    assert arguments_of(tmp_path, model_type, {"model_type": model_type}) == expected


@pytest.mark.parametrize("model_type", FAMILIES)
def test_other_names_of_fields_are_those_of_the_class(model_type):
    aliases = dict(transformers.CONFIG_MAPPING[model_type].attribute_map)
    assert dict(FAMILIES[model_type].aliases) == aliases


@pytest.mark.parametrize("model_type", ["t5gemma", "t5gemma2"])
def test_an_activation_that_both_stacks_must_share_is_named(model_type, tmp_path):
    fields = json.loads(transformers.CONFIG_MAPPING[model_type]().to_json_string(use_diff=False))
    fields["decoder"]["hidden_activation"] = "relu"
    message = "decoder.hidden_activation .*that of the encoder, gelu_[a-z_]*, got 'relu'$"
    with pytest.raises(ValueError, match=message):
        arguments_of(tmp_path, model_type, fields)


def test_a_field_counts_under_its_other_name(tmp_path):
    """As in transformers, which reads it after the field itself."""
    fields = {"model_type": "gpt2", "n_head": 12, "num_attention_heads": 6}
    assert arguments_of(tmp_path, "gpt2", fields)["num_heads"] == "6"


def test_a_window_is_read_only_of_blocks_that_have_one(tmp_path):
    """`transformers` writes -1 for the decoder of ModernBERT without them."""
    fields = {"num_hidden_layers": 2, "local_attention": None}
    config = transformers.ModernBertDecoderConfig(**fields, layer_types=["full_attention"] * 2)
    assert config.to_dict()["sliding_window"] == -1
    found = arguments_of(tmp_path, "modernbert-decoder", config.to_dict())
    assert found["windows"] == "None"
    fields = {**config.to_dict(), "layer_types": ["sliding_attention"] * 2, "local_attention": 6}
    with pytest.raises(ValueError, match=r"sliding_window must be an integer from 1 .* got -1"):
        arguments_of(tmp_path, "modernbert-decoder", fields)
    found = arguments_of(tmp_path, "modernbert-decoder", {**fields, "sliding_window": 3})
    assert found["windows"] == "3"


@pytest.mark.parametrize(
    "model_type", ["qwen3", "gemma2", "cohere2", "olmo3", "smollm3", "exaone4"]
)
def test_layer_types_are_one_for_each_block(model_type, tmp_path):
    """Also where all are equal, which is one window for all blocks."""
    fields = {
        "model_type": model_type, "num_hidden_layers": 3, "use_sliding_window": True,
        "sliding_window": 5, "layer_types": ["sliding_attention"] * 3,
    }  # fmt: skip
    assert arguments_of(tmp_path, model_type, fields)["windows"] == "5"
    with pytest.raises(ValueError, match="layer_types must be 3 of full_attention and sliding"):
        arguments_of(tmp_path, model_type, {**fields, "layer_types": ["sliding_attention"]})
    if model_type != "qwen3":  # of which null is no window
        with pytest.raises(ValueError, match="sliding_window must be an integer"):
            arguments_of(tmp_path, model_type, {**fields, "sliding_window": None})
