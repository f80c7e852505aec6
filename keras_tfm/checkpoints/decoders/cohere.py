"""Checkpoints of Cohere, Cohere 2, StableLM, Nemotron and OLMo: tensors, configuration and heads.

They have Llama's names of tensors, and layer normalisation.
"""

from functools import partial

from keras_tfm import models
from keras_tfm.checkpoints.config import Arguments, Config, Fields, activation_name
from keras_tfm.checkpoints.decoders import llama
from keras_tfm.checkpoints.decoders.decoder_fields import (
    FULL,
    SLIDING,
    Windows,
    architectures,
    check_heads,
    check_saved,
    read_pad_id,
    read_windows,
    window_of,
)
from keras_tfm.checkpoints.decoders.gpt_neox import PLAIN, type_of
from keras_tfm.checkpoints.decoders.rope import (
    partial_rope_fields,
    read_partial_rope,
    read_rope,
    rope_fields,
)
from keras_tfm.checkpoints.family import Family
from keras_tfm.checkpoints.names import Named
from keras_tfm.checkpoints.rows import Row
from keras_tfm.checkpoints.transforms import Joined, Offset, Reshaped, Same

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
        *(row for row in llama.table(model) if "norm/" not in row.weight),
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
    arguments = llama.shared_arguments(config, named, _DEFAULTS)
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
        **llama.shared_fields(model, architecture),
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
        architectures=architectures(name, classifies_texts=False),
        is_of=lambda model: model.arguments["global_rotary"] is global_rotary,
        names=llama.NAMES,
    )


COHERE2 = _family("cohere2", "Cohere2", False)
COHERE = _family("cohere", "Cohere", True)


# Of StableLM, Nemotron and OLMo, which have the builder of GPT-NeoX: values of fields that are
# missing, the part of a head that is rotated, and the name of a norm's epsilon.
_OF_NEOX: dict[str, Arguments] = {
    "stablelm": {
        "vocab_size": 50304, "hidden_size": 2560, "num_hidden_layers": 32,
        "num_attention_heads": 32, "intermediate_size": 6912, "num_key_value_heads": 32,
        "head_dim": None, "max_position_embeddings": 4096, "tie_word_embeddings": False,
    },
    "nemotron": {
        "vocab_size": 256000, "hidden_size": 6144, "num_hidden_layers": 32,
        "num_attention_heads": 48, "intermediate_size": 24576, "num_key_value_heads": None,
        "head_dim": None, "max_position_embeddings": 4096, "tie_word_embeddings": False,
    },
    "olmo": {**llama.LLAMA_DEFAULTS, "vocab_size": 50304},
}  # fmt: skip
_PARTS = {"stablelm": 0.25, "nemotron": 0.5}
_EPSILONS = {"stablelm": "layer_norm_eps", "nemotron": "norm_eps"}
_QKV = ["query", "key", "value"]


def _neox_table(model: models.Model) -> tuple[Row, ...]:
    """Llama's, with layer normalisations: 1 + w is the scale of Nemotron's."""
    given, path, layer = model.arguments, "decoder_{i}", "layers.{i}"
    heads, groups = given["num_heads"], given["num_key_value_heads"] or given["num_heads"]
    scale = Offset(1.0) if type_of(model) == "nemotron" else Same()
    norms = {
        f"{path}/self_attention_residual/norm": f"{layer}.input_layernorm",
        f"{path}/feed_forward_residual/norm": f"{layer}.post_attention_layernorm",
        "decoder_norm": "norm",
    }
    head_norms = {
        name: tuple(f"{layer}.self_attn.{name[0]}_layernorm.norms.{j}.weight" for j in range(count))
        for name, count in (("query_norm", heads), ("key_norm", groups))
    }
    return (
        *(row for row in llama.table(model) if "norm/" not in row.weight),
        *(Row(f"{weight}/gamma", (f"{x}.weight",), scale) for weight, x in norms.items()),
        *(Row(f"{weight}/beta", (f"{x}.bias",)) for weight, x in norms.items()),
        *(
            Row(
                f"{path}/self_attention/{name}/gamma",
                names,
                Joined(len(names), axis=0, each=Reshaped((-1,), (1, -1))),
            )
            for name, names in head_norms.items()
        ),
    )


