"""Checkpoints of ERNIE 4.5: tensor names, configuration and heads."""

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name
from keras_tfm.checkpoints.decoders.decoder_fields import architectures, check_saved
from keras_tfm.checkpoints.decoders.llama import NAMES, shared_arguments, shared_fields, table
from keras_tfm.checkpoints.decoders.rope import read_rope, rope_fields
from keras_tfm.checkpoints.family import Family
from keras_tfm.checkpoints.names import Named

# Values of fields that are missing in `config.json`.
_DEFAULTS: Arguments = {
    "vocab_size": 103424, "hidden_size": 1024, "num_hidden_layers": 18, "num_attention_heads": 16,
    "intermediate_size": 3072, "num_key_value_heads": 2, "head_dim": 128, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072, "tie_word_embeddings": True,
}  # fmt: skip
_THETA = 500000.0
# Fields of Llama that ERNIE does not have.
_OTHERS = ("attention_bias", "attention_dropout")


def _arguments(config: Config, named: Named) -> Arguments:
    arguments = shared_arguments(config, named, _DEFAULTS)
    for name in _OTHERS:
        del arguments[name]
    bias = config.flag("use_bias", False)
    return {
        **arguments,
        "activation": config.activation("hidden_act", "silu"),
        **read_rope(config, _THETA),
        "interleaved": True,
        "attention_bias": bias,
        "feed_forward_bias": bias,
    }


def _fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    bias = given["feed_forward_bias"]
    check_saved(
        model, "ernie4_5", attention_bias=bias, attention_dropout=0.0, causal=True,
        query_beta=None, query_key_norm=False, windows=None,
    )  # fmt: skip
    fields = {
        **shared_fields(model, architecture),
        "hidden_act": activation_name(given["activation"]),
        **rope_fields(model),
        "use_bias": bias,
    }
    for name in _OTHERS:
        del fields[name]
    return fields


ERNIE4_5 = Family(
    model_type="ernie4_5",
    builder=models.llama,
    table=table,
    arguments=_arguments,
    fields=_fields,
    architectures=architectures(None, "Ernie4_5ForCausalLM", "Ernie4_5Model"),
    is_of=lambda model: bool(model.arguments.get("interleaved")),
    names=NAMES,
    base="Ernie4_5Model",
)
