"""Checkpoints of Ministral 3: tensor names, configuration and heads."""

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name
from keras_tfm.checkpoints.decoders import llama
from keras_tfm.checkpoints.decoders.decoder_fields import (
    architectures,
    check_saved,
    read_pad_id,
    window_of,
)
from keras_tfm.checkpoints.decoders.rope import read_rope, rope_fields
from keras_tfm.checkpoints.family import Family
from keras_tfm.checkpoints.names import Named

# Values of fields that are missing in `config.json`.
_DEFAULTS: Arguments = {
    "vocab_size": 131072, "hidden_size": 4096, "num_hidden_layers": 34, "num_attention_heads": 32,
    "intermediate_size": 14336, "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 262144, "tie_word_embeddings": False,
}  # fmt: skip
_BETA = "llama_4_scaling_beta"
_ROPE = {
    "rope_type": "yarn", "rope_theta": 1000000.0, "factor": 16.0,
    "original_max_position_embeddings": 16384, "beta_fast": 32.0, "beta_slow": 1.0,
    "mscale_all_dim": 1.0, "mscale": 1.0, _BETA: 0.1,
}  # fmt: skip
_PAD_ID = 11


def _rope(config: Config) -> Arguments:
    """Rotary positions, and the factor of the queries, which is in the same dictionary."""
    fields = config.fields
    name = "rope_scaling" if fields.get("rope_scaling") else "rope_parameters"
    rope = _ROPE if fields.get(name) is None else fields[name]
    beta = 0.0
    if isinstance(rope, dict):
        # The number of positions is read beside the dictionary.
        others = (_BETA, "max_position_embeddings")
        beta = Config.of(config.file, rope).number(_BETA, 0.0)
        rope = {key: x for key, x in rope.items() if key not in others}
    found = read_rope(Config.of(config.file, {**fields, name: rope}))
    if beta and not hasattr(found["rope_scaling"], "original_length"):
        config.refuse(_BETA, beta, "0 without yarn or another rope_type of a length in training")
    return {**found, "query_beta": beta}


def _arguments(config: Config, named: Named) -> Arguments:
    arguments = llama.shared_arguments(config, named, _DEFAULTS)
    del arguments["attention_bias"]  # which transformers does not read
    return {
        **arguments,
        "activation": config.activation("hidden_act", "silu"),
        **_rope(config),
        "windows": config.integer("sliding_window", None),
        "pad_id": read_pad_id(config, named, _PAD_ID),
    }


def _fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    check_saved(
        model, "ministral3", attention_bias=False, feed_forward_bias=False, causal=True,
        gated=True, model_type=None, query_key_norm=False, interleaved=False,
    )  # fmt: skip
    window, each = window_of(model)
    if window is not None and None in each:
        raise ValueError(
            f"{model.name}: all windows must be equal to be saved as ministral3, got {each}"
        )
    fields = {
        "pad_token_id": None,  # the default, 11, must be in the vocabulary; a classifier's is
        **llama.shared_fields(model, architecture),
        "hidden_act": activation_name(given["activation"]),
        **rope_fields(model),
        "sliding_window": window,
    }
    del fields["attention_bias"]
    for name in {"rope_parameters", "rope_scaling"} & fields.keys():
        fields[name] = {**fields[name], _BETA: given["query_beta"]}
    return fields


MINISTRAL3 = Family(
    model_type="ministral3",
    builder=models.llama,
    table=llama.table,
    arguments=_arguments,
    fields=_fields,
    architectures=architectures("Ministral3", classifies_tokens=True, answers=llama.NAMES.prefix),
    is_of=lambda model: model.arguments.get("query_beta") is not None,
    names=llama.PART_NAMES,
)
