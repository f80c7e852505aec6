"""Checkpoints of Llama, Mistral, Qwen2 and Qwen3: tensor names, configuration and heads."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
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
    classifier_fields,
    classifier_rows,
    is_tied,
    read_pad_id,
    read_windows,
    window_of,
)
from keras_tfm.checkpoints.decoders.rope import read_rope, rope_fields
from keras_tfm.checkpoints.family import Family
from keras_tfm.checkpoints.names import Named, Names
from keras_tfm.checkpoints.rows import Row, dense, rms_norm
from keras_tfm.layers.embeddings.token_mask import NO_TOKEN
from keras_tfm.models.decoders.causal_decoder import each_window

_QKV = ["query", "key", "value"]
# Values of fields that are missing in `config.json`.
LLAMA_DEFAULTS: Arguments = {
    "vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "intermediate_size": 11008, "num_key_value_heads": None, "head_dim": None,
    "max_position_embeddings": 2048, "tie_word_embeddings": False,
}  # fmt: skip
_QWEN = {
    **LLAMA_DEFAULTS, "vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
}  # fmt: skip
_DEFAULTS = {
    "llama": LLAMA_DEFAULTS,
    "mistral": {
        **LLAMA_DEFAULTS, "intermediate_size": 14336, "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
    },
    "ministral": {
        **LLAMA_DEFAULTS, "intermediate_size": 14336, "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
    },
    "arcee": {
        **LLAMA_DEFAULTS, "hidden_size": 2560, "intermediate_size": 18432,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
    },
    "qwen2": _QWEN,
    "qwen3": {**_QWEN, "head_dim": 128},
}  # fmt: skip
_WINDOW = 4096  # if the field is missing
NAMES = Names(
    prefix="model.",
    aliases={"lm_head.weight": "embed_tokens.weight"},
    ignored=(r".*rotary_emb\.inv_freq",),
    renamed={r"^transformer\.": ""},
)
# Of classes for question answering, which keep the name that they had first.
OLD_PREFIX = "transformer."
# In folders that also read images, the names of the language model begin with
# "language_model.model." (version 4 of transformers) or "model.language_model." (version 5).
PART_NAMES = replace(
    NAMES,
    ignored=(
        *NAMES.ignored,
        r"((vision|audio)_tower|multi_modal_projector|embed_(vision|audio))\..*",
    ),
    renamed={**NAMES.renamed, r"^language_model\.(model\.)?": ""},
)


def table(model: models.Model, offset: float = 0.0, post_norm: bool = False) -> tuple[Row, ...]:
    """The table of Llama and Gemma.

    Args:
        model: the model.
        offset: float, difference between a norm's scale and its tensor, see `rows.rms_norm`.
        post_norm: bool, whether the output of each sublayer is normalised too.
    """
    given = model.arguments
    layer, path = "layers.{i}", "decoder_{i}"
    heads, groups = given["num_heads"], given["num_key_value_heads"] or given["num_heads"]
    width = given.get("head_dim") or given["dim"] // heads
    attention = f"{layer}.self_attn"
    inner = ("gate", "up") if given.get("gated", True) else ("up",)
    parts = tuple(f"{attention}.{x}_proj" for x in "qkv")
    widths = (heads * width, groups * width, groups * width)
    norms = {
        "self_attention/query_norm": f"{attention}.q_norm",
        "self_attention/key_norm": f"{attention}.k_norm",
        "self_attention_residual/norm": f"{layer}.input_layernorm",
        "feed_forward_residual/norm": f"{layer}.post_attention_layernorm",
    }
    if post_norm:
        norms |= {
            "self_attention_residual/output_norm": f"{layer}.post_attention_layernorm",
            "feed_forward_residual/norm": f"{layer}.pre_feedforward_layernorm",
            "feed_forward_residual/output_norm": f"{layer}.post_feedforward_layernorm",
        }
    return (
        Row("embedding/embeddings", ("embed_tokens.weight",)),
        *dense(f"{path}/self_attention/query_key_value", *parts, widths=widths),
        *dense(f"{path}/self_attention/output_projection", f"{attention}.o_proj"),
        *dense(f"{path}/feed_forward/inner", *(f"{layer}.mlp.{x}_proj" for x in inner)),
        *dense(f"{path}/feed_forward/outer", f"{layer}.mlp.down_proj"),
        *(row for x, name in norms.items() for row in rms_norm(f"{path}/{x}", name, offset)),
        *rms_norm("decoder_norm", "norm", offset),
        *dense("output", "lm_head", bias=False, head=True),
        *classifier_rows(model, "score"),
    )


def shared_arguments(
    config: Config, named: Named, defaults: Arguments, is_causal: bool = True
) -> Arguments:
    """The builder's arguments that Llama and Gemma have in common.

    Args:
        config, named: the configuration and the tensors' names.
        defaults: values of fields that are missing in `config.json`.
        is_causal: bool, the supported value of the field.
    """
    config.only(is_causal=is_causal)
    heads = config.integer("num_attention_heads", defaults["num_attention_heads"])
    groups = defaults["num_key_value_heads"] or heads
    if "num_key_value_heads" in config.fields:  # null: as many
        groups = heads
    # null: hidden_size / heads
    head_dim = None if "head_dim" in config.fields else defaults["head_dim"]
    tied = defaults["tie_word_embeddings"]
    return {
        "vocabulary_size": config.integer("vocab_size", defaults["vocab_size"]),
        "dim": config.integer("hidden_size", defaults["hidden_size"]),
        "num_layers": config.integer(
            "num_hidden_layers", defaults["num_hidden_layers"], maximum=1000
        ),
        "num_heads": heads,
        "intermediate_dim": config.integer("intermediate_size", defaults["intermediate_size"]),
        "num_key_value_heads": config.integer("num_key_value_heads", groups),
        "head_dim": config.integer("head_dim", head_dim),
        "rms_norm_epsilon": config.number("rms_norm_eps", defaults.get("rms_norm_eps", 1e-6)),
        "attention_bias": config.flag("attention_bias", False),
        "attention_dropout": config.number("attention_dropout", 0.0, 1),
        "tie_output": is_tied(config, named, tied, "embed_tokens.weight"),
        "max_length": config.integer(
            "max_position_embeddings", defaults["max_position_embeddings"]
        ),
    }


def shared_fields(model: models.Model, architecture: str) -> Fields:
    """The fields of `config.json` that Llama and Gemma have in common."""
    given = model.arguments
    heads = given["num_heads"]
    padding: Fields = {}
    if not given.get("causal", True):
        padding["pad_token_id"] = None if given["pad_id"] == NO_TOKEN else given["pad_id"]
    return {
        **padding,
        "vocab_size": given["vocabulary_size"],
        "hidden_size": given["dim"],
        "num_hidden_layers": given["num_layers"],
        "num_attention_heads": heads,
        "intermediate_size": given["intermediate_dim"],
        "num_key_value_heads": given["num_key_value_heads"] or heads,
        "head_dim": given.get("head_dim") or given["dim"] // heads,
        "rms_norm_eps": given.get("rms_norm_epsilon"),
        "attention_bias": given.get("attention_bias") is True,
        "attention_dropout": given.get("attention_dropout", 0.0),
        "tie_word_embeddings": given["tie_output"],
        "max_position_embeddings": given["max_length"],
        **classifier_fields(model, architecture),
    }


def _windows(config: Config, num_layers: int, causal: bool) -> Windows:
    """The window of each block: one for all of Mistral's, by `layer_types` those of Qwen.

    Without causality, transformers counts the tokens on each side, without the token itself.
    """
    model_type = config.text("model_type", None)
    if model_type in ("llama", "arcee"):
        return None  # whatever the fields of the others say
    missing = "sliding_window" not in config.fields  # null is no window
    window = _WINDOW if missing else config.integer("sliding_window", None)
    if window is not None and not causal:
        window += 1
    if model_type == "mistral":
        return window
    if model_type == "ministral":
        kinds = config.fields.get("layer_types")
        kinds = [FULL if window is None else SLIDING] * num_layers if kinds is None else kinds
        return each_window(read_windows(config, kinds, num_layers, window), num_layers)
    if window is None or not config.flag("use_sliding_window", False):
        return None
    kinds = config.fields.get("layer_types")
    if kinds is None:  # older files
        first = config.integer("max_window_layers", 28, minimum=0)
        kinds = [FULL if i < first else SLIDING for i in range(num_layers)]
    return read_windows(config, kinds, num_layers, window)


def _arguments(config: Config, named: Named, bias: bool | Sequence[str] | None) -> Arguments:
    model_type = config.fields["model_type"]
    is_arcee = model_type == "arcee"
    causal = is_arcee or config.flag("is_causal", True)
    arguments = shared_arguments(config, named, _DEFAULTS[model_type], is_causal=causal)
    return {
        **arguments,
        "causal": causal,
        "activation": config.activation("hidden_act", "relu2" if is_arcee else "silu"),
        "gated": not is_arcee,
        **read_rope(config),
        "windows": _windows(config, arguments["num_layers"], causal),
        "attention_bias": arguments["attention_bias"] if bias is None else bias,
        "feed_forward_bias": model_type in ("llama", "arcee") and config.flag("mlp_bias", False),
        "query_key_norm": model_type == "qwen3",
        "pad_id": read_pad_id(config, named, causal=causal),
    }


def _fields(model: models.Model, architecture: str, model_type: str) -> Fields:
    given = model.arguments
    if model_type in ("llama", "arcee"):
        check_heads(model, model_type)
    else:
        check_saved(model, model_type, feed_forward_bias=False)
    if model_type in ("mistral", "ministral"):
        check_saved(model, model_type, attention_bias=False)
    if model_type == "arcee":
        check_saved(
            model, model_type, attention_bias=(True, False), causal=True, interleaved=False,
            query_beta=None,
            query_key_norm=False, windows=None,
        )  # fmt: skip
    check_saved(model, model_type, gated=model_type != "arcee", model_type=None)
    window, each = window_of(model)
    if not given["causal"]:
        warnings.warn(
            f"{model.name}: transformers before version 5 does not read is_causal, so it will read "
            "a causal model",
            stacklevel=2,
        )
        if window == 1:
            raise ValueError(
                f"{model.name}: windows must be larger than 1 to be saved without causality, since "
                f"transformers has no window of the token itself, got {each}"
            )
        window = None if window is None else window - 1
    fields = {
        **shared_fields(model, architecture),
        "hidden_act": activation_name(given["activation"]),
        **rope_fields(model),
        "sliding_window": window,
        "mlp_bias": given["feed_forward_bias"],
    }
    if not given["causal"]:
        fields["is_causal"] = False
    if model_type == "ministral":
        # transformers makes the mask of a window, whether or not a block has one.
        fields["sliding_window"] = window or _WINDOW
        fields["layer_types"] = [FULL if x is None else SLIDING for x in each]
    elif (window is not None and None in each) or _is_qwen(model):
        fields["layer_types"] = [FULL if x is None else SLIDING for x in each]
        fields["use_sliding_window"] = window is not None
    return fields


def _bias_names(model: models.Model) -> bool | list[str]:
    bias = model.arguments["attention_bias"]
    return sorted(bias) if not isinstance(bias, bool) else bias


def _is_qwen(model: models.Model) -> bool:
    return model.arguments["query_key_norm"] or _bias_names(model) == sorted(_QKV)


def _family(
    model_type: str,
    name: str,
    is_of: Callable[[models.Model], bool],
    bias: bool | Sequence[str] | None = None,
) -> Family:
    return Family(
        model_type=model_type,
        builder=models.llama,
        table=table,
        arguments=partial(_arguments, bias=bias),
        fields=partial(_fields, model_type=model_type),
        architectures=architectures(
            name,
            classifies_tokens=True,
            answers=NAMES.prefix if model_type == "mistral" else OLD_PREFIX,
        ),
        is_of=is_of,
        names=PART_NAMES if model_type == "mistral" else NAMES,
    )


QWEN3 = _family("qwen3", "Qwen3", lambda model: model.arguments["query_key_norm"])
QWEN2 = _family("qwen2", "Qwen2", lambda model: _bias_names(model) == sorted(_QKV), _QKV)
MINISTRAL = _family(
    "ministral",
    "Ministral",
    lambda model: not isinstance(model.arguments["windows"], int | None),
    False,
)
MISTRAL = _family("mistral", "Mistral", lambda model: model.arguments["windows"] is not None, False)
ARCEE = _family("arcee", "Arcee", lambda model: not model.arguments.get("gated", True))
LLAMA = _family("llama", "Llama", lambda model: isinstance(_bias_names(model), bool))
