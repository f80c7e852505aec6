"""Checkpoints of Cohere and Cohere 2: tensor names, configuration and heads."""

from functools import partial

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name
from keras_tfm.checkpoints.decoders.decoder_fields import (
    FULL,
    SLIDING,
    Windows,
    architectures,
    check_heads,
    check_saved,
    read_windows,
    window_of,
)
from keras_tfm.checkpoints.decoders.llama import NAMES, shared_arguments, shared_fields
from keras_tfm.checkpoints.decoders.llama import table as llama_table
from keras_tfm.checkpoints.decoders.rope import read_rope, rope_fields
from keras_tfm.checkpoints.family import Family
from keras_tfm.checkpoints.names import Named
from keras_tfm.checkpoints.rows import Row

# Values of fields that are missing in `config.json`.
_DEFAULTS: Arguments = {
    "vocab_size": 256000, "hidden_size": 8192, "num_hidden_layers": 40, "num_attention_heads": 64,
    "intermediate_size": 22528, "num_key_value_heads": None, "head_dim": None,
    "max_position_embeddings": 8192, "tie_word_embeddings": True,
}  # fmt: skip
_WINDOW, _PATTERN = 4096, 4
# The base of rotary positions that no field names: `default_theta` in transformers.
_THETAS = {"cohere": 500000.0, "cohere2": 10000.0}


def _table(model: models.Model) -> tuple[Row, ...]:
    """Llama's, with a layer normalisation before both sublayers."""
    return (
        *(row for row in llama_table(model) if "norm/" not in row.weight),
        Row(
            "decoder_{i}/self_attention_residual/norm/gamma", ("layers.{i}.input_layernorm.weight",)
        ),
        Row("decoder_norm/gamma", ("norm.weight",)),
    )


def _windows(config: Config, num_layers: int) -> Windows:
    """The window of each block, from `layer_types` or `sliding_window_pattern`."""
    window = config.integer("sliding_window", None)
    if "sliding_window" not in config.fields:
        window = _WINDOW
    kinds = config.fields.get("layer_types")
    if kinds is None:
        pattern = config.integer("sliding_window_pattern", _PATTERN)
        kinds = [SLIDING if (i + 1) % pattern else FULL for i in range(num_layers)]
    return read_windows(config, kinds, num_layers, window)


def _arguments(config: Config, named: Named, model_type: str) -> Arguments:
    config.only(use_qk_norm=False)
    arguments = shared_arguments(config, named, _DEFAULTS)
    del arguments["rms_norm_epsilon"]
    dim, heads = arguments["dim"], arguments["num_heads"]
    if arguments.pop("head_dim") not in (None, dim // heads):
        config.refuse(
            "head_dim", config.fields["head_dim"], f"hidden_size / heads ({dim // heads})"
        )
    is_second = model_type == "cohere2"
    return {
        **arguments,
        "activation": config.activation("hidden_act", "silu"),
        "layer_norm_epsilon": config.number("layer_norm_eps", 1e-5),
        **read_rope(config, _THETAS[model_type]),
        "windows": _windows(config, arguments["num_layers"]) if is_second else None,
        "global_rotary": not is_second,
        "logit_scale": config.number("logit_scale", 0.0625),
    }


def _fields(model: models.Model, architecture: str, model_type: str) -> Fields:
    given = model.arguments
    check_heads(model, model_type)
    fields = {
        "pad_token_id": None,
        **shared_fields(model, architecture),
        "hidden_act": activation_name(given["activation"]),
        "layer_norm_eps": given["layer_norm_epsilon"],
        **rope_fields(model),
        "logit_scale": given["logit_scale"],
    }
    del fields["rms_norm_eps"], fields["head_dim"]
    if model_type == "cohere":
        check_saved(model, model_type, windows=None)
        return fields
    window, each = window_of(model)
    return {
        **fields,
        "sliding_window": window or _WINDOW,
        "layer_types": [FULL if x is None else SLIDING for x in each],
    }


def _family(model_type: str, name: str, global_rotary: bool) -> Family:
    return Family(
        model_type=model_type,
        builder=models.cohere,
        table=_table,
        arguments=partial(_arguments, model_type=model_type),
        fields=partial(_fields, model_type=model_type),
        architectures=architectures(None, f"{name}ForCausalLM", f"{name}Model"),
        is_of=lambda model: model.arguments["global_rotary"] is global_rotary,
        names=NAMES,
        base=f"{name}Model",
    )


COHERE2 = _family("cohere2", "Cohere2", False)
COHERE = _family("cohere", "Cohere", True)
