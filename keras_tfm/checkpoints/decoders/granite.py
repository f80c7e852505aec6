"""Checkpoints of Granite: tensor names, configuration and heads."""

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name
from keras_tfm.checkpoints.decoders.decoder_fields import architectures
from keras_tfm.checkpoints.decoders.llama import NAMES, shared_arguments, shared_fields, table
from keras_tfm.checkpoints.decoders.rope import read_rope, rope_fields
from keras_tfm.checkpoints.family import Family
from keras_tfm.checkpoints.names import Named

# Values of fields that are missing in `config.json`.
_DEFAULTS: Arguments = {
    "vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "intermediate_size": 11008, "num_key_value_heads": None, "head_dim": None,
    "max_position_embeddings": 2048, "tie_word_embeddings": False,
}  # fmt: skip
FACTORS = (
    "embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling",
)  # fmt: skip


def _arguments(config: Config, named: Named) -> Arguments:
    return {
        **shared_arguments(config, named, _DEFAULTS),
        "activation": config.activation("hidden_act", "silu"),
        **read_rope(config),
        "feed_forward_bias": config.flag("mlp_bias", False),
        **{name: config.number(name, 1.0) for name in FACTORS},
    }


def _fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    return {
        **shared_fields(model, architecture),
        "hidden_act": activation_name(given["activation"]),
        **rope_fields(model),
        "mlp_bias": given["feed_forward_bias"],
        **{name: given[name] for name in FACTORS},
    }


GRANITE = Family(
    model_type="granite",
    builder=models.granite,
    table=table,
    arguments=_arguments,
    fields=_fields,
    architectures=architectures(None, "GraniteForCausalLM", "GraniteModel"),
    names=NAMES,
    base="GraniteModel",
)
