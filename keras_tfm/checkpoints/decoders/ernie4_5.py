"""Checkpoints of ERNIE 4.5 and Helium: tensor names, configuration and heads."""

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name
from keras_tfm.checkpoints.decoders import llama
from keras_tfm.checkpoints.decoders.decoder_fields import architectures, check_saved, read_pad_id
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
    arguments = llama.shared_arguments(config, named, _DEFAULTS)
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
        query_beta=None, query_key_norm=False, windows=None, gated=True, model_type=None,
    )  # fmt: skip
    fields = {
        **llama.shared_fields(model, architecture),
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
    table=llama.table,
    arguments=_arguments,
    fields=_fields,
    architectures=architectures("Ernie4_5", classifies_texts=False),
    is_of=lambda model: bool(model.arguments.get("interleaved")),
    names=llama.NAMES,
)


_HELIUM_DEFAULTS: Arguments = {
    "vocab_size": 48000, "hidden_size": 2560, "num_hidden_layers": 24, "num_attention_heads": 20,
    "intermediate_size": 7040, "num_key_value_heads": 20, "head_dim": 128, "rms_norm_eps": 1e-8,
    "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
_HELIUM_THETA, _PAD_ID = 100000.0, 3
_QKV = ["query", "key", "value"]


def _helium_arguments(config: Config, named: Named) -> Arguments:
    arguments = llama.shared_arguments(config, named, _HELIUM_DEFAULTS)
    dim, heads = arguments["dim"], arguments["num_heads"]
    if arguments["head_dim"] is not None and heads * arguments["head_dim"] != dim:
        config.refuse("head_dim", arguments["head_dim"], f"hidden_size / heads ({dim} / {heads})")
    return {
        **arguments,
        "activation": config.activation("hidden_act", "silu"),
        **read_rope(config, _HELIUM_THETA),
        "interleaved": True,
        "attention_bias": _QKV if arguments["attention_bias"] else False,
        "feed_forward_bias": config.flag("mlp_bias", False),
        "model_type": "helium",
        "pad_id": read_pad_id(config, named, _PAD_ID),
    }


def _helium_fields(model: models.Model, architecture: str) -> Fields:
    given = model.arguments
    check_saved(
        model, "helium", attention_bias=(False, _QKV), causal=True, gated=True, interleaved=True,
        query_beta=None, query_key_norm=False, windows=None,
        head_dim=(None, given["dim"] // given["num_heads"]),
    )  # fmt: skip
    return {
        "pad_token_id": None,  # the default must be in the vocabulary; a classifier's is
        **llama.shared_fields(model, architecture),
        "hidden_act": activation_name(given["activation"]),
        **rope_fields(model),
        "attention_bias": bool(given["attention_bias"]),
        "mlp_bias": given["feed_forward_bias"],
    }


HELIUM = Family(
    model_type="helium",
    builder=models.llama,
    table=llama.table,
    arguments=_helium_arguments,
    fields=_helium_fields,
    architectures=architectures("Helium", classifies_tokens=True),
    is_of=lambda model: model.arguments.get("model_type") == "helium",
    names=llama.NAMES,
)