def _neox_arguments(config: Config, named: Named, model_type: str) -> Arguments:
    arguments = llama.shared_arguments(config, named, _OF_NEOX[model_type])
    del arguments["rms_norm_epsilon"]
    width = arguments["dim"] // arguments["num_heads"]
    if model_type != "nemotron" and arguments["head_dim"] not in (None, width):
        config.refuse("head_dim", arguments["head_dim"], f"hidden_size / heads ({width})")
    head_dim = arguments["head_dim"] if model_type == "nemotron" else None
    arguments |= {"head_dim": head_dim, "parallel": False, "pad_id": read_pad_id(config, named)}
    if model_type == "olmo":
        config.only(clip_qkv=None)
        arguments |= {
            **read_rope(config),
            "rotary_dim": width,
            "norm_weights": False,
            "pad_id": read_pad_id(config, named, default=1),
        }
    else:
        arguments |= read_partial_rope(config, head_dim or width, default_part=_PARTS[model_type])
        arguments["rotary_dim"] = arguments["rotary_dim"] or head_dim or width
        arguments["layer_norm_epsilon"] = config.number(_EPSILONS[model_type], 1e-5)
    if model_type == "nemotron":
        config.only(hidden_act="relu2")
        return {
            **arguments,
            "activation": config.activation("hidden_act", "relu2"),
            "feed_forward_bias": config.flag("mlp_bias", False),
        }
    arguments |= {
        "activation": config.activation("hidden_act", "silu"),
        "gated": True,
        "feed_forward_bias": False,
    }
    if model_type == "stablelm":
        config.only(hidden_dropout=0.0)  # transformers has it after feed-forward networks alone
        is_parallel = config.flag("use_parallel_residual", False)
        arguments |= {
            "parallel": "one_residual" if is_parallel else False,
            "attention_bias": _QKV if config.flag("use_qkv_bias", False) else False,
            "head_norm": config.flag("qk_layernorm", False),
        }
    return arguments


def _neox_fields(model: models.Model, architecture: str, model_type: str) -> Fields:
    given = model.arguments
    has_bias, is_nemotron = given["attention_bias"], model_type == "nemotron"
    width = given["dim"] // given["num_heads"]
    bias = {} if is_nemotron else {"feed_forward_bias": False}
    own: Arguments = {
        "stablelm": {"gated": True, "head_norm": (True, False), "head_dim": (None, width)},
        "nemotron": {"head_dim": given["head_dim"]},
        "olmo": {"gated": True, "norm_weights": False, "head_dim": (None, width)},
    }[model_type]
    check_saved(
        model, model_type, dropout=0.0, embedding_dropout=(None, 0.0), output_bias=False,
        windows=None, **bias, **{**PLAIN, **own},
    )  # fmt: skip
    fields = {
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        **llama.shared_fields(model, architecture),
        "hidden_act": activation_name(given["activation"]),
    }
    del fields["rms_norm_eps"]
    if model_type != "stablelm":
        check_saved(model, model_type, parallel=False, attention_bias=(True, False))
    if model_type == "olmo":
        check_saved(model, model_type, layer_norm_epsilon=1e-5, rotary_dim=width)
        return {**fields, **rope_fields(model)}
    fields |= {
        **partial_rope_fields(model, (given["head_dim"] or width) // 4),
        _EPSILONS[model_type]: given["layer_norm_epsilon"],
    }
    if is_nemotron:
        return {**fields, "mlp_bias": given["feed_forward_bias"]}
    check_saved(model, model_type, parallel=(False, "one_residual"))
    if has_bias is not False and (has_bias is True or sorted(has_bias) != sorted(_QKV)):
        raise ValueError(
            f"{model.name}: attention_bias must be False or {_QKV} to be saved as stablelm, got "
            f"{has_bias}"
        )
    return {
        **fields,
        "use_qkv_bias": has_bias is not False,
        "qk_layernorm": given["head_norm"],
        "use_parallel_residual": bool(given["parallel"]),
    }


def _neox_family(model_type: str, name: str, classifies_tokens: bool) -> Family:
    return Family(
        model_type=model_type,
        builder=models.gpt_neox,
        table=_neox_table,
        arguments=partial(_neox_arguments, model_type=model_type),
        fields=partial(_neox_fields, model_type=model_type),
        architectures=architectures(
            name,
            classifies_tokens=classifies_tokens,
            answers=llama.OLD_PREFIX if model_type == "nemotron" else None,
        ),
        is_of=lambda model: type_of(model) == model_type,
        names=llama.NAMES,
    )


STABLELM = _neox_family("stablelm", "StableLm", True)
NEMOTRON = _neox_family("nemotron", "Nemotron", True)
OLMO = _neox_family("olmo", "Olmo", False)
